"""Clocks for runs, one that follows a loop in virtual time, one that jumps instead of waiting; and tests in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from agentflow._support.virtual_time import run_virtual

__all__ = ["JumpingClock", "LoopClock", "in_virtual_time"]

P = ParamSpec("P")


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in virtual time: on a slow machine no limit passes before what it limits has begun."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs))

    return run


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
