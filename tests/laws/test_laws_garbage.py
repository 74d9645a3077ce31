"""Law L10: a call leaves no cyclic garbage. `gc.collect()` finds nothing, however the call ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from garbage import garbage_of

from agentflow import (
    Agent,
    Approve,
    Hook,
    HookEvent,
    PostCall,
    PreActing,
    PreReasoning,
    RunContext,
    Session,
    ToolEmitter,
    ToolUseBlock,
    Turn,
    on,
    tool,
)
from agentflow.agent import AgentRegistry
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest

Kind = Callable[..., Awaitable[object]]


def use(id: str, name: str, **arguments: Any) -> ToolUseBlock:  # noqa: A002
    """Return a tool call of a script."""
    return ToolUseBlock(id, name, arguments)


@tool(type="read")
async def add(a: int = 1) -> int:
    """Add."""
    return a + 1


@tool(type="read")
async def count(context: RunContext) -> Any:
    """Count."""
    yield len(context.trace.turns)
    yield 2


@tool
async def emits(emitter: ToolEmitter) -> str:
    """Emit a chunk."""
    await emitter.emit("piece")
    return "emitted"


@tool
async def fails() -> str:
    """Fail."""
    raise ValueError("broken")


@tool
async def hangs(context: RunContext) -> None:
    """Hang, after signalling it."""
    context.deps(asyncio.Event).set()
    await asyncio.Event().wait()


@tool(requires_approval=True)
async def asks() -> str:
    """Ask for a decision."""
    return "done"


ROUND = [
    use("1", "add", a=1),
    use("2", "add", a=2),
    use("3", "count"),
    use("4", "fails"),
    use("5", "emits"),
    use("6", "none"),
]


class Down:
    """A model that fails."""

    name = "down"

    async def stream(self, request: ModelRequest) -> Any:
        raise ConnectionError("no route")
        yield


class Edits(Hook):
    """Handles every event asynchronously."""

    async def on_event(self, event: HookEvent) -> None:
        assert event.context.trace.turns is not None


class Watches(Hook):
    """Handles every event."""

    observer = True

    def on_event(self, event: HookEvent) -> None: ...


class Wraps(Hook):
    """Wraps every stage."""

    def around(self, event: HookEvent, source: Any) -> Any:
        return source.tap(lambda _: None)


def agent(*script: Any, **options: Any) -> Agent:
    return Agent("a", ScriptedModel(list(script)), tools=[add, count, emits, fails, hangs, asks], **options)


_PAIRS: dict[int, tuple[Agent, Agent]] = {}


def pair(*, hooks: list[Hook]) -> tuple[Agent, Agent]:
    """Return two lasting agents (an agent and its queue refer to each other)."""
    if id(hooks) not in _PAIRS:
        agents, tools = AgentRegistry(), [add, count, fails]
        one, other = (
            Agent(name, ScriptedModel(["hi"] * 3), tools=tools, hooks=hooks, agents=agents) for name in ("one", "other")
        )
        agents.register(other)
        _PAIRS[id(hooks)] = (one, other)
    return _PAIRS[id(hooks)]


async def cut(
    make: Callable[[asyncio.Event], Any], how: Callable[[asyncio.Task[Any]], object] = asyncio.Task.cancel
) -> None:
    """Start a call that hangs in a tool, and end it then."""
    inside = asyncio.Event()
    task = asyncio.create_task(make(inside))
    await inside.wait()
    how(task)
    with contextlib.suppress(asyncio.CancelledError):
        await task


class FallsBack(Hook):
    """Falls back to another model."""

    def around(self, event: HookEvent, source: Any) -> Any:
        if isinstance(event, PreReasoning):
            return source.catch(lambda _error, _source: source.using(model=ScriptedModel(["hi"])))
        return source


async def asks_on_the_side(event: PostCall) -> None:
    """Make a side call."""
    await event.context.complete("and?")


INNER = Agent("inner", ScriptedModel(["in"] * 20)).as_tool()

# ---- the ways


async def a_call(**options: Any) -> None:
    await agent("hi", **options).call("go", session=Session.fresh())


async def a_call_with_tools(**options: Any) -> None:
    await agent(ROUND, use("7", "add"), "hi", **options).call("go", session=Session.fresh())


async def a_stream_read_to_its_end(**options: Any) -> None:
    async for _ in agent(ROUND, use("7", "add"), "hi", **options).stream("go", session=Session.fresh()):
        pass


async def a_stream_left_early(**options: Any) -> None:
    async with agent(ROUND, "hi", **options).stream("go", session=Session.fresh()) as events:
        async for event in events:
            if isinstance(event, PreActing):
                break


async def a_stream_through_operators(**options: Any) -> None:
    await agent(ROUND, "hi", **options).stream("go", session=Session.fresh()).filter(bool).map(str).to_list()
    await agent(ROUND, "hi", **options).stream("go", session=Session.fresh()).first()


async def a_stream_disposed(**options: Any) -> None:
    inside = asyncio.Event()
    stream = agent(use("1", "hangs"), **options).stream("go", session=Session.fresh(), deps=inside)
    subscription = stream.subscribe(lambda _: None)
    await inside.wait()
    subscription.dispose()
    await subscription.closed()


async def a_cancelled_call(**options: Any) -> None:
    await cut(lambda deps: agent(use("1", "hangs"), **options).call("go", session=Session.fresh(), deps=deps))


async def a_cancelled_round(**options: Any) -> None:
    calls = [use("1", "add"), use("2", "add"), use("3", "hangs")]
    await cut(lambda deps: agent(calls, **options).call("go", session=Session.fresh(), deps=deps))


async def a_cancelled_stream(**options: Any) -> None:
    await cut(
        lambda deps: agent(use("1", "hangs"), **options).stream("go", session=Session.fresh(), deps=deps).to_list()
    )


async def an_interrupted_call(**options: Any) -> None:
    made = agent(use("1", "hangs"), **options)
    await cut(lambda deps: made.call("go", deps=deps), lambda _: made.interrupt())


async def a_call_past_its_time(**options: Any) -> None:
    with pytest.raises(TimeoutError):
        await agent(use("1", "hangs"), **options).call(
            "go", session=Session.fresh(), timeout=0.01, deps=asyncio.Event()
        )


async def a_failed_call(**options: Any) -> None:
    with contextlib.suppress(ConnectionError):
        await Agent("a", Down(), **options).call("go", session=Session.fresh())


async def a_suspended_call(**options: Any) -> None:
    made = agent(use("1", "asks"), "hi", **options)
    await made.call("go", session="s")
    await made.resume("s", {"1": Approve()})


async def a_turn(**options: Any) -> None:
    await Turn(add, {"a": 1}, **options).returning()


async def a_turn_read_to_its_end(**options: Any) -> None:
    async for _ in Turn(count, **options).yielding():
        pass


async def a_turn_left_early(**options: Any) -> None:
    async with Turn(count, **options).yielding() as values:
        async for _ in values:
            break


async def a_failed_turn(**options: Any) -> None:
    with contextlib.suppress(ValueError):
        await Turn(fails, **options).returning()


async def a_cancelled_turn(**options: Any) -> None:
    await cut(lambda deps: Turn(hangs, deps=deps, **options).returning())


async def a_queue_worked_off(**options: Any) -> None:
    made, _ = pair(**options)
    for turn in (Turn(add, {"a": 1}), Turn(count)):
        await made.put(turn)
    async for _ in made.run():
        pass


async def a_queue_left_early(**options: Any) -> None:
    made, _ = pair(**options)
    for turn in (Turn(add, {"a": 1}), Turn(count)):
        await made.put(turn)
    for most in (1, 2):
        async with made.run() as values:
            for _ in range(most):
                await anext(values)


async def a_failed_turn_of_a_queue(**options: Any) -> None:
    made, _ = pair(**options)
    await made.put(Turn(fails))
    with contextlib.suppress(ValueError):
        async for _ in made.run():
            pass


async def a_turn_that_was_taken_back(**options: Any) -> None:
    made, _ = pair(**options)
    receipt = await made.put(Turn(count))
    async for _ in made.run():
        receipt.cancel()


async def a_sent_turn(**options: Any) -> None:
    made, _ = pair(**options)
    await (await made.send("other", Turn(add, {"a": 1})))


async def a_question(**options: Any) -> None:
    made, _ = pair(**options)
    await made.ask("other", "go")


async def a_call_of_a_sub_agent(**options: Any) -> None:
    outer = Agent("outer", ScriptedModel([use("1", "inner", message="go"), "hi"]), tools=[INNER], **options)
    async for _ in outer.stream("go", children=True):
        pass


async def a_side_call(**options: Any) -> None:
    hooks = [*options["hooks"], on(PostCall)(asks_on_the_side)]
    await agent("hi", "side", hooks=hooks).call("go")


async def a_retried_model_call(**options: Any) -> None:
    await Agent("a", Down(), hooks=[*options["hooks"], FallsBack()]).call("go", session=Session.fresh())


WAYS: list[Kind] = [
    a_call,
    a_call_with_tools,
    a_stream_read_to_its_end,
    a_stream_left_early,
    a_stream_through_operators,
    a_stream_disposed,
    a_cancelled_call,
    a_cancelled_round,
    a_cancelled_stream,
    an_interrupted_call,
    a_call_past_its_time,
    a_failed_call,
    a_suspended_call,
    a_turn,
    a_turn_read_to_its_end,
    a_turn_left_early,
    a_failed_turn,
    a_cancelled_turn,
    a_queue_worked_off,
    a_queue_left_early,
    a_failed_turn_of_a_queue,
    a_turn_that_was_taken_back,
    a_sent_turn,
    a_question,
    a_call_of_a_sub_agent,
    a_side_call,
    a_retried_model_call,
]


def left_by(way: Kind, **options: Any) -> list[str]:
    """Return what the collector finds after the third run of a function; the first run builds lasting objects."""

    async def main() -> list[str]:
        await way(**options)
        return await garbage_of(lambda: way(**options))

    return asyncio.run(main())


@pytest.mark.parametrize("hooks", [(), (Edits, Watches), (Wraps,)], ids=["bare", "heard", "wrapped"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_nothing_waits_for_the_collector(way: Kind, hooks: tuple[type[Hook], ...]) -> None:
    """No event, frame, context, run, port or task waits for the collector."""
    assert left_by(way, hooks=[made() for made in hooks]) == []


def test_the_measure_sees_a_cycle() -> None:
    """A cycle of two objects is found, so the test above can fail."""

    async def ring() -> None:
        first: list[Any] = []
        first.append([first])

    assert len(left_by(ring)) == 2
