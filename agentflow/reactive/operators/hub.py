"""Several sources at once, each in its own task, with one reader.

Rules:

1. Strict hand-over: a source works on its next item only after the reader has asked for more, so each source is at most
   one item ahead. With a capacity it can run that many items ahead.
2. The first failure ends the hub, once; the others are cancelled, and `close()` returns when their cleanup is done.
3. If a source is cancelled, it has not completed: the reader gets an error. Only a source that the hub's operator itself
   cancels (`drop`) ends silently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from agentflow._support.cancellation import cancel_requests
from agentflow.errors import UsageError
from agentflow.reactive.iterators import close, raise_in
from agentflow.reactive.signals import EMPTY, Empty
from agentflow.reactive.tasks import create_task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable

T = TypeVar("T")

_CANCELLED_BETWEEN = (
    "A stream that an operator reads in a task of its own (merge, zip, amb, timeout, …) was cancelled between two items, but "
    "its reader was not. A time limit or task group may be open over a `yield` inside it (PEP 789): close it before the "
    "`yield`, or use the operators `timeout` and `deadline`."
)


async def cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and return when all have ended. A cancellation during the wait is passed on to them, and raised
    afterwards.

    So the owner of the tasks never ends before they do, however often it is cancelled.
    """
    cancellation: asyncio.CancelledError | None = None
    running = [task for task in tasks if not task.done()]
    while running:
        for task in running:
            task.cancel()
        try:
            await asyncio.wait(running)  # does not raise the tasks' errors
        except asyncio.CancelledError as error:
            cancellation = error
        # Repeated, because a task may have swallowed the cancellation.
        running = [task for task in running if not task.done()]
    if cancellation is not None:
        raise cancellation


class TaskHub(Generic[T]):
    """Tasks that put items, and one reader that takes them.

    Args:
        capacity: How many items can wait; 0 is the strict hand-over.
        changed: Set whenever an item may be available: for a reader of several hubs.
    """

    __slots__ = (
        "_capacity",
        "_changed",
        "_closing",
        "_dropped",
        "_error",
        "_held",
        "_loop",
        "_queue",
        "_tasks",
        "_waiter",
    )

    def __init__(self, capacity: int = 0, changed: asyncio.Event | None = None) -> None:
        self._capacity = capacity
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[T, asyncio.Future[None] | None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiter: asyncio.Future[None] | None = None
        # The last taken item's source waits for this future, until the reader requests another item.
        self._held: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._dropped: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run a coroutine as one of the hub's tasks.

        Raises:
            CancelledError: The hub is being closed, and a source has swallowed the cancellation.
        """
        if self._closing:
            work.close()  # otherwise Python would warn that it was never awaited
            raise asyncio.CancelledError("the reader has stopped")
        task = create_task(self._loop, work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def feed(self, iterator: AsyncIterator[T]) -> None:
        """Put all items of an iterator, then close it."""
        try:
            async for value in iterator:
                try:
                    await self.put(value)
                except asyncio.CancelledError as error:
                    if self._closing or asyncio.current_task() in self._dropped:  # cancelled by the hub itself
                        raise
                    # If a time limit of the source has caused the cancellation, this raises the limit's error.
                    await raise_in(iterator, error)
                    # As a CancelledError, it would look like a cancellation of the reader, whose code may swallow that.
                    raise UsageError(_CANCELLED_BETWEEN) from error
        finally:
            await close(iterator)

    async def put(self, value: T) -> None:
        """Offer an item; returns when the reader requests the next item."""
        if cancel_requests():  # the source has swallowed the cancellation
            raise asyncio.CancelledError("the reader has stopped")
        if len(self._queue) < self._capacity:
            self._queue.append((value, None))
            self._wake()
            return
        # Rule 1: the source waits here until the reader requests the item after this one.
        delivered: asyncio.Future[None] = self._loop.create_future()
        self._queue.append((value, delivered))
        self._wake()
        try:
            await delivered
        except asyncio.CancelledError:
            # A cancelled source's pending item is withdrawn (switch_map relies on it).
            for index, (_, future) in enumerate(self._queue):
                if future is delivered:
                    del self._queue[index]
                    break
            raise

    def release(self) -> None:
        """Let the source of the last taken item continue, without waiting for its next one."""
        held, self._held = self._held, None
        if held is not None and not held.done():
            held.set_result(None)

    @property
    def ready(self) -> bool:
        """Whether `take` would not have to wait."""
        return bool(self._queue) or self._error is not None or not self._tasks

    async def take(self) -> T | Empty:
        """Return the next item; `EMPTY` when all tasks have ended."""
        self.release()
        while True:
            # Checked before the error, so that items that arrived before the failure are delivered.
            if self._queue:
                value, self._held = self._queue.popleft()
                if self._capacity:  # the queue limits the source, not the reader's next request
                    self.release()
                return value
            if self._error is not None:
                raise self._error
            if not self._tasks:
                return EMPTY
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def drop(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Cancel some of the hub's tasks, which are no longer needed, and wait for their cleanup."""
        dropped = list(tasks)
        # Without tasks that have ended: `_ended` removes a task from this set, and is called only once for each.
        self._dropped.update(task for task in dropped if not task.done())
        await cancel_all(dropped)

    def begin_close(self) -> list[asyncio.Task[None]]:
        """Stop taking items; return the running tasks, for the caller to cancel."""
        self._closing = True
        self._error = None
        return list(self._tasks)

    async def close(self) -> None:
        """Cancel the running tasks and wait for their cleanup."""
        await cancel_all(self.begin_close())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            error = None if task in self._dropped else asyncio.CancelledError("a merged source was cancelled")
        else:
            error = task.exception()  # reading it also prevents asyncio's warning about an unread exception
        if error is not None and self._error is None and not self._closing:
            self._error = error
        self._dropped.discard(task)
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
