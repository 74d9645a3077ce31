"""Report waits before a retry or the start of work to the display of a run.

Rules:

1. A wait is reported when it begins and when it ends, however it ends. A report costs nothing without a listener.
2. The listener belongs to the context (`contextvars`) of the call's reader, so that each reader in a process gets only
   its own reports.
3. A listener that fails gets no further report of this wait; the retry continues.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from agentflow._support.logs import log_failure
from agentflow._support.values import frozen


@frozen(kw_only=True)
class Wait:
    """A wait.

    Attributes:
        who: The name of the part that waits, such as `"ModelRetry"`.
        seconds: The length of the wait.
        reason: The reason; for a retry, the failure as text.
        attempt: The failed attempt, from 1; 0 if there was no failure.
    """

    who: str
    seconds: float
    reason: str = ""
    attempt: int = 0


OnWait: TypeAlias = Callable[[Wait], Callable[[], object]]
"""Called when a wait begins; the function it returns is called when the wait ends."""

on_wait: ContextVar[OnWait | None] = ContextVar("agentflow_on_wait", default=None)
"""The listener for waits in this context."""


@contextmanager
def waiting(wait: Wait) -> Generator[None]:
    """Report a wait for the duration of the block.

    Example:
        >>> with waiting(Wait(who="RateLimit", seconds=0.0)):
        ...     await asyncio.sleep(0.0)
    """
    listener = on_wait.get()
    on_end = None if listener is None else _notify_begin(listener, wait)
    try:
        yield
    finally:
        if on_end is not None:
            _call_safely(on_end)


def _notify_begin(listener: OnWait, wait: Wait) -> Callable[[], object] | None:
    try:
        return listener(wait)
    except Exception as error:  # noqa: BLE001, RUF100 - a failing display must not end the work
        log_failure("WARNING", error, "a listener to waits failed and was skipped")
        return None


def _call_safely(on_end: Callable[[], object]) -> None:
    try:
        on_end()
    except Exception as error:  # noqa: BLE001, RUF100 - as above
        log_failure("WARNING", error, "a listener to waits failed at the end of a wait")
