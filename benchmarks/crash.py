"""Processes that are killed and continued: `python -m benchmarks.crash --kills 300` (`--quick` only checks that it runs).

A child process runs a job of 20 rounds with tools that have effects in a file. It is killed with SIGKILL at random instants,
and the next child resumes it, until enough have been killed. Over SQLite and over PostgreSQL (a real server, started here),
with idempotent tools and with others.

A job is checked before each resume (the stored history is legal) and at its end. With idempotent tools: the same final answer
as undisturbed, and every effect under its one key. With others: no effect twice, and the model received "Outcome unknown" for
each that is missing. A violation is counted as a repeated or lost effect, and the command fails.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from agentflow import Agent, Msg, ToolContext, ToolUseBlock, tool
from agentflow.loop.history import fold_facts
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.transcript import Transcript

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

ROUNDS = 20
SLOWEST = 0.3
"""Seconds from the start of a child to its kill, at most."""


class Job(NamedTuple):
    """The data that outlives the processes of one job.

    Attributes:
        url: The store.
        session: The session's id.
        effects: The file that the tools write to.
        idempotent: Whether they may run again.
    """

    url: str
    session: str
    effects: Path
    idempotent: bool


class Tally(NamedTuple):
    """The counts."""

    kills: int = 0
    resumes: int = 0
    jobs: int = 0
    effects: int = 0
    again: int = 0
    unknown: int = 0
    repeated: int = 0
    lost: int = 0

    def plus(self, other: Tally) -> Tally:
        """The sum."""
        return Tally(*(a + b for a, b in zip(self, other, strict=True)))


def legal(messages: Sequence[Msg]) -> bool:
    """Whether every call of a conversation is answered once, directly after it, in order; the last round may be open.

    Returns:
        True.

    Raises:
        AssertionError: It is not.
    """
    for before, msg in zip((None, *messages), messages, strict=False):
        asked = [use.id for use in before.tool_uses] if before is not None else []
        answered = [result.tool_use_id for result in msg.tool_results]
        assert asked == answered, f"{asked} are answered by {answered}"
    Transcript(messages[:-1] if messages and messages[-1].tool_uses else messages)
    return True


def brain(request: ModelRequest) -> Any:
    """Two tools at once and then one alone, round by round; the conversation so far decides which."""
    conversation = list(request.messages)
    assert legal(conversation)
    assert not conversation[-1].tool_uses
    done = sum(msg.role == "tool" for msg in conversation)
    if done == ROUNDS:
        words = [result.text for msg in conversation for result in msg.tool_results]
        return f"{len(words)} steps: {' '.join(words)}"
    if done % 2:
        return ToolUseBlock(f"t{done}", "write", {"n": done})
    return [ToolUseBlock(f"t{done}{part}", "act", {"n": done}) for part in "ab"]


EXPECTED = tuple(f"t{n}{part}" for n in range(ROUNDS) for part in (("",) if n % 2 else ("a", "b")))
"""The tool uses of an undisturbed job, in order."""


def agent_of(job: Job, store: SqlStore) -> Agent:
    """The agent that does the job."""

    def leave_a_mark(context: ToolContext) -> str:
        with open(job.effects, "ab", buffering=0) as file:  # one write: whole, also when it is the last
            file.write(f"{context.idempotency_key}\n".encode())
        return f"did {context.tool_use.id}"

    @tool(type="read", idempotent=job.idempotent)
    async def act(n: int, context: ToolContext) -> str:
        await asyncio.sleep(0.001)
        done = leave_a_mark(context)
        await asyncio.sleep(0.001)
        return done

    @tool(idempotent=job.idempotent)
    async def write(n: int, context: ToolContext) -> str:
        return leave_a_mark(context)

    return Agent("worker", ScriptedModel(brain), tools=[act, write], store=store, max_iterations=ROUNDS + 1)


async def child(job: Job) -> None:
    """One process: it does the rest of the job."""
    async with SqlStore(job.url, power_safe=False) as store:
        agent = agent_of(job, store)
        status = {info.id: info.status for info in await store.sessions()}.get(job.session)
        if status is None:
            await agent.call("Go", session=job.session)
        elif status == "unfinished":
            legal(fold_facts(await store.load(job.session)))
            await agent.resume(job.session)


def started(job: Job) -> int:
    """Start a child; a fork of this process, which has no threads, is there at once.

    Returns:
        Its process id.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        asyncio.run(child(job))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def killed(pid: int, seconds: float) -> bool:
    """Kill a child after some time, unless it has ended before.

    Raises:
        RuntimeError: It failed.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return _ended(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    return _ended(os.waitpid(pid, 0)[1])


def _ended(status: int) -> bool:
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL:
        return True
    if code:
        raise RuntimeError(f"a child failed with exit code {code}; its error is printed above")
    return False


def done(job: Job, chance: random.Random, kills: int) -> Tally:
    """Do one job, killing at most so many of its processes."""
    count = Tally(jobs=1)
    while True:
        seconds = chance.uniform(0, SLOWEST) if count.kills < kills else 600.0
        if not killed(started(job), seconds):
            break
        count = count._replace(kills=count.kills + 1, resumes=count.resumes + 1)
    return count.plus(_checked(job))


def _checked(job: Job) -> Tally:
    """Compare a finished job with its expected effects, in a process of its own: the store has a thread."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(into, " ".join(map(str, asyncio.run(_counted(job)))).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(into)
    with open(out, "rb") as file:
        text = file.read()
    _ended(os.waitpid(pid, 0)[1])
    return Tally(*map(int, text.split()))


