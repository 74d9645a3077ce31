"""A run owns itself: its own task, one way to end it, a bounded hand-over, cleanup with a limit."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from eventlog import Recorder, history, log, use
from toolbox import add

from agentflow import Agent, Flux, Hook, ModelChunk, PreActing, PreReasoning, ReasoningChunk, Session, on, tool
from agentflow.errors import CallTimeoutError, UsageError
from agentflow.events import CallEnded, Event, PreCall
from agentflow.testing import ScriptedModel
from agentflow.testing.virtual_time import run_virtual

MANY = [f"{n} " for n in range(20)]


async def reads_slowly(stream: Any, seconds: float, seen: list[Event]) -> None:
    """Read to the end, taking so long with each event; nothing cancels this task."""
    task = asyncio.current_task()
    assert task is not None
    try:
        async with stream as events:
            async for event in events:
                seen.append(event)
                await asyncio.sleep(seconds)
    finally:
        assert task.cancelling() == 0


# ---- a time limit over a `yield` (PEP 789)


class Limits(Hook):
    """Has a time limit open while the run does other things."""

    def __init__(self, around: Callable[[Any], Any]) -> None:
        self.limited = around

    def around(self, event: Any, source: Any) -> Any:
        return Flux(lambda: self.limited(source)) if isinstance(event, PreReasoning) else source


async def limited(source: Any) -> AsyncIterator[ModelChunk]:
    async with asyncio.timeout(5):
        async for chunk in source:
            yield chunk


class LimitedModel(ScriptedModel):
    async def stream(self, request: Any) -> Any:
        async with asyncio.timeout(5):
            async for chunk in super().stream(request):
                yield chunk


@tool(timeout=None)
async def limited_tool() -> AsyncIterator[str]:
    """Stream under a limit of its own."""
    async with asyncio.timeout(5):
        for word in MANY:
            yield word


@pytest.mark.parametrize("where", ["hook", "model"])
def test_a_time_limit_over_a_yield_ends_the_run_and_not_its_reader(where: str) -> None:
    """The reader takes longer than the limit: the hook or model fails with its own TimeoutError, and the call with it."""
    seen: list[Event] = []

    async def main() -> None:
        if where == "hook":
            agent = Agent("a", ScriptedModel([MANY]), hooks=[Limits(limited)])
        else:
            agent = Agent("a", LimitedModel([MANY]))
        with pytest.raises(TimeoutError):
            await reads_slowly(agent.stream("go"), 1, seen)

    run_virtual(main())
    assert log(seen)[-1].startswith("CallEnded failed TimeoutError")
    assert len([event for event in seen if isinstance(event, ReasoningChunk)]) < len(MANY)


def test_a_time_limit_over_a_tools_yield_ends_the_tool_alone() -> None:
    """The model reads that the tool failed, and answers."""
    seen: list[Event] = []

    async def main() -> None:
        agent = Agent("a", ScriptedModel([use("t1", "limited_tool"), "end"]), tools=[limited_tool])
        await reads_slowly(agent.stream("go"), 1, seen)

    run_virtual(main())
    assert next(text for text in log(seen) if text.startswith("PostActing")).startswith("PostActing t1 error")
    assert log(seen)[-1] == "CallEnded completed"


# ---- the hand-over


@pytest.mark.parametrize("buffer", [0, 1, 8, 64])
def test_a_run_is_ahead_of_its_reader_by_so_many_events(buffer: int) -> None:
    """The reader takes a moment for each event: the run has made at most `buffer` events more than the reader has got."""
    made: list[int] = []

    @on(ReasoningChunk)
    def count(event: ReasoningChunk) -> None:
        made.append(event.seq)

    async def main() -> list[int]:
        agent, ahead = Agent("a", ScriptedModel([MANY]), hooks=[count]), list[int]()
        async with agent.stream("go", buffer=buffer) as events:
            async for event in events:
                await asyncio.sleep(1)
                if isinstance(event, ReasoningChunk):
                    ahead.append(max(made) - event.seq)
        return ahead

    ahead = run_virtual(main())
    assert max(ahead) == min(buffer, len(MANY))


@pytest.mark.parametrize("buffer", [-1, True, 1.5, "8"])
def test_a_buffer_is_a_number(buffer: Any) -> None:
    """What it can be is said."""
    with pytest.raises(UsageError, match="number of events, 0 or more"):
        Agent("a", ScriptedModel([])).stream("go", buffer=buffer)


async def test_the_events_are_the_same_with_any_buffer() -> None:
    """And in the same order; `call` fires them too."""
    script: list[Any] = [[use("t1", "add", a=1, b=2)], [use("t2", "add", a=3, b=4)], MANY]
    recorder = Recorder()
    await Agent("a", ScriptedModel(script), tools=[add], hooks=[recorder]).call("go")
    for buffer in (0, 1, 8, 1000):
        agent = Agent("a", ScriptedModel(script), tools=[add])
        assert log([event async for event in agent.stream("go", buffer=buffer)]) == recorder.log


@pytest.mark.parametrize("kind", [PreCall, PreReasoning, ReasoningChunk, PreActing])
@pytest.mark.parametrize("buffer", [0, 8])
async def test_a_stream_that_is_left_ends_its_run(kind: type[Event], buffer: int) -> None:
    """One CallEnded, as the last event; a legal history; no task is left, and the session is free."""
    recorder = Recorder()
    agent = Agent("a", ScriptedModel([use("t1", "add", a=1, b=2), MANY]), tools=[add], hooks=[recorder])
    async with agent.stream("go", buffer=buffer) as events:
        async for event in events:
            if isinstance(event, kind):
                break
    assert [text for text in recorder.log if text.startswith("CallEnded")] == recorder.log[-1:]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not agent.session().busy


async def test_a_stream_that_is_dropped_lets_the_next_call_wait() -> None:
    """It is cancelled when it is collected; the next call on the implicit session waits for its cleanup."""
    cleaned: list[str] = []

    class Slow(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            try:
                async for chunk in super().stream(request):
                    yield chunk
            finally:
                await asyncio.sleep(0.01)
                cleaned.append("model")

    agent = Agent("a", Slow([MANY, "again"]))
    async for event in agent.stream("go"):
        if isinstance(event, ReasoningChunk):
            break
    gc.collect()
    assert (await agent.call("and now?")).text == "again"
    assert cleaned == ["model", "model"]


async def test_what_a_hook_sets_in_the_context_stays_in_the_run() -> None:
    """The run has a copy of its caller's context variables."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    seen: list[str] = []

    @on(PreCall)
    def sets(event: PreCall) -> None:
        seen.append(variable.get())
        variable.set("hook")

    @on(CallEnded)
    def reads(event: CallEnded) -> None:
        seen.append(variable.get())

    variable.set("caller")
    await Agent("a", ScriptedModel(["end"]), hooks=[sets, reads]).call("go")
    assert (seen, variable.get()) == (["caller", "hook"], "caller")


