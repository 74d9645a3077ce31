"""A run owns itself: its own task, one way to end it, a bounded hand-over, and cleanup with a limit."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import pytest
from eventlog import Recorder, history, log, streamed, use
from toolbox import add

from agentflow import (
    ActingChunk,
    Agent,
    Flux,
    Hook,
    MemoryStore,
    ModelChunk,
    Mono,
    PreActing,
    PreReasoning,
    ReasoningChunk,
    RunContext,
    Session,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    on,
    tool,
)
from agentflow._support.time_limit import TimeLimit, drive
from agentflow._support.virtual_time import run_virtual
from agentflow.errors import CallTimeoutError, TurnDeniedError, UsageError
from agentflow.hooks.wrapping import ToolSource
from agentflow.recording.recorder import Recorder as RunRecorder
from agentflow.testing import ScriptedModel
from agentflow.tools.tool_context import ToolEmitter
from agentflow.vocabulary.context import own
from agentflow.vocabulary.events import CallEnded, Error, Event, PostActing, PostToolRound, PreCall, PreToolRound
from agentflow.vocabulary.ports.model import ModelRequest

MANY = [f"{n} " for n in range(20)]


async def reads_slowly(stream: Any, seconds: float, seen: list[Event]) -> None:
    """Read to the end, with a delay for each event; nothing cancels this task."""
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
    """Holds a time limit open while the run does other things."""

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
    """If the reader takes longer than the limit, the hook or model fails with its own TimeoutError, and the call with
    it.
    """
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
    """The reader delays each event: the run is at most `buffer` events ahead of it."""
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
    """The error names the legal values."""
    with pytest.raises(UsageError, match="number of events, 0 or more"):
        Agent("a", ScriptedModel([])).stream("go", buffer=buffer)


async def test_the_events_are_the_same_with_any_buffer() -> None:
    """They come in the same order; `call` fires them too."""
    script: list[Any] = [[use("t1", "add", a=1, b=2)], [use("t2", "add", a=3, b=4)], MANY]
    recorder = Recorder()
    await Agent("a", ScriptedModel(script), tools=[add], hooks=[recorder]).call("go")
    for buffer in (0, 1, 8, 1000):
        agent = Agent("a", ScriptedModel(script), tools=[add])
        assert log([event async for event in agent.stream("go", buffer=buffer)]) == recorder.log


@pytest.mark.parametrize("kind", [PreCall, PreReasoning, ReasoningChunk, PreActing])
@pytest.mark.parametrize("buffer", [0, 8])
async def test_a_stream_that_is_left_ends_its_run(kind: type[Event], buffer: int) -> None:
    """One CallEnded, as the last event; the history is legal, no task is left, and the session is free."""
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


async def test_a_reader_that_is_cancelled_and_forgotten_releases_its_stream() -> None:
    """The run does not refer to its reader: the stream is released with the cancelled task that read it, without gc."""
    recorder = Recorder()
    agent = Agent("a", ScriptedModel([MANY]), hooks=[recorder])

    async def read() -> None:
        events = aiter(agent.stream("Hi"))  # a variable, which the traceback keeps
        async for _ in events:
            await asyncio.Event().wait()

    gc.disable()
    try:
        reader = asyncio.create_task(read())
        for _ in range(20):
            await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader])  # not awaited: it keeps its error, and the traceback with the stream
        assert not any(isinstance(event, CallEnded) for event in recorder.seen)
        del reader
        for _ in range(20):
            await asyncio.sleep(0)
    finally:
        gc.enable()
    assert [event.outcome for event in recorder.seen if isinstance(event, CallEnded)] == ["interrupted"]


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
    """Within `cleanup_timeout` the model is never called, and the hook has swallowed all the cancellations that it
    wanted to.
    """
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


@pytest.mark.parametrize("calls", [["add"], ["add", "add"]])
def test_a_call_that_was_abandoned_in_a_hook_of_preacting_has_its_postacting(calls: list[str]) -> None:
    """The hook swallows every cancellation. A hook that got `PreActing` before it gets the event that completes it."""
    seen: list[type[Event]] = []

    class See(Hook):
        def on_event(self, event: Event) -> None:
            seen.append(type(event))

    class Stubborn(Hook):
        async def on_event(self, event: Event) -> None:
            while isinstance(event, PreActing):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)

    async def main() -> None:
        uses = [use(f"t{n}", name, a=1, b=2) for n, name in enumerate(calls)]
        agent = Agent("a", ScriptedModel([uses]), tools=[add], hooks=[See(), Stubborn()])
        with pytest.raises(CallTimeoutError):
            await agent.call("go", timeout=10)

    run_virtual(main())
    kinds = [kind.__name__ for kind in seen]
    assert kinds.count("PostActing") == kinds.count("PreActing") == len(calls)
    assert kinds[-2:] == ["PostToolRound", "CallEnded"]


@pytest.mark.parametrize("calls", [1, 2])
def test_a_result_whose_hooks_never_return_is_not_stored(calls: int) -> None:
    """A hook of `PostActing`, which may have to hide a part of the result, swallows every cancellation."""

    @on(PostActing)
    async def hide(event: PostActing) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    async def main() -> list[str]:
        session, uses = Session.fresh(), [use(f"t{n}", "add", a=1, b=2) for n in range(calls)]
        with pytest.raises(CallTimeoutError):
            await Agent("a", ScriptedModel([uses]), tools=[add], hooks=[hide]).call("go", session=session, timeout=10)
        return history(session)[2:]

    assert [line.count("interrupted") for line in run_virtual(main())] == [calls]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_call_that_was_abandoned_in_the_model_after_a_round_does_not_end_the_round_again(
    calls: int, watched: bool
) -> None:
    """The model swallows every cancellation. The call has its last event, and the session is ready."""
    seen: list[str] = []

    class StubbornModel(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
            while len(self.requests) == 1:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)
            async for chunk in super().stream(request):
                yield chunk

    @on(PostToolRound, CallEnded) if watched else on(CallEnded)
    def see(event: PostToolRound | CallEnded) -> None:
        seen.append(type(event).__name__)

    async def main() -> Session:
        session = Session.fresh()
        model = StubbornModel([[use(f"t{n}", "add", a=1, b=2) for n in range(calls)], "never"])
        with pytest.raises(CallTimeoutError):
            await Agent("a", model, tools=[add], hooks=[see]).call("go", session=session, timeout=10)
        return session

    assert run_virtual(main()).status == "idle"
    assert seen == (["PostToolRound", "CallEnded"] if watched else ["CallEnded"])


def test_hooks_of_the_end_of_an_abandoned_call_read_its_whole_trace() -> None:
    """This holds also if nothing has read the facts before the call was abandoned."""
    seen: list[tuple[str, str]] = []

    @on(CallEnded)
    def read(event: CallEnded) -> None:
        seen.extend((turn.name, turn.status) for turn in event.context.trace.turns)

    async def main() -> None:
        model = ScriptedModel([use("t1", "add", a=1, b=2), use("t2", "stubborn")])
        with pytest.raises(CallTimeoutError):
            await Agent("a", model, tools=[add, stubborn], hooks=[read]).call("go", timeout=10)

    run_virtual(main())
    assert seen == [("add", "success"), ("stubborn", "interrupted")]


def test_hooks_of_the_end_of_an_abandoned_call_can_use_its_context() -> None:
    """What they inject is stored and announced, and the call has its last event."""
    seen: list[Event] = []
    session = Session.fresh()

    @on(PostActing)
    def note(event: PostActing) -> None:
        event.context.inject("It did not end.")

    async def main() -> None:
        model = ScriptedModel([use("t1", "stubborn")])
        hooks = [note, on(Event, observer=True)(seen.append)]
        with pytest.raises(CallTimeoutError):
            await Agent("a", model, tools=[stubborn], hooks=hooks).call("go", timeout=10, session=session)

    run_virtual(main())
    assert [msg.text for msg in session.messages][-1] == "It did not end."
    assert [type(event).__name__ for event in seen][-3:] == ["PostToolRound", "MessagesAdded", "CallEnded"]


def test_the_context_of_an_abandoned_call_keeps_the_objects_of_plugins() -> None:
    """A plugin that began something for the call finds it at its end."""
    found: list[list[str]] = []

    class Counts(Hook):
        def on_event(self, event: Event) -> None:
            if isinstance(event, PreCall | CallEnded):
                kept = own(event.context, self, list[str])
                kept.append(type(event).__name__)
                found.append([*kept])

    async def main() -> None:
        with pytest.raises(CallTimeoutError):
            await Agent("a", ScriptedModel([use("t1", "stubborn")]), tools=[stubborn], hooks=[Counts()]).call(
                "go", timeout=10
            )

    run_virtual(main())
    assert found == [["PreCall"], ["PreCall", "CallEnded"]]


async def test_an_abandoned_tool_is_collected_in_any_order() -> None:
    """The garbage collector may close the tool's coroutine before the code that drives it."""
    work = asyncio.sleep(3600)
    driving = drive(work, copy_context(), TimeLimit(None))
    driving.send(None)
    work.close()
    driving.close()
    assert inspect.getgeneratorstate(driving) == inspect.GEN_CLOSED


