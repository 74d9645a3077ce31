"""A call with many parts, cancelled at each of its steps in every way: one CallEnded, nothing left, and the session
stays usable.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from itertools import product
from typing import Any

import pytest
from clocks import in_virtual_time
from eventlog import Recorder, history, log, use
from thorough import THOROUGH
from toolbox import agent_of

from agentflow import (
    Agent,
    Flux,
    Hook,
    ModelChunk,
    Mono,
    Reply,
    Session,
    ToolEmitter,
    ToolSchedule,
    Turn,
    after_user_input,
    on,
    tool,
)
from agentflow._support.virtual_time import VirtualClockLoop, run_virtual
from agentflow.errors import CallTimeoutError, HookError
from agentflow.loop.history import fold_events
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    Event,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
)
from agentflow.vocabulary.transcript import Transcript

VISITOR: ContextVar[str] = ContextVar("visitor", default="nobody")


async def pause(times: int = 1) -> None:
    """Suspend the task this many times."""
    for _ in range(times):
        await asyncio.sleep(0)


class Everything(Hook):
    """Waits on every event, in `on_event` and around the work."""

    def __init__(self, program: "Program") -> None:
        self.program = program

    async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.program.visitors.add(VISITOR.get())
        await pause()
        return event


class Wrapping(Everything):
    """Wraps the work of the given stages."""

    def __init__(self, program: "Program", stages: tuple[type, ...]) -> None:
        super().__init__(program)
        self.stages = stages

    def around(self, event: Any, source: Any) -> Any:
        return source.tap(lambda _: None).map(lambda value: value) if isinstance(event, self.stages) else source


class Watch(Hook):
    """Records every event, sealed."""

    observer = True

    def __init__(self, program: "Program") -> None:
        self.program = program

    def on_event(self, event: Any) -> None:
        self.program.seen.append(event)


class Program:
    """Two rounds: parallel tools that wait and stream, a write tool, async hooks on all events, and a summary."""

    def __init__(self, stages: tuple[type, ...] = ()) -> None:
        self.seen: list[Event] = []
        self.visitors: set[str] = set()
        self.open_tools = 0

        @tool(type="read")
        async def look(times: int) -> str:
            """Look."""
            return await self.working(times)

        @tool(type="read")
        async def pieces(emitter: ToolEmitter) -> str:
            """Emit chunks."""
            self.open_tools += 1
            try:
                for piece in "ab":
                    await emitter.emit(piece)
                    await pause()
            finally:
                self.open_tools -= 1
            return "emitted"

        @tool
        async def save(text: str) -> str:
            """Save."""
            return await self.working(2)

        @tool
        async def stream() -> Any:
            """Streams."""
            self.open_tools += 1
            try:
                for piece in "xy":
                    await pause()
                    yield piece
            finally:
                self.open_tools -= 1

        first = [pause, use("t1", "look", times=3), use("t2", "look", times=1), use("t3", "pieces"), pause]
        second = [use("t4", "save", text="x"), pause, use("t5", "stream")]
        self.model = ScriptedModel([first, second, ["so ", pause, "far"], *["again"] * 3])
        hooks: list[Hook] = [Everything(self), Watch(self)]
        if stages:
            hooks.append(Wrapping(self, stages))
        self.agent = Agent("a", self.model, tools=[look, pieces, save, stream], hooks=hooks)

    async def working(self, times: int) -> str:
        self.open_tools += 1
        try:
            self.visitors.add(VISITOR.get())
            await pause(times)
        finally:
            self.open_tools -= 1
        return f"took {times}"


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


Cut = Callable[[Program, int], Awaitable[bool]]
"""Runs the program, cuts it after some steps; returns whether it had already ended."""


async def cancel_call(program: Program, count: int) -> bool:
    """task.cancel() of a plain call."""
    task = asyncio.create_task(_call(program))
    await steps(count)
    if task.done():
        return True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return False


async def _call(program: Program) -> Reply:
    VISITOR.set("visitor")
    return await program.agent.call("go")


async def cancel_call_twice(program: Program, count: int) -> bool:
    """task.cancel(), and again two steps later, during the cleanup."""
    task = asyncio.create_task(_call(program))
    await steps(count)
    if task.done():
        return True
    task.cancel()
    await steps(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return False


async def cancel_reader(program: Program, count: int) -> bool:
    """task.cancel() of the task that reads the stream."""

    async def read() -> None:
        VISITOR.set("visitor")
        async with program.agent.stream("go") as events:
            async for _ in events:
                pass

    task = asyncio.create_task(read())
    await steps(count)
    if task.done():
        return True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return False


async def close_stream(program: Program, count: int) -> bool:
    """aclose() by the reader itself after some events."""
    VISITOR.set("visitor")
    stream = aiter(program.agent.stream("go"))
    for _ in range(count):
        try:
            await anext(stream)
        except StopAsyncIteration:
            return True
    await stream.aclose()
    return False


async def close_from_outside(program: Program, count: int) -> bool:
    """aclose() from another task while the reader waits for the next event."""
    VISITOR.set("visitor")  # cleanup may run in the closer's context
    stream = aiter(program.agent.stream("go"))

    async def read() -> None:
        VISITOR.set("visitor")
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    await steps(count)
    done = task.done()
    await stream.aclose()
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        raise AssertionError("the reader failed") from task.exception()
    return done


async def break_off(program: Program, count: int) -> bool:
    """A bare break after some events; the next call waits for the cleanup."""
    VISITOR.set("visitor")
    seen = 0
    async for _ in program.agent.stream("go"):
        seen += 1
        if seen > count:
            break
    else:
        return True
    return False


async def dispose(program: Program, count: int) -> bool:
    """dispose() of a subscription, then closed()."""
    VISITOR.set("visitor")
    subscription = program.agent.stream("go").subscribe(lambda event: None)
    await steps(count)
    done = subscription.is_closed
    subscription.dispose()
    await subscription.closed()
    return done


async def dispose_call(program: Program, count: int) -> bool:
    """dispose() of a subscription to a call, then closed()."""
    VISITOR.set("visitor")
    subscription = program.agent.call("go").subscribe(lambda reply: None)
    await steps(count)
    done = subscription.is_closed
    subscription.dispose()
    await subscription.closed()
    return done


async def interrupt_call(program: Program, count: int) -> bool:
    """agent.interrupt(): the call returns a reply with outcome `interrupted`."""
    task = asyncio.create_task(_call(program))
    await steps(count)
    if task.done():
        return True
    running = program.agent.interrupt(reason="enough")
    reply = await task
    assert isinstance(program.seen[-1], CallEnded)
    assert program.seen[-1].outcome == reply.outcome
    assert reply.outcome == "interrupted" or not running or _answered(program)
    return False


async def interrupt_stream(program: Program, count: int) -> bool:
    """agent.interrupt() of a streamed call: the stream ends after CallEnded, without an error."""
    handed: list[Event] = []

    async def read() -> None:
        VISITOR.set("visitor")
        async with program.agent.stream("go") as events:
            async for event in events:
                handed.append(event)  # noqa: PERF401 - what came before a failure counts

    task = asyncio.create_task(read())
    await steps(count)
    if task.done():
        return True
    running = program.agent.interrupt()
    await task
    assert isinstance(handed[-1], CallEnded)
    assert handed[-1].outcome == "interrupted" or not running or _answered(program)
    return False


def _answered(program: Program) -> bool:
    """Whether the reply existed already: a later interrupt changes nothing."""
    return any(isinstance(event, PostCall) for event in program.seen)


SWEEPS: list[Cut] = [
    cancel_call,
    cancel_call_twice,
    cancel_reader,
    close_stream,
    close_from_outside,
    break_off,
    dispose,
    dispose_call,
    interrupt_call,
    interrupt_stream,
]
STAGES = {
    "plain": (),
    "around the model and the tools": (PreReasoning, PreActing),
    "around the round": (PreToolRound,),
    "around the call": (PreCall,),
}


async def check(program: Program, where: str) -> None:
    """Check what holds after any cancellation."""
    agent, session = program.agent, program.agent.session()
    if session.busy:  # a bare break: the next call waits for the cleanup
        VISITOR.set("visitor")
        await agent.call("wait")
    everything = list(program.seen)
    program.seen = seen = _first_call(everything) if everything else []
    kinds = [type(event) for event in seen]
    began = PreCall in kinds
    assert kinds.count(CallEnded) == (1 if began else 0), where
    if began:
        assert kinds[-1] is CallEnded, where
    pre = sorted(event.tool_use.id for event in seen if isinstance(event, PreActing))
    assert sorted(event.tool_use.id for event in seen if isinstance(event, PostActing)) == pre, where
    assert kinds.count(PreToolRound) == kinds.count(PostToolRound), where
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, f"{where}: {others}"
    assert (program.open_tools, program.model.open_streams) == (0, 0), where
    assert not session.busy, where
    assert program.visitors <= {"visitor"}, where
    Transcript(session.messages)
    assert history(fold_events(everything)) == history(session), where
    program.model._function = lambda request: "usable"  # pyright: ignore[reportPrivateUsage]
    reply = await agent.call("next")
    assert (reply.text, reply.outcome) == ("usable", "completed"), where


def _first_call(events: list[Event]) -> list[Event]:
    call = events[0].call_id
    return [event for event in events if event.call_id == call]


async def _sweep(cut: Cut, stages: tuple[type, ...]) -> int:
    for count in range(1, 400, 3 if stages and not THOROUGH else 1):
        program = Program(stages)
        ended = await asyncio.create_task(cut(program, count))  # type: ignore[arg-type]
        await check(program, f"{cut.__name__} after {count}")
        if ended:
            return count
    raise AssertionError("the program never ended")


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("cut", SWEEPS, ids=lambda cut: cut.__name__)
def test_cut_at_every_step(cut: Cut, stages: tuple[type, ...]) -> None:
    """If a call is cancelled, closed, disposed or interrupted at any step: one CallEnded, last; every Pre event has
    its Post event; no task or connection is left; the history is legal and equals the fold of the events; the next call
    works at once.
    """
    with asyncio.Runner() as runner:
        count = runner.run(_sweep(cut, stages))
    assert count > 15


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_timeout_at_every_step(stages: tuple[type, ...]) -> None:
    """`timeout=` at every step: CallTimeoutError after one CallEnded(interrupted), and the same invariants."""

    async def sweep() -> None:
        for count in range(1, 200):
            program = Program(stages)
            try:
                reply = await _timed(program, count - 0.5)
            except CallTimeoutError:
                ended = program.seen[-1]
                assert isinstance(ended, CallEnded)
                assert (ended.outcome, type(ended.error)) == ("interrupted", CallTimeoutError)
                await check(program, f"timeout after {count}")
            else:
                assert reply.outcome == "completed"
                assert count > 10
                return
        raise AssertionError("the program never ended")

    async def slow(times: int = 1) -> None:
        await asyncio.sleep(times)

    with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        patch.setitem(globals(), "pause", slow)
        runner.run(sweep())


async def _timed(program: Program, seconds: float) -> Reply:
    VISITOR.set("visitor")
    return await program.agent.call("go", timeout=seconds)


async def test_a_call_that_was_cancelled_can_be_the_end_of_its_task() -> None:
    """A cancelled call leaves its task cancelled; an interrupt leaves no cancellation behind."""
    program = Program()

    async def interrupted() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(program.agent.interrupt)
        reply = await _call(program)
        assert reply.outcome == "interrupted"
        await asyncio.sleep(0)
        return task.cancelling()

    assert await asyncio.create_task(interrupted()) == 0


async def test_cancelled_in_a_timeout_block() -> None:
    """`asyncio.timeout` around a call works as around any coroutine."""
    program = Program()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await _call(program)
    await check(program, "asyncio.timeout")


async def test_partial_words_are_kept() -> None:
    """The text that the model had streamed before the cancellation is stored, marked as interrupted."""
    said = asyncio.Event()

    async def hang() -> None:
        said.set()
        await asyncio.Event().wait()

    session = Session.fresh()
    agent = Agent("a", ScriptedModel([["It ", "was ", hang]]))
    task = asyncio.ensure_future(asyncio.create_task(_wait_call(agent, session)))
    await said.wait()
    agent.interrupt(session, "enough")
    reply = await task
    assert (reply.text, reply.outcome) == ("It was ", "interrupted")
    assert history(session) == ["user: go", "assistant: It was "]
    assert session.messages[-1].metadata["interrupted"] is True


async def _wait_call(agent: Agent, session: Session) -> Reply:
    return await agent.call("go", session=session)


async def test_a_caller_that_is_cancelled_while_its_call_ends() -> None:
    """The call ends as it would have, and then raises the cancellation, so the task's next call is not made."""
    callers: list[asyncio.Task[Any]] = []

    @on(CallEnded)
    def cut(event: CallEnded) -> None:
        seen.append(event)
        callers[0].cancel()

    seen: list[CallEnded] = []
    agent = Agent("a", ScriptedModel(["one", "two"]), hooks=[cut])

    async def both() -> None:
        task = asyncio.current_task()
        assert task is not None
        callers.append(task)
        await agent.call("one")
        await agent.call("two")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(both())
    assert [event.outcome for event in seen] == ["completed"]
    assert not agent.session().busy


