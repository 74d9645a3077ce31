"""A cancellation from outside is recorded with the place where the run was suspended, and repeated there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clocks import LoopClock
from recorded_programs import kinds

from agentflow import (
    ActingChunk,
    Agent,
    Approve,
    Hook,
    HookEvent,
    MessagesAdded,
    PostActing,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
    RunContext,
    Stop,
    Suspend,
    ToolEmitter,
    ToolSchedule,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.errors import CallTimeoutError, StoreError, UsageError
from agentflow.loop.session import Session, full_session
from agentflow.recording import RunLog
from agentflow.recording.entries import (
    AnsweredEntry,
    ChunksEntry,
    EventEntry,
    FinishedEntry,
    InterruptEntry,
    PiecesEntry,
    ReplyEntry,
    RequestEntry,
)
from agentflow.recording.reading import load
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Replay
from agentflow.recording.replay.cancellation import RecordedCancellation
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.ports.model import ModelRequest


class Waits(Hook):
    """Waits twice on one event."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind = kind
        self.begun = 0

    async def on_event(self, event: HookEvent) -> HookEvent:
        if isinstance(event, self.kind):
            await asyncio.sleep(1)
            self.begun += 1
            await asyncio.sleep(1)
        return event


@tool(type="read")
async def slow() -> str:
    """Wait; a cancellation takes two seconds."""
    try:
        await asyncio.sleep(10)
    finally:
        await asyncio.sleep(2)
    return "done"


class Reads(Hook):
    """Reads the source of one event in its own way."""

    def __init__(self, kind: type[Any], read: Callable[[Any], Any]) -> None:
        self.kind, self.read = kind, read

    def around(self, event: HookEvent, source: Any) -> Any:
        return self.read(source) if isinstance(event, self.kind) else source


class SlowModel:
    """Streams half of its reply."""

    name = "slow"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        yield ModelChunk("half ")
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(2)
        yield ModelChunk("whole")


def agent_of(model: Any, *hooks: Hook) -> Agent[Any]:
    return Agent("a", model, tools=[slow], hooks=hooks, clock=LoopClock())


def times(log: RunLog) -> list[float]:
    """The time of each event."""
    return [round(event.time, 3) for event in log.events()]


CALLS = [ToolUseBlock("t1", "slow", {}), ToolUseBlock("t2", "slow", {})]
PLACES: dict[str, tuple[Any, tuple[type[Any], ...], float, tuple[str, ...]]] = {
    "the first wait of a hook": (["Hi"], (PreReasoning,), 0.5, ("PreReasoning: Waits > Waits.on_event+2",)),
    "its second wait": (["Hi"], (PreReasoning,), 1.5, ("PreReasoning: Waits > Waits.on_event+4",)),
    "a hook of a tool": ([CALLS[0]], (PreActing,), 0.5, ("PreActing: Waits > Waits.on_event+2",)),
    "a model": (None, (), 5, ("model",)),
    "a tool": ([CALLS[0]], (), 5, ("tool slow",)),
    "two tools": ([CALLS], (), 5, ("in_tasks", "tool slow", "tool slow")),
}


@pytest.mark.parametrize("how", ["interrupt", "cancel", "timeout"])
@pytest.mark.parametrize("place", PLACES)
def test_where_a_run_was_cancelled(place: str, how: str) -> None:
    """The replay is cancelled there too; its events have the same times, and its log the same kinds of entries."""
    said, waits, at, expected = PLACES[place]

    def make(*hooks: Hook) -> tuple[Agent[Any], list[Waits]]:
        mine = [Waits(kind) for kind in waits]
        return agent_of(SlowModel() if said is None else ScriptedModel(said), *mine, *hooks), mine

    async def main() -> None:
        recorder = Recorder()
        agent, mine = make(recorder)
        session = Session.fresh([])
        call = asyncio.ensure_future(agent.call("Hi", session=session, timeout=at if how == "timeout" else None))
        await asyncio.sleep(at + 0.01)
        if how == "interrupt":
            agent.interrupt(session, "enough")
        elif how == "cancel":
            call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        (cut,) = [entry for entry in recorder.log.entries if isinstance(entry, InterruptEntry)]
        assert cut.at == expected
        again, theirs = make()
        done = await Replay(recorder.log).arun(again)
        assert str(done) == "the same as recorded"
        assert kinds(done.log) == kinds(recorder.log)
        assert times(done.log) == times(recorder.log)
        assert [hook.begun for hook in theirs] == [hook.begun for hook in mine]

    run_virtual(main())


