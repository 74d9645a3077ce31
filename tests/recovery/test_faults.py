"""Each fault of the kit does what it documents, and nothing else."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from eventlog import history, use

from agentflow import Agent, MemoryStore, Reply, on, tool
from agentflow.errors import ModelError, SessionConflictError, StoreError, UsageError
from agentflow.loop.history import fold_facts
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.testing.faults import (
    Barrier,
    Crash,
    JumpingClock,
    ProcessDied,
    concurrently,
    cut_connection,
    delivered_twice,
    full_disk,
    lock_timeout,
    lost_answer,
    slow,
)
from agentflow.vocabulary.events import PostToolRound, PreReasoning, PreToolRound
from agentflow.vocabulary.facts import CallOpened

OPENED = [CallOpened("r", "c", (), 1)]


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def count() -> AsyncIterator[int]:
    """Count."""
    for n in range(3):
        yield n


def job(crash: Crash, store: Any) -> Agent:
    """One round with two tools, one of them streaming."""
    calls = [use("t1", "add", a=1, b=2), use("t2", "count")]
    model = crash.model(ScriptedModel([calls, "done"]))
    return Agent("a", model, tools=[crash.tool(add), crash.tool(count)], store=crash.store(store))


POINTS = [
    "before commit CallOpened",
    "after commit CallOpened",
    "before model",
    "in model",
    "after model",
    "before commit Reasoned",
    "after commit Reasoned",
    "before commit ToolDecided, ToolStarted",
    "after commit ToolDecided, ToolStarted",
    "before tool add",
    "after tool add",
    "before commit ToolFinished",
    "after commit ToolFinished",
    "before commit ToolDecided, ToolStarted",
    "after commit ToolDecided, ToolStarted",
    "before tool count",
    "after tool count",
    *[f"{when} commit {what}" for what in ("ToolFinished", "RoundClosed") for when in ("before", "after")],
    "before model",
    "in model",
    "after model",
    "before commit Reasoned, CallClosed",
    "after commit Reasoned, CallClosed",
]


async def test_the_points_of_a_crash() -> None:
    """Each effect has a point before and one after it; without `at=` nothing happens."""
    crash = Crash()
    assert (await job(crash, MemoryStore()).call("go")).text == "done"
    assert (crash.points, crash.dead) == (POINTS, False)


@pytest.mark.parametrize("at", range(1, len(POINTS) + 1, 5))
async def test_dying_at_a_point(tmp_path: Path, at: int) -> None:
    """The process dies there and nowhere else; nothing is written after it, whatever is tried."""
    async with SqlStore(f"sqlite:///{tmp_path / 's.db'}") as store:
        crash = Crash(at)
        agent = job(crash, store)
        with pytest.raises(ProcessDied):
            await agent.call("go", session="s")
        assert (crash.points, crash.dead) == (POINTS[:at], True)
        kept = await store.load("s")
        assert len(kept) == sum(name.count(",") + 1 for name in POINTS[:at] if "after commit" in name)
        with pytest.raises(ProcessDied):
            await agent.call("again", session="t")
        assert await store.load("t") == ()
        assert await store.load("s") == kept


def test_dying_for_real(tmp_path: Path) -> None:
    """With `by="sigkill"` the process is killed; committed facts are there."""
    code = f"""
import asyncio
from agentflow import Agent
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.testing.faults import Crash
crash = Crash(2, by="sigkill")
store = crash.store(SqlStore("sqlite:///{tmp_path / "s.db"}"))
asyncio.run(Agent("a", ScriptedModel(["hi"]), store=store).call("go", session="s"))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == -signal.SIGKILL

    async def stored() -> list[str]:
        async with SqlStore(f"sqlite:///{tmp_path / 's.db'}") as store:
            return history(fold_facts(await store.load("s")))

    assert asyncio.run(stored()) == ["user: go"]


def test_a_point_that_cannot_be() -> None:
    """Points count from 1."""
    with pytest.raises(UsageError, match="counted from 1"):
        Crash(0)


@pytest.mark.parametrize("fault", [full_disk, lock_timeout])
async def test_a_store_that_refuses(fault: Any) -> None:
    """The named commits fail and write nothing; the call fails with that error; later commits work, and reading
    always does.
    """
    store = MemoryStore()
    agent = Agent("a", ScriptedModel(["hi", "hi again"]), store=fault(store, at=2, times=2))
    with pytest.raises(StoreError, match=r"Repeat the call|repeat the call"):
        await agent.call("go", session="s")
    assert [type(fact).__name__ for fact in store.load("s")] == ["CallOpened"]  # type: ignore[union-attr]
    later = Agent("a", ScriptedModel(["hi"]), store=store)
    assert (await later.resume("s")).text == "hi"


async def test_a_store_whose_answer_is_lost() -> None:
    """It is written, and the writer gets an error; the session is loaded again, and no fact is there twice."""
    store = MemoryStore()
    agent = Agent("a", ScriptedModel(["hi", "hi again"]), store=lost_answer(store, at=2))
    with pytest.raises(StoreError, match="connection was lost"):
        await agent.call("go", session="s")
    assert (await agent.call("more", session="s")).text == "hi again"
    assert history(agent.session("s")) == ["user: go", "assistant: hi", "user: more", "assistant: hi again"]