# ---- hooks that hold up the end


class Exports(Hook):
    """Hangs on `CallEnded`; records when it got the event, and whether it was cancelled."""

    def __init__(self, priority: int = 100, observer: bool = False, stubborn: bool = False) -> None:
        self.priority = priority
        self.observer = observer
        self.stubborn = stubborn
        self.inside = asyncio.Event()
        self.cut = 0

    async def on_event(self, event: Any) -> None:
        if isinstance(event, CallEnded):
            self.inside.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cut += 1
                if not self.stubborn:
                    raise


ENDINGS = [[Exports], [Exports, Exports], [lambda: Exports(observer=True)], [lambda: Exports(stubborn=True)]]
ENDING_NAMES = ["one", "two", "observer", "swallows"]


def check_let_go(hooks: list[Any], seconds: int) -> None:
    """Check that each hook was cancelled after so many seconds, and that no cancellation is pending."""
    assert [hook.cut for hook in hooks] == [1] * len(hooks)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert asyncio.get_running_loop().time() == seconds


@pytest.mark.parametrize("make", ENDINGS, ids=ENDING_NAMES)
@pytest.mark.parametrize("read", ["call", "stream"])
def test_a_hook_that_hangs_in_callended_is_cut_off_by_the_timeout(make: list[Any], read: str) -> None:
    """Hooks of `CallEnded` have `cleanup_timeout` seconds after the call's timeout. The reply is kept, the other
    hooks and the reader get the event, and no cancellation is pending.
    """

    async def main() -> None:
        hooks, recorder = [one() for one in make], Recorder()
        agent = Agent("a", ScriptedModel(["answer", "again"]), hooks=[*hooks, recorder])
        if read == "call":
            reply = await agent.call("go", timeout=5)
            assert (reply.text, reply.outcome) == ("answer", "completed")
        else:
            events = [event async for event in agent.stream("go", timeout=5)]
            assert log(events)[-1] == "CallEnded completed"
        assert recorder.log[-1] == "CallEnded completed"
        check_let_go(hooks, 10)

    run_virtual(main())


