"""A bell: wakes everybody who waits for a condition, across event loops and threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

__all__ = ["Bell"]


class Bell:
    """Rung whenever a condition may have come true.

    Example:
        >>> bell, guests = Bell(), ["Ada"]
        >>> bell.ring()
        >>> await bell.wait_for(lambda: len(guests) > 0)
    """

    __slots__ = ("_guard", "_waiting")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def ring(self) -> None:
        """Let everybody look again; any thread may do so."""
        with self._guard:
            waiting, self._waiting = self._waiting, []
        for loop, waiter in waiting:
            try:
                loop.call_soon_threadsafe(_wake, waiter)
            except RuntimeError:  # the loop is closed: nobody waits there any more
                continue

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true; it is looked at now, and each time the bell rings."""
        while True:
            with self._guard:
                loop = asyncio.get_running_loop()
                waiter: asyncio.Future[None] = loop.create_future()
                self._waiting.append((loop, waiter))
            try:
                if condition():  # looked at behind the registration: a ring in between is not missed
                    return
                await waiter
            finally:
                with self._guard:
                    if (loop, waiter) in self._waiting:
                        self._waiting.remove((loop, waiter))


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
