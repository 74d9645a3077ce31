"""The bridge between reactivex's push and our pull.

Rules:

1. A foreign observable is subscribed with `LoopScheduler`: immediate work runs at once, timers run on the running loop
   in the subscriber's context. So nothing calls back on another thread unless the observable itself does.
2. Values that an observable pushes before they are read wait in an unbounded buffer, since reactivex has no back-pressure.
   Values that it emits during the subscription are read without a step of the event loop.
3. An observable is disposed when no more values are needed: after the first value, on completion, error or cancellation.
   `dispose()` cannot wait, so the scheduler tracks our own runs inside the observable, and their cleanup is awaited.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from reactivex.abc import DisposableBase, ObserverBase
from reactivex.disposable import CompositeDisposable, Disposable, SingleAssignmentDisposable
from reactivex.scheduler.periodicscheduler import PeriodicScheduler

from agentflow.reactive.signals import EMPTY, Empty

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from reactivex import Observable, abc

    from agentflow.reactive.subscription import Subscription

T = TypeVar("T")
State = TypeVar("State")


class LoopScheduler(PeriodicScheduler):
    """A reactivex scheduler on the running loop: `schedule` runs actions at once (trampolined), timers run on the loop.

    The scheduler uses the loop's clock, so virtual time applies to it too. Other threads can call it.

    Example:
        >>> flux.delay(0.5, scheduler=LoopScheduler(asyncio.get_running_loop()))
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._thread = threading.get_ident()
        self._queue: deque[Callable[[], None]] = deque()
        self._running = False
        self._runs: set[Subscription] = set()
        self.on_signal: Callable[[BaseException], object] | None = None
        """Called when an adopted run ends by a signal that reactivex's operators cannot pass on."""
        # reactivex schedules by datetimes; a loop's clock starts anywhere.
        self._epoch = datetime.now(UTC) - timedelta(seconds=loop.time())

    @property
    def now(self) -> datetime:
        """The loop's time as a UTC datetime."""
        return self._epoch + timedelta(seconds=self._loop.time())

    def schedule(self, action: abc.ScheduledAction[State], state: State | None = None) -> DisposableBase:
        """Run `action` now, or after the action that is running now."""
        held = SingleAssignmentDisposable()

        def invoke() -> None:
            if not held.is_disposed:  # it may have been disposed while it was queued
                held.disposable = self.invoke_action(action, state)

        if threading.get_ident() == self._thread:
            self._trampoline(invoke)
        else:
            self._loop.call_soon_threadsafe(self._trampoline, invoke)
        return held

    def schedule_relative(
        self, duetime: timedelta | float, action: abc.ScheduledAction[State], state: State | None = None
    ) -> DisposableBase:
        """Run `action` after `duetime` on the loop."""
        seconds = self.to_seconds(duetime)
        if seconds <= 0:
            return self.schedule(action, state)
        held = SingleAssignmentDisposable()

        def invoke() -> None:
            if not held.is_disposed:
                held.disposable = self.invoke_action(action, state)

        # `call_later` may only be called in the loop's thread.
        def arm() -> None:
            if not held.is_disposed:
                handle = self._loop.call_later(seconds, self._trampoline, invoke)
                disposable.add(Disposable(handle.cancel))

        disposable = CompositeDisposable(held)
        if threading.get_ident() == self._thread:
            arm()
        else:
            self._loop.call_soon_threadsafe(arm)
        return disposable

    def schedule_absolute(
        self, duetime: datetime | float, action: abc.ScheduledAction[State], state: State | None = None
    ) -> DisposableBase:
        """Run `action` at `duetime` on the loop."""
        return self.schedule_relative(self.to_datetime(duetime) - self.now, action, state)

    def adopt(self, run: Subscription) -> None:
        """Track one of our own runs, which was started under this scheduler, until the run is closed."""
        self._runs.add(run)
        run.on_signal = self.on_signal
        run.when_closed(self._runs.discard)

    async def wait_closed(self) -> None:
        """Wait for the cleanup of the adopted runs that were disposed. A run with other subscribers continues.

        A cancellation during the wait is passed on to the runs, and raised after they are closed.
        """
        cancellation: asyncio.CancelledError | None = None
        # Listed again after each wait, because the cleanup of one run may dispose others.
        while closing := [run for run in tuple(self._runs) if run.is_disposed and not run.is_closed]:
            try:
                await closing[0].closed()
            except asyncio.CancelledError as error:
                cancellation = error
                for run in closing:
                    run.cancel()
        if cancellation is not None:
            raise cancellation

    def _trampoline(self, invoke: Callable[[], None]) -> None:
        # As in reactivex's trampoline, an action that a running one schedules waits until that one has returned, so
        # recursive scheduling does not use the stack.
        self._queue.append(invoke)
        if self._running:
            return
        self._running = True
        try:
            while self._queue:
                self._queue.popleft()()
        finally:
            self._running = False
            # After a failed action, the actions that it scheduled must not run with the next, unrelated one.
            self._queue.clear()