@pytest.mark.parametrize("make", ENDINGS, ids=ENDING_NAMES)
async def test_a_hook_that_hangs_in_callended_is_cut_off_by_an_interrupt(make: list[Any]) -> None:
    """`agent.interrupt()` cancels the hook that delays the end, and then the next one; the call's outcome was settled
    before.
    """
    hooks, recorder = [one() for one in make], Recorder()
    agent = Agent("a", ScriptedModel(["answer"]), hooks=[*hooks, recorder])
    task = asyncio.create_task(agent.call("go"))
    for hook in hooks:
        await hook.inside.wait()
        assert agent.interrupt()
    assert (await task).outcome == "completed"
    assert recorder.log[-1] == "CallEnded completed"
    assert [hook.cut for hook in hooks] == [1] * len(hooks)
    assert task.cancelling() == 0


@pytest.mark.parametrize("make", ENDINGS, ids=ENDING_NAMES)
def test_a_hook_that_hangs_in_callended_is_cut_off_behind_a_reader_that_has_gone(make: list[Any]) -> None:
    """After `cleanup_timeout` the other hooks get the event, and `aclose()` returns."""

    async def main() -> None:
        hooks, recorder = [one() for one in make], Recorder()
        agent = Agent("a", ScriptedModel(["answer"]), hooks=[*hooks, recorder])
        async with agent.stream("go", timeout=50, buffer=0) as events:
            async for event in events:
                if isinstance(event, PreReasoning):
                    break
        assert recorder.log[-1] == "CallEnded interrupted CancelledError:"
        check_let_go(hooks, 5)

    run_virtual(main())


