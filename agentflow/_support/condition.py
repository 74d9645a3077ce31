"""A condition that wakes all its waiters, across event loops and threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Condition:
    """Lets coroutines wait for predicates; it is notified whenever one may have become true.

    Example:
        >>> condition, guests = Condition(), ["Ada"]
        >>> condition.notify_all()
        >>> await condition.wait_for(lambda: len(guests) > 0)
    """

    __slots__ = ("_guard", "_waiting")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def notify_all(self) -> None:
        """Let all waiters check their predicates again; may be called from any thread."""
        with self._guard:
            waiting, self._waiting = self._waiting, []
        for loop, waiter in waiting:
            try:
                loop.call_soon_threadsafe(_wake, waiter)
            except RuntimeError:  # the loop is closed, and the waiter with it
                continue

    async def wait_for(self, predicate: Callable[[], bool]) -> None:
        """Wait until a predicate is true; it is checked immediately, and after each notification."""
        while True:
            with self._guard:
                loop = asyncio.get_running_loop()
                waiter: asyncio.Future[None] = loop.create_future()
                self._waiting.append((loop, waiter))
            try:
                if predicate():  # checked after the registration, so no notification is missed
                    return
                await waiter
            finally:
                with self._guard:
                    if (loop, waiter) in self._waiting:
                        self._waiting.remove((loop, waiter))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
