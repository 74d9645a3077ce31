"""The law of abandoned streams: at each event, by each means, on each event loop, an abandoned stream ends cleanly.

For each combination:

1. `CallEnded` fires once, as the last event; every Pre event has its Post event.
2. No task or stream of a model is left, the session is free, and nothing is reported to the loop.
3. The history is legal, and equals the fold of events and of facts; the next call works.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from laws_checks import check_brackets, check_ended, check_history
from laws_harness import Seen

from agentflow import Agent, Hook, ToolUseBlock, tool
from agentflow.loop.history import fold_events, fold_facts
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import HookEvent, PreCall
from agentflow.vocabulary.ports.memory_store import MemoryStore

Leave = Callable[[Agent[Any], Any, int], Awaitable[object]]


class Observed(Hook):
    """Records the events of the agent, without those of its sub-agents."""

    observer = True

    def __init__(self) -> None:
        self.fired: list[HookEvent] = []

    def on_event(self, event: Any) -> None:
        """Record the event."""
        self.fired.append(event)


@tool(type="read")
async def streams() -> AsyncIterator[str]:
    """Stream a result."""
    for part in ("x", "y"):
        await asyncio.sleep(0)
        yield part


@tool(type="read")
async def plain() -> str:
    """Return at once."""
    return "plain"


def program(observed: Observed) -> tuple[Agent[Any], list[ScriptedModel], MemoryStore]:
    """Return an agent of two rounds: parallel tools and a sub-agent, then text."""
    expert = ScriptedModel(lambda _: ["expert ", "text"])
    asked = [
        ToolUseBlock("t1", "streams", {}),
        ToolUseBlock("t2", "plain", {}),
        ToolUseBlock("t3", "ask", {"message": "?"}),
    ]
    model = ScriptedModel(lambda request: ["a ", "b"] if request.messages[-1].role == "tool" else ["hm ", *asked])
    store = MemoryStore()
    ask = Agent("expert", expert).as_tool("ask", description="Ask an expert.")
    return Agent("agent", model, tools=[streams, plain, ask], hooks=[observed], store=store), [model, expert], store


# ---- the means; each reads `at` events, leaves, and returns when the reader has continued


async def breaks(_: Agent[Any], stream: Any, at: int) -> None:
    """Drop the iterator without closing it."""
    count = 0
    async for _event in stream:
        count += 1
        if count > at:
            break


async def breaks_inside(_: Agent[Any], stream: Any, at: int) -> None:
    """Leave the block that closes it."""
    async with stream as events:
        await breaks(_, events, at)


async def closes(_: Agent[Any], stream: Any, at: int) -> None:
    """Close the iterator."""
    events = aiter(stream)
    for _n in range(at + 1):
        await anext(events)
    await events.aclose()


async def closes_elsewhere(_: Agent[Any], stream: Any, at: int) -> None:
    """Close it in another task while this one waits for an event."""
    events = aiter(stream)
    for _n in range(at + 1):
        await anext(events)
    closing = asyncio.ensure_future(events.aclose())
    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
        await anext(events)
    await closing


async def cancels(_: Agent[Any], stream: Any, at: int) -> None:
    """Cancel the reading task."""
    reached = asyncio.Event()

    async def read() -> None:
        count = 0
        async with stream as events:
            async for _event in events:
                count += 1
                if count > at:
                    reached.set()

    task = asyncio.ensure_future(read())
    await reached.wait()
    task.cancel()
    await asyncio.wait([task])


async def times_out(_: Agent[Any], stream: Any, at: int) -> None:
    """End the reader by a time limit of its own."""
    count = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None) as limit, stream as events:
            async for _event in events:
                count += 1
                if count > at:
                    limit.reschedule(asyncio.get_running_loop().time())


async def disposes(_: Agent[Any], stream: Any, at: int) -> None:
    """Dispose of a subscription, in its callback."""
    count = 0
    subscription: Any = None

    def on_next(_event: HookEvent) -> None:
        nonlocal count
        count += 1
        if count > at and subscription is not None:
            subscription.dispose()

    subscription = stream.subscribe(on_next)
    if count > at:  # an eager task pushes the first events before `subscribe` returns
        subscription.dispose()
    await subscription.closed()


async def interrupts(agent: Agent[Any], stream: Any, at: int) -> None:
    """Interrupt the call, and continue reading."""
    count = 0
    async with stream as events:
        async for _event in events:
            count += 1
            if count == at + 1:
                agent.interrupt()


MEANS: dict[str, Leave] = {
    "break": breaks,
    "break in a block": breaks_inside,
    "aclose": closes,
    "aclose elsewhere": closes_elsewhere,
    "cancel": cancels,
    "timeout": times_out,
    "dispose": disposes,
    "interrupt": interrupts,
}


# ---- the loops


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    """Return an event loop of this kind."""
    if kind == "uvloop":
        import uvloop

        return uvloop.new_event_loop()
    loop = asyncio.new_event_loop()
    if kind == "eager tasks":
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - 3.11 does not have it
    return loop


LOOPS = [
    "asyncio",
    pytest.param("uvloop", marks=pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="needs uvloop")),
    pytest.param(
        "eager tasks", marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
    ),
]


async def check_left(leave: Leave, at: int, buffer: int) -> None:
    """Abandon one stream, and check the law."""
    observed = Observed()
    agent, models, store = program(observed)
    await leave(agent, agent.stream("go", buffer=buffer), at)
    following = await agent.call("and now?")  # waits for the cleanup of a stream that was dropped
    assert following.outcome == "completed"
    seen, next_seen = Seen(), Seen()
    second = max(n for n, event in enumerate(observed.fired) if isinstance(event, PreCall))
    seen.observed, next_seen.observed = observed.fired[:second], observed.fired[second:]
    for one in (seen, next_seen):
        check_ended(one)
        check_brackets(one)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, f"tasks are left: {others}"
    assert [model.open_streams for model in models] == [0, 0]
    assert not agent.session().busy
    messages = tuple(agent.session().messages)
    check_history(messages)
    assert fold_facts(MemoryStore.load(store, "agent")) == messages
    events = fold_events(observed.fired)
    assert [(m.role, m.content) for m in events] == [(m.role, m.content) for m in messages]


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("buffer", [0, 8])
@pytest.mark.parametrize("means", MEANS)
def test_a_stream_that_is_left_ends_cleanly(means: str, buffer: int, kind: str) -> None:
    """The law holds at every event."""
    loop = new_loop(kind)
    reported: list[Any] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    try:

        async def read_all() -> int:
            agent, _, _ = program(Observed())
            return len([event async for event in agent.stream("go", buffer=buffer)])

        whole = loop.run_until_complete(read_all())
        for at in range(whole):
            try:
                loop.run_until_complete(check_left(MEANS[means], at, buffer))
            except Exception as error:
                error.add_note(f"left at event {at} of {whole}")
                raise
        assert reported == []
    finally:
        loop.close()
