"""Who runs what was sent to an agent: a worker for each event loop that something was sent from.

Rules:

1. What was sent from an event loop is run in that loop, one at a time over all of them, in the order of sending. So a turn
   never hangs on an event loop that is none of its sender's, and what its tool holds may belong to the sender's loop.
2. A worker ends when nobody in its event loop waits for anything any more.
3. What an event loop that has ended has left is an orphan. A worker runs it where it is in front of what it has to run; so a
   loop that ends with its answer does not end in the middle of somebody else's turn.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, Protocol, cast

from loguru import logger

from agentflow.ground.bell import Bell

__all__ = ["Workers"]

_LOOK_AGAIN: Final = 1.0
"""Seconds until a worker that waits for another one looks whether that one's event loop was closed under it."""


class Queue(Protocol):
    """A queue, as its workers see it."""

    @property
    def name(self) -> str:
        """Whose it is."""
        ...

    def needs(self, home: asyncio.AbstractEventLoop) -> bool:
        """Whether somebody in an event loop waits for something."""
        ...

    def ready(self, home: asyncio.AbstractEventLoop) -> bool:
        """Whether the worker of an event loop may go on now."""
        ...

    async def work_off(self, home: asyncio.AbstractEventLoop) -> None:
        """Run what that worker may run."""
        ...

    def orphan(self, home: asyncio.AbstractEventLoop) -> None:
        """That worker has gone."""
        ...


class Workers:
    """The workers of a queue.

    Args:
        queue: The queue.
        bell: Rung whenever a worker may go on.
        guard: Held while the queue changes.
    """

    def __init__(self, queue: Queue, bell: Bell, guard: threading.RLock) -> None:
        self._queue = queue
        self._bell = bell
        self._guard = guard
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def wake(self, context: Callable[[], Context]) -> None:
        """See to it that the running event loop has a worker, if anybody there waits for a turn.

        Args:
            context: Makes the context in which it works.
        """
        self.bury()
        home = asyncio.get_running_loop()
        with self._guard:  # a worker ends itself under it: no turn comes in between
            if home not in self._tasks and self._queue.needs(home):
                name = f"agentflow: the queue of {self._queue.name}"
                self._tasks[home] = home.create_task(self._work(home), name=name, context=context())
        self._bell.ring()

    async def _work(self, home: asyncio.AbstractEventLoop) -> None:
        try:
            while self._has_work(home):
                await self._may_go_on(home)
                await self._queue.work_off(home)
        finally:
            self._end(home)

    def _has_work(self, home: asyncio.AbstractEventLoop) -> bool:
        with self._guard:
            if self._queue.needs(home):
                return True
            self._tasks.pop(home, None)
            return False

    async def _may_go_on(self, home: asyncio.AbstractEventLoop) -> None:
        def ready() -> bool:
            return self._queue.ready(home) or not self._queue.needs(home)

        while not ready():
            self.bury()
            try:
                async with asyncio.timeout(_LOOK_AGAIN):  # nobody rings for an event loop that is closed
                    await self._bell.wait_for(ready)
            except TimeoutError:
                continue

    def _end(self, home: asyncio.AbstractEventLoop) -> None:
        """It has nothing more to do, or was cancelled with its event loop."""
        with self._guard:
            if self._tasks.pop(home, None) is not None:
                self._queue.orphan(home)
        self._bell.ring()

    def bury(self) -> None:
        """End the workers whose event loop was closed under them, so that they hold nothing any more."""
        with self._guard:
            dead = [(home, self._tasks[home]) for home in self._tasks if home.is_closed()]
            for home, _ in dead:
                del self._tasks[home]
                self._queue.orphan(home)
        for _, task in dead:
            try:
                cast("Coroutine[Any, Any, None]", task.get_coro()).close()
            except Exception as error:  # any: a tool that awaits something in its cleanup cannot be closed
                logger.warning("a worker of agent {} could not be closed: {!r}", self._queue.name, error)
