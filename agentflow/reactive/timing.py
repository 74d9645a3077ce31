"""Time limits that cost little and never hit the reader.

Rules:

1. A limit runs only while the operator itself awaits its source; while the reader holds an item it does not.
2. It cancels the reading task the way `asyncio.timeout` does: an outer cancellation at the same moment wins.
3. One timer serves many items: it is moved when it fires too early instead of being cancelled and set for each item.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from agentflow.errors import UsageError
from agentflow.reactive.signals import SourceTimeoutError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Limit"]

T = TypeVar("T")

_SLACK: Final = 1e-9  # the loop may call a timer this much early; without it a re-armed timer could spin


class Limit:
    """Awaits pieces of work, each with its own limit, in the current task.

    Args:
        operator: Named in the error, for example `timeout(5)`.
        what: What did not happen, for example `no item came`.
    """

    __slots__ = ("_due", "_fired", "_handle", "_loop", "_operator", "_task", "_what", "error")

    def __init__(self, operator: str, what: str) -> None:
        self._operator = operator
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._fired = False
        self.error: SourceTimeoutError | None = None
        """The error of this very limit, to tell it from one that the source passed on."""

    async def run(self, start: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Await `start()` for at most `seconds`.

        Raises:
            SourceTimeoutError: The limit passed first; what was awaited has been cancelled.
        """
        task = asyncio.current_task()
        if task is None:
            raise UsageError(f"{self._operator} needs a running asyncio task to cancel; it was driven by hand")
        self._due = self._loop.time() + seconds
        if self._handle is not None and self._handle.when() > self._due:
            self._disarm()
        if self._handle is None:
            self._handle = self._loop.call_at(self._due, self._fire)
        cancelling = task.cancelling()
        self._task = task
        try:
            value = await start()
        except asyncio.CancelledError as error:
            if self._take_back(task, cancelling):
                self.error = SourceTimeoutError(self._operator, seconds, self._what)
                raise self.error from error
            raise
        except BaseException:
            self._take_back(task, cancelling)
            raise
        self._take_back(task, cancelling)
        return value

    def stop(self) -> None:
        """Drop the timer; for `finally`."""
        self._task = None
        self._disarm()

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        if self._task is None:
            return
        if self._loop.time() + _SLACK < self._due:
            self._handle = self._loop.call_at(self._due, self._fire)
            return
        self._fired = True
        self._task.cancel()

    def _take_back(self, task: asyncio.Task[object], cancelling: int) -> bool:
        """End the wait; true if the cancellation that ended it was ours alone."""
        self._task = None
        if not self._fired:
            return False
        self._fired = False
        return task.uncancel() <= cancelling
