"""Who waits before work is done again, or may begin: told to whoever shows a run.

Rules:

1. A wait is told where it is waited, and over when it ends, however it ends. Telling it costs nothing where nobody listens.
2. The listener belongs to the context (`contextvars`) of whoever reads the call: two readers in one process hear of their own.
3. A listener that fails is not heard of again in that wait: nobody's retry depends on who looks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from agentflow.ground.logs import log_failure
from agentflow.ground.values import frozen

__all__ = ["OnWait", "Wait", "on_wait", "waiting"]


@frozen(kw_only=True)
class Wait:
    """Something that waits.

    Attributes:
        who: Who waits, such as `"ModelRetry"`.
        seconds: How long.
        why: What it waits for; for a retry, the failure as text.
        attempt: The attempt that failed, from 1; 0 where nothing did.
    """

    who: str
    seconds: float
    why: str = ""
    attempt: int = 0


OnWait: TypeAlias = Callable[[Wait], Callable[[], object]]
"""Told that a wait begins; what it returns is called when it is over."""

on_wait: ContextVar[OnWait | None] = ContextVar("agentflow_on_wait", default=None)
"""Who is told of the waits in this context."""


@contextmanager
def waiting(wait: Wait) -> Generator[None]:
    """Tell of a wait, for as long as the block lasts.

    Example:
        >>> with waiting(Wait(who="RateLimit", seconds=0.0)):
        ...     await asyncio.sleep(0.0)
    """
    listener = on_wait.get()
    over = None if listener is None else _begun(listener, wait)
    try:
        yield
    finally:
        if over is not None:
            _ended(over)


def _begun(listener: OnWait, wait: Wait) -> Callable[[], object] | None:
    try:
        return listener(wait)
    except Exception as error:  # noqa: BLE001, RUF100 - it is somebody's screen
        log_failure("WARNING", error, "a listener to waits failed and was skipped")
        return None


def _ended(over: Callable[[], object]) -> None:
    try:
        over()
    except Exception as error:  # noqa: BLE001, RUF100
        log_failure("WARNING", error, "a listener to waits failed at the end of a wait")