def test_a_slow_store() -> None:
    """Commits are slow, and keep their order."""

    async def main() -> float:
        agent = Agent("a", ScriptedModel(["hi"]), store=slow(MemoryStore(), 60))
        assert (await agent.call("go", session="s")).text == "hi"
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 120.0


async def test_everything_twice() -> None:
    """Each write is delivered twice, and stored once; a duplicate with another content is a conflict."""
    store = MemoryStore()
    agent = Agent("a", ScriptedModel([use("t1", "add", a=1, b=2), "3"]), tools=[add], store=delivered_twice(store))
    await agent.call("1 + 2?", session="s")
    assert history(fold_facts(store.load("s")))[-1] == "assistant: 3"  # type: ignore[arg-type]
    assert (await store.sessions())[0].version == 8
    with pytest.raises(SessionConflictError):
        store.append("s", OPENED, expected=0)


async def test_two_workers_at_once(tmp_path: Path) -> None:
    """Two workers on one session write at the same moment: one of them succeeds completely; the other one gets a
    conflict, and calls again.
    """
    async with SqlStore(f"sqlite:///{tmp_path / 's.db'}") as store:
        barrier = Barrier(2)
        workers = [Agent("a", ScriptedModel([name, name]), store=barrier.store(store)) for name in "xy"]
        results = await concurrently(*[worker.call("go", session="s") for worker in workers])
        assert sorted(type(result).__name__ for result in results) == ["Reply", "SessionConflictError"]
        loser = workers[[type(result) for result in results].index(SessionConflictError)]
        assert isinstance(await loser.call("again", session="s"), Reply)
        assert [line.split(":")[0] for line in history(fold_facts(await store.load("s")))] == ["user", "assistant"] * 2


async def test_one_crashed_session_is_resumed_by_two_workers() -> None:
    """Both begin; one continues, and the other gets a conflict before it has stored anything."""
    store = MemoryStore()
    with pytest.raises(ProcessDied):
        await job(Crash(9), store).call("go", session="s")
    barrier = Barrier(2)
    workers = [Agent("a", ScriptedModel(["done"]), tools=[add, count], store=barrier.store(store)) for _ in range(2)]
    results = await concurrently(*[worker.resume("s") for worker in workers])
    assert sorted(type(result).__name__ for result in results) == ["Reply", "SessionConflictError"]


async def test_a_hook_that_fails_when_it_runs_again() -> None:
    """What hooks add after the failure is stored, although the crashed attempt had added more before it."""
    failing = False

    @on(PreToolRound)
    def note(event: PreToolRound) -> None:
        event.context.inject("one")
        if failing:
            raise ValueError("no ink")
        event.context.inject("two")

    @on(PostToolRound)
    def finish(event: PostToolRound) -> None:
        event.context.inject("late")

    store, crash = MemoryStore(), Crash(6)
    model = ScriptedModel([use("t1", "add", a=1, b=2)])
    options: Any = {"tools": [add], "hooks": [note, finish]}
    with pytest.raises(ProcessDied, match="after commit Injected, Injected"):
        await Agent("a", model, store=crash.store(store), **options).call("go", session="s")
    failing = True
    agent = Agent("a", ScriptedModel([]), store=store, **options)
    with pytest.raises(ValueError, match="no ink"):
        await agent.resume("s")
    assert [msg.text for msg in agent.session("s").messages][-3:] == ["one", "two", "late"]


async def test_the_same_call_twice() -> None:
    """On the implicit session the second one is refused; in a named one it waits."""
    wait = asyncio.Event()

    async def think() -> None:
        await asyncio.sleep(0)
        wait.set()

    agent = Agent("a", ScriptedModel([[think, "one"], [think, "two"], [think, "three"]]))
    first, second = await concurrently(agent.call("go"), agent.call("go"))
    assert isinstance(first, Reply)
    assert isinstance(second, UsageError)
    replies = await concurrently(*[agent.call("go", session="s") for _ in range(2)])
    assert [reply.text for reply in replies if isinstance(reply, Reply)] == ["two", "three"]


async def test_a_connection_that_is_cut() -> None:
    """The first calls are disconnected after so many chunks, with a retryable error; the model's stream is closed."""
    model = ScriptedModel([["a", "b", "c"], ["d", "e"]])
    agent = Agent("a", cut_connection(model, after=2), default_hooks=())
    with pytest.raises(ModelError, match="broke after 2 chunks") as caught:
        await agent.call("go", session="s")
    assert (caught.value.retryable, model.open_streams) == (True, 0)
    assert (await agent.call("again", session="s")).text == "de"
    for after, text in ((0, "after 0 chunks."), (1, "after 1 chunk.")):
        with pytest.raises(ModelError, match=re.escape(text)):
            await Agent("a", cut_connection(ScriptedModel(["x"]), after=after), default_hooks=()).call("go")


async def test_a_clock_that_jumps() -> None:
    """Wall time jumps, forward and back; durations and waits are unaffected."""
    clock = JumpingClock()
    times: list[float] = []

    @on(PreReasoning)
    def note(event: PreReasoning) -> None:
        times.append(event.time)
        clock.jump(-3600)

    agent = Agent("a", ScriptedModel([use("t1", "add", a=1, b=2), "3"]), tools=[add], hooks=[note], clock=clock)
    before = clock.monotonic()
    reply = await agent.call("go", timeout=60)
    assert reply.outcome == "completed"
    assert times[1] < times[0]
    assert clock.monotonic() >= before
    await clock.sleep(0)