# ---- one way to end it


class Swallows(Hook):
    """Swallows cancellations, a few times."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def on_event(self, event: Any) -> None:
        if isinstance(event, PreReasoning):
            for _ in range(self.times):
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue


@pytest.mark.parametrize("how", ["interrupt", "timeout", "cancel"])
def test_a_cancellation_that_is_swallowed_five_times_ends_the_run(how: str) -> None:
    """Within `cleanup_timeout`: the model is never asked, and the hook has swallowed as often as it wanted to."""
    recorder = Recorder()

    async def main() -> float:
        model = ScriptedModel(["never"])
        agent = Agent("a", model, hooks=[Swallows(5), recorder])
        task = asyncio.ensure_future(agent.call("go", timeout=10 if how == "timeout" else None))
        await asyncio.sleep(10)
        if how == "interrupt":
            agent.interrupt()
        elif how == "cancel":
            task.cancel()
        await asyncio.wait([task])
        if how == "interrupt":
            assert task.result().outcome == "interrupted"
        elif how == "cancel":
            assert task.cancelled()
        else:
            assert isinstance(task.exception(), CallTimeoutError)
        assert model.requests == []
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 15
    assert recorder.log[-1].startswith("CallEnded interrupted")


@tool(timeout=None, type="read")
async def stubborn() -> str:
    """Swallow every cancellation."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


