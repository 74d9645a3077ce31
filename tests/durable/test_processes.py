"""Runs over several processes, which are killed and started: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path

import pytest
from worker_processes import Workers

from agentflow import Approve, CallTimeoutError, Deny, UsageError
from agentflow.durable.client import DurableClient
from agentflow.durable.tables import Tables
from agentflow.durable.words import RunEvent
from agentflow.facts import CallClosed, CallOpened, ToolFinished
from agentflow.state.sql import SqlStore

SESSIONS = 20
CALLS = (1, 0)
"""The calls of a session as they are submitted; not in the order of their names, which must not pass for it."""

KILLS = 4


async def until_written(workers: Workers, lines: int) -> None:
    """Wait until the tools have written so many lines (in other processes: there is nothing to await)."""
    async with asyncio.timeout(30):
        while len(workers.lines()) < lines:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_workers_are_killed_at_random_and_every_call_ends_once(
    url: str, client: DurableClient, workers: Workers
) -> None:
    """Three workers, 40 calls in 20 sessions, kills in the midst: each call has one reply, one beginning and one end; each
    effect was had; and in each session the calls were run one after the other."""
    random.seed(7)
    alive = [workers.start() for _ in range(3)]
    for worker in alive:
        workers.ready(worker)
    runs = [
        await client.submit("clerk", f"c{call}", session=f"s{session}", run_id=f"s{session}.c{call}")
        for call in CALLS
        for session in range(SESSIONS)
    ]

    async def kill_some() -> None:
        for n in range(KILLS):
            await until_written(workers, (n + 1) * 15)
            workers.kill(alive.pop(random.randrange(len(alive))))
            alive.append(workers.start())

    async with asyncio.timeout(90):
        killing = asyncio.create_task(kill_some())
        replies = await asyncio.gather(*[client.result(run_id) for run_id in runs])
        await killing
    assert [(reply.run_id, reply.outcome, reply.text) for reply in replies] == [
        (run_id, "completed", f"done: {run_id.partition('.')[2]}") for run_id in runs
    ]
    found: dict[str, list[tuple[str, str]]] = {}
    async with SqlStore(url) as store:
        for session in range(SESSIONS):
            facts = await store.load(f"s{session}")
            found[f"s{session}"] = [
                (type(fact).__name__, fact.run_id) for fact in facts if isinstance(fact, CallOpened | CallClosed)
            ]
    assert found == {
        f"s{session}": [(kind, f"s{session}.c{call}") for call in CALLS for kind in ("CallOpened", "CallClosed")]
        for session in range(SESSIONS)
    }
    by_session: dict[str, list[str]] = defaultdict(list)
    effects: Counter[str] = Counter()
    for session, run_id, key in workers.lines():
        by_session[session].append(run_id)
        effects[key] += 1
    assert {session: [run_id for run_id, _ in groupby(ran)] for session, ran in by_session.items()} == {
        f"s{session}": [f"s{session}.c{call}" for call in CALLS] for session in range(SESSIONS)
    }
    assert any(info.attempts > 1 for info in await client.runs())  # somebody did die with a call
    assert len(effects) == SESSIONS * len(CALLS) * 3
    assert sum(effects.values()) - len(effects) <= KILLS * 8  # repeated: what was in flight at a kill, at most


async def test_a_dead_worker_frees_its_place_in_the_queue(client: DurableClient, workers: Workers) -> None:
    """One call may run in all workers together. The worker that runs it dies: another one tells the model that nobody knows how
    the tool came out, and then the next call has its turn."""
    first = workers.ready(workers.start(EVERYWHERE="1"))
    await client.submit("clerk", "wait", session="a", run_id="lost")
    await until_written(workers, 1)
    workers.kill(first)
    await client.submit("clerk", "hello", session="b", run_id="next")
    workers.ready(workers.start(EVERYWHERE="1"))
    async with asyncio.timeout(30):
        lost, after = await asyncio.gather(client.result("lost"), client.result("next"))
    assert (lost.outcome, lost.run_id) == ("completed", "lost")
    assert "unknown" in lost.text.lower()
    assert after.text == "done: hello"
    assert [line[:2] for line in workers.lines()] == [["a", "lost"], *[["b", "next"]] * 3]
    taken = [(e.data["attempt"]) async for e in client.stream("lost") if e.type == "RunTaken"]
    assert taken == [1, 2]


async def test_a_deploy_strands_nothing(client: DurableClient, workers: Workers, tmp_path: Path) -> None:
    """A call that runs, one that waits for its turn and one that waits for a person were begun by one version of the program;
    the next version ends all of them, with its own words."""
    first = workers.ready(workers.start(EVERYWHERE="1"))
    asked = await client.call("clerk", "pay", session="c", run_id="asked")
    await client.submit("clerk", "wait", session="a", run_id="running")
    await until_written(workers, 1)
    await client.submit("clerk", "hello", session="b", run_id="queued")
    workers.kill(first)
    after = tmp_path / "program.py"
    before = (Path(__file__).parent / "program.py").read_text("utf-8")
    after.write_text(before.replace('"done: ', '"deployed: ') + "\n# another version\n", "utf-8")
    workers.ready(workers.start(after, EVERYWHERE="1"))
    await client.decide("asked", {waits.id: Deny("no") for waits in asked.pending})
    async with asyncio.timeout(30):
        replies = await asyncio.gather(*[client.result(run_id) for run_id in ("running", "queued", "asked")])
    assert [reply.outcome for reply in replies] == ["completed"] * 3
    assert [reply.text.split(":")[0] for reply in replies] == ["deployed"] * 3


async def test_an_approval_is_answered_after_everybody_was_restarted(
    url: str, client: DurableClient, workers: Workers
) -> None:
    """Asked for in one process, decided in another, paid in a third; the second answer to the same question is refused."""
    first = workers.ready(workers.start())
    asked = await client.call("clerk", "pay", session="till", run_id="bill")
    assert (asked.outcome, [(waits.id, waits.kind) for waits in asked.pending]) == ("suspended", [("t1", "approval")])
    workers.kill(first)
    await client.close()
    async with DurableClient(url, poll=0.05) as later:
        assert (await later.run("bill")).status == "suspended"
        with pytest.raises(UsageError, match=r"missing: \['t1'\]"):
            await later.decide("bill", {})
        await later.decide("bill", {"t1": Approve()})
        await later.decide("bill", {"t1": Approve()})  # delivered twice
        with pytest.raises(UsageError, match="was decided otherwise before"):
            await later.decide("bill", {"t1": Deny("no")})
        second = workers.ready(workers.start())
        reply = await later.result("bill")
        assert (reply.outcome, reply.text) == ("completed", f"done: paid by {second.pid}")
        with pytest.raises(UsageError, match="does not wait for a decision: it is ended"):
            await later.decide("bill", {"t1": Approve()})
    assert [line[:2] for line in workers.lines()] == [["till", "bill"]]


async def test_a_stopped_worker_hands_its_calls_over_at_once(url: str, tmp_path: Path, client: DurableClient) -> None:
    """SIGTERM: what has not ended within the grace goes on in another worker, long before any lease runs out."""
    workers = Workers(url, tmp_path / "log", lease=3600)
    try:
        first = workers.ready(workers.start(GRACE="0"))
        await client.submit("clerk", "wait", session="a", run_id="handed")
        await until_written(workers, 1)
        first.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(first.wait, 20) == 0
        workers.ready(workers.start(GRACE="0", LEASE="5"))
        async with asyncio.timeout(30):
            assert "unknown" in (await client.result("handed")).text.lower()
    finally:
        workers.end()


async def test_a_worker_that_is_only_taken_for_dead_cannot_write_into_what_was_taken_over(
    url: str, tmp_path: Path, client: DurableClient
) -> None:
    """Its sign of life is gone, though it is at work; another worker ends the call. When the first one comes to write, the
    store refuses, and the session goes on undisturbed."""
    workers = Workers(url, tmp_path / "log", lease=60)
    try:
        workers.ready(workers.start(EVERYWHERE="1"))
        await client.submit("clerk", "wait", session="a", run_id="r")
        await until_written(workers, 1)
        owner = (await client.run("r")).worker
        assert owner is not None
        tables = Tables(url)
        tables.leave(owner)
        tables.dispose()
        workers.ready(workers.start(EVERYWHERE="1"))
        async with asyncio.timeout(30):
            assert "unknown" in (await client.result("r")).text.lower()
            workers.log.with_name("go").touch()
            await until_written(workers, 2)  # the first one's tool has ended
            assert (await client.call("clerk", "more", session="a", run_id="r2")).text == "done: more"
    finally:
        workers.end()
    async with SqlStore(url) as store:
        facts = await store.load("a")
    finished = [fact.run_id for fact in facts if isinstance(fact, ToolFinished)]
    assert finished == ["r", *["r2"] * 3]
    assert [fact.run_id for fact in facts if isinstance(fact, CallClosed)] == ["r", "r2"]


async def test_cancel_and_deadline_reach_a_call_in_another_process(client: DurableClient, workers: Workers) -> None:
    """A running call is interrupted, one in the queue does not run, one that waits for a decision is closed; time is up
    wherever the call is; and every session takes the next call."""
    workers.ready(workers.start())
    await client.submit("clerk", "wait", session="a", run_id="running")
    await client.submit("clerk", "hello", session="a", run_id="queued")
    await until_written(workers, 1)
    assert await client.cancel("queued", "not needed")
    assert await client.cancel("running", "enough")
    asked = await client.call("clerk", "pay", session="b", run_id="waiting")
    assert asked.outcome == "suspended"
    assert await client.cancel("waiting", "too dear")
    async with asyncio.timeout(30):
        replies = [await client.result(run_id) for run_id in ("running", "queued", "waiting")]
        assert [(reply.run_id, reply.outcome) for reply in replies] == [
            ("running", "interrupted"),
            ("queued", "interrupted"),
            ("waiting", "interrupted"),
        ]
        assert not await client.cancel("running")
        with pytest.raises(CallTimeoutError, match="timeout=1 s"):
            await client.call("clerk", "wait", session="c", timeout=1)
        late = await client.submit("clerk", "hello", session="c", timeout=0.001)
        with pytest.raises(CallTimeoutError):
            await client.result(late)
        nexts = [await client.call("clerk", "hello", session=session) for session in ("a", "b", "c")]
    assert [reply.text for reply in nexts] == ["done: hello"] * 3
    assert [line[0] for line in workers.lines()] == ["a", "c", *["a"] * 3, *["b"] * 3, *["c"] * 3]


async def test_agents_ask_each_other_across_processes(client: DurableClient, workers: Workers) -> None:
    """An agent in one worker asks one that another worker runs, through that one's queue."""
    workers.ready(workers.start(AGENTS="clerk"))
    workers.ready(workers.start(AGENTS="expert"))
    async with asyncio.timeout(30):
        assert (await client.call("clerk", "ask", run_id="q")).text == "done: 42"
    owners = {info.agent: info.worker for info in await client.runs()}
    assert owners.keys() == {"clerk", "expert"}
    assert owners["clerk"] != owners["expert"]