def test_a_call_past_its_timeout_does_not_wait_for_its_exporter_for_ever() -> None:
    """The limit has passed while a tool ran. The hook of `CallEnded` that hangs then is cancelled after the same time
    again.
    """

    async def main() -> None:
        @tool
        async def slow() -> None:
            """Take forever."""
            await asyncio.Event().wait()

        exports = Exports()
        agent = Agent("a", ScriptedModel([use("t1", "slow")]), tools=[slow], hooks=[exports])
        with pytest.raises(CallTimeoutError):
            await agent.call("go", timeout=5)
        assert exports.cut == 1
        assert asyncio.get_running_loop().time() == 10

    run_virtual(main())


async def test_a_task_that_is_cancelled_while_a_hook_holds_up_the_end_is_cancelled() -> None:
    """A cancellation from outside of the call ends the wait and is raised."""
    exports = Exports()
    task = asyncio.create_task(Agent("a", ScriptedModel(["answer"]), hooks=[exports]).call("go", timeout=60))
    await exports.inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert exports.cut == 1


@pytest.mark.parametrize("watched", [False, True])
async def test_a_task_that_has_outlived_a_cancellation_can_call(watched: bool) -> None:
    """A cancellation that a task swallowed long ago does not affect its later calls: an interrupt is an interrupt,
    and a hook that raises CancelledError itself is a failing hook.
    """
    interrupts = on(PreReasoning)(lambda event: event.context.interrupt("enough"))

    async def outlives() -> tuple[Reply, BaseException]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 1
        agent = Agent("a", ScriptedModel(["end", "end"]), hooks=[interrupts])
        events = [event async for event in agent.stream("go")] if watched else []
        assert not watched or (type(events[-1]), getattr(events[-1], "outcome", "")) == (CallEnded, "interrupted")
        reply = await agent.call("go")
        assert task.cancelling() == 1
        stray = Agent("a", ScriptedModel(["end"]), hooks=[on(PreReasoning)(_stray)])
        with pytest.raises(HookError) as caught:
            await (stray.stream("go").to_list() if watched else stray.call("go"))
        return reply, caught.value

    task = asyncio.ensure_future(outlives())
    await asyncio.sleep(0)
    task.cancel()
    reply, error = await task
    assert (reply.outcome, reply.text) == ("interrupted", "(interrupted: enough)")
    assert "but the run was not cancelled" in str(error)


def _stray(_: PreReasoning) -> None:
    raise asyncio.CancelledError("mine")


# ---- an interrupt that nothing waits for


@tool(type="read")
async def step() -> str:
    """Never waits."""
    return "stepped"