class _Inbox(ObserverBase[T], Generic[T]):
    """Receives the values that an observable pushes, from any thread, and wakes the one reader."""

    __slots__ = ("_loop", "_scheduler", "_thread", "_waiter", "disposable", "done", "error", "items")

    def __init__(self, keep: int | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._scheduler = LoopScheduler(self._loop)
        self._scheduler.on_signal = self._end
        self._waiter: asyncio.Future[None] | None = None
        self.items: deque[T] = deque(maxlen=keep)  # `last_value` keeps only one
        self.done = False
        self.error: BaseException | None = None
        self.disposable: DisposableBase | None = None

    def on_next(self, value: T) -> None:
        if threading.get_ident() == self._thread:
            self._next(value)
        else:
            # The loop keeps the order of these calls, and `items` is only changed in its thread, so no lock is needed.
            self._loop.call_soon_threadsafe(self._next, value)

    def on_error(self, error: Exception) -> None:
        if threading.get_ident() == self._thread:
            self._end(error)
        else:
            self._loop.call_soon_threadsafe(self._end, error)

    def on_completed(self) -> None:
        if threading.get_ident() == self._thread:
            self._end(None)
        else:
            self._loop.call_soon_threadsafe(self._end, None)

    def subscribe_to(self, source: Observable[T]) -> None:
        scheduler = self._scheduler
        core = getattr(source, "_subscribe_core", None)
        # `_subscribe_core` skips the trampoline and the wrapper of `subscribe`: 3 µs instead of 17. The method is private
        # to reactivex, so an observable that lacks it is subscribed with the public method.
        try:
            disposable = source.subscribe(self, scheduler=scheduler) if core is None else core(self, scheduler)
        except Exception as error:  # reactivex may raise from `subscribe` instead of signalling the error
            self.on_error(error)
            return
        self.disposable = disposable

    async def wait(self) -> None:
        """Wait until a value can be read."""
        # No value can arrive between the reader's check and this line, since other threads push through the loop.
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def close(self) -> None:
        """Dispose the observable and wait for the cleanup of our own runs in it."""
        self.done = True
        disposable, self.disposable = self.disposable, None
        if disposable is not None:
            disposable.dispose()
        await self._scheduler.wait_closed()

    def _next(self, value: T) -> None:
        if not self.done:
            self.items.append(value)
            self._wake()

    def _end(self, error: BaseException | None) -> None:
        if not self.done:
            # First, so that values emitted during the disposal are ignored.
            self.done = True
            self.error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def drain(source: Observable[T]) -> AsyncIterator[T]:
    """Iterate a foreign observable. Values that it pushes ahead of the reader are buffered without bound."""
    inbox = _Inbox[T](None)
    try:
        inbox.subscribe_to(source)
        items = inbox.items
        while True:
            while items:
                yield items.popleft()
            if inbox.done:
                break
            await inbox.wait()
        if inbox.error is not None:
            raise inbox.error
    finally:
        await inbox.close()


async def last_value(source: Observable[T]) -> T | Empty:
    """Return the last value of a foreign observable, like reactivex's own `await`; `EMPTY` if there was none."""
    inbox = _Inbox[T](1)
    try:
        inbox.subscribe_to(source)
        while not inbox.done:
            await inbox.wait()
        if inbox.error is not None:
            raise inbox.error
        return inbox.items.pop() if inbox.items else EMPTY
    finally:
        await inbox.close()