async def test_a_stream_goes_on_from_a_number(client: DurableClient, workers: Workers) -> None:
    """The events of a run in another process are those of the call, numbered without gaps; a reader that has gone away goes on
    where it was, also while the run goes on."""
    run_id = await client.submit("clerk", "hello", run_id="r")
    reading = asyncio.ensure_future(_read(client, run_id, 0))  # it waits: nobody has the run yet
    workers.ready(workers.start())
    async with asyncio.timeout(30):
        whole = await reading
    one_round = ["PostReasoning", "PreToolRound", "PreActing", "PostActing", "PostToolRound"]
    assert [event.type for event in whole if event.type != "ReasoningChunk"] == [
        "RunTaken",
        "PreCall",
        *["PreReasoning", *one_round] * 3,
        "PreReasoning",
        "PostReasoning",
        "PostCall",
        "CallEnded",
    ]
    assert [event.seq for event in whole] == list(range(1, len(whole) + 1))
    assert "".join(event.text for event in whole) == "done: hello"
    assert {event.data.get("run_id") for event in whole[1:]} == {"r"}
    for since in (0, 1, 7, len(whole) - 1, len(whole)):
        assert await _read(client, run_id, since) == whole[since:]
    first = [event async for event in client.stream(run_id).take(4)]
    assert first == whole[:4]


async def _read(client: DurableClient, run_id: str, since: int) -> list[RunEvent]:
    return [event async for event in client.stream(run_id, since)]
