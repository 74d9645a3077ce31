"""One side, measured in a process of its own: `python -m benchmarks.peers.runner pydantic_ai`. Prints JSON.

Rules:

1. Runs under the side's own interpreter, so it imports the standard library, `kit` and the side alone.
2. A time is processor time of the whole process, threads included, with the garbage collector on, as a program has it: the
   best of a few turns. The row that waits (eight tools of 1 ms) is measured by the wall clock.
3. After every turn the counts of work are compared with the workload; a difference is the side's error.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

from benchmarks.peers import kit
from benchmarks.peers.kit import Counts, Plan, counts

ROUNDS = 10
MANY = 1_000
STREAMS = 100
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident() -> int:
    """Bytes of memory that this process holds now; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return 0


@dataclass(frozen=True)
class Effort:
    """How long to measure: turns of each workload, and seconds of each turn."""

    turns: int = 3
    seconds: float = 0.04
    many: int = MANY
    chunks: tuple[int, ...] = (2_000, 20_000)
    histories: tuple[int, ...] = (10, 100, 1_000)
    streams: int = STREAMS
    wire_chunks: int = 1_000

    @classmethod
    def smoke(cls) -> Effort:
        """Enough to see that all of it runs; the figures mean nothing."""
        return cls(1, 0.0, 20, (20, 50), (2, 10, 20), 3, 30)


@dataclass
class Cell:
    """A call, or a streamed one, that is made over and over."""

    plan: Plan
    streamed: bool = False
    hooks: bool = False
    history: int = 0
    waits: bool = False

    def work(self, calls: int) -> Counts:
        """The work of a number of calls."""
        plan = self.plan
        model, tools = plan.rounds + 1, plan.rounds * plan.calls
        hooks = model + tools if self.hooks else 0
        chunks = plan.chunks if self.streamed else 0
        seen = model * (self.history + 1) + plan.rounds * model  # each round adds a reply and a result at least
        return Counts(model * calls, tools * calls, hooks * calls, chunks * calls, seen * calls)


class WorkError(AssertionError):
    """A side did other work than it was asked for."""


