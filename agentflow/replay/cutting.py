"""A recorded cancellation from outside, done again: in its turn, and at the place where the run was suspended then.

Rules:

1. It is done when everything that was recorded before it has happened, and all tasks of the run are suspended where they were:
   it is looked after each step of a task, since the next step may lead one of them on.
2. If they never are (the agent was changed, or the log is an older one), it is done when nothing happens any more and as much
   time has passed as in the recording.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from agentflow.loop.scope import CauseKind, RunScope
from agentflow.runlog.entries import InterruptEntry

__all__ = ["Cutting"]

_TURNS: Final = 30
"""Turns of the event loop without a change after which only time can bring one."""
_LOOKS: Final = 40
"""How often it is looked while the recorded time passes."""
_PATIENCE: Final = 1.0
"""Seconds for which a run is waited for that does not begin."""


class Cutting:
    """One cancellation.

    Args:
        entry: What the recording says of it.
        wait: Seconds since what happened before it.
        scope: Gives the scope of the run, as soon as there is one.
        over: Called when it was done, or is not to be done any more.
    """

    def __init__(
        self, entry: InterruptEntry, wait: float, scope: Callable[[], RunScope | None], over: Callable[[], None]
    ) -> None:
        self._entry = entry
        self._wait = wait
        self._scope = scope
        self._over = over
        self._seen: tuple[str, ...] | None = None
        self._unchanged = 0
        self._waited = 0.0
        self._turn = 0
        self._done = False

    @property
    def kind(self) -> CauseKind:
        """How the run is cancelled."""
        if self._entry.how == "left":
            return "closed" if self._entry.reason else "cancelled"
        return "interrupted" if self._entry.how == "interrupt" else self._entry.how

    def begin(self) -> None:
        """Look when the step of the running task is done, and again until it is done."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._look)
        self._look_between(loop, 0, self._turn)

    def _look_between(self, loop: asyncio.AbstractEventLoop, place: int, turn: int) -> None:
        """Look before a callback that the event loop has already scheduled; only loops of asyncio's own allow that."""
        ready = getattr(loop, "_ready", None)
        if isinstance(ready, deque):
            cast("deque[asyncio.Handle]", ready).insert(place, asyncio.Handle(self._look_at_step, (loop, turn), loop))

    def _look_at_step(self, loop: asyncio.AbstractEventLoop, turn: int) -> None:
        """Cancel the run if it is at the place; else look again after the next step of a task, in this turn of the loop."""
        if self._done or turn != self._turn:
            return
        scope = self._scope()
        if scope is None or scope.cause is not None or scope.state in ("ending", "done"):
            return
        if scope.positions() == self._entry.at:
            self._cancel(scope)
        else:
            self._look_between(loop, 1, turn)

    def _look(self) -> None:
        """Cancel the run if it is at the place; else look again soon."""
        if self._done:
            return
        self._turn += 1
        scope = self._scope()
        if scope is None:
            if self._later(()):
                self._end()
            return
        if scope.cause is not None or scope.state in ("ending", "done"):
            self._end()
            return
        here = scope.positions()
        if here == self._entry.at or self._later(here):
            self._cancel(scope)

    def _later(self, here: tuple[str, ...]) -> bool:
        """Look again soon; whether it is of no use."""
        loop = asyncio.get_running_loop()
        if here != self._seen:
            self._seen, self._unchanged = here, 0
        self._unchanged += 1
        if self._unchanged < _TURNS:
            loop.call_soon(self._look)
            self._look_between(loop, 1, self._turn)
            return False
        if self._waited >= self._wait + (0 if here else _PATIENCE) or here[:1] == self._entry.at[:1] != ():
            return True
        step = max(self._wait / _LOOKS, 1e-3)
        self._waited += step
        self._unchanged = _TURNS // 2
        loop.call_later(step, self._look)
        return False

    def _cancel(self, scope: RunScope) -> None:
        kind = self.kind
        if kind == "timeout" and scope.timeout is None:
            kind = "interrupted"
        scope.cancel(kind, self._entry.reason or "its caller was cancelled")
        self._end()

    def _end(self) -> None:
        self._done = True
        self._over()
