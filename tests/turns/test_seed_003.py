"""What the document of pygents' turns says (design decisions, hook table, roadmap), one test per sentence, in our words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from turnlog import Log, worker

from agentflow import (
    ActingChunk,
    Agent,
    AgentRegistry,
    Error,
    HookEvent,
    PostActing,
    PostPut,
    PostTurn,
    PreActing,
    PrePut,
    PreTurn,
    SafeExecutionError,
    StopReason,
    ToolContractError,
    ToolRegistry,
    Turn,
    TurnTimeoutError,
    TurnValue,
    UsageError,
    WrongRunMethodError,
    on,
    tool,
)
from agentflow.testing.scripted import ScriptedModel


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def count(n: int) -> AsyncIterator[int]:
    """Count."""
    for i in range(n):
        yield i


@tool
async def broken() -> str:
    """Fail."""
    raise LookupError("lost")


@tool(timeout=None)
async def forever() -> str:
    """Hang."""
    await asyncio.Event().wait()
    return ""


@tool(type="completion_check")
async def finished(yes: bool) -> bool:
    """Say whether it is done."""
    return yes


# ---- tools are always async


def test_a_plain_function_is_refused_when_it_is_decorated() -> None:
    """`@tool` takes coroutine functions and async generators only."""
    with pytest.raises(UsageError, match="plain def"):

        @tool
        def blocking() -> str:  # pyright: ignore
            return ""


async def test_single_values_are_returned_and_streams_are_yielded() -> None:
    """`returning()` awaits the one value, `yielding()` iterates the stream."""
    assert await Turn(add, {"a": 1, "b": 2}).returning() == 3
    assert [value async for value in Turn(count, {"n": 3}).yielding()] == [0, 1, 2]


@pytest.mark.parametrize(("turn", "method"), [(Turn(count, {"n": 1}), "returning"), (Turn(add, {}), "yielding")])
def test_the_wrong_run_method_is_an_error_before_anything_runs(turn: Turn[Any], method: str) -> None:
    """The turn is as if nobody had touched it."""
    with pytest.raises(WrongRunMethodError, match="nothing was run"):
        getattr(turn, method)()
    assert (turn.running, turn.start_time, turn.stop_reason) == (False, None, None)


# ---- reentrancy


async def test_a_turn_cannot_run_while_it_runs() -> None:
    """The second call raises, and the first one is none the worse for it."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await go.wait()
        return "first"

    turn = Turn(wait)
    first = asyncio.create_task(turn.returning())
    await begun.wait()
    with pytest.raises(SafeExecutionError, match="running"):
        await turn.returning()
    go.set()
    assert (await first, turn.stop_reason) == ("first", StopReason.COMPLETED)


@pytest.mark.parametrize("name", ["arguments", "timeout", "tags", "tool", "deps", "approval", "output", "stop_reason"])
async def test_what_a_turn_is_cannot_change_while_it_runs(name: str) -> None:
    """Only `metadata` can be assigned meanwhile."""
    caught: list[Exception] = []

    @tool
    async def meddle() -> None:
        try:
            setattr(turn, name, None)
        except SafeExecutionError as error:
            caught.append(error)
        turn.metadata = {"seen": True}

    turn = Turn(meddle)
    await turn.returning()
    assert len(caught) == 1
    assert name in str(caught[0])
    assert turn.metadata == {"seen": True}


async def test_a_finished_turn_may_run_again() -> None:
    """And may be changed before."""
    turn = Turn(add, {"a": 1, "b": 2})
    await turn.returning()
    turn.arguments = {"a": 5, "b": 5}
    assert await turn.returning() == 10


# ---- locks


async def test_locks_are_off_by_default() -> None:
    """Runs of a tool without a lock overlap."""
    inside, most = 0, 0

    @tool
    async def free() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    await asyncio.gather(*[Turn(free).returning() for _ in range(4)])
    assert (free.lock, most) == (None, 4)


async def test_a_lock_runs_a_tool_once_at_a_time() -> None:
    """`@tool(lock=True)` serialises it, whoever runs it."""
    inside, most = 0, 0

    @tool(lock=True)
    async def shared() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    await asyncio.gather(*[Turn(shared).returning() for _ in range(100)])
    assert most == 1


# ---- timeouts


def test_a_turn_has_sixty_seconds_by_default() -> None:
    """The tool's own limit, which is 60 s unless it says otherwise."""
    assert (Turn(add, {}).timeout, Turn(forever).timeout, Turn(add, {}, timeout=5).timeout) == (60, None, 5)


async def test_a_turn_that_passes_its_limit() -> None:
    """It raises, says so in `stop_reason`, and has an end."""
    turn = Turn(forever, timeout=0.01)
    with pytest.raises(TurnTimeoutError):
        await turn.returning()
    assert turn.stop_reason is StopReason.TIMEOUT
    assert turn.end_time is not None


async def test_the_limit_covers_the_whole_stream() -> None:
    """Not each step: the stream that goes on for too long is cut, and cleaned up."""
    closed: list[bool] = []

    @tool
    async def drip() -> AsyncIterator[int]:
        try:
            for i in range(1000):
                await asyncio.sleep(0.004)
                yield i
        finally:
            closed.append(True)

    turn = Turn(drip, timeout=0.02)
    with pytest.raises(TurnTimeoutError):
        async for _ in turn.yielding():
            pass
    assert (turn.stop_reason, closed) == (StopReason.TIMEOUT, [True])


