"""The events of a turn: which hook of which scope gets which, in which order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from turnlog import Log, add, broken, count, worker

from agentflow import ActingChunk, Error, HookEvent, PostActing, PreActing, Turn, on, tool
from agentflow.errors import TurnTimeoutError
from agentflow.vocabulary.events import PostPut, PostTurn, PrePut, PreTurn, TurnValue


@tool(timeout=None)
async def forever() -> str:
    """Hang."""
    await asyncio.Event().wait()
    return ""


TOLD = {
    "TurnHook.BEFORE_RUN": (PreTurn, "turn"),
    "TurnHook.AFTER_RUN": (PostTurn, "turn"),
    "TurnHook.ON_TIMEOUT": (Error, "turn"),
    "TurnHook.ON_ERROR": (Error, "turn"),
    "TurnHook.ON_VALUE": (TurnValue, "turn"),
    "AgentHook.BEFORE_TURN": (PreTurn, "agent"),
    "AgentHook.AFTER_TURN": (PostTurn, "agent"),
    "AgentHook.ON_TURN_VALUE": (TurnValue, "agent"),
    "AgentHook.ON_TURN_ERROR": (Error, "agent"),
    "AgentHook.ON_TURN_TIMEOUT": (Error, "agent"),
    "AgentHook.BEFORE_PUT": (PrePut, "agent"),
    "AgentHook.AFTER_PUT": (PostPut, "agent"),
    "ToolHook.BEFORE_INVOKE": (PreActing, "tool"),
    "ToolHook.AFTER_INVOKE": (PostActing, "tool"),
}
"""The fourteen hooks that pygents has, each with our event and scope; docs/coming-from/pygents.md shows the same table."""


async def seen_by(name: str, made: Any, arguments: dict[str, Any], **options: Any) -> list[HookEvent]:
    """Return what a hook at the scope of `name` gets of its event, in a run of one turn through an agent's queue."""
    kind, scope = TOLD[name]
    seen: list[HookEvent] = []

    @on(kind)
    def hook(event: Any) -> None:
        seen.append(event)

    fresh = tool(made.function, name=made.name, timeout=made.timeout)
    turn = Turn(fresh, arguments, hooks=[hook] if scope == "turn" else [], **options)
    agent = worker(fresh, hooks=[hook] if scope == "agent" else [])
    if scope == "tool":
        fresh.hook(hook)
    await agent.put(turn)
    try:
        async for _ in agent.run():
            pass
    except (LookupError, TurnTimeoutError):
        pass
    return seen


@pytest.mark.parametrize(
    "name", ["TurnHook.BEFORE_RUN", "AgentHook.BEFORE_TURN", "AgentHook.BEFORE_PUT", "AgentHook.AFTER_PUT"]
)
async def test_table_before_a_turn(name: str) -> None:
    """The hook gets the turn, which has not ended; the event has the agent."""
    [event] = await seen_by(name, add, {"a": 1, "b": 2})
    assert isinstance(event, PreTurn | PrePut | PostPut)
    assert (event.turn.tool_use.name, dict(event.turn.tool_use.input), event.turn.stop_reason) == (
        "add",
        {"a": 1, "b": 2},
        None,
    )
    assert event.agent.name == "worker"


@pytest.mark.parametrize("name", ["TurnHook.AFTER_RUN", "AgentHook.AFTER_TURN"])
async def test_table_after_a_turn(name: str) -> None:
    """The hook gets the turn and its outcome."""
    [event] = await seen_by(name, add, {"a": 1, "b": 2})
    assert isinstance(event, PostTurn)
    assert (event.turn.stop_reason, event.error) == ("completed", None)


@pytest.mark.parametrize("name", ["TurnHook.ON_VALUE", "AgentHook.ON_TURN_VALUE"])
async def test_table_each_value(name: str) -> None:
    """The hook gets the turn and each value, before the reader of the run."""
    events = await seen_by(name, count, {"n": 2})
    assert [(event.turn.tool_use.name, event.value) for event in events if isinstance(event, TurnValue)] == [
        ("count", 0),
        ("count", 1),
    ]


@pytest.mark.parametrize("name", ["TurnHook.ON_ERROR", "AgentHook.ON_TURN_ERROR"])
async def test_table_an_error(name: str) -> None:
    """The hook gets the call and the exception itself."""
    [event] = await seen_by(name, broken, {})
    assert isinstance(event, Error)
    assert event.tool_use is not None
    assert (event.tool_use.name, type(event.error), str(event.error)) == ("broken", LookupError, "lost")


@pytest.mark.parametrize("name", ["TurnHook.ON_TIMEOUT", "AgentHook.ON_TURN_TIMEOUT"])
async def test_table_a_timeout(name: str) -> None:
    """The hook recognises it by its type."""
    [event] = await seen_by(name, forever, {}, timeout=0.01)
    assert isinstance(event, Error)
    assert event.tool_use is not None
    assert (event.tool_use.name, type(event.error)) == ("forever", TurnTimeoutError)


async def test_table_before_the_tool_is_invoked() -> None:
    """The hook gets the arguments, and may change them."""
    [event] = await seen_by("ToolHook.BEFORE_INVOKE", add, {"a": 1, "b": 2})
    assert isinstance(event, PreActing)
    assert dict(event.tool_use.input) == {"a": 1, "b": 2}


async def test_table_after_the_tool_was_invoked() -> None:
    """The hook gets the value: once for a single one; of a stream each value is an `ActingChunk`."""
    [event] = await seen_by("ToolHook.AFTER_INVOKE", add, {"a": 1, "b": 2})
    assert isinstance(event, PostActing)
    assert (event.tool_use.name, event.tool_result.text) == ("add", "3")
    pieces: list[Any] = []
    fresh = tool(count.function)
    fresh.on(ActingChunk, lambda event: pieces.append(event.chunk))
    assert [value async for value in Turn(fresh, {"n": 2}).yielding()] == pieces == [0, 1]


async def test_the_order_of_the_events_of_a_turn(log: Log) -> None:
    """Put, before the turn, before the tool, its chunks and values, after the tool, after the turn."""
    agent = worker(count, hooks=[log])
    await agent.put(Turn(count, {"n": 2}))
    async for _ in agent.run():
        pass
    assert log.names == [
        *("PrePut", "PostPut", "PreTurn", "PreActing"),
        *("ActingChunk", "TurnValue", "ActingChunk", "TurnValue"),
        *("PostActing", "PostTurn"),
    ]
    assert isinstance(log.seen[4], ActingChunk)


async def test_a_hook_that_raises_propagates_and_leaves_nothing_running() -> None:
    """Whatever the event, the error is raised and the turn has ended."""
    for kind in (PreTurn, PreActing, PostActing, PostTurn):

        @on(kind)
        def fail(event: Any) -> None:
            raise ZeroDivisionError

        turn = Turn(add, {"a": 1, "b": 2}, hooks=[fail])
        with pytest.raises(ZeroDivisionError):
            await turn.returning()
        assert (turn.running, turn.stop_reason) == (False, "failed"), kind