class Race:
    """One side and its measured times."""

    def __init__(self, side: Any, effort: Effort) -> None:
        self.side = side
        self.effort = effort
        self.figures: dict[str, float] = {}
        self.work: dict[str, dict[str, int]] = {}
        self.failed: dict[str, str] = {}

    async def run(self, name: str, of: Callable[[], Awaitable[None]]) -> None:
        """Measure one group of rows; a failure is recorded, and the next one is measured."""
        try:
            async with asyncio.timeout(120):
                await of()
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
            if os.environ.get("PEERS_DEBUG"):
                traceback.print_exc()

    # ---- one call after the other

    async def _once(self, agent: Any, cell: Cell, past: Any) -> None:
        plan = cell.plan
        if cell.streamed:
            pieces = await self.side.stream(agent)
            counts.chunks += len(pieces)
            said = "".join(pieces)
        else:
            said = await (self.side.call(agent, past) if cell.history else self.side.call(agent))
        if said != plan.answer:
            raise WorkError(f"the answer was {said[:60]!r}")

    async def _turn(self, agent: Any, cell: Cell, past: Any, calls: int) -> float:
        clock = time.perf_counter if cell.waits else time.process_time
        gc.collect()
        counts.take()
        started = clock()
        for _ in range(calls):
            await self._once(agent, cell, past)
        took = clock() - started
        self._check(counts.take(), cell.work(calls))
        return took / calls

    def _check(self, done: Counts, asked: Counts) -> None:
        """A model's messages may differ: some send a system prompt, some answer all tools of a reply in one message."""
        if replace(done, seen=0) != replace(asked, seen=0) or done.seen < asked.seen:
            raise WorkError(f"did {done} where {asked} was asked for")

    async def seconds(self, cell: Cell) -> float:
        """The duration of one call: the best of the turns."""
        agent = self.side.build(replace(cell.plan), cell.hooks)
        past = self.side.history(cell.history) if cell.history else None
        warm = await self._turn(agent, cell, past, 1)
        if warm < 0.5:
            warm = await self._turn(agent, cell, past, 1)
        calls = max(1, min(2_000, int(self.effort.seconds / max(warm, 1e-6))))
        if warm > 0.5:  # long enough to be the figure
            return warm
        return min([await self._turn(agent, cell, past, calls) for _ in range(self.effort.turns)])

    async def row(self, name: str, cell: Cell, less: float = 0.0, over: int = 1) -> float:
        """Measure a cell, and record its cost above a base, per step; return the total duration."""
        took = await self.seconds(cell)
        self.figures[name] = (took - less) / over
        self.work[name] = asdict(cell.work(1))
        return took

    async def calls(self) -> None:
        """A call, and a round."""
        base = await self.row("call", Cell(Plan()))
        await self.row("round", Cell(Plan(ROUNDS)), base, ROUNDS)

    async def streams(self) -> None:
        """A streamed round."""
        base = await self.row("streamed call", Cell(Plan(), streamed=True))
        await self.row("streamed round", Cell(Plan(ROUNDS), streamed=True), base, ROUNDS)

    async def hooks(self) -> None:
        """A round with a no-op hook before each model call and one before each tool call."""
        base = await self.seconds(Cell(Plan(), hooks=True))
        await self.row("hooked round", Cell(Plan(ROUNDS), hooks=True), base, ROUNDS)
        self.figures["hook"] = (self.figures["hooked round"] - self.figures["round"]) / 2

    async def chunks(self) -> None:
        """A streamed chunk, of short answers and of long ones."""
        base = await self.seconds(Cell(Plan(), streamed=True))
        for name, size in zip(("chunk of 2000", "chunk of 20000"), self.effort.chunks, strict=True):
            await self.row(name, Cell(Plan(chunks=size), streamed=True), base, size - 1)

    async def parallel(self) -> None:
        """A call with a round of eight tools that wait a millisecond."""
        await self.row("parallel", Cell(Plan(1, 8, "wait_a_millisecond"), waits=True))

    async def histories(self) -> None:
        """A call with a round after a conversation."""
        for name, size in zip(("behind 10", "behind 100", "behind 1000"), self.effort.histories, strict=True):
            await self.row(name, Cell(Plan(1), history=size))

    # ---- building

    async def building(self) -> None:
        """An agent with one tool; and one that is built and called for the first time."""
        side = self.side
        best = float("inf")
        calls = 1
        for _ in range(self.effort.turns + 3):
            gc.collect()
            started = time.process_time()
            for _ in range(calls):
                side.build(Plan(1))
            took = (time.process_time() - started) / calls
            best = min(best, took)
            calls = max(1, min(1_000, int(self.effort.seconds / max(took, 1e-6))))
        self.figures["build"] = best

    async def first(self) -> None:
        """The first call of the process: the tool made of its function, the agent built, a round."""
        cell = Cell(Plan(1))
        counts.take()
        started = time.process_time()
        agent = getattr(self.side, "first", self.side.build)(cell.plan)
        await self._once(agent, cell, None)
        self.figures["first call"] = time.process_time() - started
        self._check(counts.take(), cell.work(1))

    # ---- many at once

    async def crowd(self) -> None:
        """Many calls at once, each of one round; a reply waits a millisecond."""
        many = self.effort.many
        agent = self.side.build(Plan(1, wait=0.001, crowd=True))
        await self._crowd(agent, 10)
        gc.collect()
        before, peak = resident(), 0

        async def look() -> None:
            nonlocal peak
            while True:
                peak = max(peak, resident())
                await asyncio.sleep(0.002)

        looking = asyncio.create_task(look())
        counts.take()
        started = time.process_time()
        await self._crowd(agent, many)
        took, peak = time.process_time() - started, max(peak, resident())
        looking.cancel()
        self._check(counts.take(), Counts(2 * many, many))
        self.figures["crowd"], self.figures["crowd memory"] = took / many, max(0, peak - before) / many
        self.work["crowd"] = asdict(Counts(2 * many, many))

    async def _crowd(self, agent: Any, many: int) -> None:
        if hasattr(self.side, "crowd"):
            said = await self.side.crowd(agent, many)
        else:
            said = await asyncio.gather(*[self.side.call(agent) for _ in range(many)])
        if said != [kit.ANSWER] * many:
            raise WorkError("the answers of the many were others")

    # ---- over the wire

    async def over_the_wire(self, url: str) -> None:
        """Streams of a server on loopback: a chunk when each is a read of its own, when they come together, many at once."""
        agent = self.side.wire(url)
        try:
            for name, way in (("wire chunk", "apart"), ("wire burst", "together")):
                base = await self._wire(agent, f"{way} 1", 1)
                whole = await self._wire(agent, f"{way} {self.effort.wire_chunks}", self.effort.wire_chunks)
                self.figures[name] = (whole - base) / (self.effort.wire_chunks - 1)
            await self._wire_crowd(agent)
        finally:
            if hasattr(self.side, "close"):
                await self.side.close(agent)

    async def _wire(self, agent: Any, prompt: str, size: int) -> float:
        await self._wire_once(agent, prompt, size)
        best = float("inf")
        for _ in range(min(2, self.effort.turns)):
            gc.collect()
            started = time.process_time()
            await self._wire_once(agent, prompt, size)
            best = min(best, time.process_time() - started)
        return best

    async def _wire_once(self, agent: Any, prompt: str, size: int) -> None:
        pieces = [piece for piece in await self.side.stream(agent, prompt) if piece]
        if "".join(pieces) != kit.WORD * size:
            raise WorkError(f"the server said {size} words; the text has {len(''.join(pieces)) / len(kit.WORD)}")
        if size == self.effort.wire_chunks:
            self.work["wire chunk"] = {"chunks": len(pieces)}

    async def _wire_crowd(self, agent: Any) -> None:
        streams, size = self.effort.streams, 50
        gc.collect()
        started = time.process_time()
        await asyncio.gather(*[self._wire_once(agent, f"apart {size}", size) for _ in range(streams)])
        self.figures["wire streams"] = (time.process_time() - started) / streams

    async def all(self, url: str | None) -> None:
        """All rows, in the order in which they disturb each other least."""
        for name in ("first", "crowd", "building", "calls", "streams", "hooks", "chunks", "parallel", "histories"):
            if reason := self._without(name):
                self.failed[name] = reason
            else:
                await self.run(name, getattr(self, name))
        if reason := self._without("wire"):
            self.failed["wire"] = reason
        elif url is not None:
            await self.run("wire", lambda: self.over_the_wire(url))

    def _without(self, name: str) -> str | None:
        """Why a side does not do this."""
        return getattr(self.side, "WITHOUT", {}).get(name)


def main() -> None:
    """Import the side, measure it, print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.runner", description=__doc__)
    parser.add_argument("side")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--wire", metavar="URL")
    parser.add_argument("--core", type=int, help="the core to run on")
    parser.add_argument("--packages", nargs="*", default=[])
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    warnings.simplefilter("ignore")
    before, started = resident(), time.process_time()
    side = importlib.import_module(f"benchmarks.peers.sides.{options.side}")
    took, held = time.process_time() - started, resident() - before
    race = Race(side, Effort.smoke() if options.quick else Effort())
    race.figures |= {"import": took, "import memory": held}
    out, sys.stdout = sys.stdout, sys.stderr  # output of a side is not part of the report
    asyncio.run(race.all(options.wire))
    report = {
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in options.packages},
        "figures": race.figures,
        "work": race.work,
        "failed": race.failed,
        "hooks": side.HOOKS,
        "notes": side.NOTES,
    }
    print(json.dumps(report), file=out, flush=True)


if __name__ == "__main__":
    main()
