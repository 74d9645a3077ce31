"""Timing two ways of doing the same thing, side by side.

Rules:

1. The two sides run in turns (A B A B ...) in one process and one event loop: what slows the machine slows both.
2. A side's time is its best turn: noise only ever adds.
3. The garbage collector is emptied before every turn and off during it, for both sides (as `timeit` does).
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Body", "Effort", "best", "fit", "run"]

Body: TypeAlias = Callable[[int], Awaitable[None]]
"""Does the thing `n` times."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes:
        turns: Turns of each side.
        seconds: How long one turn shall be; counts are fitted to it.
        quick: Only see that everything runs.
    """

    turns: int = 15
    seconds: float = 0.02
    quick: bool = False

    @classmethod
    def smoke(cls) -> Effort:
        """Enough to see that nothing is broken; the figures mean nothing."""
        return cls(turns=1, seconds=0.0005, quick=True)


def run(work: Awaitable[object]) -> None:
    """Run to the end in a loop of its own."""

    async def main() -> None:
        await work

    asyncio.run(main())


async def _turn(body: Body, count: int) -> float:
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        started = time.perf_counter()
        await body(count)
        return time.perf_counter() - started
    finally:
        if was_on:
            gc.enable()


async def fit(body: Body, effort: Effort) -> int:
    """Return how often a body has to be repeated to fill one turn; warms it up."""
    count = 1
    while True:
        took = await _turn(body, count)
        if took >= effort.seconds or effort.quick:
            return count
        count = max(count + 1, min(count * 8, int(count * effort.seconds * 1.2 / max(took, 1e-7))))


async def best(effort: Effort, *bodies: Body, count: int | None = None) -> list[float]:
    """Measure bodies in turns.

    Args:
        effort: How long.
        bodies: The sides.
        count: Repetitions in each turn; fitted to the effort, side by side, by default.

    Returns:
        Seconds for one repetition of each, from its best turn.
    """
    counts = [await fit(body, effort) if count is None else count for body in bodies]
    times = [float("inf")] * len(bodies)
    for _ in range(effort.turns):
        for index, (body, repeat) in enumerate(zip(bodies, counts, strict=True)):
            times[index] = min(times[index], await _turn(body, repeat) / repeat)
    return times
