"""Graceful shutdown within a process: where calls stop, what is stored, and what their callers get."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Any

import pytest
from eventlog import Recorder, history, use

from agentflow import Agent, CallEnded, MemoryStore, Turn, on, tool
from agentflow._support.virtual_time import run_virtual
from agentflow.agent.graceful import GracefulShutdown, ShutdownReport, shutdown
from agentflow.errors import ShutdownError, UsageError
from agentflow.testing import ScriptedModel


class Gate:
    """A tool that waits until it is released."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.ran: list[str] = []

        @tool(type="read", timeout=None, idempotent=True)
        async def gate(name: str) -> str:
            """Wait."""
            self.ran.append(f"{name} begins")
            self.begun.set()
            await self.open.wait()
            self.ran.append(f"{name} ends")
            return f"{name} passed"

        @tool
        async def note(text: str) -> str:
            """Note."""
            self.ran.append(text)
            return "noted"

        self.tools = [gate, note]


async def in_progress(agent: Agent, gate: Gate, **options: Any) -> asyncio.Task[Any]:
    """Return a call that has reached the gate."""

    async def call() -> Any:
        return await agent.call("go", session="s", **options)

    task = asyncio.create_task(call())
    await gate.begun.wait()
    return task


async def stopping(*agents: Agent, limit: float = 60.0) -> asyncio.Task[ShutdownReport]:
    """Return a shutdown that has begun."""
    task = asyncio.create_task(shutdown(agents, limit=limit))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_round_stops_behind_what_runs() -> None:
    """Running parallel tools finish and are stored, the waiting write does not begin; resumed, only the write is
    left.
    """
    gate, store, recorder = Gate(), MemoryStore(), Recorder()
    calls = [use("t1", "gate", name="a"), use("t2", "gate", name="b"), use("t3", "note", text="c")]
    agent = Agent("a", ScriptedModel([calls]), tools=gate.tools, hooks=[recorder], store=store)
    task = await in_progress(agent, gate)
    stops = await stopping(agent)
    with pytest.raises(ShutdownError, match="did not begin"):
        await agent.call("more", session="t")
    gate.open.set()
    with pytest.raises(ShutdownError, match=r"agent\.resume\('s'\)"):
        await task
    assert await stops == ShutdownReport(("s",), ())
    assert gate.ran == ["a begins", "b begins", "a ends", "b ends"]
    waits = "t3 suspended 'Suspended: waits for a decision.'"
    assert recorder.log[-2] == f"PostToolRound t1 success 'a passed'; t2 success 'b passed'; {waits}"
    assert recorder.log[-1].startswith("CallEnded interrupted")
    assert [(info.id, info.status) for info in await store.sessions()] == [("s", "unfinished")]

    later = Agent("a", ScriptedModel(["done"]), tools=gate.tools, store=store)
    assert (await later.resume("s")).outcome == "completed"
    assert gate.ran[4:] == ["c"]
    assert history(later.session("s"))[2] == "tool: t1 success 'a passed'; t2 success 'b passed'; t3 success 'noted'"


