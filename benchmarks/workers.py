"""Workers that are killed and frozen at random: `python -m benchmarks.workers` (with `--quick` only to see that it runs).

Three worker processes, 200 sessions, a minute, for SQLite and for PostgreSQL (a real server on this machine). Calls with three
tool rounds are submitted to every session, again and again; meanwhile workers are killed with SIGKILL and others started, or
stopped with SIGSTOP for longer than their lease and continued with SIGCONT. In the end every call must have ended, once, with
its answer; none may have failed, or have been begun twice; in a session one call must have followed the other. The tool in the
middle must not run twice: an effect of it that is there more than once is repeated. The others are idempotent: they run again
if their worker was killed or frozen meanwhile; of the one in the middle the model receives "Outcome unknown".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agentflow.durable.client import DurableClient
from agentflow.durable.records import RunFailedError
from agentflow.state.sql import SqlStore
from agentflow.vocabulary.facts import CallClosed, CallOpened, ToolFinished
from benchmarks.report import environment

if TYPE_CHECKING:
    from nursery import Nursery
    from worker_processes import Worker

DURABLE = Path(__file__).parents[1] / "tests" / "durable"
sys.path += [str(DURABLE), str(DURABLE.parent / "support")]

ROUNDS = 3


class Effort(NamedTuple):
    """How much to do."""

    workers: int = 3
    sessions: int = 200
    seconds: float = 60.0
    calls: int = 0
    lease: float = 5.0
    pause: tuple[float, float] = (1.0, 5.0)
    disturbances: tuple[str, ...] = ("kill", "freeze")


QUICK = Effort(2, 10, 3.0, 0, 2.0, (0.2, 0.5))


class Report(NamedTuple):
    """The result."""

    calls: int
    seconds: float
    killed: int
    frozen: int
    taken_over: int
    lost: int
    falsely_failed: int
    wrong: int
    begun_or_ended_twice: int
    overlapping: int
    effects_lost: int
    effects_repeated: int
    run_again: int
    unknown: int

    @property
    def bad(self) -> int:
        """How much of it must not be."""
        return sum(self[Report._fields.index("lost") : Report._fields.index("run_again")])


def start(nursery: Nursery, url: str, log: Path, lease: float) -> Worker:
    """Start a worker process."""
    from worker_processes import Worker

    return Worker(nursery, [str(DURABLE / "program.py"), url, str(log), str(lease)], {**os.environ})


async def disturb(
    nursery: Nursery, url: str, log: Path, effort: Effort, alive: list[Worker], done: asyncio.Event
) -> Counter[str]:
    """Kill and freeze workers until all is done; how many of each."""
    count: Counter[str] = Counter()
    while not done.is_set():
        await asyncio.sleep(random.uniform(*effort.pause))
        how = random.choice(effort.disturbances)
        count[how] += 1
        if how == "kill":
            victim = alive.pop(random.randrange(len(alive)))
            await asyncio.to_thread(kill, victim)
            alive.append(start(nursery, url, log, effort.lease))
        else:
            victim = random.choice(alive)
            victim.send_signal(signal.SIGSTOP)
            await asyncio.sleep(effort.lease * random.uniform(0.9, 2.5))
            victim.send_signal(signal.SIGCONT)
    return count


def kill(worker: Worker) -> None:
    """`kill -9`, and wait."""
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()


async def submit_all(client: DurableClient, effort: Effort) -> list[str]:
    """Submit calls to each session until the time has passed, and enough were submitted; wait until all have ended."""
    runs: list[str] = []
    until = time.monotonic() + effort.seconds
    while time.monotonic() < until or len(runs) < effort.calls:
        wave = [(f"s{n}", f"s{n}.c{len(runs) // effort.sessions}") for n in range(effort.sessions)]
        for session, run_id in wave:
            await client.submit("clerk", "mixed", session=session, run_id=run_id)
        runs += [run_id for _, run_id in wave]
        while any(  # noqa: ASYNC110 - other processes are waited for
            info.status in ("queued", "running") for info in await client.runs(limit=effort.sessions)
        ):
            await asyncio.sleep(0.5)
    return runs


async def measure(nursery: Nursery, url: str, effort: Effort, folder: Path) -> Report:
    """Do it on one database."""
    log = folder / "log"
    log.touch()
    alive = [start(nursery, url, log, effort.lease) for _ in range(effort.workers)]
    began = time.monotonic()
    try:
        async with DurableClient(url) as client:
            done = asyncio.Event()
            disturbing = asyncio.create_task(disturb(nursery, url, log, effort, alive, done))
            runs = await submit_all(client, effort)
            took = time.monotonic() - began
            done.set()
            count = await disturbing
            infos = {info.run_id: info for info in await client.runs(limit=len(runs))}
            lost = [run_id for run_id in runs if run_id not in infos or infos[run_id].status != "ended"]
            failed = [run_id for run_id in runs if run_id not in lost and infos[run_id].outcome != "completed"]
            for run_id in failed[:10]:
                print(f"  {run_id}: {await reason(client, run_id)}")
            answers = {
                run_id: (await client.result(run_id)).text for run_id in sorted({*runs}.difference(lost, failed))
            }
    finally:
        for worker in alive:
            kill(worker)
    marks: Counter[tuple[str, str]] = Counter()
    posts: dict[str, str] = {}
    async with SqlStore(url) as store:
        for session in {run_id.partition(".")[0] for run_id in runs}:
            for fact in await store.load(session):
                if isinstance(fact, CallOpened | CallClosed):
                    marks[type(fact).__name__, fact.run_id] += 1
                elif isinstance(fact, ToolFinished) and fact.tool_use.name == "post":
                    posts[f"{fact.run_id}:{fact.tool_use_id}"] = fact.result.text
    unknown = {key for key, text in posts.items() if "unknown" in text}
    order: dict[str, list[str]] = defaultdict(list)
    effects: Counter[str] = Counter()
    for line in log.read_text("utf-8").splitlines():
        session, run_id, key, _ = line.split()
        order[session].append(run_id)
        effects[key] += 1
    blocks = {session: [run_id for run_id, _ in groupby(ran)] for session, ran in order.items()}
    return Report(
        calls=len(runs),
        seconds=took,
        killed=count["kill"],
        frozen=count["freeze"],
        taken_over=sum(info.attempts > 1 for info in infos.values()),
        lost=len(lost),
        falsely_failed=len(failed),
        wrong=sum(text != "done: mixed" for text in answers.values()),
        begun_or_ended_twice=sum(count != 1 for count in marks.values()) + (2 * len(runs) - len(marks)),
        overlapping=sum(len(ran) - len(set(ran)) for ran in blocks.values()),
        effects_lost=len(runs) * ROUNDS - len(effects.keys() | unknown),
        effects_repeated=sum(effects[key] > 1 for key in posts),
        run_again=sum(times - 1 for key, times in effects.items() if key not in posts),
        unknown=len(unknown),
    )


async def reason(client: DurableClient, run_id: str) -> str:
    """Why a run failed."""
    try:
        return (await client.result(run_id)).outcome
    except RunFailedError as error:
        return str(error)


def show(name: str, effort: Effort, report: Report) -> None:
    """Print a report."""
    often = "{:g} to {:g} s".format(*effort.pause)
    how = " or ".join(effort.disturbances)
    print(
        f"\n{name}: {effort.workers} workers, {effort.sessions} sessions, a {how} every {often}, a lease of {effort.lease:g} s"
    )
    print(f"  {'calls':<25}{report.calls:>7}   ({report.calls / report.seconds:.1f} a second)")
    for label, value in report._asdict().items():
        if label not in ("calls", "seconds"):
            print(f"  {label.replace('_', ' '):<25}{value:>7}")


def main() -> None:
    """Run it."""
    from nursery import Nursery  # of the tests' support, as the next
    from postgres import postgres_server

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Only to see that it runs.")
    parser.add_argument("--seconds", type=float, help="How long.")
    parser.add_argument("--calls", type=int, help="So many calls at least.")
    parser.add_argument("--sessions", type=int, help="In so many sessions.")
    parser.add_argument("--database", choices=["sqlite", "postgresql"], help="Only this one.")
    parser.add_argument("--only", choices=["kill", "freeze"], help="Only this kind of disturbance.")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="How often one is disturbed, about.")
    parser.add_argument("--json", action="store_true", help="Print a line of JSON for each database.")
    given = parser.parse_args()
    effort = QUICK if given.quick else Effort()
    named = {name: getattr(given, name) for name in ("seconds", "calls", "sessions")}
    effort = effort._replace(**{name: value for name, value in named.items() if value is not None})
    if given.only is not None:
        effort = effort._replace(disturbances=(given.only,))
    if given.every is not None:
        effort = effort._replace(pause=(given.every / 2, given.every * 1.5))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the workers are killed on the way out
    env = environment()
    if not given.json:
        print(f"{env['python']} on {env['platform']}, {env['cpus']} x {env['processor']}", flush=True)
    bad = 0
    for name in ("sqlite", "postgresql") if given.database is None else (given.database,):
        with ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            url = f"sqlite:///{folder / 'runs.db'}"
            if name == "postgresql":
                url = opened.enter_context(opened.enter_context(postgres_server()).database())
            nursery = Nursery("program", paths=(DURABLE,))  # a worker is a fork: its imports are not what is measured
            opened.callback(nursery.end)
            report = asyncio.run(measure(nursery, url, effort, folder))
        if given.json:
            print(json.dumps({"database": name, **report._asdict()}), flush=True)
        else:
            show(name, effort, report)
        bad += report.bad
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
