"""Timing two ways of doing the same thing, side by side.

Rules:

1. The two sides run in turns (A B A B ...) in one process and one event loop: a slow machine slows both.
2. A side's time is that of its best turn: noise only ever adds. (On a shared machine medians measure the neighbours.)
   It is the processor's time, of all threads, unless the row is about waiting: then it is the wall clock's.
3. The garbage collector is emptied before every turn and off during it, for both sides (as `timeit` does).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Body", "Effort", "Turns", "fit", "measure"]

Body: TypeAlias = Callable[[int], Awaitable[None]]
"""Does the thing `n` times."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes:
        turns: Turns of each side.
        seconds: The length of one turn; counts are fitted to it.
        quick: Only see that everything runs.
    """

    turns: int = 20
    seconds: float = 0.02
    quick: bool = False

    @classmethod
    def smoke(cls) -> Effort:
        """Enough to see that nothing is broken; the figures mean nothing."""
        return cls(turns=1, seconds=0.0005, quick=True)


class Turns:
    """The times of several sides: for each turn, the seconds that one repetition of each side took."""

    __slots__ = ("times",)

    def __init__(self, times: Sequence[Sequence[float]]) -> None:
        self.times = times

    def best(self, side: int) -> float:
        """The best time of a side."""
        return min(turn[side] for turn in self.times)

    def slope(self, many: int, few: int, steps: int) -> float:
        """The cost of one step, from two sides that differ in the number of steps."""
        return (self.best(many) - self.best(few)) / steps

    def ratio(self, ours: int, bare: int) -> float:
        """How many times as long as another side one took."""
        return self.best(ours) / self.best(bare)

    def slope_ratio(self, ours: tuple[int, int], bare: tuple[int, int]) -> float:
        """The `ratio` of a step's cost; each pair is the side with many steps and the side with few."""
        return self.slope(*ours, 1) / self.slope(*bare, 1)


async def _turn(body: Body, count: int, clock: Callable[[], float]) -> float:
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        started = clock()
        await body(count)
        return clock() - started
    finally:
        if was_on:
            gc.enable()


async def fit(body: Body, effort: Effort, clock: Callable[[], float] = time.perf_counter) -> int:
    """Return how often a body has to be repeated to fill one turn; warms it up."""
    if not effort.quick:
        await body(2)  # the first one also builds objects that are built once
    count = 1
    while True:
        took = await _turn(body, count, clock)
        if took >= effort.seconds or effort.quick:
            return count
        count = max(count + 1, min(count * 8, int(count * effort.seconds * 1.2 / max(took, 1e-7))))


async def measure(effort: Effort, *bodies: Body, count: int | None = None, waits: bool = False) -> Turns:
    """Measure bodies in turns.

    Args:
        effort: How long.
        bodies: The sides.
        count: Repetitions in each turn; fitted to the effort by default.
        waits: They wait for timers, so the wall clock counts.
    """
    clock = time.perf_counter if waits else time.process_time
    counts = [await fit(body, effort, clock) if count is None else count for body in bodies]
    times: list[list[float]] = []
    for _ in range(effort.turns):
        times.append([await _turn(body, repeat, clock) / repeat for body, repeat in zip(bodies, counts, strict=True)])  # noqa: PERF401 - one turn after the other
    return Turns(times)