async def test_a_reply_that_is_being_said_is_finished() -> None:
    """The model's reply becomes a fact before the call stops; a last reply completes the call."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def think() -> None:
        begun.set()
        await go.wait()

    ran: list[str] = []

    @tool
    async def act() -> str:
        """Act."""
        ran.append("act")
        return "acted"

    for said, ended in ((use("t1", "act"), False), ("All done.", True)):
        begun.clear()
        go.clear()
        store = MemoryStore()
        agent = Agent("a", ScriptedModel([[think, said]]), tools=[act], store=store)
        task = asyncio.ensure_future(asyncio.gather(agent.call("go", session="s"), return_exceptions=True))
        await begun.wait()
        stops = await stopping(agent)
        go.set()
        (reply,) = await task
        assert await stops == (ShutdownReport(finished=("s",)) if ended else ShutdownReport(stopped=("s",)))
        assert isinstance(reply, ShutdownError) is not ended
        if ended:
            assert reply.text == "All done."
        else:
            again = Agent("a", ScriptedModel(["fine"]), tools=[act], store=store)
            assert (await again.resume("s")).text == "fine"
    assert ran == ["act"]


@pytest.mark.parametrize("limit", [60.0, 0.0])
async def test_a_sub_agent_stops_where_it_is(limit: float) -> None:
    """Two levels down a tool runs. With enough time it finishes and every level stops there; without it is cancelled.
    In both cases the sub-agents' own sessions continue, and no request is repeated.
    """
    gate, store = Gate(), MemoryStore()

    def family(top: list[Any], middle: list[Any], bottom: list[Any]) -> Agent:
        low = Agent("low", ScriptedModel(bottom), tools=gate.tools)
        mid = Agent("mid", ScriptedModel(middle), tools=[low])
        return Agent("top", ScriptedModel(top), tools=[mid], store=store)

    agent = family([use("a", "mid", message="x")], [use("b", "low", message="y")], [use("c", "gate", name="deep")])
    task = await in_progress(agent, gate)
    stops = await stopping(agent, limit=limit)
    if limit:
        gate.open.set()
    with pytest.raises(ShutdownError):
        await task
    report = await stops
    assert report == (ShutdownReport(("s",), ()) if limit else ShutdownReport((), ("s",)))
    gate.open.set()
    later = family(["high"], ["middle"], ["deep down"])
    assert (await later.resume("s")).text == "high"
    again = [] if limit else ["deep begins"]
    assert gate.ran == ["deep begins", *again, "deep ends"]
    assert sorted((info.id, info.status) for info in await store.sessions()) == [
        ("s", "idle"),
        ("s/a", "idle"),
        ("s/a/b", "idle"),
    ]


async def test_a_turn_of_a_sub_agent_that_stops_fails() -> None:
    """A turn has no call that could be resumed: it raises the error of a stopped call, not that of one that did not begin."""
    gate = Gate()
    sub = Agent("sub", ScriptedModel([use("t1", "gate", name="a"), "done"]), tools=gate.tools)
    turn = asyncio.ensure_future(Turn(sub.as_tool(), {"message": "go"}).returning())
    await gate.begun.wait()
    stops = await stopping(sub)
    gate.open.set()
    with pytest.raises(ShutdownError, match="was stopped; finished work is kept") as caught:
        await turn
    await stops
    assert (caught.value.stopped, gate.ran) == (True, ["a begins", "a ends"])


async def test_a_stream_ends_with_its_error() -> None:
    """The reader of a stream gets CallEnded, then the error."""
    gate = Gate()
    agent = Agent("a", ScriptedModel([use("t1", "gate", name="a")]), tools=gate.tools, store=MemoryStore())
    seen: list[Any] = []

    async def read() -> None:
        async with agent.stream("go") as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 - what came before the error counts

    task = asyncio.create_task(read())
    await gate.begun.wait()
    stops = await stopping(agent)
    gate.open.set()
    with pytest.raises(ShutdownError):
        await task
    await stops
    assert isinstance(seen[-1], CallEnded)
    assert (seen[-1].outcome, type(seen[-1].error)) == ("interrupted", ShutdownError)


async def test_calls_that_wait_for_the_session_do_not_begin() -> None:
    """A waiting caller gets this error, not that the call before is unfinished."""
    gate = Gate()
    agent = Agent("a", ScriptedModel([use("t1", "gate", name="a")]), tools=gate.tools, store=MemoryStore())
    task = await in_progress(agent, gate)
    waiting = asyncio.ensure_future(asyncio.gather(agent.call("me too", session="s"), return_exceptions=True))
    await asyncio.sleep(0)
    stops = await stopping(agent)
    gate.open.set()
    await asyncio.wait([task])
    assert isinstance(task.exception(), ShutdownError)
    (refused,) = await waiting
    assert "did not begin" in str(refused)
    await stops


def test_the_limit_is_time() -> None:
    """Calls that still run after the limit are cancelled; hooks get one CallEnded."""

    async def main() -> None:
        ended: list[tuple[str, float]] = []

        @on(CallEnded)
        def note(event: CallEnded) -> None:
            ended.append((event.outcome, asyncio.get_running_loop().time()))

        gate = Gate()
        model = ScriptedModel([use("t1", "gate", name="a")])
        agent = Agent("a", model, tools=gate.tools, hooks=[note], store=MemoryStore())
        task = await in_progress(agent, gate)
        assert await shutdown(agent, limit=30) == ShutdownReport((), ("s",))
        assert ended == [("interrupted", 30.0)]
        assert isinstance(task.exception(), ShutdownError)

    run_virtual(main())


async def test_a_session_without_a_store_is_saved_by_hand() -> None:
    """Stopped at a safe point it can be saved as JSON, and continues elsewhere."""
    gate = Gate()
    agent = Agent("a", ScriptedModel([use("t1", "gate", name="a")]), tools=gate.tools)
    task = await in_progress(agent, gate)
    stops = await stopping(agent)
    gate.open.set()
    await stops
    assert isinstance((await asyncio.wait([task]))[0].pop().exception(), ShutdownError)
    text = agent.session("s").to_json()
    loaded = type(agent.session("s")).from_json(text)
    later = Agent("a", ScriptedModel(["done"]), tools=gate.tools)
    assert (await later.resume(loaded)).text == "done"
    assert gate.ran == ["a begins", "a ends"]


async def test_a_block_ends_with_its_agents() -> None:
    """A block that waits for something else is cancelled when the calls have stopped; its handlers are removed."""
    before = signal.getsignal(signal.SIGTERM)
    agent = Agent("a", ScriptedModel(["hi"]))
    listening = GracefulShutdown(agent, signals=[signal.SIGTERM])

    async def block() -> None:
        async with listening:
            assert (await agent.call("hello")).text == "hi"
            assert not listening.requested
            signal.raise_signal(signal.SIGTERM)
            await listening.wait()
            await asyncio.Event().wait()

    with pytest.raises(ShutdownError, match="its calls and this block were stopped"):
        await block()
    assert listening.report == ShutdownReport((), ())
    assert signal.getsignal(signal.SIGTERM) is before
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_block_that_ends_changes_nothing() -> None:
    """Without a signal the agents continue after the block."""
    agent = Agent("a", ScriptedModel(["one", "two"]))
    async with GracefulShutdown(agent, signals=()) as listening:
        assert (await agent.call("hello")).text == "one"
    assert listening.report is None
    assert (await agent.call("hello")).text == "two"


async def test_a_block_that_others_cancel_stays_cancelled() -> None:
    """Without a shutdown, a cancellation of the block passes unchanged, and a time limit around it is kept."""
    agent = Agent("a", ScriptedModel([]))

    async def block() -> None:
        async with GracefulShutdown(agent, signals=()):
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await block()


async def test_the_report_says_what_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of concurrent calls: one completes, one stops, one is cancelled, and one cannot be cancelled."""
    monkeypatch.setattr(sys.modules["agentflow.agent.graceful"], "GRACE", 0.05)
    steps = {name: asyncio.Event() for name in ("finished", "stopped", "cut", "running")}
    begun: dict[str, asyncio.Event] = {name: asyncio.Event() for name in steps}
    released = asyncio.Event()

    @tool(type="read", timeout=None)
    async def work(name: str) -> str:
        """Work."""
        begun[name].set()
        if name != "running":
            await steps[name].wait()
        while not released.is_set() and name == "running":
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return "worked"

    async def say(name: str) -> None:
        begun[name].set()
        await steps[name].wait()

    def brain(request: Any) -> Any:
        name = request.messages[-1].text
        return [lambda: say(name), "said"] if name == "finished" else use("t1", "work", name=name)

    agent = Agent("a", ScriptedModel(brain), tools=[work], store=MemoryStore())
    calls = {name: asyncio.ensure_future(agent.call(name, session=name)) for name in steps}
    for one in begun.values():
        await one.wait()
    ending = GracefulShutdown(agent, limit=60, signals=(), in_server=True)
    async with ending:
        ending.begin()
        for name in ("finished", "stopped"):
            steps[name].set()
        await asyncio.wait([calls["finished"], calls["stopped"]])
        ending.begin()
    assert ending.report == ShutdownReport(("stopped",), ("cut",), ("finished",), ("running",))
    released.set()
    replies = await asyncio.gather(*calls.values(), return_exceptions=True)
    assert [type(reply).__name__ for reply in replies] == ["Reply", *["ShutdownError"] * 3]