def test_an_abandoned_tool_that_wakes_up_changes_nothing() -> None:
    """It returns an hour later, during another call on the session: no event, no fact."""
    recorder, session = Recorder(), Session.fresh(id="s")

    @tool(timeout=None)
    async def late() -> str:
        """Return late."""
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
    """A sub-agent whose tool ignores its cancellation is abandoned before its caller, so both end with their events."""
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


# ---- cleanup that is late


async def ignores_cancellation(seconds: float) -> None:
    """Wait for so long, whatever happens."""
    until = asyncio.get_running_loop().time() + seconds
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


def test_a_tool_that_shields_its_sub_agent_does_not_hold_the_run_up() -> None:
    """The sub-agent is cancelled when its caller's cleanup exceeds the limit."""

    @tool(timeout=None)
    async def shields() -> str:
        """Wait for a sub-agent, and ignore every cancellation."""
        task = asyncio.ensure_future(inner.call("go"))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                continue
        return "late"

    inner = Agent("inner", ScriptedModel([use("t1", "patient")]), tools=[patient])

    async def main() -> float:
        agent = Agent("a", ScriptedModel([use("t1", "shields")]), tools=[shields])
        with pytest.raises(CallTimeoutError):
            await agent.call("go", timeout=10)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) < 16


class HangsAfter(MemoryStore):
    """Never finishes a write after so many writes."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def append(self, session_id: str, facts: Any, *, expected: int | None = None) -> Any:
        async def later() -> None:
            self.left -= 1
            if self.left < 0:
                await asyncio.sleep(1e6)
            MemoryStore.append(self, session_id, facts, expected=expected)

        return later()


@pytest.mark.parametrize("writes", range(7))
@pytest.mark.parametrize("how", ["interrupt", "timeout", "cancel", "close"])
def test_a_store_that_hangs_costs_no_event(how: str, writes: int) -> None:
    """Each Pre event has its Post event, and `CallEnded` comes last; the next call loads the facts that the store
    has.
    """
    recorder, store = Recorder(), HangsAfter(writes)

    async def main() -> float:
        script = ScriptedModel(
            lambda request: "fine" if len(request.messages) > 1 else [use("t1", "add"), use("t2", "add")]
        )
        agent = Agent("a", script, tools=[add], hooks=[recorder], store=store)
        if how == "close":
            async with agent.stream("go", session="s") as events:
                with suppress(TimeoutError):
                    async with asyncio.timeout(10):
                        await events.reply()
        else:
            call = agent.call("go", session="s", timeout=10 if how == "timeout" else None)
            task = asyncio.ensure_future(call)
            await asyncio.sleep(10)
            if how == "interrupt":
                agent.interrupt(session="s")
            elif how == "cancel":
                task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() == (how == "cancel")
            assert how != "interrupt" or task.result().outcome == "interrupted"
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) < 20
    kinds = [text.partition(" ")[0] for text in recorder.log]
    assert kinds.count("CallEnded") == 1
    assert recorder.log[-1].startswith("CallEnded interrupted")
    assert kinds.count("PreActing") == kinds.count("PostActing")
    assert kinds.count("PreToolRound") == kinds.count("PostToolRound")


@pytest.mark.parametrize("parallel", [False, True])
def test_a_hook_that_always_hangs_costs_no_last_event(parallel: bool) -> None:
    """A hook swallows every cancellation on each event: the other hooks still get `CallEnded` once."""
    ended: list[Event] = []

    @on(PreActing, PostActing, PostToolRound, Error)
    async def stuck(event: Event) -> None:
        await ignores_cancellation(3600)

    @on(CallEnded)
    def ends(event: CallEnded) -> None:
        ended.append(event)

    async def main() -> float:
        uses = [use("t1", "add", a=1, b=2), use("t2", "add", a=1, b=2)][: 1 + parallel]
        agent = Agent("a", ScriptedModel([uses]), tools=[add], hooks=[stuck, ends])
        with pytest.raises(CallTimeoutError):
            await agent.call("go", timeout=10)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) < 20
    assert len(ended) == 1


@pytest.mark.parametrize("kind", [PostActing, CallEnded])
def test_a_hook_that_wakes_up_after_its_run_was_abandoned_changes_nothing(kind: type[Event]) -> None:
    """Another call then has the session and keeps it; observers get no event of the abandoned call."""
    stuck: list[Event] = []

    @on(kind)
    async def late(event: Event) -> None:
        if not stuck:
            stuck.append(event)
            await ignores_cancellation(3600)

    async def hours() -> None:
        await asyncio.sleep(7200)

    recorder, session = Recorder(), Session.fresh(id="s")

    async def main() -> None:
        script: list[Any] = [[hours, "fine"], "third"]
        model = ScriptedModel([use("t1", "patient"), *script])
        agent = Agent("a", model, tools=[patient], hooks=[late, recorder])
        with pytest.raises(CallTimeoutError):
            await agent.call("go", session=session, timeout=1)
        seen = len(recorder.log)
        second = asyncio.ensure_future(agent.call("2", session=session))
        await asyncio.sleep(3700)
        third = asyncio.ensure_future(agent.call("3", session=session))
        await asyncio.sleep(1)
        assert not third.done()
        assert session.busy
        assert [(await task).text for task in (second, third)] == ["fine", "third"]
        assert len([text for text in recorder.log[seen:] if text.startswith(("PostActing", "CallEnded"))]) == 2

    run_virtual(main())


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
def test_a_hook_of_the_last_event_that_never_ends_takes_no_reply_back(how: str) -> None:
    """The outcome was settled: observers and the caller get it."""
    recorder = Recorder()

    @on(CallEnded)
    async def late(event: CallEnded) -> None:
        await ignores_cancellation(3600)

    async def main() -> None:
        agent = Agent("a", ScriptedModel(["one"]), hooks=[late, recorder])
        task = asyncio.ensure_future(agent.call("go", timeout=1 if how == "timeout" else None))
        await asyncio.sleep(1)
        if how == "interrupt":
            agent.interrupt()
        assert (await task).text == "one"

    run_virtual(main())
    assert [text for text in recorder.log if text.startswith("CallEnded")] in ([], ["CallEnded completed"])


@pytest.mark.parametrize("how", ["leave", "interrupt"])
@pytest.mark.parametrize("kind", [PostActing, Error, PostToolRound])
@pytest.mark.parametrize("buffer", [0, 1])
def test_a_run_that_has_failed_does_not_wait_for_its_reader(how: str, kind: type[Event], buffer: int) -> None:
    """Its cleanup continues: leaving the stream, or an interrupt, does not wait for the limit."""

    @on(PostActing)
    def fails(event: PostActing) -> None:
        raise ValueError("hook")

    async def main() -> float:
        agent = Agent("a", ScriptedModel([use("t1", "add", a=1, b=2)]), tools=[add], hooks=[fails])
        async with agent.stream("go", buffer=buffer) as events:
            async for event in events:
                if isinstance(event, kind):
                    if how == "interrupt":
                        agent.interrupt()
                        await asyncio.sleep(1)
                        assert not agent.session().busy
                    break
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) <= 1


@pytest.mark.parametrize("slow", [False, True])
def test_background_work_of_a_finished_run_does_not_wait_for_its_reader(slow: bool) -> None:
    """CallEnded is the last event of the stream, and a sub-agent that a tool left in the background ends."""
    background: list[asyncio.Future[Any]] = []

    @tool(timeout=None)
    async def leaves() -> str:
        """Start a sub-agent, and return."""
        background.append(asyncio.ensure_future(inner.call("go")))
        await asyncio.sleep(1)
        return "started"

    async def wait() -> None:
        await asyncio.sleep(2)

    inner = Agent("inner", ScriptedModel([[wait, *MANY]]))

    async def main() -> None:
        agent, seen = Agent("a", ScriptedModel([use("t1", "leaves"), "end"]), tools=[leaves]), list[Event]()
        async for event in agent.stream("go", children=True):
            seen.append(event)
            await asyncio.sleep(0.5 * slow)
        assert isinstance(seen[-1], CallEnded)
        assert seen[-1].source == ""
        async with asyncio.timeout(60):
            assert (await background[0]).outcome == "completed"

    run_virtual(main())


@tool(timeout=None, type="read")
async def quits() -> str:
    """End the program when it is cancelled."""
    try:
        await asyncio.sleep(3600)
    finally:
        raise SystemExit(3)


@pytest.mark.parametrize("calls", [["quits"], ["patient", "quits"]])
@pytest.mark.parametrize("how", ["interrupt", "timeout", "cancel", "close"])
def test_a_signal_is_raised_whatever_has_cancelled_the_run(how: str, calls: list[str]) -> None:
    """SystemExit in the cleanup of a tool, alone or beside others, ends the program."""

    async def main() -> None:
        uses = [use(f"t{n}", name) for n, name in enumerate(calls)]
        agent = Agent("a", ScriptedModel([uses]), tools=[quits, patient])
        if how == "close":
            async with agent.stream("go") as events:
                async for event in events:
                    if isinstance(event, PreActing):
                        await asyncio.sleep(1)
                        break
            return
        task = asyncio.ensure_future(agent.call("go", timeout=1 if how == "timeout" else None))
        await asyncio.sleep(1)
        if how == "interrupt":
            agent.interrupt()
        elif how == "cancel":
            task.cancel()
        await task

    with pytest.raises(SystemExit):
        run_virtual(main())


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ["emits", "yields", "both"])
def test_a_signal_in_a_hook_of_a_tools_chunk_comes_after_the_last_event(kind: str, streamed: bool, nth: int) -> None:
    """This holds in the tool's own task and in that of a transform of its chunks."""

    @tool(type="read")
    async def emits(emitter: ToolEmitter) -> str:
        for n in range(3):
            await emitter.emit(n)
        return "done"

    @tool(type="read")
    async def yields() -> AsyncIterator[str]:
        for n in range(3):
            yield str(n)

    @tool(type="read")
    async def both(emitter: ToolEmitter) -> AsyncIterator[str]:
        for n in range(3):
            await emitter.emit(n)
            yield str(n)

    class Transforms(Hook):
        def around_tool(self, event: Any, source: Any) -> Any:
            return source.chunks(lambda chunks: chunks.map(str))

    shown: list[Event] = []

    @on(ActingChunk)
    def signals(event: ActingChunk) -> None:
        shown.append(event)
        if len(shown) == nth:
            raise KeyboardInterrupt

    recorder, session = Recorder(), Session.fresh(id="s")
    raised: list[BaseException] = []

    async def main() -> None:
        uses = [use("t1", kind), use("t2", kind)]
        hooks = [Transforms(), signals, recorder]
        agent = Agent("a", ScriptedModel([uses]), tools=[emits, yields, both], hooks=hooks)
        try:
            await (agent.stream("go", session=session).reply() if streamed else agent.call("go", session=session))
        except BaseException as error:
            raised.append(error)
            raise

    with pytest.raises(KeyboardInterrupt):
        run_virtual(main())
    assert [type(error) for error in raised] == [KeyboardInterrupt]
    kinds = [text.partition(" ")[0] for text in recorder.log]
    assert kinds[-1] == "CallEnded"
    assert kinds.count("PreActing") == kinds.count("PostActing") == 2
    assert not session.busy


