"""The cost of storing sessions: `python -m benchmarks.stores` (with `--quick` only to see that it runs).

For each store: facts per second, the time that it adds to one round of a call (one model reply, one tool), and the times of
loading and appending at 1,000 and at 10,000 messages. Times are elapsed, except those marked "cpu": processor time of this
process. Then the times of one round in a call that a DBOS worker runs in this process. PostgreSQL is a real server on this
machine, started for the benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from agentflow import Agent, MemoryStore, Msg, Session, ToolUseBlock, tool
from agentflow.durable.agent import DurableAgent
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.facts import (
    CallClosed,
    CallOpened,
    Fact,
    Reasoned,
    RoundClosed,
    ToolDecided,
    ToolFinished,
    ToolStarted,
)
from agentflow.vocabulary.messages import ToolResultBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.ports.store import SessionStore
from agentflow.vocabulary.specs import Usage
from benchmarks.report import environment

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))


class Spent(NamedTuple):
    """Elapsed time and processor time in seconds."""

    elapsed: float
    cpu: float

    @classmethod
    def since(cls, started: Spent, count: int) -> Spent:
        """Return the time for one of `count` repetitions since `started`."""
        now = cls.now()
        return cls((now.elapsed - started.elapsed) / count, (now.cpu - started.cpu) / count)

    @classmethod
    def now(cls) -> Spent:
        """Read both clocks."""
        return cls(time.perf_counter(), time.process_time())


class Effort(NamedTuple):
    """How much to do."""

    facts: int = 2_000
    rounds: int = 100
    turns: int = 5
    messages: tuple[int, int] = (1_000, 10_000)


QUICK = Effort(20, 3, 1, (8, 16))


@tool
async def look(n: int) -> str:
    """Look something up."""
    return f"There are {n} of them, and this is what is known about each: nothing at all."


def round_facts(n: int) -> list[Fact]:
    """The facts of one round, two messages."""
    use = ToolUseBlock.from_json(f"t{n}", "look", f'{{"n": {n}}}')
    result = ToolResultBlock(use.id, "look", f"There are {n} of them, and this is what is known about each: nothing.")
    return [
        Reasoned("run", n, Msg.assistant(["Let me look that up for you.", use]), Usage(1000, 50), 800.0),
        ToolDecided("run", use.id, use, None),
        ToolStarted("run", use.id, 1),
        ToolFinished("run", use.id, use, result, 12.5),
        RoundClosed("run", f"m{n}", (result,)),
    ]


def history(messages: int) -> list[Fact]:
    """The facts of a finished call with so many messages."""
    rounds = messages // 2 - 1
    opened = CallOpened("run", "call", (Msg.user("Count them all."),), rounds + 1)
    closed = CallClosed("run", "call", "completed", Msg.assistant("That is all."))
    return [opened, *[fact for n in range(rounds) for fact in round_facts(n)], closed]


async def append(store: SessionStore, session_id: str, facts: Sequence[Fact], expected: int) -> None:
    """Write, and wait until it is safe."""
    kept = store.append(session_id, facts, expected=expected)
    if kept is not None:
        await kept


async def per_fact(store: SessionStore, effort: Effort, version: int = 0, session_id: str = "facts") -> Spent:
    """The time for one fact, written one by one."""
    facts = [fact for n in range(version, version + effort.facts // 5 + 1) for fact in round_facts(n)][: effort.facts]
    started = Spent.now()
    for n, fact in enumerate(facts, version):
        await append(store, session_id, [fact], n)
    return Spent.since(started, len(facts))


async def per_round(store: SessionStore | None, effort: Effort) -> Spent:
    """The time for one round of a call; each time is the best of several calls."""
    best = Spent(float("inf"), float("inf"))
    for turn in range(effort.turns):
        script = [ToolUseBlock(f"t{n}", "look", {"n": n}) for n in range(effort.rounds)]
        model = ScriptedModel([*script, "Done."])
        agent = Agent("benchmark", model, tools=[look], store=store, max_iterations=effort.rounds + 1)
        session = Session(f"rounds-{turn}", store=store)
        started = Spent.now()
        await agent.call("Go", session=session)
        spent = Spent.since(started, effort.rounds)
        best = Spent(min(best.elapsed, spent.elapsed), min(best.cpu, spent.cpu))
    return best


async def per_load(store: SessionStore, session_id: str, turns: int) -> float:
    """Seconds to load a session and fold it; the best of several."""
    best = float("inf")
    for _ in range(turns):
        session = Session(session_id, store=store)
        started = time.perf_counter()
        await session.acquire("benchmark")
        best = min(best, time.perf_counter() - started)
        session.release()
    return best


async def row(name: str, store: SessionStore | None, effort: Effort, bare: Spent) -> str:
    """All figures of one store."""
    assert store is not None
    fact = await per_fact(store, effort)
    whole = await per_round(store, effort)
    cells = [f"{1 / fact.elapsed:>9,.0f}", f"{fact.elapsed * 1e6:>9,.1f}", f"{fact.cpu * 1e6:>9,.1f}"]
    cells += [f"{(whole.elapsed - bare.elapsed) * 1e3:>10,.3f}", f"{whole.cpu * 1e3:>10,.3f}"]
    few = effort._replace(facts=max(effort.facts // 10, 5))
    for messages in effort.messages:
        session_id = f"long-{messages}"
        facts = history(messages)
        await append(store, session_id, facts, 0)
        load = await per_load(store, session_id, effort.turns)
        late = await per_fact(store, few, len(facts), session_id)
        cells += [f"{load * 1e3:>9,.1f}", f"{late.elapsed * 1e6:>9,.1f}"]
    return f"{name:<28}" + " ".join(cells)


async def per_durable_round(url: str, effort: Effort) -> Spent:
    """The time for one more round in a call of a DBOS worker in this process; each time is the best of several calls."""

    async def per_call(rounds: int) -> Spent:
        def answer(request: ModelRequest) -> object:
            done = sum(message.role == "tool" for message in request.messages)
            return "Done." if done == rounds else [ToolUseBlock(f"t{done}", "look", {"n": done})]

        best = Spent(float("inf"), float("inf"))
        async with SqlStore(url) as store:
            agent = Agent(f"r{rounds}", ScriptedModel(answer), tools=[look], store=store, max_iterations=rounds + 1)
            async with DurableAgent(agent, url) as durable, durable.worker():
                for _ in range(effort.turns + 1):  # the first call imports and prepares
                    started = Spent.now()
                    await durable.call("Go")
                    spent = Spent.since(started, 1)
                    best = Spent(min(best.elapsed, spent.elapsed), min(best.cpu, spent.cpu))
        return best

    few, many = await per_call(1), await per_call(effort.rounds // 2 + 1)
    more = effort.rounds // 2
    return Spent((many.elapsed - few.elapsed) / more, (many.cpu - few.cpu) / more)


async def report(effort: Effort, write: Callable[[str], object]) -> None:
    """Measure all stores, one after the other."""
    small, large = (f"{count:,}" for count in effort.messages)
    bare = await per_round(None, effort)
    write(
        f"{'':28}{'facts/s':>9} {'us/fact':>9} {'cpu/fact':>9} {'+ms/round':>10} {'cpu/round':>10} "
        + f"{'load ms':>9} {'us/fact':>9} " * 2
    )
    write(f"{'':79}{'at ' + small + ' messages':>19} {'at ' + large + ' messages':>19}")
    write(await row("memory", MemoryStore(), effort, bare))
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        urls = {"SQLite": f"sqlite:///{folder}/a.db", "SQLite, power_safe=False": f"sqlite:///{folder}/b.db"}
        from postgres import postgres_server  # beside the tests; needs psycopg

        server = opened.enter_context(postgres_server(power_safe=True))
        urls |= {"PostgreSQL": server.url, "PostgreSQL, power_safe=False": opened.enter_context(server.database())}
        for name, url in urls.items():
            async with SqlStore(url, power_safe="False" not in name) as store:
                write(await row(name, store, effort, bare))
        for name in ("SQLite", "PostgreSQL"):
            spent = await per_durable_round(urls[name], effort)
            write(f"DBOS, {name}: {spent.elapsed * 1e3:.2f} ms/round, cpu {spent.cpu * 1e3:.2f} ms/round")
    write(f"\nA round without a store: {bare.elapsed * 1e3:,.3f} ms. A round of one tool writes five facts.")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stores", description=inspect.getdoc(sys.modules[__name__])
    )
    parser.add_argument("--quick", action="store_true", help="only see that it runs")
    asked = parser.parse_args()
    where = environment()
    print(f"{where['python']}, {where['platform']}, {where['cpus']} cores\n")
    asyncio.run(report(QUICK if asked.quick else Effort(), print))


if __name__ == "__main__":
    main()