@pytest.mark.parametrize("read", [False, True], ids=["call", "stream"])
@pytest.mark.parametrize(
    "kind", [PreCall, PreReasoning, ReasoningChunk, PreToolRound, PreActing, PostActing, PostToolRound]
)
async def test_an_interrupt_in_a_hook_is_noticed_before_anything_else_begins(kind: type, read: bool) -> None:
    """A plain hook interrupts its call, in which nothing ever waits: the work after the event does not begin. The
    next events are those that close open stages.
    """
    recorder = Recorder()

    @on(kind)
    def interrupts(event: Any) -> None:
        event.context.interrupt("enough")

    model = ScriptedModel([[use("t1", "step"), use("t2", "step")], "never asked"])
    agent = Agent("a", model, tools=[step], hooks=[interrupts, recorder], schedule=ToolSchedule.SEQUENTIAL)
    if read:
        async with agent.stream("go") as events:
            assert log([event async for event in events])[-1] == "CallEnded interrupted"
    else:
        assert (await agent.call("go")).outcome == "interrupted"
    at = next(n for n, event in enumerate(recorder.seen) if isinstance(event, kind))
    assert [type(event) for event in recorder.seen[at + 1 :]] == {
        PreCall: [CallEnded],
        PreReasoning: [CallEnded],
        ReasoningChunk: [CallEnded],
        PreToolRound: [PostToolRound, CallEnded],
        PreActing: [PostActing, PostToolRound, CallEnded],
        PostActing: [PostToolRound, CallEnded],
        PostToolRound: [CallEnded],
    }[kind]
    assert len(model.requests) == (0 if kind in (PreCall, PreReasoning) else 1)
    ran = [block.text for msg in agent.session().messages for block in msg.tool_results if block.state == "success"]
    assert len(ran) == {PostActing: 1, PostToolRound: 2}.get(kind, 0)


# ---- tasks that were cancelled before