def test_a_run_that_waits_for_its_reader() -> None:
    async def main() -> None:
        recorder = Recorder()
        session = Session.fresh([])
        agent = agent_of(ScriptedModel(["Hello!"]), recorder)
        async with agent.stream("Hi", session=session, buffer=1) as events:
            await anext(events)
            await asyncio.sleep(1)
        (cut,) = [entry for entry in recorder.log.entries if isinstance(entry, InterruptEntry)]
        assert cut.at == ("reader",)
        assert str(await Replay(recorder.log).arun(agent_of(ScriptedModel([])))) == "the same as recorded"

    run_virtual(main())


def test_a_run_that_never_starts_is_waited_for_a_second() -> None:
    """Its cancellation is skipped then, so that the replay continues."""

    async def main() -> float:
        finished = asyncio.Event()
        RecordedCancellation((), 0, lambda: None, lambda _: None, finished.set).start()
        await finished.wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(1, abs=0.01)


def test_a_hook_whose_lines_have_moved() -> None:
    """The recorded place is the hook then, which is cancelled once it waits."""

    class Moved(Waits):
        name = "Waits"

        async def on_event(self, event: HookEvent) -> HookEvent:
            if not isinstance(event, self.kind):
                return event

            await asyncio.sleep(1)
            return event

    async def main() -> None:
        recorder = Recorder()
        session = Session.fresh([])
        call = asyncio.ensure_future(
            agent_of(ScriptedModel(["Hi"]), Waits(PreReasoning), recorder).call("Hi", session=session)
        )
        await asyncio.sleep(0.5)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        done = await Replay(recorder.log).arun(agent_of(ScriptedModel([]), Moved(PreReasoning)))
        assert str(done) == "the same as recorded"

    run_virtual(main())


