"""What the reader of a stream gets: each text once, events that fold to the history, and a clean end when it leaves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from eventlog import Recorder, history, use
from toolbox import ONE, agent_of, look, looks

from agentflow import Again, Agent, Flux, Hook, ModelChunk, ReasoningChunk, Session, Stop, Suspend, tool
from agentflow.loop.history import fold_events
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    Error,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
)
from agentflow.vocabulary.transcript import Transcript


async def test_a_reader_prints_each_word_once() -> None:
    """Printing every chunk of a run with two rounds prints each word once; no event repeats them as chunks."""
    script = [[ModelChunk("Let me "), ModelChunk("see. "), *ONE], ["It is ", "3."]]
    printed: list[str] = []
    wholes: list[str] = []
    async for event in agent_of(script).stream("go"):
        if isinstance(event, ReasoningChunk):
            printed.append(event.incremental_chunk.text)
            wholes.append(event.accumulated_message.text)
    assert "".join(printed) == "Let me see. It is 3."
    assert [whole for whole in wholes if whole][-1] == "It is 3."
    assert wholes[1] == "Let me see. "


class Chaos(Hook):
    """Returns legal verdicts and injects messages, at random."""

    def __init__(self, dice: random.Random, verdicts: float, injects: float) -> None:
        self.dice, self.verdicts, self.injects = dice, verdicts, injects

    def on_event(self, event: Any) -> Any:
        legal = [kind for kind in type(event).verdicts if kind is not Suspend]
        if isinstance(event, CallEnded | Error | PostCall):
            return event
        if self.dice.random() < self.injects:
            event.context.inject(f"note {self.dice.randrange(100)}")
        if not legal or self.dice.random() > self.verdicts:
            return event
        kind = self.dice.choice(legal)
        return event if kind is Again and event.purpose == "summary" else kind("said by chaos")


async def test_cleanup_has_run_when_aclose_returns() -> None:
    """When `async with` is left during a tool, its finally blocks and those around it have run."""
    cleaned: list[str] = []

    @tool
    async def pieces() -> Any:
        """Stream chunks forever."""
        try:
            while True:
                yield "piece"
        finally:
            await asyncio.sleep(0)
            cleaned.append("tool")

    class Wraps(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return source.finally_action(lambda: cleaned.append("around")) if isinstance(event, PreActing) else source

    agent = Agent("a", ScriptedModel([[use("t1", "pieces")]]), tools=[pieces], hooks=[Wraps()])
    async with agent.stream("go") as events:
        async for event in events:
            if isinstance(event, ActingChunk):
                break
    assert cleaned == ["tool", "around"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not agent.session().busy


@asynccontextmanager
async def beating() -> AsyncIterator[None]:
    """A concurrent task, ended as tasks are: cancelled, and awaited."""
    beat = asyncio.ensure_future(asyncio.Event().wait())
    try:
        yield
    finally:
        beat.cancel()
        with suppress(asyncio.CancelledError):
            await beat


@pytest.mark.parametrize("place", ["model", "layer", "tool"])
async def test_a_reader_that_leaves_is_not_cancelled_by_what_is_cleaned_up(place: str) -> None:
    """The cancellation of a task that a cleanup awaits does not cancel the reader."""

    class Beats:
        name = "beats"

        async def stream(self, request: Any) -> Any:
            async with beating():
                yield ModelChunk("one")

    async def layered(source: Any) -> Any:
        async with beating():
            async for chunk in source:
                yield chunk

    class Mine(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return Flux(lambda: layered(source)) if place == "layer" and isinstance(event, PreReasoning) else source

    @tool
    async def beats() -> Any:
        """Streams."""
        async with beating():
            yield "piece"
            await asyncio.Event().wait()

    model: Any = ScriptedModel([[use("t1", "beats")]]) if place == "tool" else Beats()
    agent = Agent("a", model, tools=[beats], hooks=[Mine()])
    async with asyncio.timeout(5), agent.stream("go") as events:
        async for event in events:
            if isinstance(event, ActingChunk if place == "tool" else ReasoningChunk):
                break
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("begun", [True, False], ids=["reading", "waiting for the session"])
async def test_a_reader_whose_stream_another_task_closes_is_not_cancelled(begun: bool) -> None:
    """Its loop ends as at the end of the run, and its own awaits go on."""
    reached = asyncio.Event()

    class Hangs:
        name = "hangs"

        async def stream(self, request: Any) -> Any:
            yield ModelChunk("one")
            reached.set()
            await asyncio.Event().wait()

    agent = Agent("a", Hangs())
    earlier, stream = (aiter(agent.stream("go", session="s")) for _ in range(2))
    if not begun:
        await anext(earlier)

    async def read() -> str:
        async for _ in stream:
            pass
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return f"cancelled {task.cancelling()} times"

    reader = asyncio.create_task(read())
    await (reached.wait() if begun else asyncio.sleep(0))
    await stream.aclose()
    assert await reader == "cancelled 0 times"
    await earlier.aclose()
    assert not agent.session("s").busy


@pytest.mark.parametrize("gone", [False, True], ids=["both stay", "the first is cancelled"])
async def test_two_that_close_a_stream_at_once_both_return_when_it_is_over(gone: bool) -> None:
    """Another task closes while the first one still waits for the cleanup of a read; either may be cancelled."""
    reading, cleaned, let_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow:
        name = "slow"

        async def stream(self, request: Any) -> Any:
            yield ModelChunk("one")
            reading.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.set()
                await let_go.wait()

    stream = aiter(Agent("a", Slow()).stream("go"))

    async def read() -> None:
        async for _ in stream:
            pass

    reader = asyncio.create_task(read())
    await reading.wait()
    first = asyncio.create_task(stream.aclose())
    await cleaned.wait()
    second = asyncio.create_task(stream.aclose())
    await asyncio.sleep(0)
    if gone:
        first.cancel()
    let_go.set()
    async with asyncio.timeout(5):
        ends = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError if gone else type(None), type(None)]
    await asyncio.wait([reader])


@pytest.mark.parametrize(
    ("verdicts", "injects"),
    [(0.0, 0.0), (0.15, 0.0), (0.0, 0.15), (0.1, 0.1)],
    ids=["calm", "verdicts", "injects", "both"],
)
async def test_fold_of_events_equals_history(verdicts: float, injects: float) -> None:
    """For random scripts and random hooks: the fold of the events is the history, and ends in the returned message."""
    for seed in range(40):
        dice = random.Random(seed)

        def brain(request: Any, dice: random.Random = dice) -> Any:
            if request.options.tool_choice == "none" or dice.random() < 0.3:
                return ["wor", "ds"]
            calls = [use("", "look", at=str(i)) for i in range(dice.randint(1, 3))]
            return [*dice.choice([["thinking aloud"], []]), *calls]

        recorder = Recorder()
        session = Session.fresh()
        hooks = [Chaos(dice, verdicts, injects), recorder]
        agent = Agent("a", ScriptedModel(brain), tools=[look], hooks=hooks, max_iterations=4)
        for number in range(3):
            reply = await agent.call(f"go {number}", session=session)
            assert history(fold_events(recorder.seen)) == history(session), f"seed {seed}"
            if reply.outcome != "denied":
                last = [msg for msg in session.messages if msg.role == "assistant"][-1]
                assert last.text == reply.text
        Transcript(session.messages)


@pytest.mark.parametrize(
    "kind", [PreCall, PreReasoning, PostReasoning, PreActing, PostActing], ids=lambda kind: kind.__name__
)
async def test_fold_with_a_message_injected_on(kind: type) -> None:
    """Wherever a hook injects, reader and history agree on the place; the model's reply stays with its request."""

    class Injects(Hook):
        done = False

        def on_event(self, event: Any) -> Any:
            if isinstance(event, kind) and not self.done:
                self.done = True
                event.context.inject("note")
            return event

    recorder = Recorder()
    agent = Agent("a", ScriptedModel([looks("a"), "x"]), tools=[look], hooks=[Injects(), recorder])
    await agent.call("go")
    assert history(fold_events(recorder.seen)) == history(agent.session())


async def test_fold_with_a_stopped_reply() -> None:
    """An event carries the results of calls that a Stop on PostReasoning prevented."""

    class Stops(Hook):
        def on_event(self, event: Any) -> Any:
            return Stop("enough") if isinstance(event, PostReasoning) else event

    recorder = Recorder()
    agent = Agent("a", ScriptedModel([looks("a")]), tools=[look], hooks=[Stops(), recorder])
    await agent.call("go")
    assert history(fold_events(recorder.seen)) == history(agent.session())
