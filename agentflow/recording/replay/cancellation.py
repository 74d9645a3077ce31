"""Repeat a recorded cancellation, in order and at the point at which the run was suspended.

Rules:

1. It happens after everything recorded before it, when all tasks of the run are suspended at the recorded positions. This is
   checked after each step of a task, because the next step may move one of them on.
2. If they never are (the agent was changed, or the log is older), it happens when the run makes no progress and as much time
   has passed as in the recording.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from agentflow.loop.scope import CauseKind, RunScope
from agentflow.recording.entries import InterruptEntry

__all__ = ["CancellationRequest", "RecordedCancellation", "cancel_from_outside", "kind_of"]

_TURNS: Final = 30
"""Turns of the event loop without a change after which only time can bring one."""
_LOOKS: Final = 40
"""Number of checks while the recorded time passes."""
_PATIENCE: Final = 1.0
"""Seconds to wait for a run that does not start."""


def kind_of(entry: InterruptEntry) -> CauseKind:
    """Return the kind of a recorded cancellation."""
    if entry.how == "left":
        return "closed" if entry.reason else "cancelled"
    return "interrupted" if entry.how == "interrupt" else entry.how


def cancel_from_outside(entry: InterruptEntry, scope: RunScope) -> None:
    """Cancel a run as it was cancelled in the recording."""
    kind = kind_of(entry)
    if kind == "timeout" and scope.timeout is None:
        kind = "interrupted"
    scope.cancel(kind, entry.reason or "its caller was cancelled")


class CancellationRequest:
    """A request of a run's own code to cancel it, or parallel tool calls after a failure. It waits for its turn.

    Args:
        cancel: Cancels the run.

    Attributes:
        task: The task in which the hook runs; None for a failure, after which its task has ended.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.task = asyncio.current_task()
        self._cancel = cancel
        self._performed = asyncio.get_running_loop().create_future()

    def perform(self) -> None:
        """Cancel the run, and let the hook's task continue first."""
        if not self._performed.done():
            self._performed.set_result(None)
        self._cancel()

    def performed(self) -> Awaitable[None] | None:
        """Return what the hook's task awaits; None if the run is cancelled already, or it is another task."""
        if self._performed.done() or self.task is not asyncio.current_task():
            return None
        return self._performed


class RecordedCancellation:
    """One recorded cancellation.

    Args:
        at: The positions at which the run was suspended.
        wait: Seconds since the previous recorded action.
        scope: Returns the scope of the run, once it exists.
        perform: Cancels the run.
        on_finished: Called when the cancellation is done or not needed.
        requester: The task of the hook that requests it.
    """

    def __init__(
        self,
        at: tuple[str, ...],
        wait: float,
        scope: Callable[[], RunScope | None],
        perform: Callable[[RunScope], None],
        on_finished: Callable[[], None],
        requester: asyncio.Task[Any] | None = None,
    ) -> None:
        self._at = at
        self._wait = wait
        self._scope = scope
        self._perform = perform
        self._on_finished = on_finished
        self._requester = requester
        self._seen: tuple[str, ...] | None = None
        self._unchanged = 0
        self._waited = 0.0
        self._turn = 0
        self._done = False

    def start(self) -> None:
        """Check once the running task is suspended, and again until the cancellation is done."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._check)
        self._check_between(loop, 0, self._turn)

    def _check_between(self, loop: asyncio.AbstractEventLoop, place: int, turn: int) -> None:
        """Insert a check before a callback that is already scheduled; only asyncio's own loops allow that."""
        ready = getattr(loop, "_ready", None)
        if isinstance(ready, deque):
            cast("deque[asyncio.Handle]", ready).insert(place, asyncio.Handle(self._check_at_step, (loop, turn), loop))

    def _check_at_step(self, loop: asyncio.AbstractEventLoop, turn: int) -> None:
        """Cancel the run if it is at the recorded position; otherwise check after the next step in this turn of the loop."""
        if self._done or turn != self._turn:
            return
        scope = self._scope()
        if scope is None or scope.cause is not None or scope.state in ("ending", "done"):
            return
        if scope.positions(self._requester) == self._at:
            self._cancel(scope)
        else:
            self._check_between(loop, 1, turn)

    def _check(self) -> None:
        """Cancel the run if it is at the recorded position; otherwise check again soon."""
        if self._done:
            return
        self._turn += 1
        scope = self._scope()
        if scope is None:
            if self._check_later(()):
                self._finish()
            return
        if scope.cause is not None or scope.state in ("ending", "done"):
            self._finish()
            return
        positions = scope.positions(self._requester)
        if positions == self._at or self._check_later(positions):
            self._cancel(scope)

    def _check_later(self, positions: tuple[str, ...]) -> bool:
        """Schedule another check; return True if checking again is useless."""
        loop = asyncio.get_running_loop()
        if positions != self._seen:
            self._seen, self._unchanged = positions, 0
        self._unchanged += 1
        if self._unchanged < _TURNS:
            loop.call_soon(self._check)
            self._check_between(loop, 1, self._turn)
            return False
        if self._waited >= self._wait + (0 if positions else _PATIENCE) or positions[:1] == self._at[:1] != ():
            return True
        step = max(self._wait / _LOOKS, 1e-3)
        self._waited += step
        self._unchanged = _TURNS // 2
        loop.call_later(step, self._check)
        return False

    def _cancel(self, scope: RunScope) -> None:
        self._perform(scope)
        self._finish()

    def _finish(self) -> None:
        self._done = True
        self._on_finished()