# ---- turns and queues


@tool(timeout=None)
async def stops_itself(context: RunContext) -> AsyncIterator[str]:
    """Interrupt its own run, and continue anyway."""
    yield "first"
    context.interrupt("enough")
    await ignores_cancellation(100)


def test_a_turn_whose_cleanup_does_not_end_is_abandoned() -> None:
    """Its reader returns. The turn may run again, and what wakes up later does not end that run."""

    async def main() -> None:
        turn, loop = Turn(stops_itself), asyncio.get_running_loop()
        with pytest.raises(TurnDeniedError, match="interrupted"):
            async for _ in turn.yielding():
                pass
        assert loop.time() == 5
        assert (turn.running, turn.stop_reason) == (False, "interrupted")
        await asyncio.sleep(94.5)

        async def read() -> list[str]:
            return [value async for value in turn.yielding()]

        again = asyncio.ensure_future(read())
        await asyncio.sleep(2)
        assert turn.running
        with pytest.raises(TurnDeniedError, match="interrupted"):
            await again
        await asyncio.sleep(200)

    run_virtual(main())


def test_a_queue_waits_for_the_cleanup_of_its_turn() -> None:
    """It waits as long as the agent's `cleanup_timeout`."""

    @tool(timeout=None)
    async def careful() -> str:
        """Clean up for 8 s."""
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(8)
        return ""

    async def main() -> None:
        agent, turn = Agent("a", ScriptedModel([]), tools=[careful], cleanup_timeout=20), Turn(careful)

        async def read() -> None:
            async with agent.run(wait=True) as values:
                async for _ in values:
                    pass

        reader = asyncio.ensure_future(read())
        await asyncio.sleep(1)
        await agent.queue.put(turn)
        await asyncio.sleep(1)
        reader.cancel()
        await asyncio.wait([reader])
        assert asyncio.get_running_loop().time() == 10
        assert not turn.running

    run_virtual(main())


