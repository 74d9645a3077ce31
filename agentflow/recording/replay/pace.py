"""The pace of a replay: when the next step of recorded work is due."""

from __future__ import annotations

import asyncio

from agentflow._support.virtual_time import VirtualClockLoop
from agentflow.recording.replay.clock import PATIENCE, ReplayClock
from agentflow.recording.replay.comparison import RunComparison
from agentflow.recording.replay.script import DueStep

__all__ = ["Pace"]


class Pace:
    """Waits until a step is due: for its recorded time, and in an incomplete recording also for the events before it.

    Args:
        clock: The replay's clock.
        compared: The comparison, which counts the events.
        paced: Whether to wait for recorded times.
        strict: Whether the recording is complete, so that its order alone decides when a step is due.
    """

    def __init__(self, clock: ReplayClock, compared: RunComparison, paced: bool, strict: bool) -> None:
        self._clock = clock
        self._compared = compared
        self._strict = strict
        # In virtual time, waiting is free. Tools take their recorded time even while the run waits for a slow reader, so that
        # time limits of hooks expire as recorded.
        self._waits = paced or (strict and isinstance(asyncio.get_running_loop(), VirtualClockLoop))
        self._moved = asyncio.Event()

    def wake(self) -> None:
        """Wake the steps that wait for events of the new run."""
        self._moved.set()
        # Replaced, not cleared: the tasks that `set` wakes have not run yet.
        self._moved = asyncio.Event()

    async def until(self, due: DueStep) -> None:
        """Wait until a step is due."""
        if self._waits or due.apart:
            await self._clock.reach(due.time)
        else:
            self._clock.jump(due.time)
        if self._strict or not due.apart:
            return
        now = asyncio.get_running_loop().time
        limit = now() + PATIENCE
        while self._compared.events < due.events and self._compared.divergence is None and now() < limit:
            waiting = asyncio.ensure_future(self._moved.wait())
            await asyncio.wait([waiting], timeout=PATIENCE)
            waiting.cancel()  # otherwise each pass would leave a task behind
