"""The same agent, hooks and tools over both wires, called and streamed: one event log, one history."""

import asyncio
from typing import Any

import pytest
from eventlog import Recorder
from wired import WIRES, Wired, normal, normal_history, tokens

from agentflow import Agent, Deny, Hook, ModelOptions, fold_events, tool
from agentflow.events import PostActing, PostToolRound, PreActing
from agentflow.messages import ToolResultBlock
from agentflow.testing.wire import Reply, ToolCall, WireUsage

SCRIPT = [
    Reply(
        "Let me look around.",
        thinking="Two rooms, then a note.",
        calls=(
            ToolCall("look", {"at": "attic"}, "t1"),
            ToolCall("look", {"at": "cellar"}, "t2"),
            ToolCall("note", {"text": "rooms seen"}, "t3"),
        ),
        usage=WireUsage(input=100, output=20),
    ),
    Reply(
        thinking="Now something foolish.",
        calls=(
            ToolCall("delete", {"path": "/"}, "t4"),
            ToolCall("fly", {"to": "moon"}, "t5"),
            ToolCall("look", {"at": [1]}, "t6"),
            ToolCall("look", '{"at": "att', "t7"),
        ),
        usage=WireUsage(input=150, output=30),
        chunk=3,
    ),
    Reply("Nothing in the cellar.", thinking="That will do.", usage=WireUsage(input=200, output=10)),
]


class Guard(Hook):
    guard = True

    def on_event(self, event: Any) -> Any:
        return Deny("not here") if isinstance(event, PreActing) and event.tool_use.name == "delete" else event


class Edits(Hook):
    def on_event(self, event: Any) -> Any:
        match event:
            case PostActing() if "gold" in event.tool_result.text:
                event.tool_result = ToolResultBlock(event.tool_use.id, event.tool_use.name, "saw dust in cellar")
            case PostToolRound(iteration=1):
                event.context.inject("Mind the time.")
            case _:
                pass
        return event


def tools() -> list[Any]:
    cellar_seen = asyncio.Event()

    @tool(type="read")
    async def look(at: str) -> str:
        """Look at a room."""
        if at == "attic":
            await cellar_seen.wait()
        else:
            cellar_seen.set()
        return f"saw gold in {at}" if at == "cellar" else f"saw {at}"

    @tool
    async def note(text: str) -> Any:
        """Write a note."""
        yield "writing "
        yield text

    @tool
    async def delete(path: str) -> str:
        """Delete."""
        return f"deleted {path}"

    return [look, note, delete]


LOG = [
    "PreCall user: Look around.",
    "PreReasoning 1 reason",
    'ReasoningChunk <Two rooms, then a note.> assistant: Let me look around. '
    "[t1:look(at='attic')] [t2:look(at='cellar')] [t3:note(text='rooms seen')] (tool_calls)",
]


async def run(wire: str, how: str) -> dict[str, Any]:
    """One run of the program, as everything that is compared."""
    wired, recorder = Wired(wire), Recorder()
    async with wired.serve(SCRIPT) as server:
        agent = Agent(
            "a",
            wired.model(server),
            system="You look around.",
            tools=tools(),
            hooks=[Guard(), Edits(), recorder],
            options=ModelOptions(thinking=True),
        )
        events: list[Any] = recorder.seen
        if how == "stream":
            async with agent.stream("Look around.") as stream:
                events = [event async for event in stream]
            assert normal(events) == normal(recorder.seen)
        else:
            await agent.call("Look around.")
    messages = agent.session().messages
    assert fold_events(recorder.seen) == messages
    assert [request.system for request in server.requests] == ["You look around."] * 3
    return {
        "log": normal(events),
        "history": normal_history(messages),
        "tokens": tokens(events),
        "results": [[(r.id, r.text) for r in request.results] for request in server.requests],
        "said": [request.user_text for request in server.requests],
    }


@pytest.mark.parametrize("how", ["call", "stream"])
@pytest.mark.parametrize("wire", WIRES)
async def test_one_program_over_both_wires(wire: str, how: str) -> None:
    """Thinking, parallel reads, a write, a veto, a rewrite, an unknown tool, bad arguments and an injection: the log, the
    history and what the server was told are the same on both wires, called and streamed."""
    assert await run(wire, how) == {}
