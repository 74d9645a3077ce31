"""Clocks for runs: one that follows a loop in virtual time, one that jumps instead of waiting."""

from __future__ import annotations

import asyncio

__all__ = ["JumpingClock", "LoopClock"]


class LoopClock:
    """The running loop's time: with `run_virtual`, waits of runs and tools are virtual and in order."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class JumpingClock:
    """A clock that advances at once by each requested wait; for runs over real connections, which cannot be virtual.

    Attributes:
        time: The seconds that were waited so far.
        sleeps: The waits, in order.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)
