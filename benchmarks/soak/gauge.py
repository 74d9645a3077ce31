"""The resources of a process, second by second, and whether its memory grows."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["BOUND", "Fit", "Held", "fit", "held", "thinned"]

BOUND = 100.0
"""How many KB 1,000 calls may cost for good."""

WARM_UP = 1 / 4
"""The part of a run that is left out of the fit: caches fill, and the allocator finds its size."""

ENOUGH = 2_000
"""How many calls a fit needs after the warm-up."""

STEPS = 8 * 1024
"""So many KB in all are no growth yet: an allocator takes memory in steps, and tables double."""

_MAX_SAMPLES = 1_000


class Held(NamedTuple):
    """The resources held at one time.

    Attributes:
        calls: How many calls had ended.
        memory: Resident, in KB.
        files: Open ones, sockets and pipes included.
        tasks: On this loop.
        threads: Of Python.
        connections: Open sockets.
    """

    calls: int
    memory: int
    files: int
    tasks: int
    threads: int
    connections: int


def held(calls: int) -> Held:
    """The resources that this process holds now."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    files = _files()
    sockets = sum(name.startswith("socket:") for name in files)
    return Held(
        calls,
        pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        len(files),
        len(asyncio.all_tasks()),
        threading.active_count(),
        sockets,
    )


def _files() -> list[str]:
    """The kind of each open file."""
    found: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the one that listed them
            continue
    return found


class Fit(NamedTuple):
    """A line through the memory of a run.

    Attributes:
        growth: KB in 1,000 calls.
        error: The standard error of that.
        rise: KB along the whole line.
        samples: Of how many points it is made.
    """

    growth: float
    error: float
    rise: float
    samples: int

    @property
    def grows(self) -> bool:
        """Whether it is above the bound, and not by chance."""
        return self.growth - 3 * self.error > BOUND and self.rise > STEPS


def fit(samples: Sequence[Held]) -> Fit | None:
    """The line of least squares after the warm-up; None if there are too few samples."""
    warm = samples[-1].calls * WARM_UP if samples else 0
    points = [(one.calls / 1000, float(one.memory)) for one in samples if one.calls >= warm]
    if len(points) < 10 or samples[-1].calls - warm < ENOUGH:
        return None
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    if not spread:
        return None
    growth = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread
    rest = sum((y - middle_y - growth * (x - middle_x)) ** 2 for x, y in points)
    rise = growth * (points[-1][0] - points[0][0])
    return Fit(growth, math.sqrt(rest / (len(points) - 2) / spread), rise, len(points))


def thinned(samples: list[Held]) -> list[Held]:
    """The samples, or every other one if there are many: the measurement must not fill the memory."""
    return samples if len(samples) < _MAX_SAMPLES else samples[::2]
