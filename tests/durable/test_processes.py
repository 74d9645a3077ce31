"""Runs over several processes, which are killed and started: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path

import pytest
from nursery import Nursery
from thorough import THOROUGH
from worker_processes import Workers

from agentflow import Approve, Deny
from agentflow.durable.client import DurableClient
from agentflow.durable.records import RunEvent
from agentflow.durable.tables import Tables
from agentflow.errors import CallTimeoutError, UsageError
from agentflow.state.sql import SqlStore
from agentflow.vocabulary.facts import CallClosed, CallOpened, ToolFinished

pytestmark = pytest.mark.ci

SESSIONS = 20 if THOROUGH else 10
CALLS = (1, 0)
"""The calls of a session as they are submitted; not in the order of their names, which must not pass for it."""

KILLS = 4 if THOROUGH else 2

PATIENCE = 300
"""Seconds after which something hangs; what a loaded machine takes is less."""


async def until_written(workers: Workers, lines: int) -> None:
    """Wait until the tools have written so many lines (in other processes, so nothing can be awaited)."""
    while len(workers.lines()) < lines:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_workers_are_killed_at_random_and_every_call_ends_once(
    url: str, client: DurableClient, workers: Workers
) -> None:
    """Three workers, two calls in each session, and kills of workers during a tool. Each call has one reply, one
    beginning and one end. Each effect happened, and an effect that must not be repeated happened once, or not at all if
    the kill came between its start and the effect: then the model reads that the outcome is unknown. In each session
    the calls ran one after the other.
    """
    alive = {worker.pid: worker for worker in [workers.start() for _ in range(3)]}
    for worker in alive.values():
        workers.ready(worker)
    runs = [
        await client.submit("clerk", "mixed", session=f"s{session}", run_id=f"s{session}.c{call}")
        for call in CALLS
        for session in range(SESSIONS)
    ]
    for kill in range(KILLS):
        await until_written(workers, kill * 20)
        (made := workers.hold.with_name("made")).write_text(str(kill))
        made.rename(workers.hold)
        while not (at_work := workers.waiting(str(kill)) & alive.keys()):  # noqa: ASYNC110 - in other processes
            await asyncio.sleep(0.02)
        workers.kill(alive.pop(at_work.pop()))
        workers.hold.unlink()
        worker = workers.start()
        alive[worker.pid] = worker
    replies = await asyncio.gather(*[client.result(run_id) for run_id in runs])
    assert [(reply.run_id, reply.outcome, reply.text) for reply in replies] == [
        (run_id, "completed", "done: mixed") for run_id in runs
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
    for session, run_id, key, _ in workers.lines():
        by_session[session].append(run_id)
        effects[key] += 1
    assert {session: [run_id for run_id, _ in groupby(ran)] for session, ran in by_session.items()} == {
        f"s{session}": [f"s{session}.c{call}" for call in CALLS] for session in range(SESSIONS)
    }
    takeovers = sum(info.attempts - 1 for info in await client.runs())
    assert takeovers >= KILLS  # each of them died with a call
    repeated = {key: count - 1 for key, count in effects.items() if count > 1}
    assert sum(repeated.values()) <= takeovers  # what was at work, once for each
    results = await _results(url)
    assert len(results) == SESSIONS * len(CALLS) * 3
    assert effects.keys() <= results.keys()
    for key in results.keys() - effects.keys():
        name, text = results[key]
        assert (name, text.partition(":")[0]) == ("post", "Outcome unknown")
    assert not {key for key, (name, _) in results.items() if name == "post"} & repeated.keys()


async def _results(url: str) -> dict[str, tuple[str, str]]:
    """Return the tool and the result of each call, by the keys of their effects."""
    found: dict[str, tuple[str, str]] = {}
    async with SqlStore(url) as store:
        for info in await store.sessions():
            for fact in await store.load(info.id):
                if isinstance(fact, ToolFinished):
                    found[f"{fact.run_id}:{fact.tool_use_id}"] = (fact.tool_use.name, fact.result.text)
    return found


@pytest.mark.parametrize(
    ("url", "at"),
    [
        *(("sqlite", at) for at in ("PreCall", "PreActing", "PostActing", "PostCall")),
        ("postgresql", "PreActing"),  # the lease is the database's
    ],
    indirect=["url"],
)
async def test_a_worker_that_was_frozen_does_nothing_more(
    url: str, client: DurableClient, workers: Workers, at: str
) -> None:
    """The operating system stops a worker for longer than its lease, at each stage of a call, and another one takes
    over the call. The first one continues while the other runs a tool: it writes nothing and begins nothing, and the
    published events are the other one's. No outcome is unknown, and nothing was done twice.
    """
    frozen = workers.ready(workers.start(FREEZE=at))
    await client.submit("clerk", "mixed", session="s", run_id="r")
    await asyncio.to_thread(workers.is_frozen, frozen)
    before = workers.lines()
    workers.hold.write_text("hold")
    workers.ready(workers.start())
    if at == "PostCall":
        await client.result("r")
    else:
        await until_written(workers, len(before) + 1)
    await asyncio.to_thread(workers.thaw_and_end, frozen)
    workers.hold.unlink()
    reply = await client.result("r")
    assert (reply.outcome, reply.text) == ("completed", "done: mixed")
    after = await client.call("clerk", "mixed", session="s", run_id="r2")
    assert (after.outcome, after.text) == ("completed", "done: mixed")
    lines = workers.lines()
    owners = [int(pid) == frozen.pid for *_, pid in lines]
    assert owners == sorted(owners, reverse=True)  # first the one, then the other
    again = 1 if at == "PostActing" else 0  # its tool may run twice, and had no fact that it was over
    assert [run_id for _, run_id, *_ in lines] == [*["r"] * (3 + again), *["r2"] * 3]
    assert len({key for _, _, key, _ in lines}) == 6
    posts = {text for name, text in (await _results(url)).values() if name == "post"}
    assert posts == {"posted"}
    async with SqlStore(url) as store:
        facts = await store.load("s")
    calls = [(type(fact).__name__, fact.run_id) for fact in facts if isinstance(fact, CallOpened | CallClosed)]
    assert calls == [(kind, run_id) for run_id in ("r", "r2") for kind in ("CallOpened", "CallClosed")]


async def test_a_dead_worker_frees_its_place_in_the_queue(client: DurableClient, workers: Workers) -> None:
    """One call may run in all workers together. The worker that runs it dies: another one reports the tool's outcome
    to the model as unknown, and then the next call runs.
    """
    first = workers.ready(workers.start(EVERYWHERE="1"))
    await client.submit("clerk", "wait", session="a", run_id="lost")
    await until_written(workers, 1)
    workers.kill(first)
    await client.submit("clerk", "hello", session="b", run_id="next")
    workers.ready(workers.start(EVERYWHERE="1"))
    async with asyncio.timeout(PATIENCE):
        lost, after = await asyncio.gather(client.result("lost"), client.result("next"))
    assert (lost.outcome, lost.run_id) == ("completed", "lost")
    assert "unknown" in lost.text.lower()
    assert after.text == "done: hello"
    assert [line[:2] for line in workers.lines()] == [["a", "lost"], *[["b", "next"]] * 3]
    taken = [(e.data["attempt"]) async for e in client.stream("lost") if e.type == "RunTaken"]
    assert taken == [1, 2]


async def test_a_deploy_strands_nothing(client: DurableClient, workers: Workers, tmp_path: Path) -> None:
    """A running call, a queued one and one that waits for a person were begun by one version of the program; the next
    version completes all of them, with its own texts.
    """
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
    async with asyncio.timeout(PATIENCE):
        replies = await asyncio.gather(*[client.result(run_id) for run_id in ("running", "queued", "asked")])
    assert [reply.outcome for reply in replies] == ["completed"] * 3
    assert [reply.text.split(":")[0] for reply in replies] == ["deployed"] * 3


async def test_an_approval_is_answered_after_everybody_was_restarted(
    url: str, client: DurableClient, workers: Workers
) -> None:
    """Requested in one process, decided in another, paid in a third; the second answer to the same question is
    refused.
    """
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
        await later.decide("bill", {"t1": Approve()})  # the same facts were delivered twice
        with pytest.raises(UsageError, match="was already resumed with other decisions"):
            await later.decide("bill", {"t1": Deny("no")})
        second = workers.ready(workers.start())
        reply = await later.result("bill")
        assert (reply.outcome, reply.text) == ("completed", f"done: paid by {second.pid}")
        with pytest.raises(UsageError, match="does not wait for a decision: it is ended"):
            await later.decide("bill", {"t1": Approve()})
    assert [line[:2] for line in workers.lines()] == [["till", "bill"]]


async def test_a_stopped_worker_hands_its_calls_over_at_once(
    nursery: Nursery, url: str, tmp_path: Path, client: DurableClient
) -> None:
    """SIGTERM: a call that has not ended within the grace continues in another worker, long before any lease expires."""
    workers = Workers(nursery, url, tmp_path / "log", lease=3600)
    try:
        first = workers.ready(workers.start(GRACE="0"))
        await client.submit("clerk", "wait", session="a", run_id="handed")
        await until_written(workers, 1)
        first.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(first.wait, 20) == 0
        workers.ready(workers.start(GRACE="0", LEASE="5"))
        async with asyncio.timeout(PATIENCE):
            assert "unknown" in (await client.result("handed")).text.lower()
    finally:
        workers.end()


async def test_a_tool_that_was_frozen_at_work_is_unknown_to_who_takes_over(
    url: str, client: DurableClient, workers: Workers
) -> None:
    """The worker is stopped while its tool runs; another one ends the call, with "outcome unknown". When the first
    one continues, its tool is cancelled, and the session continues undisturbed.
    """
    first = workers.ready(workers.start(EVERYWHERE="1"))
    await client.submit("clerk", "wait", session="a", run_id="r")
    await until_written(workers, 1)
    first.send_signal(signal.SIGSTOP)
    workers.ready(workers.start(EVERYWHERE="1"))
    assert "unknown" in (await client.result("r")).text.lower()
    await asyncio.to_thread(workers.thaw_and_end, first)
    assert (await client.call("clerk", "more", session="a", run_id="r2")).text == "done: more"
    assert [line[1] for line in workers.lines()] == ["r", *["r2"] * 3]
    async with SqlStore(url) as store:
        facts = await store.load("a")
    finished = [fact.run_id for fact in facts if isinstance(fact, ToolFinished)]
    assert finished == ["r", *["r2"] * 3]
    assert [fact.run_id for fact in facts if isinstance(fact, CallClosed)] == ["r", "r2"]


async def test_a_worker_that_is_alive_keeps_its_calls(url: str, client: DurableClient, workers: Workers) -> None:
    """Its heartbeat is deleted, although it works, and the queue gives its call to another worker. That one waits for
    the session's lease, which the first one renews, and reports the first one's result. The tool has run once.
    """
    workers.ready(workers.start(EVERYWHERE="1"))
    await client.submit("clerk", "wait", session="a", run_id="r")
    await until_written(workers, 1)
    owner = (await client.run("r")).worker
    assert owner is not None
    tables = Tables(url)
    tables.leave(owner)
    workers.ready(workers.start(EVERYWHERE="1"))
    while (await client.run("r")).worker == owner:
        tables.leave(owner)
        await asyncio.sleep(0.02)
    tables.dispose()
    workers.log.with_name("go").touch()
    assert (await client.result("r")).text == "done: waited"
    assert [line[2] for line in workers.lines()][1:] == ["released"]


async def test_cancel_and_deadline_reach_a_call_in_another_process(client: DurableClient, workers: Workers) -> None:
    """A running call is interrupted, a queued one does not run, and one that waits for a decision is closed. A
    deadline works in each state, and every session takes the next call.
    """
    workers.ready(workers.start())
    await client.submit("clerk", "wait", session="a", run_id="running")
    await client.submit("clerk", "hello", session="a", run_id="queued")
    await until_written(workers, 1)
    assert await client.cancel("queued", "not needed")
    assert await client.cancel("running", "enough")
    asked = await client.call("clerk", "pay", session="b", run_id="waiting")
    assert asked.outcome == "suspended"
    assert await client.cancel("waiting", "too dear")
    async with asyncio.timeout(PATIENCE):
        replies = [await client.result(run_id) for run_id in ("running", "queued", "waiting")]
        assert [(reply.run_id, reply.outcome) for reply in replies] == [
            ("running", "interrupted"),
            ("queued", "interrupted"),
            ("waiting", "interrupted"),
        ]
        assert not await client.cancel("running")
        await client.submit("clerk", "wait", session="c", run_id="late", timeout=5)
        await until_written(workers, 2)
        with pytest.raises(CallTimeoutError, match="timeout=5 s"):
            await client.result("late")
        late = await client.submit("clerk", "hello", session="c", timeout=0.001)
        with pytest.raises(CallTimeoutError):
            await client.result(late)
        nexts = [await client.call("clerk", "hello", session=session) for session in ("a", "b", "c")]
    assert [reply.text for reply in nexts] == ["done: hello"] * 3
    assert [line[0] for line in workers.lines()] == ["a", "c", *["a"] * 3, *["b"] * 3, *["c"] * 3]


async def test_agents_ask_each_other_across_processes(client: DurableClient, workers: Workers) -> None:
    """An agent in one worker asks an agent of another worker, through that one's queue."""
    workers.ready(workers.start(AGENTS="clerk"))
    workers.ready(workers.start(AGENTS="expert"))
    async with asyncio.timeout(PATIENCE):
        assert (await client.call("clerk", "ask", run_id="q")).text == "done: 42"
    owners = {info.agent: info.worker for info in await client.runs()}
    assert owners.keys() == {"clerk", "expert"}
    assert owners["clerk"] != owners["expert"]


async def test_a_stream_goes_on_from_a_number(client: DurableClient, workers: Workers) -> None:
    """The events of a run in another process are those of the call, numbered without gaps; a reader that left
    continues where it was, even during the run.
    """
    run_id = await client.submit("clerk", "hello", run_id="r")
    reading = asyncio.ensure_future(_read(client, run_id, 0))  # it waits: no worker has the run yet
    workers.ready(workers.start())
    async with asyncio.timeout(PATIENCE):
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
