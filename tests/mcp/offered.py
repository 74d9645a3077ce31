"""An agent that tests offer as an MCP server."""

from __future__ import annotations

import asyncio

from agentflow import Agent, DataBlock, Deny, PreActing, ToolEmitter, ToolUseBlock, on, tool
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest

log: list[str] = []


@tool(type="read")
async def look(at: str) -> str:
    """Look at something.

    Args:
        at: What.
    """
    log.append(f"look {at}")
    return f"saw {at}"


@tool
async def wait() -> str:
    """Wait for ever."""
    log.append("waiting")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        log.append("cancelled")
        raise
    return "never"


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    log.append(f"paid {euros}")
    return f"paid {euros}"


@tool(type="read")
async def picture() -> DataBlock:
    """Show a picture."""
    return DataBlock("image/png", data="iVBORw==")


@tool
async def steps(emitter: ToolEmitter) -> str:
    """Work in steps."""
    for step in ("one", "two"):
        await emitter.emit(step)
    return "done"


@tool
async def broken() -> str:
    """Fail."""
    raise ConnectionError("postgresql://ann:secret@db is away")


@on(PreActing, guard=True)
def no_sun(event: PreActing) -> Deny | None:
    return Deny("too bright") if event.tool_use.input.get("at") == "sun" else None


def brain(request: ModelRequest) -> object:
    """Repeats its input, or acts on it: `tool: argument`."""
    last = request.messages[-1]
    if last.role == "tool":
        return last.text
    name, colon, argument = last.text.partition(": ")
    if name == "fail":
        raise ConnectionError("the model is away")
    if name == "history":
        return " | ".join(message.text for message in request.messages)
    if not colon:
        return f"You said {last.text!r}."
    key = {"look": "at", "pay": "euros"}.get(name)
    return ToolUseBlock("t1", name, {} if key is None else {key: int(argument) if argument.isdigit() else argument})


agent = Agent(
    "scout",
    ScriptedModel(brain),
    description="Looks at things.",
    tools=[look, wait, pay, picture, steps, broken],
    hooks=[no_sun],
)
