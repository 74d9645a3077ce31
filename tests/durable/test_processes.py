"""Runs over several processes, which are killed and started: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter, defaultdict
from itertools import groupby

from worker_processes import Workers

from agentflow import Approve
from agentflow.durable.client import DurableClient
from agentflow.facts import CallClosed, CallOpened
from agentflow.state.sql import SqlStore

SESSIONS = 20
CALLS = 2
KILLS = 4


async def until_written(workers: Workers, lines: int) -> None:
    """Wait until the tools have written so many lines (in other processes: there is nothing to await)."""
    async with asyncio.timeout(30):
        while len(workers.lines()) < lines:
            await asyncio.sleep(0.05)


async def test_workers_are_killed_at_random_and_every_call_ends_once(
    url: str, client: DurableClient, workers: Workers
) -> None:
    """Three workers, 40 calls in 20 sessions, kills in the midst: each call has one reply, one beginning and one end; each effect
    was had; and in each session the calls were run one after the other."""
    random.seed(7)
    alive = [workers.start() for _ in range(3)]
    for worker in alive:
        workers.ready(worker)
    runs: list[str] = []
    for call in range(CALLS):
        for session in range(SESSIONS):
            runs.append(await client.submit("clerk", f"c{call}", session=f"s{session}", run_id=f"s{session}.c{call}"))

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
        f"s{session}": [
            (kind, f"s{session}.c{call}") for call in range(CALLS) for kind in ("CallOpened", "CallClosed")
        ]
        for session in range(SESSIONS)
    }
    by_session: dict[str, list[str]] = defaultdict(list)
    effects: Counter[str] = Counter()
    for session, run_id, key in workers.lines():
        by_session[session].append(run_id)
        effects[key] += 1
    assert {session: [run_id for run_id, _ in groupby(ran)] for session, ran in by_session.items()} == {
        f"s{session}": [f"s{session}.c{call}" for call in range(CALLS)] for session in range(SESSIONS)
    }
    assert len(effects) == SESSIONS * CALLS * 3
    assert sum(effects.values()) - len(effects) <= KILLS * 8  # repeated: what was in flight at a kill, at most
