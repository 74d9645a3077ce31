"""The cost of a late round of a call, compared with an early one, with each plugin: instructions of ours, counted.

`python -m benchmarks.growth` prints them. If the cost of a plugin's round grows with the rounds before it, a call is quadratic.
Work that C does in one instruction (copying a list of messages, joining texts, hashing) is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from agentflow import Hook
from benchmarks.counting import instructions_of_ours
from benchmarks.plugins import PLUGINS, with_hooks

__all__ = ["ALLOWED", "Growth", "growth"]

_EARLY, _LATE, _ROUNDS = 20, 100, 5
ALLOWED = 1.1
"""A late round may cost so many times what an early one does: lists that grow by doubling, a step every few rounds."""


class Growth(NamedTuple):
    """Instructions of ours in a round.

    Attributes:
        early: In each of the rounds 21 to 25.
        late: In each of the rounds 101 to 105.
    """

    early: float
    late: float

    @property
    def factor(self) -> float:
        """The late round against the early one."""
        return self.late / self.early


async def growth(make: Callable[[], Sequence[Hook]]) -> Growth:
    """Measure a round early and late in a call, with these hooks."""

    async def of(rounds: int) -> int:
        body = with_hooks(make, rounds)
        await body(1)
        return await instructions_of_ours(lambda: body(1))

    early = (await of(_EARLY + _ROUNDS) - await of(_EARLY)) / _ROUNDS
    late = (await of(_LATE + _ROUNDS) - await of(_LATE)) / _ROUNDS
    return Growth(early, late)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description=inspect.getdoc(sys.modules[__name__])
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="the plugins with this in their line")
    asked = parser.parse_args()
    for case in PLUGINS:
        if asked.only in case.name:
            found = asyncio.run(growth(case.make))
            print(f"{case.name:45} {found.early:9,.0f} {found.late:9,.0f}   x{found.factor:.2f}", flush=True)


if __name__ == "__main__":
    main()
