"""Workers that are killed and started at random: `python -m benchmarks.workers` (with `--quick` only to see that it runs).

Three worker processes, 200 sessions, a minute, for SQLite and for PostgreSQL (a real server on this machine). Calls with three
tool rounds are submitted to every session, again and again; meanwhile workers are killed with SIGKILL and others started. In
the end every call must have ended, once, with its answer; none may have been begun twice; in a session one call must have
followed the other. A repeated effect is a tool, marked as idempotent, that was at work when its worker was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from agentflow.durable.client import DurableClient
from agentflow.facts import CallClosed, CallOpened
from agentflow.state.sql import SqlStore
from benchmarks.report import environment

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

ROUNDS = 3


class Effort(NamedTuple):
    """How much to do."""

    workers: int = 3
    sessions: int = 200
    seconds: float = 60.0
    lease: float = 5.0
    pause: tuple[float, float] = (1.0, 5.0)


QUICK = Effort(2, 4, 3.0, 2.0, (0.5, 1.0))


class Report(NamedTuple):
    """What came of it."""

    calls: int
    kills: int
    taken_over: int
    seconds: float
    lost: int
    wrong: int
    begun_or_ended_twice: int
    overlapping: int
    effects_lost: int
    effects_repeated: int


def start(url: str, log: Path, lease: float) -> subprocess.Popen[bytes]:
    """Start a worker process."""
    program = str(ROOT / "tests" / "durable" / "program.py")
    return subprocess.Popen(
        [sys.executable, program, url, str(log), str(lease)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


async def kill_some(url: str, log: Path, effort: Effort, alive: list[subprocess.Popen[bytes]]) -> int:
    """Kill and start workers until the time is over; how many were killed."""
    kills = 0
    until = time.monotonic() + effort.seconds
    while time.monotonic() < until:
        await asyncio.sleep(random.uniform(*effort.pause))
        victim = alive.pop(random.randrange(len(alive)))
        victim.kill()
        await asyncio.to_thread(victim.wait)
        kills += 1
        alive.append(start(url, log, effort.lease))
    return kills


async def submit_all(client: DurableClient, effort: Effort) -> list[str]:
    """Submit calls to each session until the time is over, and wait until all have ended."""
    runs: list[str] = []
    until = time.monotonic() + effort.seconds
    while time.monotonic() < until:
        wave = [(f"s{n}", f"s{n}.c{len(runs) // effort.sessions}") for n in range(effort.sessions)]
        for session, run_id in wave:
            await client.submit("clerk", "count", session=session, run_id=run_id)
        runs += [run_id for _, run_id in wave]
        while any(  # noqa: ASYNC110 - other processes are waited for
            info.status in ("queued", "running") for info in await client.runs(limit=effort.sessions)
        ):
            await asyncio.sleep(0.5)
    return runs


async def measure(url: str, effort: Effort, folder: Path) -> Report:
    """Do it on one database."""
    log = folder / "log"
    log.touch()
    alive = [start(url, log, effort.lease) for _ in range(effort.workers)]
    began = time.monotonic()
    try:
        async with DurableClient(url) as client:
            killing = asyncio.create_task(kill_some(url, log, effort, alive))
            runs = await submit_all(client, effort)
            took = time.monotonic() - began
            kills = await killing
            infos = {info.run_id: info for info in await client.runs(limit=len(runs))}
            wrong = [r for r in runs if r not in infos or infos[r].outcome != "completed"]
            said = {run_id: (await client.result(run_id)).text for run_id in set(runs) - set(wrong)}
            wrong += [run_id for run_id, text in said.items() if text != "done: count"]
    finally:
        for worker in alive:
            worker.kill()
            worker.wait()
    marks: Counter[tuple[str, str]] = Counter()
    async with SqlStore(url) as store:
        for session in {run_id.partition(".")[0] for run_id in runs}:
            for fact in await store.load(session):
                if isinstance(fact, CallOpened | CallClosed):
                    marks[type(fact).__name__, fact.run_id] += 1
    order: dict[str, list[str]] = defaultdict(list)
    effects: Counter[str] = Counter()
    for line in log.read_text("utf-8").splitlines():
        session, run_id, key = line.split()
        order[session].append(run_id)
        effects[key] += 1
    blocks = {session: [run_id for run_id, _ in groupby(ran)] for session, ran in order.items()}
    return Report(
        len(runs),
        kills,
        sum(info.attempts > 1 for info in infos.values()),
        took,
        sum(run_id not in infos or infos[run_id].status != "ended" for run_id in runs),
        len(wrong),
        sum(count != 1 for count in marks.values()) + (2 * len(runs) - len(marks)),
        sum(len(ran) - len(set(ran)) for ran in blocks.values()),
        len(runs) * ROUNDS - len(effects),
        sum(effects.values()) - len(effects),
    )


def show(name: str, effort: Effort, report: Report) -> None:
    """Print a report."""
    often = "{:g} to {:g} s".format(*effort.pause)
    print(f"\n{name}: {effort.workers} workers, {effort.sessions} sessions, a kill every {often}")
    print(f"  {'calls':<25}{report.calls:>7}   ({report.calls / report.seconds:.1f} a second)")
    for label, value in (
        ("workers killed", report.kills),
        ("calls taken over", report.taken_over),
        ("calls lost", report.lost),
        ("wrong answers", report.wrong),
        ("begun or ended twice", report.begun_or_ended_twice),
        ("overlapping in a session", report.overlapping),
        ("effects lost", report.effects_lost),
        ("effects repeated", report.effects_repeated),
    ):
        print(f"  {label:<25}{value:>7}")


def main() -> None:
    """Run it."""
    from postgres import postgres_server  # of the tests' support

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Only to see that it runs.")
    parser.add_argument("--seconds", type=float, help="How long.")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="Only this one.")
    given = parser.parse_args()
    effort = QUICK if given.quick else Effort()
    if given.seconds is not None:
        effort = effort._replace(seconds=given.seconds)
    env = environment()
    print(f"{env['python']} on {env['platform']}, {env['cpus']} x {env['processor']}")
    bad = 0
    for name in ("sqlite", "postgresql") if given.database is None else (given.database,):
        with ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            url = f"sqlite:///{folder / 'runs.db'}"
            if name == "postgresql":
                url = opened.enter_context(opened.enter_context(postgres_server()).database())
            report = asyncio.run(measure(url, effort, folder))
        show(name, effort, report)
        bad += report.lost + report.wrong + report.begun_or_ended_twice + report.overlapping + report.effects_lost
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