@tool(timeout=None, type="read")
async def patient() -> str:
    """Wait."""
    await asyncio.sleep(3600)
    return "never"


@pytest.mark.parametrize("calls", [["stubborn"], ["stubborn", "patient"], ["patient", "stubborn", "stubborn"]])
@pytest.mark.parametrize("how", ["interrupt", "timeout", "cancel", "close"])
def test_cleanup_that_does_not_end_is_abandoned(how: str, calls: list[str]) -> None:
    """The call ends after `cleanup_timeout` with all its last events; the history is legal; the next call works."""
    recorder, session = Recorder(), Session.fresh(id="s")

    async def main() -> float:
        uses = [use(f"t{n}", name) for n, name in enumerate(calls)]
        agent = Agent("a", ScriptedModel([uses, "fine"]), tools=[stubborn, patient], hooks=[recorder])
        if how == "close":
            async with agent.stream("go", session=session) as events:
                async for event in events:
                    if isinstance(event, PreActing):
                        await asyncio.sleep(10)
                        break
        else:
            call = agent.call("go", session=session, timeout=10 if how == "timeout" else None)
            task = asyncio.ensure_future(call)
            await asyncio.sleep(10)
            if how == "interrupt":
                agent.interrupt(session)
            elif how == "cancel":
                task.cancel()
            await asyncio.wait([task])
            if how == "timeout":
                notes = getattr(task.exception(), "__notes__", [])
                assert any("abandoned" in note and "stubborn (" in note for note in notes)
        ended = asyncio.get_running_loop().time()
        assert (await agent.call("and now?", session=session)).text == "fine"
        return ended

    assert run_virtual(main()) == 15
    lines = recorder.log
    end = next(n for n, text in enumerate(lines) if text.startswith("CallEnded"))
    before = lines[: end + 1]
    for kind in ("Acting", "ToolRound"):
        assert len([t for t in before if t.startswith(f"Pre{kind}")]) == len(
            [t for t in before if t.startswith(f"Post{kind}")]
        )
    assert before[-1].startswith("CallEnded interrupted")
    results = history(session)[2]
    assert results.count("interrupted") == len(calls)


def test_an_abandoned_tool_that_wakes_up_changes_nothing() -> None:
    """It returns an hour later, in the midst of another call on the session: no event, no fact."""
    recorder, session = Recorder(), Session.fresh(id="s")

    @tool(timeout=None)
    async def late() -> str:
        """Return when it likes."""
        until = asyncio.get_running_loop().time() + 3600
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        return "late"

    async def hour() -> None:
        await asyncio.sleep(7200)

    async def main() -> None:
        model = ScriptedModel([use("t1", "late"), [hour, "fine"]])
        agent = Agent("a", model, tools=[late], hooks=[recorder])
        with pytest.raises(CallTimeoutError):
            await agent.call("go", session=session, timeout=1)
        seen = len(recorder.log)
        assert (await agent.call("and now?", session=session)).text == "fine"
        assert [text.split()[0] for text in recorder.log[seen:]] == [
            "PreCall",
            "PreReasoning",
            "ReasoningChunk",
            "PostReasoning",
            "PostCall",
            "CallEnded",
        ]

    run_virtual(main())
    assert history(session)[-2:] == ["user: and now?", "assistant: fine"]


def test_a_run_inside_a_run_ends_first() -> None:
    """A sub-agent whose tool ignores its cancellation is abandoned before its caller is, so both end with their events."""
    recorder = Recorder()

    async def main() -> float:
        inner = Agent("inner", ScriptedModel([use("t1", "stubborn")]), tools=[stubborn], hooks=[recorder])
        outer = Agent(
            "outer", ScriptedModel([use("t1", "inner", message="go")]), tools=[inner.as_tool()], hooks=[recorder]
        )
        with pytest.raises(CallTimeoutError):
            await outer.call("go", timeout=10)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) <= 16
    ends = [event for event in recorder.seen if isinstance(event, CallEnded)]
    assert [(event.source, event.outcome) for event in ends] == [("inner", "interrupted"), ("", "interrupted")]
