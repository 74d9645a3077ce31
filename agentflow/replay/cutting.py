"""A recorded cancellation from outside, done again: in its turn, and at the place where the run was suspended then.

Rules:

1. It is done when everything that was recorded before it has happened, and all tasks of the run are suspended where they were.
2. If they never are (the agent was changed, or the log is an older one), it is done when nothing happens any more and as much
   time has passed as in the recording.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from agentflow.loop.run import RunBase
from agentflow.loop.scope import CauseKind
from agentflow.runlog.entries import InterruptEntry

__all__ = ["Cutting"]

_TURNS: Final = 30
"""Turns of the event loop without a change after which only time can bring one."""
_LOOKS: Final = 40


class Cutting:
    """One cancellation.

    Args:
        entry: What the recording says of it.
        wait: Seconds since what happened before it.
        run: The run, as soon as it is there.
        over: Called when it was done, or is not to be done any more.
    """

    def __init__(
        self, entry: InterruptEntry, wait: float, run: Callable[[], RunBase | None], over: Callable[[], None]
    ) -> None:
        self._entry = entry
        self._wait = wait
        self._run = run
        self._over = over
        self._seen: tuple[str, ...] | None = None
        self._unchanged = 0
        self._waited = 0.0
        self._done = False

    @property
    def kind(self) -> CauseKind:
        """How the run is cancelled."""
        if self._entry.how == "left":
            return "closed" if self._entry.reason else "cancelled"
        return "timeout" if self._entry.how == "timeout" else "interrupted"

    def look(self) -> None:
        """Cancel the run if it is at the place; else look again soon."""
        if self._done:
            return
        run = self._run()
        if run is None:
            self._later(())
            return
        scope = run.scope
        if scope.cause is not None or scope.state in ("ending", "done"):
            self._end()
            return
        here = scope.positions()
        if here == self._entry.at or self._later(here):
            self._cancel(run)

    def _later(self, here: tuple[str, ...]) -> bool:
        """Look again soon; whether it is of no use."""
        loop = asyncio.get_running_loop()
        if here != self._seen:
            self._seen, self._unchanged = here, 0
        self._unchanged += 1
        if self._unchanged < _TURNS:
            loop.call_soon(self.look)
            return False
        if self._waited >= self._wait or here[:1] == self._entry.at[:1] != ():
            return bool(here)
        step = max(self._wait / _LOOKS, 1e-3)
        self._waited += step
        self._unchanged = _TURNS // 2
        loop.call_later(step, self.look)
        return False

    def _cancel(self, run: RunBase) -> None:
        scope, kind = run.scope, self.kind
        if kind == "timeout" and scope.timeout is None:
            kind = "interrupted"
        scope.cancel(kind, self._entry.reason or "its caller was cancelled")
        self._end()

    def _end(self) -> None:
        self._done = True
        self._over()
