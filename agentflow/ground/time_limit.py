"""Time that a task may work for somebody: what tools, `timeout` and `deadline` count with.

Rules:

1. Only what is counted counts: while somebody else has the word (a reader, a hook), the limit is paused.
2. When the time is used up the task is cancelled, and whoever set the limit takes that cancellation back (`absorb`), as
   `asyncio.timeout` does: a cancellation from outside at the same moment stands.
3. One timer serves many pieces of work: one that fires too early is moved, instead of being set and cancelled each time.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

__all__ = ["TimeLimit"]

_SLACK: Final = 1e-9  # the loop may call a timer this much early; without it a timer that is moved could spin


class TimeLimit:
    """A limit on working time.

    Args:
        seconds: How much there is; None: no limit.

    Attributes:
        seconds: The limit.
        expired: Whether it has passed.
    """

    __slots__ = ("_base", "_counting", "_due", "_handle", "_left", "_task", "expired", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._left = 0.0 if seconds is None else seconds
        self._due = 0.0
        self._base = 0
        self._counting = False
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self.expired = False

    def renew(self, seconds: float) -> None:
        """Give anew so many seconds, for the next piece of work."""
        self.seconds = self._left = seconds
        self.expired = False

    def start(self) -> None:
        """Count against the current task, if there is a limit and it is not counting."""
        if self.seconds is None or self._counting or self.expired:
            return
        self._task = task = asyncio.current_task()
        self._base = 0 if task is None else task.cancelling()
        self.resume()

    def resume(self) -> None:
        """Count on, against the task that began."""
        if self._counting or self.expired or self._task is None:
            return
        loop = asyncio.get_running_loop()
        self._due = due = loop.time() + max(self._left, 0.0)
        self._counting = True
        if self._handle is not None and self._handle.when() > due:
            self._handle.cancel()
            self._handle = None
        if self._handle is None:
            self._handle = loop.call_at(due, self._fire)

    def pause(self) -> bool:
        """Stop counting; returns whether it was."""
        if not self._counting:
            return False
        self._counting = False
        self._left = self._due - asyncio.get_running_loop().time()
        return True

    def stop(self) -> None:
        """Stop counting, and let go of task and timer; for `finally`."""
        self.pause()
        self._task = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def absorb(self) -> bool:
        """Take the limit's own cancellation back; False: somebody else cancelled too, so the cancellation stands."""
        task = self._task
        return task is None or task.uncancel() <= self._base

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