async def take_in() -> None:
    """Cancel the running task and continue, as a supervisor does that ignores a cancellation."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        assert task.cancelling()


async def by_call(agent: Agent, timeout: float | None = None) -> None:
    """agent.call()"""
    await take_in()
    await agent.call("go", timeout=timeout)


async def by_stream(agent: Agent, timeout: float | None = None) -> None:
    """agent.stream()"""
    await take_in()
    await agent.stream("go", timeout=timeout).to_list()


async def by_turns(agent: Agent, timeout: float | None = None) -> None:
    """A stream whose reader is cancelled between two events, and continues reading."""
    async with agent.stream("go", timeout=timeout, buffer=0) as events:
        async for event in events:
            if isinstance(event, PreCall):
                await take_in()


EARLIER = pytest.mark.parametrize("by", [by_call, by_stream, by_turns], ids=lambda by: by.__doc__)


@EARLIER
@pytest.mark.parametrize("waits", [0, 1])
async def test_an_earlier_cancellation_makes_no_stray_one_count(by: Callable[..., Awaitable[None]], waits: int) -> None:
    """A tool that raises `CancelledError` itself is a failing tool, also in a task that was cancelled once before."""

    @tool
    async def stray() -> str:
        """Raise it."""
        await pause(waits)
        raise asyncio.CancelledError("mine")

    recorder = Recorder()
    agent = Agent("a", ScriptedModel([[pause, use("t1", "stray")], [pause, "end"]]), tools=[stray], hooks=[recorder])
    await asyncio.create_task(by(agent))
    assert recorder.log[-1] == "CallEnded completed"
    assert [text[:19] for text in recorder.log if text.startswith("PostActing")] == ["PostActing t1 error"]


@EARLIER
@pytest.mark.parametrize("waits", [0, 1])
@pytest.mark.parametrize("how", ["interrupt", "timeout"])
def test_an_earlier_cancellation_makes_no_interrupt_a_real_one(
    by: Callable[..., Awaitable[None]], waits: int, how: str
) -> None:
    """An interrupt and a deadline end the call with its last events, and leave the task's cancellation count
    unchanged.
    """
    recorder = Recorder()

    async def hang() -> None:
        await pause(waits)
        if how == "interrupt":
            agent.interrupt()
        await asyncio.Event().wait()

    agent = Agent("a", ScriptedModel([["It ", hang]]), hooks=[recorder])

    async def main() -> int:
        try:
            await by(agent, timeout=5 if how == "timeout" else None)
        except CallTimeoutError:
            assert how == "timeout"
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        assert runner.run(main()) == 1
    assert recorder.log[-1].startswith("CallEnded interrupted")
    assert history(agent.session()) == ["user: go", "assistant: It "]


@EARLIER
async def test_a_second_cancellation_is_a_real_one(by: Callable[..., Awaitable[None]]) -> None:
    """A task that was cancelled before is cancelled by the next one."""
    inside = asyncio.Event()

    async def hang() -> None:
        inside.set()
        await asyncio.Event().wait()

    recorder = Recorder()
    agent = Agent("a", ScriptedModel([[hang, "never"]]), hooks=[recorder])
    task = asyncio.create_task(by(agent))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert recorder.log[-1] == "CallEnded interrupted CancelledError:"


@pytest.mark.parametrize("how", ["call", "stream", "turn"])
async def test_a_cancellation_on_its_way_is_not_lost(how: str) -> None:
    """A cancellation requested before the task has waited again cancels whatever it begins next."""

    @tool
    async def waits() -> str:
        """Wait."""
        await pause(3)
        return "done"

    agent = Agent("a", ScriptedModel([[pause, "end"]]), tools=[waits])

    async def work() -> object:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if how == "call":
            return await agent.call("go")
        if how == "stream":
            return await agent.stream("go").to_list()
        return await Turn(waits, {}).returning()

    task = asyncio.create_task(work())
    await asyncio.wait([task])
    assert task.cancelled()
    assert not agent.session().busy


@pytest.mark.parametrize("kind", [PreCall, PreReasoning, PreToolRound, PreActing])
async def test_what_a_readers_interrupt_comes_before_does_not_begin(kind: type) -> None:
    """A reader interrupts at a Pre event, and takes turns with the run: the work after the event never begins."""
    model = ScriptedModel([use("t1", "step"), "end"])
    agent = Agent("a", model, tools=[step])
    seen: list[Event] = []
    async for event in agent.stream("go", buffer=0):
        seen.append(event)
        if isinstance(event, kind):
            agent.interrupt()
    assert not [block for msg in agent.session().messages for block in msg.tool_results if block.state == "success"]
    assert len(model.requests) == (0 if kind in (PreCall, PreReasoning) else 1)
    assert log(seen)[-1] == "CallEnded interrupted"
    assert fold_events(seen) == tuple(agent.session().messages)


# ---- hooks that swallow a cancellation


class Rude(Hook):
    """Swallows its cancellation, in `on_event` or around the work."""

    def __init__(self, kind: type, form: str) -> None:
        self.kind = kind
        self.form = form
        self.guard = form == "guard"
        self.observer = form == "observer"
        self.inside = asyncio.Event()

    def on_event(self, event: Any) -> Any:
        if not isinstance(event, self.kind) or self.form == "around":
            return event
        return Mono(self._swallow) if self.form == "mono" else self._swallow()

    def around(self, event: Any, source: Any) -> Any:
        if not isinstance(event, self.kind) or self.form != "around":
            return source
        return Flux(self._chunks) if isinstance(event, PreReasoning) else Mono(self._swallow).then(source)

    async def _swallow(self) -> None:
        self.inside.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def _chunks(self) -> Any:
        await self._swallow()
        yield ModelChunk("made up")


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        *product(
            (PreCall, PreReasoning, PostReasoning, PreToolRound, PreActing, PostActing),
            ("editor", "mono", "guard", "observer"),
        ),
        *product((PreCall, PreReasoning, PreToolRound, PreActing), ("around",)),
    ],
)
@pytest.mark.parametrize("how", ["cancel", "interrupt", "timeout"])
@pytest.mark.parametrize("watched", [False, True])
@in_virtual_time
async def test_a_cancellation_that_a_hook_swallows_is_noticed(kind: type, form: str, how: str, watched: bool) -> None:
    """The call ends as if the hook had not swallowed it: cancelled, interrupted or timed out, before the next reply
    of the model, with every stage closed.
    """
    rude, recorder = Rude(kind, form), Recorder()
    model = ScriptedModel([[use("t1", "noop"), use("t2", "noop")], "end"])
    agent = Agent("a", model, tools=[noop], hooks=[rude, recorder])
    timeout = 0.01 if how == "timeout" else None
    call = agent.stream("go", timeout=timeout).to_list() if watched else agent.call("go", timeout=timeout)
    task = asyncio.ensure_future(call)
    await rude.inside.wait()
    if how == "cancel":
        task.cancel()
    elif how == "interrupt":
        agent.interrupt()
    await asyncio.wait([task])
    if how == "cancel":
        assert task.cancelled()
    elif how == "timeout":
        assert isinstance(task.exception(), CallTimeoutError)
    assert len(model.requests) <= 1
    names = [type(event).__name__ for event in recorder.seen]
    assert names.count("PreActing") == names.count("PostActing")
    assert names.count("PreToolRound") == names.count("PostToolRound")
    assert recorder.log[-1].startswith("CallEnded interrupted")
    assert not agent.session().busy


class RudeModel(ScriptedModel):
    """A model whose cleanup awaits a task that it has cancelled, and swallows a cancellation during it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.cleaning = asyncio.Event()

    async def stream(self, request: Any) -> Any:
        task = asyncio.ensure_future(asyncio.Event().wait())
        try:
            async for chunk in super().stream(request):
                yield chunk
        finally:
            self.cleaning.set()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                for _ in range(9):  # a caller's cancellation takes a few turns of the event loop to arrive
                    await asyncio.sleep(0)
                await task


@pytest.mark.parametrize("how", ["cancel", "interrupt"])
@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("script", [["end"], [[use("t1", "noop")], "end"]], ids=["answer", "round"])
async def test_a_cancellation_that_a_models_cleanup_swallows_is_noticed(how: str, watched: bool, script: Any) -> None:
    """A cancelled call is cancelled, and an interrupted one interrupted, although the model's reply was complete."""
    model = RudeModel(script)
    recorder = Recorder()
    agent = Agent("a", model, tools=[noop], hooks=[recorder])
    task = asyncio.ensure_future(agent.stream("go").to_list() if watched else agent.call("go"))
    await model.cleaning.wait()
    if how == "cancel":
        task.cancel()
    else:
        agent.interrupt()
    await asyncio.wait([task])
    assert task.cancelled() == (how == "cancel")
    assert len(model.requests) == 1
    assert recorder.log[-1].startswith("CallEnded interrupted")
    assert not agent.session().busy