async def test_an_interrupt_from_another_thread_has_a_position() -> None:
    """The run's own thread decides where it stops, so the recording knows."""
    started = asyncio.Event()

    class Told(SlowModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
            started.set()
            await asyncio.sleep(60)
            yield ModelChunk("never")

    recorder = Recorder()
    agent = Agent("a", Told(), hooks=[recorder])
    call = asyncio.ensure_future(agent.call("go"))
    await started.wait()
    await asyncio.to_thread(agent.interrupt, None, "enough")
    reply = await call
    ended = [(entry.how, entry.at) for entry in recorder.log.entries if isinstance(entry, InterruptEntry)]
    assert (reply.outcome, ended) == ("interrupted", [("interrupt", ("model",))])


def test_a_run_whose_event_loop_was_shut_down_is_refused() -> None:
    """Its task was cancelled directly, so the point is unknown; it is replayed on request only."""
    recorder = Recorder()

    async def main() -> None:
        session = full_session(Session.fresh([]))
        call = asyncio.ensure_future(agent_of(SlowModel(), recorder).call("go", session=session))
        await asyncio.sleep(0.5)
        assert session.run is not None
        assert session.run.scope.tasks.driver is not None
        session.run.scope.tasks.driver.cancel()
        await asyncio.gather(call, return_exceptions=True)

    run_virtual(main())
    with pytest.raises(StoreError, match=r"was cancelled at a point that is not in the log.*inexact=True"):
        Replay(recorder.log)
    divergence = Replay(recorder.log, inexact=True).run(agent_of(SlowModel())).divergence
    assert divergence is not None
    assert divergence.event == "request"


def test_a_run_that_another_thread_cancelled_while_its_code_was_running_is_refused() -> None:
    """It was cancelled at a checkpoint of the library, where no replay can stop it; then it may differ."""
    recorder = Recorder()

    @on(PreReasoning)
    def works(event: PreReasoning) -> None:
        thread = threading.Thread(target=agent.interrupt, args=(None, "enough"))
        thread.start()
        thread.join()

    agent = agent_of(SlowModel(), works, recorder)
    agent.call("go").block()
    with pytest.raises(StoreError, match=r"was cancelled at a point that is not in the log"):
        Replay(recorder.log)
    divergence = Replay(recorder.log, inexact=True).run(agent_of(SlowModel())).divergence
    assert divergence is not None
    assert (divergence.event, divergence.recorded) == ("request", None)


@pytest.mark.parametrize("kind", [PreCall, PreToolRound])
def test_a_run_whose_hook_read_a_source_twice_at_the_same_time_is_refused(kind: type[Any]) -> None:
    """The error cancels the first reading between two events. A second reading afterwards is replayed exactly."""

    def agent(*hooks: Hook) -> Agent[Any]:
        return Agent("a", ScriptedModel([ToolUseBlock("t1", "slow", {}), "done"]), tools=[slow], hooks=hooks)

    def recorded(wrapper: Hook) -> Recorder:
        recorder = Recorder()
        with suppress(UsageError):
            run_virtual(agent(wrapper, recorder).call("go"))
        return recorder

    at_once = recorded(Reads(kind, lambda source: source.zip(source)))
    caught = recorded(Reads(kind, lambda source: source.zip(source).catch(lambda _error, _source: source.then(source))))
    for recorder in (at_once, caught):
        with pytest.raises(StoreError, match=r"subscribed twice at the same time.*inexact=True"):
            Replay(recorder.log)
        assert Replay(recorder.log, inexact=True).log.calls
    again = Reads(kind, lambda source: source.then(source))
    assert Replay(recorded(again).log).run(agent(again)).divergence is None


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_a_run_that_is_interrupted_in_a_task_whose_hook_has_cancelled_it_is_refused(own: bool, outside: bool) -> None:
    """The two cancellations have no order that can be repeated. An expired time limit of a hook is no such cancellation."""

    def interrupting() -> Agent[Any]:
        @on(PostReasoning, priority=1)
        async def cancels(event: PostReasoning) -> None:
            task = asyncio.current_task()
            if own and task is not None:
                task.cancel()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await asyncio.sleep(2)

        @on(PostReasoning, priority=2)
        async def interrupts(event: PostReasoning) -> None:
            if outside:
                asyncio.get_running_loop().call_soon(agent.interrupt)
                await asyncio.sleep(0)
            else:
                event.context.interrupt("enough")

        agent = agent_of(SlowModel(), cancels, interrupts)
        return agent

    recorder, agent = Recorder(), interrupting()
    agent.hook(recorder)
    reply = run_virtual(agent.call("go"))
    assert reply.outcome == "interrupted"
    if own:
        with pytest.raises(StoreError, match=r"cancelled its own task, and the call was interrupted.*inexact=True"):
            Replay(recorder.log)
    else:
        assert Replay(recorder.log).run(interrupting()).divergence is None


def test_a_run_whose_model_swallows_a_cancellation_of_a_hook_is_refused() -> None:
    """A replay has no model that could swallow it, so the same reply would be cancelled."""

    class Swallows:
        name = "swallows"

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
            yield ModelChunk("Hi")
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    @on(PreReasoning, observer=True)
    def cancels(event: PreReasoning) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    recorder = Recorder()
    reply = run_virtual(agent_of(Swallows(), cancels, recorder).call("go"))
    assert (reply.outcome, reply.text) == ("completed", "Hi")
    with pytest.raises(StoreError, match=r"cancelled its own task, and the cancellation was swallowed.*inexact=True"):
        Replay(recorder.log)


def test_model_calls_of_hooks_in_the_first_event_of_a_call_are_recorded() -> None:
    """The first event of a call, and of one that continues a suspended call."""

    @on(PreCall, PreToolRound, priority=5)
    async def asks(event: HookEvent) -> None:
        await event.context.complete("Which?")

    @on(PreActing)
    def waits(event: PreActing) -> Suspend | None:
        return None if event.approval else Suspend()

    def answer(request: ModelRequest) -> str | ToolUseBlock:
        last = request.messages[-1]
        return "This one." if last.text == "Which?" else "Done." if last.tool_results else CALLS[0]

    async def both(agent: Agent[Any]) -> None:
        reply = await agent.call("go", session="s")
        await agent.resume("s", {reply.pending[0].id: Approve()})

    model, recorder = ScriptedModel(answer), Recorder()
    run_virtual(both(agent_of(model, asks, waits, recorder)))
    sides = [entry.side for entry in recorder.log.entries if isinstance(entry, RequestEntry)]
    assert sides == ["side", "", "side", "side", ""]
    assert Replay(recorder.log).run(agent_of(ScriptedModel([]), asks, waits)).divergence is None


def test_a_call_that_did_not_start_in_a_stopped_round_holds_nothing_up_in_a_replay() -> None:
    """A time limit of a wrapper, shorter than the replay's patience, does not pass while the replay waits for the call."""

    def agent() -> Agent[Any]:
        @on(PostActing)
        def stops(event: PostActing) -> Stop:
            return Stop("enough")

        limit = Reads(PreToolRound, lambda source: source.timeout(0.5))
        uses = [ToolUseBlock("t1", "unknown", {}), ToolUseBlock("t2", "slow", {})]
        return Agent(
            "a", ScriptedModel([uses, "done"]), tools=[slow], hooks=[stops, limit], schedule=ToolSchedule.PARALLEL
        )

    recorder, recorded = Recorder(), agent()
    recorded.hook(recorder)
    run_virtual(recorded.call("go"))
    (uses,) = [one for one in recorder.log.entries if isinstance(one, EventEntry) and one.type == "PostToolRound"]
    assert len(uses.fields["tool_results"]) == 2
    assert Replay(recorder.log).run(agent()).divergence is None


@tool(type="read")
async def stubborn() -> str:
    """Ignore every cancellation for a minute."""
    await _ignore_cancellations()
    return "late"


class StubbornModel:
    """Ignores every cancellation for a minute, and then continues its reply."""

    name = "stubborn"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        yield ModelChunk("half ")
        await _ignore_cancellations()
        yield ModelChunk("whole")


async def _ignore_cancellations() -> None:
    for _ in range(60):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)