async def test_in_a_server_the_block_is_left_alone() -> None:
    """An existing handler is called too, the block continues, and without a signal its end stops the agents."""
    said: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: said.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    try:
        agent = Agent("a", ScriptedModel(["hi"]), store=MemoryStore())
        async with GracefulShutdown(agent, in_server=True) as ending:
            signal.raise_signal(signal.SIGTERM)
            await ending.wait()
            await shutdown(agent)  # nothing is cancelled meanwhile
        assert (said, ending.report) == ([signal.SIGTERM], ShutdownReport())
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
    other = Agent("b", ScriptedModel(["hi"]))
    async with GracefulShutdown(other, in_server=True) as ending:
        assert (await other.call("hello")).text == "hi"
    assert ending.report == ShutdownReport()
    with pytest.raises(ShutdownError):
        await other.call("hello")


async def test_in_a_server_that_runs_in_a_thread() -> None:
    """A test client's lifespan does not run in the main thread: no signal arrives there, and the block's end stops
    the agents.
    """

    async def lifespan() -> ShutdownReport | None:
        async with GracefulShutdown(Agent("a", ScriptedModel([])), in_server=True) as ending:
            pass
        return ending.report

    assert await asyncio.to_thread(lambda: asyncio.run(lifespan())) == ShutdownReport()


async def test_wrong_use() -> None:
    """No agents, a limit below zero, and a manual start outside of the block."""
    with pytest.raises(UsageError, match="was called without agents"):
        await shutdown([])
    with pytest.raises(UsageError, match="seconds, 0 or more"):
        GracefulShutdown(Agent("a", "m"), limit=-1)
    with pytest.raises(UsageError, match="must be called inside its"):
        GracefulShutdown(Agent("a", "m")).begin()
