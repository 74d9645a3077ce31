"""A fair lock, and a condition that wakes all waiters, across event loops and threads.

Rules:

1. The lock is handed to the next waiter while still held, so that a newcomer cannot take it in between.
2. A waiter that was cancelled, or belongs to a closed event loop, is skipped.
3. Taking a free lock creates no future and no deque.
"""

from __future__ import annotations

import asyncio
import threading
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Place: TypeAlias = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


class FairLine:
    """The base class of `FairLock` and of sessions: a plain lock, and the line of waiters.

    A free lock is taken and released with one operation of a plain lock. After joining the line, a waiter tries again;
    after releasing, the holder checks the line again. So one of the two always sees the other.
    """

    __slots__ = ("_line", "_lock")

    # Shared by all instances. Reentrant, because garbage collection can run while a thread holds this mutex, and can release
    # another lock in that thread.
    _mutex = threading.RLock()

    def __init__(self) -> None:
        self._lock = allocate_lock()
        # Created for the first waiter, because an empty deque takes 600 bytes.
        self._line: deque[Place] | None = None

    @property
    def _held(self) -> bool:
        return self._lock.locked()

    def _take(self) -> bool:
        """Take the lock if it is free and has no waiters."""
        return not self._line and self._lock.acquire(False)

    def _join_line(self) -> Place | None:
        """Take the lock if it is free, or return a place in the line."""
        with self._mutex:
            if self._take():
                return None
            loop = asyncio.get_running_loop()
            place = (loop, loop.create_future())
            if self._line is None:
                self._line = deque()
            self._line.append(place)
        if self._lock.acquire(False):  # released meanwhile by a holder that did not see the line
            self._pass_on()
        return place

    async def _wait(self, place: Place) -> None:
        """Wait until the lock is handed to this waiter."""
        waiter = place[1]
        try:
            await waiter
        except BaseException:  # cancelled, or the coroutine was closed
            with self._mutex:
                if self._line and place in self._line:
                    self._line.remove(place)
            if not waiter.done():
                waiter.cancel()  # for `_wake`, in case it is scheduled already
            elif not waiter.cancelled():  # the lock was already handed to this waiter: pass it on
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Hand the lock to the first waiter, or release it."""
        while True:
            # The lock is not released, but stays locked until the waiter runs (rule 1).
            if self._line and self._wake_next():
                return
            self._lock.release()
            # A waiter that joined before the release found the lock held: take it again, to hand it over.
            if not self._line or not self._lock.acquire(False):
                return

    def _wake_next(self) -> bool:
        """Hand the lock to the first waiter with an open event loop; return False if there is none."""
        with self._mutex:
            while self._line:
                loop, waiter = self._line.popleft()
                try:
                    loop.call_soon_threadsafe(self._wake, waiter)  # its loop may run in another thread
                except RuntimeError:  # the loop is closed, and the waiter with it
                    continue
                return True
        return False

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        if waiter.cancelled():
            self._pass_on()
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
        """Whether the lock is held."""
        return self._held

    def try_acquire(self) -> bool:
        """Take the lock without waiting if it is free and has no waiters; return whether it was taken."""
        return self._take()

    async def acquire(self) -> None:
        """Wait for the lock, in order of arrival; if the wait is cancelled, the lock is not held."""
        place = self._join_line()
        if place is not None:
            await self._wait(place)

    def release(self) -> None:
        """Hand the lock to the waiter that has waited longest. May be called from any thread.

        Releasing a free lock does nothing.
        """
        if self._lock.locked():
            self._pass_on()

    def __deepcopy__(self, memo: object) -> FairLock:
        return self  # copies of the owner must not run concurrently either

    def __repr__(self) -> str:
        return f"FairLock(locked={self._held})"


class Condition:
    """Lets coroutines wait for predicates; code that may have made a predicate true must call `notify_all`.

    Example:
        >>> condition, guests = Condition(), ["Ada"]
        >>> condition.notify_all()
        >>> await condition.wait_for(lambda: len(guests) > 0)
    """

    __slots__ = ("_mutex", "_waiting")

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def notify_all(self) -> None:
        """Let all waiters check their predicates again; may be called from any thread."""
        with self._mutex:
            waiting, self._waiting = self._waiting, []
        for loop, waiter in waiting:
            try:
                loop.call_soon_threadsafe(_wake, waiter)
            except RuntimeError:  # the loop is closed, and the waiter with it
                continue

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until a predicate is true; it is checked immediately, and after each notification."""
        while True:
            with self._mutex:
                loop = asyncio.get_running_loop()
                waiter: asyncio.Future[None] = loop.create_future()
                self._waiting.append((loop, waiter))
            try:
                if predicate():  # checked after the registration, so no notification is missed
                    return
                await waiter
            finally:
                with self._mutex:
                    if (loop, waiter) in self._waiting:
                        self._waiting.remove((loop, waiter))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
