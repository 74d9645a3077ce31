"""The result of `subscribe()`, and the background loop for programs without a loop.

Rules:

1. With a running loop the work is a task of that loop; without one it runs on one daemon thread with its own loop.
2. `dispose()` only requests the cancellation; `await closed()` (or `wait()` from synchronous code) waits for cleanup.
3. An unhandled error goes to the loop's exception handler, so no error is lost.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine

from reactivex.abc import DisposableBase

from agentflow.errors import UsageError
from agentflow.reactive.tasks import create_task

Pump = Callable[["Subscription"], Coroutine[object, object, None]]

_live: set[Subscription] = set()
"""The active subscriptions: a loop refers to its tasks only weakly, so they could be garbage-collected."""


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running loop of this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Subscription(DisposableBase):
    """A run started by `subscribe()`.

    Example:
        >>> subscription = agent.stream("…").subscribe(print)
        >>> subscription.dispose()
        >>> await subscription.closed()
    """

    __slots__ = ("__weakref__", "_disposed", "_done", "_loop", "_task", "_thread", "on_signal")

    def __init__(self) -> None:
        self._disposed = False
        # Not a future of asyncio, because threads without a loop wait for it too.
        self._done: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: int | None = None
        self.on_signal: Callable[[BaseException], object] | None = None
        """Called when the run ends by a signal that is not an `Exception` and that its subscriber did not request."""

    @property
    def is_disposed(self) -> bool:
        """Whether `dispose()` was called or the run has ended."""
        return self._disposed or self._done.done()

    @property
    def is_closed(self) -> bool:
        """Whether the run has ended and its cleanup is done."""
        return self._done.done()

    def dispose(self) -> None:
        """Cancel the run. If called in the run's own thread, nothing is delivered after it returns. Legal from any
        thread.
        """
        if self._disposed:
            return
        self._disposed = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel the run's task. A second time, after `dispose()`, it interrupts the task's cleanup."""
        loop = self._loop
        if loop is None or self._done.done():
            return
        if threading.get_ident() == self._thread:
            self._cancel()
        else:
            with contextlib.suppress(RuntimeError):  # the loop was closed, and with it the run
                loop.call_soon_threadsafe(self._cancel)

    async def closed(self) -> None:
        """Wait until the run has ended, for any reason, and its cleanup is done. Never raises the run's error."""
        # Without the shield, a cancelled waiter would cancel `_done` for all others.
        await asyncio.shield(asyncio.wrap_future(self._done))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait from synchronous code until the run has ended.

        Args:
            timeout: The maximum seconds to wait; None waits indefinitely.

        Returns:
            False if the time passed first.
        """
        if running_loop() is not None and not self._done.done():
            raise UsageError("Subscription.wait() inside a running event loop would block it; use `await closed()`")
        done, _ = concurrent.futures.wait([self._done], timeout)
        return bool(done)

    def when_closed(self, callback: Callable[[Subscription], object]) -> None:
        """Call back with this subscription once it is closed, in the thread it ran in."""
        self._done.add_done_callback(lambda _: callback(self))

    def start(self, pump: Pump, loop: asyncio.AbstractEventLoop | None) -> None:
        """Start the run on `loop`, on the running one, or on the background loop, with the caller's context."""
        current = running_loop()
        target = loop or current or background_loop()
        self._loop = target  # before the start, so that `dispose` in another thread can reach the run
        _live.add(self)
        context = contextvars.copy_context()  # of the caller: `_begin` may run in another thread
        if target is current:
            self._begin(pump, context)
        else:
            target.call_soon_threadsafe(self._begin, pump, context)

    def _begin(self, pump: Pump, context: contextvars.Context) -> None:
        self._thread = threading.get_ident()
        loop = asyncio.get_running_loop()
        if self._disposed:  # `dispose` was called before there was a task to cancel
            self._finish()
            return
        self._task = task = create_task(loop, pump(self), context)
        task.add_done_callback(self._ended)

    def _cancel(self) -> None:
        # In the run's own task the flag is enough; a cancellation would interrupt its cleanup.
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            if not self._disposed:
                # If the count is 0, the source raised CancelledError itself.
                self._was_cancelled(bool(task.cancelling()))
        elif (error := task.exception()) is not None:
            if isinstance(error, Exception):
                _report(task.get_loop(), "a subscriber's callback raised; its subscription was ended", error)
            else:
                self._signal(error)
        self._finish()

    def _was_cancelled(self, from_outside: bool) -> None:
        if not from_outside:
            self._signal(asyncio.CancelledError("a subscribed source raised CancelledError itself"))
        elif self.on_signal is not None:  # a reader downstream of an operator must learn of it
            self._signal(asyncio.CancelledError("a subscribed source was cancelled"))

    def _signal(self, signal: BaseException) -> None:
        # No observer can receive it: reactivex knows only Exceptions. Without a report the consumer would wait
        # indefinitely.
        if self.on_signal is not None:
            self.on_signal(signal)
        elif isinstance(signal, asyncio.CancelledError):
            _report(
                asyncio.get_running_loop(),
                "a subscription was ended by a CancelledError; observers cannot get it",
                signal,
            )

    def _finish(self) -> None:
        self._task = None
        _live.discard(self)
        self._done.set_result(None)


def _report(loop: asyncio.AbstractEventLoop, message: str, error: BaseException) -> None:
    loop.call_exception_handler({"message": message, "exception": error})


class _Background:
    """The daemon thread with a loop; created on first use, and again in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # A forked child inherits these attributes, but not the thread.
            if self._loop is None or self._pid != os.getpid() or self._thread is None or not self._thread.is_alive():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="agentflow-subscriptions", daemon=True
                )
                self._thread.start()
            return self._loop

    def stop(self) -> None:
        """Cancel the running tasks, wait a moment for their cleanup, close the loop."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or self._pid != os.getpid() or not thread.is_alive():
            return
        # At exit: a task that does not end within a second should not keep the process alive.
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(timeout=1)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=1)
        if not thread.is_alive():
            loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


_background = _Background()
atexit.register(_background.stop)


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the loop on the daemon thread that serves subscriptions made without a running loop."""
    return _background.loop()