async def _counted(job: Job) -> Tally:
    async with SqlStore(job.url) as store:
        messages = fold_facts(await store.load(job.session))
    legal(messages)
    results = {result.tool_use_id: result.text for msg in messages for result in msg.tool_results}
    assert tuple(results) == EXPECTED, "the conversation is another one"
    assert messages[-1].text == f"{len(results)} steps: {' '.join(results.values())}"
    keys = Counter(job.effects.read_text().split())
    assert len({key.partition(":")[0] for key in keys}) == 1, "the key has changed"
    marks = Counter({key.partition(":")[2]: times for key, times in keys.items()})
    unknown = {use for use, text in results.items() if text.startswith("Outcome unknown")}
    wrong = {use for use, text in results.items() if use not in unknown and text != f"did {use}"}
    assert not wrong, f"results are wrong: {wrong}"
    again = sum(marks.values()) - len(marks)
    repeated = len(set(marks) - set(EXPECTED)) if job.idempotent else again
    missing = set(EXPECTED) - set(marks)
    lost = missing if job.idempotent else missing - unknown
    if job.idempotent:
        assert not unknown, "idempotent tools are run again"
    return Tally(effects=len(marks), again=again, unknown=len(unknown), repeated=repeated, lost=len(lost))


@contextmanager
def databases(which: str) -> Iterator[dict[str, str]]:
    """The stores of the sessions, by name."""
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        urls = {"SQLite": f"sqlite:///{folder}/crash.db"}
        if which != "sqlite":
            from postgres import postgres_server  # beside the tests; needs psycopg

            urls["PostgreSQL"] = opened.enter_context(postgres_server()).url
        yield {name: url for name, url in urls.items() if which in ("both", name.lower())}


def report(kills: int, seed: int, which: str, write: Callable[[str], object]) -> Tally:
    """Kill so many processes in all, and count.

    Args:
        kills: How many.
        seed: Of the instants.
        which: `"sqlite"`, `"postgresql"` or `"both"`.
        write: Receives the lines.
    """
    chance = random.Random(seed)
    total = Tally()
    heads = ["kills", "resumes", "jobs", "effects", "run again", "unknown", "repeated", "lost"]
    write(f"{'':28}" + " ".join(f"{head:>9}" for head in heads))
    with databases(which) as urls, tempfile.TemporaryDirectory() as folder:
        kinds = [(name, url, idempotent) for name, url in urls.items() for idempotent in (True, False)]
        for n, (name, url, idempotent) in enumerate(kinds):
            share = kills // len(kinds) + (n < kills % len(kinds))
            row = Tally()
            while row.kills < share:
                session = f"job-{row.jobs}-{idempotent}"
                job = Job(url, session, Path(folder) / f"{name}-{session}", idempotent)
                row = row.plus(done(job, chance, share - row.kills))
            write(f"{name + (', idempotent tools' if idempotent else ', other tools'):<28}" + _cells(row))
            total = total.plus(row)
    write(f"{'all':<28}" + _cells(total))
    return total


def _cells(tally: Tally) -> str:
    return " ".join(f"{value:>9,}" for value in tally)


def main() -> None:
    """Print the counts; exit code 1 if an effect was repeated or lost."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crash", description=inspect.getdoc(sys.modules[__name__])
    )
    parser.add_argument("--kills", type=int, default=300, help="how many processes to kill, in all")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--store", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument("--quick", action="store_true", help="only see that it runs")
    asked = parser.parse_args()
    kills = 2 if asked.quick else asked.kills
    began = time.perf_counter()
    total = report(kills, asked.seed, asked.store, print)
    print(f"\nrepeated effects: {total.repeated}, lost effects: {total.lost} ({time.perf_counter() - began:.0f} s)")
    sys.exit(1 if total.repeated or total.lost else 0)


if __name__ == "__main__":
    main()
