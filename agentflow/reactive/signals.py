"""Definitions shared by the reactive core: the absence of a value, the core's own errors, and parsing durations.

Rules:

1. `EMPTY` means "completed without a value"; `None` is a value like any other.
2. Only `Exception` is an error. `CancelledError`, `KeyboardInterrupt`, `SystemExit` and `GeneratorExit` pass through every
   operator unchanged.
"""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal

from agentflow.errors import AgentFlowError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

_COROUTINE: Final = inspect.CO_COROUTINE


class Empty(Enum):
    """The type of `EMPTY`; an enum with one member, so that checkers narrow on `is EMPTY`."""

    EMPTY = "empty"

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Final[Literal[Empty.EMPTY]] = Empty.EMPTY
"""The result of `Mono.resolve()` if the mono completes without a value."""


class SourceTimeoutError(AgentFlowError, TimeoutError):
    """A limit set by `timeout`, `deadline` or `block` has passed.

    It differs from a `TimeoutError` that a source raises itself: `timeout(…, other)` switches to `other` only if its own
    limit has passed.

    Args:
        operator: The operator that set the limit, as users write it.
        seconds: The limit.
        what: The event that did not happen in time.
    """

    def __init__(self, operator: str, seconds: float, what: str) -> None:
        super().__init__(f"{operator}: {what} within {seconds:g} s; the source was cancelled")
        self.operator = operator
        self.seconds = seconds


def seconds_of(operator: str, duration: float | timedelta) -> float:
    """Convert a duration to seconds. A negative duration raises a `UsageError` that names the operator."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not seconds >= 0:  # also refuses NaN
        raise UsageError(f"{operator}: a duration of {seconds} s is not possible; give seconds >= 0 or a timedelta")
    return seconds


def seconds_until(moment: datetime) -> float:
    """Return the seconds of wall-clock time until `moment`, at least 0. A naive `datetime` is read as UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())


def plain_function(operator: str, function: Callable[..., object], instead: str) -> None:
    """Refuse a coroutine function where a plain function is needed. The error names an operator that awaits."""
    code = getattr(function, "__code__", None)  # inspect.iscoroutinefunction costs more than a whole link
    if code is not None and code.co_flags & _COROUTINE:
        name = getattr(function, "__qualname__", repr(function))
        raise UsageError(
            f"{operator}() calls a plain function, but {name} is a coroutine function, whose result would be a "
            f"coroutine that is never awaited; use {instead}, which awaits it"
        )


def positive(operator: str, name: str, count: int | None) -> None:
    """Refuse a number of runs below 1."""
    if count is not None and count < 1:
        raise UsageError(f"{operator}({name}={count}) would never run the source; give 1 or more, or None for no limit")


def identity(value: Any) -> Any:
    """Return the value unchanged."""
    return value
