"""A rich call, cut at every one of its steps in every way there is: one CallEnded, nothing left over, session usable."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from eventlog import history, use

from agentflow import Agent, CallTimeoutError, Hook, Reply, Session, ToolEmitter, Transcript, fold_events, on, tool
from agentflow.events import (
    CallEnded,
    Event,
    PostActing,
    PostCall,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
)
from agentflow.testing import ScriptedModel
from agentflow.testing.clock import VirtualClockLoop

VISITOR: ContextVar[str] = ContextVar("visitor", default="nobody")


async def pause(times: int = 1) -> None:
    """Suspend that often."""
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
    """Wraps the work of the stages that it is told."""

    def __init__(self, program: "Program", stages: tuple[type, ...]) -> None:
        super().__init__(program)
        self.stages = stages

    def around(self, event: Any, source: Any) -> Any:
        return source.tap(lambda _: None).map(lambda value: value) if isinstance(event, self.stages) else source


class Watch(Hook):
    """Sees everything, sealed."""

    observer = True

    def __init__(self, program: "Program") -> None:
        self.program = program

    def on_event(self, event: Any) -> None:
        self.program.seen.append(event)


class Program:
    """Two rounds: parallel tools that wait and stream, a write tool, async hooks on all events, a summary in words."""

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
            """Emits."""
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
    """task.cancel(), and again two steps later, in the middle of the cleanup."""
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
    """Whether the reply was there already: an interrupt that comes behind it changes nothing."""
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
    """What holds after any cut."""
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
    program.model._brain = lambda request: "usable"  # pyright: ignore[reportPrivateUsage]
    reply = await agent.call("next")
    assert (reply.text, reply.outcome) == ("usable", "completed"), where


def _first_call(events: list[Event]) -> list[Event]:
    call = events[0].call_id
    return [event for event in events if event.call_id == call]


async def _sweep(cut: Cut, stages: tuple[type, ...]) -> int:
    for count in range(1, 400):
        program = Program(stages)
        ended = await asyncio.create_task(cut(program, count))  # type: ignore[arg-type]
        await check(program, f"{cut.__name__} after {count}")
        if ended:
            return count
    raise AssertionError("the program never ended")


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("cut", SWEEPS, ids=lambda cut: cut.__name__)
def test_cut_at_every_step(cut: Cut, stages: tuple[type, ...]) -> None:
    """Cancelled, closed, disposed or interrupted at every step: one CallEnded, the last event; every Pre has its Post; no
    task and no connection left; the history is legal and equals the fold of the events; the next call works at once."""
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
    """What the model had said when the call was cut is stored, marked as interrupted."""
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


async def test_a_cancellation_at_the_end_of_a_call_cuts_the_next_one() -> None:
    """A cancellation that arrives while a call ends is not lost: the task's next call raises it and fires nothing."""

    @on(CallEnded)
    def cut(event: CallEnded) -> None:
        seen.append(event)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    seen: list[CallEnded] = []
    agent = Agent("a", ScriptedModel(["one", "two"]), hooks=[cut])

    async def both() -> None:
        await agent.call("one")
        await agent.call("two")

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(both())
    assert [event.outcome for event in seen] == ["completed"]
    assert not agent.session().busy