@tool(type="read")
async def noop() -> str:
    """Do nothing."""
    return ""


async def test_an_interrupt_before_the_first_model_call_counts() -> None:
    """An interrupt at the start ends the call; the user's input is stored, and the model is not called."""

    @after_user_input
    def stop(event: PreCall) -> None:
        event.context.interrupt("changed my mind")

    agent = agent_of(["never"], stop)
    reply = await agent.call("go")
    assert (reply.outcome, agent.config.model.requests) == ("interrupted", [])  # type: ignore[union-attr]


async def test_a_chunk_after_the_request_of_a_cancellation_reaches_no_hook() -> None:
    """A tool that wakes after an interrupt was requested, before it is delivered, emits no further chunk."""
    go = asyncio.Event()
    handled: list[object] = []

    @tool(type="read")
    async def waiting(emitter: ToolEmitter) -> str:
        """Wait, then emit."""
        await emitter.emit("first")
        await go.wait()
        await emitter.emit("late")
        return "done"

    @tool(type="read")
    async def interrupting() -> str:
        """Wake the other tool, then interrupt."""
        await asyncio.sleep(0)
        go.set()
        agent.interrupt()
        return "done"

    watch = on(ActingChunk)(lambda event: handled.append(event.chunk))
    agent = agent_of([[use("t1", "waiting"), use("t2", "interrupting")], "never"], watch, tools=[waiting, interrupting])
    reply = await agent.call("go")
    assert (reply.outcome, handled) == ("interrupted", ["first"])


@pytest.mark.parametrize("between", [False, True], ids=["a sub-agent", "the sub-agent of a sub-agent"])
async def test_a_sub_agent_is_cancelled_when_its_caller_is_and_its_callers_cleanup_is_not(between: bool) -> None:
    """A sub-agent that wakes after the interrupt of its caller was requested calls no model. The tool that awaits it
    gets one cancellation, and its cleanup finishes.
    """
    go = asyncio.Event()
    log: list[str] = []

    @on(PreReasoning)
    async def hold(event: PreReasoning) -> None:
        await go.wait()
        log.append("the hook of the sub-agent continues")

    model = ScriptedModel(["never"])
    helper = Agent("helper", model, hooks=[hold])

    @tool(type="read")
    async def asks() -> str:
        """Ask the sub-agent."""
        try:
            return (await helper.call("go")).text
        except asyncio.CancelledError:
            await pause(8)
            log.append("cleaned up")
            raise

    @tool(type="read")
    async def interrupting() -> str:
        """Wake the sub-agent, then interrupt the call."""
        await pause(20)
        go.set()
        agent.interrupt()
        return "done"

    @tool(type="read")
    async def asks_between() -> str:
        """Ask a sub-agent that asks the other."""
        return (await agent_of([[use("b1", "asks")], "never"], tools=[asks]).call("go")).text

    first = asks_between if between else asks
    agent = agent_of([[use("t1", first.name), use("t2", "interrupting")], "never"], tools=[first, interrupting])
    reply = await agent.call("go")
    assert (reply.outcome, log) == ("interrupted", ["the hook of the sub-agent continues", "cleaned up"])
    assert model.requests == []


def test_an_interrupt_ends_a_running_tool_and_the_next_call_works() -> None:
    """The tool is cancelled at once, its call is answered `interrupted`, and the conversation continues."""
    cleaned: list[float] = []

    @tool
    async def endless() -> str:
        """Never end."""
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(asyncio.get_running_loop().time())
        return "never"

    async def main() -> None:
        agent = agent_of([[use("t1", "endless"), use("t2", "endless")], "Hello again."], tools=[endless])
        call = asyncio.create_task(agent.call("go"))
        await asyncio.sleep(3)
        assert agent.interrupt()
        assert (await call).outcome == "interrupted"
        assert cleaned == [3]
        assert [result.state for result in agent.session().messages[2].tool_results] == ["interrupted"] * 2
        assert (await agent.call("And now?")).text == "Hello again."

    run_virtual(main())


async def test_late_results_of_abandoned_work_never_reach_the_session() -> None:
    """The late result of a tool that ignored its cancellation is discarded: the session has the interrupt."""
    release = asyncio.Event()
    begun = asyncio.Event()

    @tool
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await release.wait()
        return "late"

    agent = agent_of([use("t1", "stubborn"), "next"], tools=[stubborn])
    task = asyncio.create_task(agent.call("go"))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    before = history(agent.session())
    assert before[2] == "tool: t1 interrupted 'Interrupted.'"
    assert (await agent.call("go on")).text == "next"
    assert history(agent.session())[: len(before)] == before


