"""A limit on the working time of a task: for tools, `timeout` and `deadline`.

Rules:

1. Only working time counts: while other code runs (a reader, a hook), the limit is paused.
2. When the time is used up, the task is cancelled, and the owner of the limit undoes this (`uncancel`), as
   `asyncio.timeout` does: an external cancellation at the same moment takes precedence.
3. One timer serves many parts of the work: a timer that fires too early is moved, instead of being set and cancelled
   each time. Work that never suspends needs no timer.
4. Work that swallows its cancellation, by the limit or an external one, counts as cancelled: its later result is
   discarded.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, Final

from agentflow._support.cancellation import count_exactly

_NOTHING_YET: Final = object()
_SLACK: Final = 1e-9  # the loop may call a timer this much too early, so a moved timer could spin


@asynccontextmanager
async def strict(limit: asyncio.Timeout) -> AsyncGenerator[None]:
    """Limit a user's code even if it swallows its cancellation (rule 4); `asyncio.timeout` alone would not.

    Raises:
        TimeoutError: The time has passed.

    Example:
        >>> async with strict(asyncio.timeout(5)):
        ...     await asyncio.sleep(0)  # the user's code
    """
    async with limit:
        yield
    if limit.expired():
        raise TimeoutError


class TimeLimit:
    """A limit on working time.

    Args:
        seconds: The limit; None means no limit.

    Attributes:
        seconds: The limit.
        expired: Whether the limit has passed.
    """

    __slots__ = ("_base", "_counting", "_due", "_handle", "_held", "_remaining", "_task", "expired", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._remaining = 0.0 if seconds is None else seconds
        self._due = 0.0  # the loop's time at which the limit passes, while it is counting
        self._base = 0  # the task's cancellation requests at the start
        self._counting = False
        self._held = False  # paused before the start, because the work emitted a value before its first await
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self.expired = False

    def renew(self, seconds: float) -> None:
        """Reset the limit for the next part of the work."""
        self.seconds = self._remaining = seconds
        self.expired = False

    def start(self) -> None:
        """Start to limit the current task, unless there is no limit, or it is already counting or paused."""
        if self.seconds is None or self._counting or self.expired:
            return
        self._task = task = asyncio.current_task()
        self._base = 0 if task is None else task.cancelling()  # earlier requests that the task survived do not count
        if not self._held:
            self.resume()

    def resume(self) -> None:
        """Continue to limit the task of `start`."""
        self._held = False
        if self._counting or self.expired or self._task is None:
            return
        loop = asyncio.get_running_loop()
        self._due = due = loop.time() + max(self._remaining, 0.0)
        self._counting = True
        # A later timer is moved when it fires, but one that would fire too late is replaced.
        if self._handle is not None and self._handle.when() > due:
            self._handle.cancel()
            self._handle = None
        if self._handle is None:
            self._handle = loop.call_at(due, self._fire)

    def pause(self) -> bool:
        """Pause the limit until `resume`; return whether `resume` must be called."""
        if self._counting:
            self._halt()
        elif self._task is not None or self._held:
            return False
        else:
            self._held = True
        return True

    def _halt(self) -> None:
        self._counting = False
        self._remaining = self._due - asyncio.get_running_loop().time()

    def stop(self) -> None:
        """Stop counting, and release the task and the timer; to be called in `finally`."""
        if self._counting:
            self._halt()
        self._task = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def uncancel(self) -> bool:
        """Undo the limit's cancellation; return False if there was also an external one."""
        task = self._task
        return task is None or task.uncancel() <= self._base  # the count at the start, as in `asyncio.timeout`

    def _fire(self) -> None:
        self._handle = None
        if not self._counting or self._task is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() + _SLACK < self._due:
            self._handle = loop.call_at(self._due, self._fire)
            return
        self._counting = False
        self.expired = True
        self._task.cancel()


@types.coroutine
def drive(
    coro: Coroutine[Any, Any, Any], context: Context, limit: TimeLimit, yielded: object = _NOTHING_YET
) -> Generator[Any, Any, Any]:
    """Run a coroutine in a context and with a time limit, in the caller's task.

    Args:
        coro: The tool's work.
        context: The context variables of the work.
        limit: The limit.
        yielded: The value that the first step of the coroutine yielded, if it was executed already.

    Raises:
        LimitPassed: The limit passed, and there was no other cancellation.
    """
    run = context.run
    if yielded is _NOTHING_YET:
        try:
            yielded = run(coro.send, None)
        except StopIteration as stop:
            return stop.value
    # Started after the first step, because work that never suspends needs no timer (rule 3).
    limit.start()
    task = asyncio.current_task()
    before = 0
    if task is not None:
        count_exactly(task)
        before = task.cancelling()  # the caller may have survived earlier cancellations
    cancelled: asyncio.CancelledError | None = None
    try:
        while True:
            try:
                sent = yield yielded
            except BaseException as error:  # the work may handle any exception, including GeneratorExit
                if isinstance(error, asyncio.CancelledError):
                    cancelled = error
                elif isinstance(error, GeneratorExit):
                    run(coro.close)  # the garbage collector may have closed it already, so that `throw` would fail
                    raise
                yielded = run(coro.throw, error)
            else:
                yielded = run(coro.send, sent)
    except BaseException as error:  # the work has ended: with a result, at the end of a stream, or with a failure
        completed = isinstance(error, StopIteration | StopAsyncIteration)
        if limit.expired and limit.uncancel() and not isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit):
            # Any other exception is the work's own: it stays visible as the context of `LimitPassed`.
            consequence = completed or isinstance(error, asyncio.CancelledError)
            raise LimitPassed(completed) from None if consequence else error
        if completed and cancelled is not None and task is not None and task.cancelling() > before:
            raise cancelled from None  # the work swallowed a cancellation
        if isinstance(error, StopIteration):
            return error.value
        raise
    finally:
        limit.stop()
        task = cancelled = None  # a failed task keeps its traceback, which refers to this frame


class LimitPassed(Exception):  # noqa: N818 - a signal between this module and its caller
    """A tool passed its time limit.

    Args:
        late: Whether the tool finished after the limit.
    """

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.late = late