def test_a_run_whose_event_loop_was_closed_releases_its_session_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call takes over the session; when the old run is collected, it has nothing to release."""
    failed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: failed.append(args.exc_value))
    agent = Agent("a", ScriptedModel([use("t1", "patient"), "next"]), tools=[patient])
    loop = asyncio.new_event_loop()

    async def call() -> Any:
        return await agent.call("go")

    task = loop.create_task(call())
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] - it is meant to be
    del task
    assert asyncio.run(call()).text == "next"
    gc.collect()
    assert failed == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
@pytest.mark.parametrize("buffer", [0, 1, 8])
def test_a_stream_of_eager_tasks_has_the_same_events(buffer: int) -> None:
    """A run that has begun, or finished, before the first read returns is read as any other."""

    async def lines(eager: bool) -> list[str]:
        if eager:
            asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - 3.11 does not have it
        return await streamed(Agent("a", ScriptedModel(["hi"])), buffer=buffer)

    assert asyncio.run(lines(True)) == asyncio.run(lines(False))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
def test_eager_tasks_begin_and_end_runs_at_once() -> None:
    """A run that has finished when its task is created leaves no timer; one that is abandoned is finished once."""
    failed: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failed.append(context))
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - 3.11 does not have it
        agent = Agent("a", ScriptedModel(["hi", use("t1", "stubborn")]), tools=[stubborn])
        assert (await agent.call("go", timeout=3600)).text == "hi"
        assert loop.time() == 0
        with pytest.raises(CallTimeoutError):
            await agent.call("go", timeout=1)
        assert loop.time() == 6
        assert not agent.session().busy

    run_virtual(main())
    assert failed == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
def test_an_eager_call_that_waits_for_itself_is_refused() -> None:
    """A tool calls its own session before the call's task was stored: it gets the error at once, as with other tasks."""

    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - 3.11 does not have it
        session = Session.fresh()

        @tool
        async def again() -> str:
            return (await agent.call("again", session=session)).text

        agent = Agent("a", ScriptedModel([use("t1", "again"), "done"]), tools=[again])
        assert (await agent.call("go", session=session, timeout=60)).text == "done"
        return session.messages[2].text

    assert "on session" in run_virtual(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
def test_the_first_of_several_eager_tools_interrupts_the_run() -> None:
    """It runs while the tasks are being created: the others do not start, and it is cancelled before the call ends."""
    steps: list[str] = []

    @tool(type="read")
    async def look(context: RunContext) -> str:
        """Interrupt the run."""
        steps.append("start")
        context.interrupt("enough")
        try:
            await asyncio.sleep(2)
        finally:
            steps.append("end")
        return "seen"

    async def main() -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 - 3.11 does not have it
        script = [[partial(asyncio.sleep, 1), use("t1", "look"), use("t2", "look")]]
        agent = Agent("a", ScriptedModel(script), tools=[look])
        reply = await agent.call("go")
        steps.append(reply.outcome)
        return history(agent.session())[2:], loop.time()

    result = "tool: t1 interrupted 'Interrupted.'; t2 interrupted 'Interrupted.'"
    assert (run_virtual(main()), steps) == (([result], 1), ["start", "end", "interrupted"])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
@pytest.mark.parametrize("operator", ["zip", "merge"])
@pytest.mark.parametrize("made", [False, True])
def test_operators_of_a_wrapper_read_its_source_with_eager_tasks(operator: str, made: bool) -> None:
    """Their own tasks start after they are known as tasks of the run."""

    class Wraps(Hook):
        def around(self, event: Event, source: Any) -> Any:
            if not isinstance(event, PreToolRound):
                return source
            if operator == "zip":
                return source.zip(Mono.just(1)).map(lambda pair: pair[0])
            return Flux.merge(source, Flux.empty())

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        eager: Any = asyncio  # 3.11 does not have it
        loop.set_task_factory(eager.create_eager_task_factory(asyncio.Task) if made else eager.eager_task_factory)
        model = ScriptedModel([[use("t1", "add", a=1, b=2), use("t2", "add", a=2, b=2)], "Done."])
        session = Session.fresh()
        await Agent("a", model, tools=[add], hooks=[Wraps()]).call("go", session=session)
        return [result.text for msg in session.messages for result in msg.tool_results]

    assert run_virtual(main()) == ["3", "4"]


class Unchanged(Hook):
    """Wraps tools by nothing, by a plain function, or by code of its own."""

    def __init__(self, how: str) -> None:
        self.how = how

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        async def result() -> ToolResultBlock:
            return await source

        if self.how == "own":
            return Mono(result)
        return source if self.how == "same" else source.map(lambda result: result)


@pytest.mark.parametrize("hook", [None, RunRecorder(), *map(Unchanged, ("same", "map", "own"))])
@pytest.mark.parametrize("others", [0, 1])
def test_a_tool_that_interrupts_its_call_and_finishes_keeps_its_result(hook: Hook | None, others: int) -> None:
    """Alone and in parallel with another call, with a Recorder and with a wrapper: its effect has happened."""

    @tool(type="read")
    async def last(context: RunContext) -> str:
        """Save, and end the call."""
        context.interrupt("enough")
        return "saved"

    async def main() -> tuple[str, list[tuple[str, str]]]:
        uses = [ToolUseBlock(f"t{number}", "last", {}) for number in range(others + 1)]
        agent = Agent("a", ScriptedModel([uses, "more"]), tools=[last], hooks=[] if hook is None else [hook])
        reply = await agent.call("go")
        blocks = [block for message in await agent.history() for block in message.content]
        return reply.outcome, [(block.state, block.text) for block in blocks if isinstance(block, ToolResultBlock)]

    not_run = [("interrupted", "Interrupted.")] * others
    assert run_virtual(main()) == ("interrupted", [("success", "saved"), *not_run])
