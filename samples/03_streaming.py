"""Streaming: the events of a call as they happen, sealed, in the order hooks see them.

`stream` is a Flux: iterate over it, or use it with `async with`, which waits for all cleanup however the block ends. A run
is at most eight events ahead of its reader, so a slow reader slows the model down; with `buffer=0` they alternate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from agentflow import (
    ActingChunk,
    Agent,
    CallEnded,
    PostActing,
    PreActing,
    PreReasoning,
    ReasoningChunk,
    ToolUseBlock,
    tool,
)
from agentflow.testing import ScriptedModel


# A tool that is an async generator yields chunks; each is an ActingChunk. Its output is all chunks joined.
@tool
async def download(name: str) -> AsyncIterator[str]:
    """Download a file."""
    for part in (1, 2, 3):
        yield f"[{name} part {part}]"


def make_agent() -> Agent:
    script = [
        ["I will ", "fetch it.", ToolUseBlock("t1", "download", {"name": "map.png"})],
        ["Here ", "it ", "is."],
    ]
    return Agent("courier", ScriptedModel(script), tools=[download])


async def watch() -> None:
    agent = make_agent()
    async with agent.stream("Get me the map") as events:
        async for event in events:
            match event:
                case PreReasoning(iteration=number):
                    print(f"-- round {number}")
                case ReasoningChunk(incremental_chunk=chunk) if chunk.text:
                    print(f"words:    {chunk.text!r:14} so far {event.accumulated_message.text!r}")
                case PreActing(tool_use=use):
                    print(f"tool:     {use.name}({dict(use.input)})")
                case ActingChunk(chunk=piece):
                    print(f"progress: {piece}")
                case PostActing(tool_result=result):
                    print(f"result:   {result.state}: {result.text}")
                case CallEnded(outcome=outcome, usage=usage):
                    print(f"-- {outcome}, {usage.model_calls} model calls")
                case _:
                    pass


async def stop_early() -> None:
    """Leave the block, and the run ends: active work is cancelled, and the conversation stays legal."""
    agent = make_agent()
    async with agent.stream("Get me the map", buffer=0) as events:
        async for event in events:
            if isinstance(event, ActingChunk):
                break
    print("stopped; the conversation holds", [msg.role for msg in agent.session().messages])


def main() -> None:
    asyncio.run(watch())
    asyncio.run(stop_early())


if __name__ == "__main__":
    main()