def _end_after_a_failure(work: Callable[[], Awaitable[None]], **options: Any) -> float:
    """Return when a call ends whose first tool fails after a second, in parallel with one that ends at once and this work."""

    @tool(type="read")
    async def fails() -> str:
        await asyncio.sleep(1)
        return "failed"

    @tool(type="read")
    async def ends() -> str:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.1)
        return "never"

    @tool(type="read", timeout=None)
    async def other() -> str:
        await work()
        return "never"

    @on
    def breaks(event: PostActing) -> None:
        if event.tool_use.name == "fails":
            raise ValueError("broken")

    async def main() -> float:
        model = ScriptedModel([[use("t1", "fails"), use("t2", "ends"), use("t3", "other")]])
        agent = Agent("a", model, tools=[fails, ends, other], hooks=[breaks], **options)
        with pytest.raises(ValueError, match="broken"):
            await agent.call("go")
        return asyncio.get_running_loop().time()

    return run_virtual(main())


def test_a_failure_cancels_parallel_calls_once() -> None:
    """The cleanup of one call is not cancelled again when another has ended."""
    steps: list[str] = []

    async def cleans() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            steps.append("cleaning")
            await asyncio.sleep(1)
            steps.append("clean")

    assert _end_after_a_failure(cleans) == pytest.approx(2)
    assert steps == ["cleaning", "clean"]


def test_a_call_that_swallows_its_cancellation_after_a_failure_has_a_limit() -> None:
    """It is cancelled again after the limit for cleanup, since the run itself is not cancelled."""

    async def swallows() -> None:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(100)

    assert _end_after_a_failure(swallows, cleanup_timeout=3) == pytest.approx(4)


def test_an_interrupt_after_a_failure_does_not_cut_the_cleanup_of_a_hook() -> None:
    """The hooks of a call that a failure has cancelled run to their end, although the run is interrupted meanwhile."""
    steps: list[str] = []

    @tool(type="read")
    async def waits() -> str:
        await asyncio.sleep(100)
        return "never"

    @tool(type="read")
    async def fails() -> str:
        return "failed"

    @on
    async def audits(event: PostActing) -> None:
        if event.tool_use.name == "fails":
            raise ValueError("broken")
        steps.append("begins")
        await asyncio.sleep(1)
        steps.append("ends")

    async def main() -> None:
        model = ScriptedModel([[use("t1", "fails"), use("t2", "waits")]])
        agent = Agent("a", model, tools=[fails, waits], hooks=[audits])
        asyncio.get_running_loop().call_later(0.5, agent.interrupt)
        await agent.call("go")

    run_virtual(main())
    assert steps == ["begins", "ends"]


async def test_an_interrupt_from_another_thread_counts_before_anything_is_awaited() -> None:
    """A tool does not run if the call is interrupted while a synchronous hook decides about it."""
    ran: list[str] = []

    @tool
    async def delete() -> str:
        ran.append("delete")
        return "deleted"

    @on
    def asks(event: PreActing) -> None:
        thread = threading.Thread(target=agent.interrupt)
        thread.start()
        thread.join()

    agent = Agent("a", ScriptedModel([use("t1", "delete"), "never"]), tools=[delete], hooks=[asks])
    reply = await agent.call("go")
    assert (reply.outcome, ran) == ("interrupted", [])


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends a signal")
def test_an_interrupt_in_a_signal_handler_wakes_the_event_loop() -> None:
    """The handler runs while the event loop waits in its selector, and the selector continues to wait after a handler."""
    late: list[str] = []

    @tool
    async def waits() -> None:
        """Wait."""
        asyncio.get_running_loop().call_later(10, late.append, "the loop woke by itself")
        await asyncio.sleep(20)

    agent = agent_of([[use("1", "waits")], "end"], tools=[waits])
    before = signal.signal(signal.SIGALRM, lambda *_: agent.interrupt(reason="by a signal"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        reply = agent.call("go").block()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (reply.outcome, late) == ("interrupted", [])


@pytest.mark.parametrize("kind", [PreCall, PreReasoning, ReasoningChunk])
@pytest.mark.parametrize("wrapped", [False, True])
async def test_a_hook_that_cancels_its_task_before_the_end_of_a_reply_cancels_the_call(
    kind: type[Event], wrapped: bool
) -> None:
    """Nothing is awaited after it, and the model's chunks are all there: with or without a wrapper, the call is cancelled."""

    class Cancels(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, kind) and (task := asyncio.current_task()) is not None:
                task.cancel()
            return event

    class Wraps(Hook):
        def around_model(self, event: PreReasoning, source: Flux[ModelChunk]) -> Flux[ModelChunk]:
            return source

    recorder = Recorder()
    hooks = [Cancels(), recorder, *([Wraps()] if wrapped else [])]
    with pytest.raises(asyncio.CancelledError):
        await Agent("a", ScriptedModel([["a", "b"]]), hooks=hooks).call("go")
    ended = [event for event in recorder.seen if isinstance(event, CallEnded)]
    assert [event.outcome for event in ended] == ["interrupted"]
