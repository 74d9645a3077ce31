"""A thread that runs a store's work in order, so that the event loop never waits for a disk.

Rules:

1. Work may be queued anywhere, even without a running event loop, or during garbage collection.
2. Cancelling a wait does not cancel the work.
3. The thread ends with `close` or with the process, after it has finished the queued work, such as releasing a lease.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Generator
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from agentflow._support.daemon import in_daemon
from agentflow.errors import StoreError

T = TypeVar("T")

_PATIENCE = 10.0
"""Seconds to wait for queued work at the end of the process: the database may be unreachable."""


class Queued(Awaitable[T], Generic[T]):
    """Queued work. Awaiting it returns its result; awaiting it is optional.

    Attributes:
        future: The result. It is marked as running from the start, so that cancelling a wait does not cancel the work.
    """

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.future.set_running_or_notify_cancel()

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self.future).__await__()


class JobThread:
    """Runs functions in one thread, in the order of the requests.

    Args:
        name: The thread's name.
        idle: Called every `every()` seconds, between two jobs.
        every: Returns the current interval, or None for never.
        leave: Called last if the process ends without `close`.
    """

    def __init__(
        self, name: str, idle: Callable[[], None], every: Callable[[], float | None], leave: Callable[[], None]
    ) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], Any], Queued[Any]] | None] = SimpleQueue()
        self._idle = idle
        self._every = every
        self._leave = leave
        self._over = False  # whether the process is exiting
        # A daemon, so that an unreachable database does not keep the process alive. `_finish_work` waits, within a limit.
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()
        _working.add(self)

    def ask(self, work: Callable[[], T]) -> Queued[T]:
        """Queue a function."""
        queued: Queued[T] = Queued()
        if self._over:
            queued.future.set_exception(
                StoreError("The process is exiting and its stores are closed. Nothing was done.")
            )
        else:
            self._queue.put((work, queued))
        return queued

    def _loop(self) -> None:
        # `last`: when `idle` was called, or was last not needed; `due`: when the next call is due.
        last = 0.0
        due: float | None = None
        while True:
            every = self._every()
            if every is None or due is None:
                last = time.monotonic()
            elif time.monotonic() >= due:
                self._idle()
                last = time.monotonic()
            # Computed again after each job, which may have taken a shorter lease.
            due = None if every is None else last + every
            try:
                job = self._queue.get(timeout=None if due is None else max(0.0, due - time.monotonic()))
            except Empty:
                continue
            if job is None:
                return
            work, queued = job
            try:
                result = work()
            except BaseException as error:  # the caller gets every error, and the thread continues
                queued.future.set_exception(error)
            else:
                queued.future.set_result(result)
            # Otherwise the thread would hold the last job, with its session, while it waits.
            del job, work, queued

    async def close(self) -> None:
        """Finish the queued work, and stop the thread."""
        _working.discard(self)
        self._queue.put(None)
        await in_daemon(self._thread.join)

    def end(self, until: float) -> None:
        """Finish the queued work within the time limit, and stop; called at the end of the process."""
        self.ask(self._leave)
        # Set after `ask`, which from now on refuses the work that other exit handlers may request.
        self._over = True
        self._queue.put(None)
        self._thread.join(max(0.0, until - time.monotonic()))


_working: weakref.WeakSet[JobThread] = weakref.WeakSet()


@atexit.register
def _finish_work() -> None:
    until = time.monotonic() + _PATIENCE
    for worker in list(_working):
        worker.end(until)