# ---- the registry


def test_a_turn_is_bound_by_name_when_it_is_made(tools: ToolRegistry) -> None:
    """A name that nobody registered is an error then, and not when it runs."""
    tools.register(add)
    assert Turn("add", {"a": 1, "b": 2}, tools=tools).tool is add
    with pytest.raises(LookupError, match=r"'ad'.*Did you mean 'add'"):
        Turn("ad", {}, tools=tools)


def test_two_tools_of_one_name_are_refused(tools: ToolRegistry) -> None:
    """With a `ValueError` that names both places."""
    tools.register(add)

    @tool(name="add")
    async def other() -> str:
        return ""

    with pytest.raises(ValueError, match=r"test_seed_003\.py.*test_seed_003\.py"):
        tools.register(other)


# ---- agents stream by default


async def test_a_run_hands_out_each_value_with_its_turn() -> None:
    """Single values once, streams value by value."""
    agent = worker(add, count)
    one, two = Turn(add, {"a": 1, "b": 2}), Turn(count, {"n": 2})
    await agent.put(one)
    await agent.put(two)
    assert [(turn, value) async for turn, value in agent.run()] == [(one, 3), (two, 0), (two, 1)]


async def test_a_run_ends_with_a_completion_check_that_says_true() -> None:
    """What is behind it stays; a check that says False ends nothing."""
    agent = worker(add, finished)
    for turn in (Turn(finished, {"yes": False}), Turn(finished, {"yes": True}), Turn(add, {"a": 1, "b": 1})):
        await agent.put(turn)
    assert [value async for _, value in agent.run()] == [False, True]
    assert [value async for _, value in agent.run()] == [2]


# ---- the table of hooks

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
"""The fourteen hooks of the document, each with our event and scope; docs/turns.md shows the same table."""


async def seen_by(name: str, made: Any, arguments: dict[str, Any], **options: Any) -> list[HookEvent]:
    """What a hook at the scope of `name` sees of its event, in a run of one turn through an agent's queue."""
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
    """The hook gets the turn, which has not ended; the agent is on the event."""
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
    """The hook gets the turn and how it ended."""
    [event] = await seen_by(name, add, {"a": 1, "b": 2})
    assert isinstance(event, PostTurn)
    assert (event.turn.stop_reason, event.error) == ("completed", None)


@pytest.mark.parametrize("name", ["TurnHook.ON_VALUE", "AgentHook.ON_TURN_VALUE"])
async def test_table_each_value(name: str) -> None:
    """The hook gets the turn and each value, before whoever iterates the run."""
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
    """The hook tells it from other errors by its type."""
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
    fresh.on_chunk(lambda event: pieces.append(event.chunk))
    assert [value async for value in Turn(fresh, {"n": 2}).yielding()] == pieces == [0, 1]


async def test_a_hook_that_raises_propagates_and_leaves_nothing_running() -> None:
    """Whatever the event, the error comes out and the turn is over."""
    for kind in (PreTurn, PreActing, PostActing, PostTurn):

        @on(kind)
        def fail(event: Any) -> None:
            raise ZeroDivisionError

        turn = Turn(add, {"a": 1, "b": 2}, hooks=[fail])
        with pytest.raises(ZeroDivisionError):
            await turn.returning()
        assert (turn.running, turn.stop_reason) == (False, StopReason.ERROR), kind


# ---- the roadmap


async def test_agents_are_found_by_name_and_sent_turns(agents: AgentRegistry) -> None:
    """A turn that is sent runs in the other agent's queue, and says who sent it."""
    log = Log()
    agents.register(worker(add, hooks=[log], agents=agents))
    boss = Agent("boss", ScriptedModel([]), agents=agents)
    receipt = await boss.send("worker", Turn(add, {"a": 1, "b": 2}))
    assert await receipt == 3
    first = log.seen[0]
    assert isinstance(first, PrePut)
    assert (first.turn.sender, first.agent.name) == ("boss", "worker")


def test_tool_types_have_contracts() -> None:
    """A completion check that is not annotated to return a bool is refused when it is decorated."""
    with pytest.raises(ToolContractError, match="completion_check"):

        @tool(type="completion_check")
        async def vague() -> str:  # pyright: ignore
            return "yes"


async def test_turns_and_agents_are_saved_and_restored() -> None:
    """A queue that was saved runs on in an agent that was restored."""
    agent = worker(add, count, system="Work.")
    await agent.put(Turn(add, {"a": 1, "b": 2}))
    await agent.put(Turn(count, {"n": 2}))
    again = Agent.from_json(agent.to_json(), tools=[add, count], model=ScriptedModel([]))
    assert [(turn.tool.name, value) async for turn, value in again.run()] == [("add", 3), ("count", 0), ("count", 1)]


async def test_events_of_a_turn_nest_as_the_document_says(log: Log) -> None:
    """Put, before the turn, before the tool, its pieces and values, after the tool, after the turn."""
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
