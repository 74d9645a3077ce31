"""A lock that lets those who wait in by order of arrival, across event loops and threads.

Rules:

1. Who waits gets what is held handed over, still held: nobody who comes later can take it in between.
2. A waiter that was cancelled, or whose event loop is closed, gives its turn on.
3. Taking what is free costs no future and no deque.
"""

from __future__ import annotations

import asyncio
import threading
from _thread import allocate_lock
from collections import deque
from typing import TypeAlias

__all__ = ["FairLine", "FairLock"]

Place: TypeAlias = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


class FairLine:
    """What `FairLock` and sessions are built on: whether something is held, and the line of those who wait for it.

    What is free is taken, and let go of, in one step of a plain lock. Whoever joins the line tries once more then, and whoever
    has let go looks at the line once more: so one of the two sees the other.
    """

    __slots__ = ("_line", "_lock")

    _guard = threading.RLock()  # of all lines; whoever holds it may let go from within a garbage collection

    def __init__(self) -> None:
        self._lock = allocate_lock()
        # Made when somebody waits: an empty deque is 600 bytes.
        self._line: deque[Place] | None = None

    @property
    def _held(self) -> bool:
        return self._lock.locked()

    def _take(self) -> bool:
        """Take it if it is free and nobody waits."""
        return not self._line and self._lock.acquire(False)

    def _line_up(self) -> Place | None:
        """Take it if it is free, or get a place in the line."""
        with self._guard:
            if self._take():
                return None
            loop = asyncio.get_running_loop()
            place = (loop, loop.create_future())
            if self._line is None:
                self._line = deque()
            self._line.append(place)
        if self._lock.acquire(False):  # let go of meanwhile, by somebody who did not see the line
            self._hand_on()
        return place

    async def _wait(self, place: Place) -> None:
        """Wait until it is handed over."""
        waiter = place[1]
        try:
            await waiter
        except BaseException:  # cancelled, or the coroutine was closed
            with self._guard:
                if self._line and place in self._line:
                    self._line.remove(place)
            if not waiter.done():
                waiter.cancel()  # tells `_wake`, should it be on its way
            elif not waiter.cancelled():  # the turn had come: pass it on
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        """Hand it to the first in the line, or let go."""
        while True:
            if self._line and self._handed_on():
                return
            self._lock.release()
            if not self._line or not self._lock.acquire(False):
                return

    def _handed_on(self) -> bool:
        """Hand it to the first in the line that is still there; False: nobody is."""
        with self._guard:
            while self._line:
                loop, waiter = self._line.popleft()
                try:
                    loop.call_soon_threadsafe(_wake, waiter, self)
                except RuntimeError:  # the loop is closed: nobody waits there any more
                    continue
                return True
        return False


def _wake(waiter: asyncio.Future[None], line: FairLine) -> None:
    if waiter.cancelled():  # whoever waited has gone
        line._hand_on()  # pyright: ignore[reportPrivateUsage] - the other half of the line
    else:
        waiter.set_result(None)


class FairLock(FairLine):
    """A lock for coroutines: first come, first served, on any number of event loops and threads.

    Example:
        >>> lock = FairLock()
        >>> await lock.acquire()
        >>> lock.try_acquire()
        False
        >>> lock.release()
    """

    __slots__ = ()

    @property
    def locked(self) -> bool:
        """Whether somebody holds it."""
        return self._held

    def try_acquire(self) -> bool:
        """Take it if it is free and nobody waits for it; never waits."""
        return self._take()

    async def acquire(self) -> None:
        """Wait for it, in order of arrival. If the wait is cancelled, it is not held."""
        place = self._line_up()
        if place is not None:
            await self._wait(place)

    def release(self) -> None:
        """Hand it to whoever has waited longest. Any thread may do so; letting go of a free lock does nothing."""
        if self._lock.locked():
            self._hand_on()

    def __deepcopy__(self, memo: object) -> FairLock:
        return self  # copies of what has a lock must not run at once either

    def __repr__(self) -> str:
        return f"FairLock(locked={self._held})"
