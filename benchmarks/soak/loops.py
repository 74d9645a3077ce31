"""An event loop with a clock that runs faster than the real one, so that waits are short; it records the owner of each task."""

from __future__ import annotations

import asyncio
import selectors
import traceback
from collections.abc import Coroutine
from contextvars import Context, ContextVar
from typing import Any
from weakref import WeakSet

__all__ = ["OWNED", "FasterLoop", "real_seconds"]

SPEED = 10.0
OWNED: ContextVar[WeakSet[asyncio.Task[Any]] | None] = ContextVar("OWNED", default=None)
"""The tasks of a session: all that are created while it runs."""


def real_seconds(seconds: float) -> float:
    """So many seconds of a person's time, as the loop counts them."""
    return seconds * SPEED


class _Selector(selectors.DefaultSelector):
    """Waits a part of the requested time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout / SPEED if timeout is not None and timeout > 0 else timeout)


class FasterLoop(asyncio.SelectorEventLoop):
    """A loop in which a second takes a tenth of one. It records the owner of each task.

    Attributes:
        loose: Errors that were not handled.
    """

    def __init__(self) -> None:
        super().__init__(_Selector())
        self.loose: list[str] = []
        self.set_task_factory(_owned)
        self.set_exception_handler(self._uncaught)

    def _uncaught(self, _: object, told: dict[str, Any]) -> None:
        task = told.get("task") or told.get("future")
        name = task.get_name() if isinstance(task, asyncio.Task) else task
        if name == "agentflow: closing a dropped stream":
            return  # the failure of a call with an abandoned reader has no other receiver
        error = told.get("exception")
        where = "" if error is None else "".join(traceback.format_exception(error))
        self.loose.append(f"{told['message']}: {error!r}, of {name} {where}")

    def time(self) -> float:
        """Ten times the real one."""
        return super().time() * SPEED


def _owned(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], context: Context | None = None, **named: Any
) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, context=context, **named)
    mine = OWNED.get() if context is None else context.get(OWNED)
    if mine is not None:
        mine.add(task)
    return task
