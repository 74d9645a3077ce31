"""Logging each tool: a line when it starts, a line when it has finished."""

from __future__ import annotations

from agentflow import Agent, PostActing, PreActing, ToolUseBlock, after_each_tool, before_each_tool, tool
from agentflow.errors import ToolError
from agentflow.testing import ScriptedModel


@before_each_tool
def log_start(event: PreActing) -> None:
    print("starting:", event.tool_use.name, dict(event.tool_use.input))


@after_each_tool
def log_end(event: PostActing) -> None:
    print(
        "finished:", event.tool_use.name, event.tool_result.state, "in time" if event.duration_ms < 10_000 else "late"
    )


# ---- the offline run


@tool(type="read")
async def search(query: str) -> str:
    """Search."""
    return f"three pages about {query}"


@tool(type="read")
async def read_file(path: str) -> str:
    """Read a file."""
    raise ToolError(f"There is no file {path!r}.")


def main() -> None:
    calls = [
        [ToolUseBlock("t1", "search", {"query": "bees"})],
        [ToolUseBlock("t2", "read_file", {"path": "bees.txt"})],
    ]
    agent = Agent("logger", ScriptedModel([*calls, "Done."]), tools=[search, read_file], hooks=[log_start, log_end])
    print(agent.call("What about bees?").block())


if __name__ == "__main__":
    main()