def stubborn_agent(kind: str, *hooks: Hook) -> Agent[Any]:
    """An agent whose call is abandoned, since its work does not end when it is cancelled."""
    if kind == "model":
        return Agent("a", StubbornModel(), hooks=hooks, cleanup_timeout=2)
    if kind == "sub-agent":
        asks = ScriptedModel([ToolUseBlock("t1", "inner", {"message": "go"}), "done"])
        inner = Agent("inner", StubbornModel(), cleanup_timeout=2)
        return Agent("a", asks, tools=[inner.as_tool()], hooks=hooks, cleanup_timeout=2)
    uses = [ToolUseBlock(f"t{number}", "stubborn", {}) for number in range(1 if kind == "tool" else 2)]
    return Agent("a", ScriptedModel([uses, "done"]), tools=[stubborn], hooks=hooks, cleanup_timeout=2)


@pytest.mark.parametrize("kind", ["model", "tool", "parallel tools", "sub-agent"])
def test_the_log_of_an_abandoned_call_can_be_read_and_replayed(kind: str, tmp_path: Path) -> None:
    """Work that is still running is recorded as cancelled at the end of its call; what it does later is not recorded."""
    recorder = Recorder(tmp_path / "run.jsonl")

    async def main() -> None:
        with pytest.raises(CallTimeoutError):
            await stubborn_agent(kind, recorder).call("go", timeout=3)
        await asyncio.sleep(100)

    run_virtual(main())
    recorder.close()
    log = load(tmp_path / "run.jsonl")
    ended = [entry.end for entry in log.entries if isinstance(entry, AnsweredEntry | FinishedEntry)]
    assert "cut" in ended
    assert log.entries[-1].kind == "event"
    assert Replay(log).run(stubborn_agent(kind)).divergence is None


def test_the_chunks_of_two_replies_that_are_read_at_once_are_recorded_in_their_order() -> None:
    """The first reply's chunks are dropped; each is recorded before the event of the second one's chunk of the same instant."""
    recorder = Recorder()
    second = Reads(PreReasoning, lambda source: source.zip(source).map(lambda pair: pair[1]))
    run_virtual(Agent("a", ScriptedModel([["a", "b"], ["c", "d"]]), hooks=[second, recorder]).call("go"))
    entries = [one for one in recorder.log.entries if isinstance(one, ReplyEntry | ChunksEntry)]
    assert [(one.n if isinstance(one, ReplyEntry) else one.reply, one.pieces) for one in entries] == [
        (1, ("a",)),
        (2, ({"text": "c", "restart": True},)),
        (1, ("b",)),
        (2, ("d",)),
        (1, ({"finish_reason": "stop"},)),
        (2, ({"finish_reason": "stop"},)),
    ]


