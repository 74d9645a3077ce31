"""The clock of a replay: as fast as possible, or at a pace relative to the recording."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["PATIENCE", "ReplayClock"]

PATIENCE: Final = 1.0
"""Seconds for which a replay waits for something that may never happen, such as a recorded cancellation."""


class ReplayClock:
    """A clock that starts at the time of the recording.

    Args:
        began: The start of the recording, in seconds since the epoch.
        pace: The speed relative to the recording; None means as fast as possible.
    """

    def __init__(self, began: float, pace: float | None = None) -> None:
        self._began = began
        self._pace = pace
        self._first: float | None = None
        self._ahead = 0.0
        self._waiting: set[asyncio.Future[None]] = set()

    def monotonic(self) -> float:
        """Return the seconds since the start of the recording."""
        now = asyncio.get_running_loop().time()
        if self._first is None:
            self._first = now
        return (now - self._first) * (self._pace or 1.0) + self._ahead

    def now(self) -> float:
        """Return the seconds since the epoch, in recorded time."""
        return self._began + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep for some seconds of recorded time."""
        await asyncio.sleep(seconds / (self._pace or 1.0))

    async def reach(self, time: float) -> None:
        """Wait until the clock reaches a time."""
        # Floats of seconds since the epoch are exact to about 2e-7, so an exact comparison could wait again.
        while (left := time - self.now()) > 1e-6:
            jumped = asyncio.get_running_loop().create_future()
            self._waiting.add(jumped)
            try:
                await asyncio.wait([jumped], timeout=left / (self._pace or 1.0))
            finally:
                self._waiting.discard(jumped)

    def jump(self, time: float) -> None:
        """Set the clock forward to a time, unless that time has passed."""
        ahead = time - self.now()
        if ahead > 0:
            self._ahead += ahead
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)
