"""The time of a replay: that of the recording, as fast as may be, or paced."""

from __future__ import annotations

import asyncio

__all__ = ["ReplayClock"]


class ReplayClock:
    """A clock that begins when the recording began.

    Args:
        began: When that was, in seconds since the epoch.
        pace: How many times faster than the recording; None: nothing is waited for that need not be.
    """

    def __init__(self, began: float, pace: float | None = None) -> None:
        self._began = began
        self._pace = pace
        self._first: float | None = None
        self._ahead = 0.0
        self._waiting: set[asyncio.Future[None]] = set()

    def monotonic(self) -> float:
        """Seconds since the recording began."""
        now = asyncio.get_running_loop().time()
        if self._first is None:
            self._first = now
        return (now - self._first) * (self._pace or 1.0) + self._ahead

    def now(self) -> float:
        """Seconds since the epoch, by the recording."""
        return self._began + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds / (self._pace or 1.0))

    async def reach(self, time: float) -> None:
        """Wait until the recording's clock says this."""
        while (left := time - self.now()) > 1e-6:
            jumped = asyncio.get_running_loop().create_future()
            self._waiting.add(jumped)
            try:
                await asyncio.wait([jumped], timeout=left / (self._pace or 1.0))
            finally:
                self._waiting.discard(jumped)

    def jump(self, time: float) -> None:
        """Be there at once, if it is not there yet."""
        ahead = time - self.now()
        if ahead > 0:
            self._ahead += ahead
            for waiting in self._waiting:
                if not waiting.done():
                    waiting.set_result(None)