@pytest.mark.parametrize("waits", [(3.0, 5.0), (5.0, 3.0)], ids=["the first wins", "the second wins"])
def test_a_race_of_two_replies_is_replayed(waits: tuple[float, float]) -> None:
    """The winner's first chunk is recorded before the end of the loser, which it causes, and before its own event."""

    class Waits:
        name = "waits"
        left = iter(waits)

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
            seconds = next(self.left)
            for _ in range(2):
                await asyncio.sleep(seconds)
                yield ModelChunk(f"{seconds} ")

    race, recorder = Reads(PreReasoning, lambda source: source.amb(source)), Recorder()
    reply = run_virtual(agent_of(Waits(), race, recorder).call("go"))
    assert (reply.text, Replay(recorder.log).run(agent_of(Waits(), race)).divergence) == ("3.0 3.0 ", None)


def test_a_side_reply_whose_model_swallows_a_time_limit_is_not_used() -> None:
    """A `TimeoutError` is raised in the hook, as for a model that does not swallow it."""

    class Swallows(SlowModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
            with suppress(asyncio.CancelledError):
                async for chunk in super().stream(request):
                    yield chunk

    replies: list[str] = []

    @on(PreReasoning)
    async def asks(event: PreReasoning) -> None:
        try:
            async with asyncio.timeout(1):
                replies.append((await event.context.complete("hm?", model=Swallows())).text)
        except TimeoutError:
            replies.append("too late")

    run_virtual(Agent("a", ScriptedModel(["done"]), hooks=[asks]).call("go"))
    assert replies == ["too late"]


def test_a_chunk_that_a_hook_changes_comes_before_the_hooks_of_its_event() -> None:
    """A replay that waited for the hooks before the chunk would wait in vain, and a time limit would expire."""

    @on(ReasoningChunk)
    async def asks(event: ReasoningChunk) -> None:
        await event.context.complete("hm?", model=ScriptedModel(["yes"]))

    def agent(*hooks: Hook) -> Agent[Any]:
        upper = Reads(PreReasoning, lambda source: source.map(lambda chunk: replace(chunk, text=chunk.text.upper())))
        limit = Reads(PreCall, lambda source: source.timeout(0.5))
        return Agent("a", ScriptedModel(["done"]), hooks=[limit, upper, asks, *hooks], clock=LoopClock())

    recorder = Recorder()
    run_virtual(agent(recorder).call("go"))
    assert Replay(recorder.log).run(agent()).divergence is None


@tool(type="read")
async def counts(emitter: ToolEmitter) -> str:
    """Emit two numbers, a second apart."""
    await emitter.emit("1")
    await asyncio.sleep(1)
    await emitter.emit("2")
    return "done"


def test_the_chunks_of_two_attempts_at_once_belong_to_their_attempts() -> None:
    """Both attempts of a hedged tool emit chunks; the second one begins half a second later."""

    def agent(*hooks: Hook) -> Agent[Any]:
        both = Reads(PreActing, lambda source: source.amb(source.delay_subscription(0.5)))
        model = ScriptedModel([ToolUseBlock("t1", "counts", {}), "done"])
        return Agent("a", model, tools=[counts], hooks=[both, *hooks], clock=LoopClock())

    recorder = Recorder()
    run_virtual(agent(recorder).call("go"))
    pieces = [(one.n, one.pieces) for one in recorder.log.entries if isinstance(one, PiecesEntry)]
    assert pieces == [(None, ("1",)), (3, ("1",)), (2, ("2",))]
    assert Replay(recorder.log).run(agent()).divergence is None


@pytest.mark.parametrize("emits", ["emitter", "generator"])
def test_a_change_of_a_tools_chunks_is_not_applied_again(emits: str) -> None:
    """A recording has the changed chunks."""

    @tool(type="read")
    async def streams() -> AsyncIterator[str]:
        """Yield two numbers."""
        yield "1"
        yield "2"

    used = counts if emits == "emitter" else streams

    def agent(*hooks: Hook) -> Agent[Any]:
        marks = Reads(PreActing, lambda source: source.chunks(lambda chunks: chunks.map(lambda chunk: chunk + "!")))
        model = ScriptedModel([ToolUseBlock("t1", used.name, {}), "done"])
        return Agent("a", model, tools=[used], hooks=[marks, *hooks])

    recorder = Recorder()
    run_virtual(agent(recorder).call("go"))
    assert [one.pieces for one in recorder.log.entries if isinstance(one, PiecesEntry)] == [("1!", "2!")]
    assert Replay(recorder.log).run(agent()).divergence is None


def test_the_side_calls_of_tools_are_replayed_without_the_tools() -> None:
    """Their usage is part of the run's, and hooks that make side calls at the same time get their own replies."""

    @tool(type="read")
    async def asks(context: RunContext, what: str) -> str:
        """Ask twice at once, in two tasks, and then once more."""
        replies = await asyncio.gather(context.complete(what), context.complete(f"Really {what}?"))
        return (await context.complete(replies[0].text)).text

    seen: list[str] = []

    @on(ActingChunk, PostActing)
    async def remarks(event: ActingChunk | PostActing) -> None:
        seen.append((await event.context.complete("A remark?")).text)

    def say(request: ModelRequest) -> str | list[ToolUseBlock]:
        if not request.tools:
            return f"On {request.messages[-1].text}"
        rounds = [ToolUseBlock("t1", "asks", {"what": "x"}), ToolUseBlock("t2", "asks", {"what": "y"})]
        return [*rounds, ToolUseBlock("t3", "counts", {})] if len(request.messages) == 1 else "done"

    def agent(*hooks: Hook) -> Agent[Any]:
        return Agent("a", ScriptedModel(say), tools=[asks, counts], hooks=[remarks, *hooks], clock=LoopClock())

    recorder = Recorder()
    assert run_virtual(agent(recorder).call("go")).usage.model_calls == 2 + 2 * 3 + 2 + 3
    asking = [one.work is not None for one in recorder.log.entries if isinstance(one, RequestEntry) and one.side]
    assert sorted(asking) == [False] * 5 + [True] * 6
    lived, seen[:] = list(seen), []
    assert Replay(recorder.log).run(agent()).divergence is None
    assert seen == lived


@pytest.mark.parametrize("kind", [ActingChunk, PostReasoning])
def test_a_time_limit_that_a_hook_swallows_takes_effect_at_the_end_of_the_work(kind: type[Any]) -> None:
    """The model is not called again after the tool, or does not reply. A replay ends in the same way."""

    @tool(type="read")
    async def streams() -> AsyncIterator[str]:
        """Yield two numbers, a second apart."""
        yield "1"
        await asyncio.sleep(1)
        yield "2"

    @on(kind)
    async def swallows(event: Any) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)

    model = ScriptedModel([ToolUseBlock("t1", "streams", {}), "done"])

    def agent(*hooks: Hook) -> Agent[Any]:
        limit = Reads(PreCall, lambda source: source.timeout(0.5))
        return Agent("a", model, tools=[streams], hooks=[limit, swallows, *hooks], clock=LoopClock())

    recorder = Recorder()
    with pytest.raises(TimeoutError):
        run_virtual(agent(recorder).call("go"))
    assert len(model.requests) == 1 + (kind is PostReasoning)
    ended = [one.end for one in recorder.log.entries if isinstance(one, AnsweredEntry | FinishedEntry)]
    assert ended == (["done", "cut"] if kind is ActingChunk else ["done", "done", "cut"])
    assert Replay(recorder.log).run(agent()).divergence is None


def test_a_hook_of_the_first_event_that_injects_and_interrupts_is_replayed() -> None:
    """The beginnings of hooks have positions from the first event on, and a replay finds them."""

    def agent(*hooks: Hook) -> Agent[Any]:
        @on(MessagesAdded, PreCall, priority=10)
        async def waits(event: HookEvent) -> None:
            await asyncio.sleep(0)

        @on(PreCall)
        async def ends(event: PreCall) -> None:
            event.context.inject("first")
            event.context.interrupt("enough")

        return agent_of(ScriptedModel(["Hi"]), waits, ends, *hooks)

    recorder = Recorder()
    assert run_virtual(agent(recorder).call("go")).outcome == "interrupted"
    assert Replay(recorder.log).run(agent()).divergence is None
