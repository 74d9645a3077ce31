"""What the checker must refuse (never run): each line with an `ignore` is an error, of exactly that kind.

The first directive makes an `ignore` that nothing needs an error itself. So a mistake that the types stop catching fails
the same run of pyright as everything else.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from agentflow import (
    Agent,
    CallEnded,
    Hook,
    HookEvent,
    HookResult,
    ModelOptions,
    Msg,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    ReasoningChunk,
    TextBlock,
    ToolUseBlock,
    on,
    tool,
)


class Writes(Hook):
    """Only writable fields can be assigned, and only with their type."""

    def on_event(self, event: HookEvent) -> HookResult:
        match event:
            case PreCall():
                event.history = ()  # pyright: ignore[reportAttributeAccessIssue]
                event.input_messages = "hi"  # pyright: ignore[reportAttributeAccessIssue]
            case PreReasoning():
                event.purpose = "summary"  # pyright: ignore[reportAttributeAccessIssue]
                event.model = None  # pyright: ignore[reportAttributeAccessIssue]
            case ReasoningChunk():
                event.restart = True  # pyright: ignore[reportAttributeAccessIssue]
                event.accumulated_message = Msg.assistant("x")  # pyright: ignore[reportAttributeAccessIssue]
            case PostReasoning():
                event.usage = event.usage  # pyright: ignore[reportAttributeAccessIssue]
            case PreActing():
                event.approval = None  # pyright: ignore[reportAttributeAccessIssue]
                event.tool_use.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
                event.tool_use.input["a"] = 1  # pyright: ignore[reportIndexIssue]
            case PostActing():
                event.original_tool_use = event.tool_use  # pyright: ignore[reportAttributeAccessIssue]
                event.tool_use = event.tool_use  # pyright: ignore[reportAttributeAccessIssue]
            case PostCall():
                event.outcome = "failed"  # pyright: ignore[reportAttributeAccessIssue]
            case CallEnded():
                event.error = None  # pyright: ignore[reportAttributeAccessIssue]
            case _:
                pass
        event.run_id = "mine"  # pyright: ignore[reportAttributeAccessIssue]
        event.seq = 0  # pyright: ignore[reportAttributeAccessIssue]
        event.decision = None  # pyright: ignore[reportAttributeAccessIssue]
        event.note = "mine"  # pyright: ignore[reportAttributeAccessIssue]
        return event


class Returns(Hook):
    """A hook returns the event, a verdict, None, or one of these later."""

    def on_event(self, event: HookEvent) -> HookResult:
        return True  # pyright: ignore[reportReturnType]


class Options(Hook):
    """A hook's options have their values."""

    priority = "high"  # pyright: ignore[reportAssignmentType]
    on_failure = "ignore"  # pyright: ignore[reportAssignmentType]


async def calls(agent: Agent) -> None:
    """An agent's calls take what they say."""
    agent.call(3)  # pyright: ignore[reportArgumentType]
    agent.call("hi", sesion="s")  # pyright: ignore[reportCallIssue]
    agent.call("hi", options={"temperature": 0})  # pyright: ignore[reportArgumentType]
    agent.on("after_tool", print)  # pyright: ignore[reportArgumentType]
    agent.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
    await agent.resume("s", {"t1": True})  # pyright: ignore[reportArgumentType]
    print((await agent.call("hi")).txt)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    Agent("a")  # pyright: ignore[reportCallIssue]


def values() -> None:
    """Messages, blocks and options are frozen."""
    Msg.user("hi").role = "system"  # pyright: ignore[reportAttributeAccessIssue]
    TextBlock("hi").text = "ho"  # pyright: ignore[reportAttributeAccessIssue]
    ToolUseBlock("t1", "add").id = "t2"  # pyright: ignore[reportAttributeAccessIssue]
    ModelOptions(temperatur=0.0)  # pyright: ignore[reportCallIssue]
    Msg("robot")  # pyright: ignore[reportArgumentType]


@on("after_tool")  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
def unknown_name(event: PostActing) -> None: ...


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def tools() -> None:
    """A tool is called like its function."""
    await add("1", 2)  # pyright: ignore[reportArgumentType]
    await add(1)  # pyright: ignore[reportCallIssue]
    print(add.deadline)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
