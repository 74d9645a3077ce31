"""Warns of exceptions that a tool did not raise on purpose: a model reads them, and no person would.

Rules:

1. This module's log is enabled by default, as that of `EventLog` is: `logger.disable("agentflow.tools.unexpected")` silences
   it, `logger.disable("agentflow")` too.
2. One warning for each tool, class of exception and line: a tool that fails in each round does not flood the log.
3. What is meant for the model (`ToolError`), or says that somebody outside has to act (`ModelError`, `StoreError`), is no bug.
4. The traceback begins in the tool, and shows no values of variables.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import dropwhile
from types import TracebackType
from typing import Final, cast

from agentflow.errors import AgentFlowError, SafeExecutionError, UsageError, WrongRunMethodError
from agentflow.ground.logs import ids_of, logger
from agentflow.ground.shown import one_line, printable, without_password

__all__ = ["failures_expected", "is_unexpected", "warn_unexpected"]

_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__))
_MACHINERY: Final = tuple(
    f"{folder}{os.sep}"
    for folder in (_PACKAGE, *(os.path.dirname(str(module.__file__)) for module in (asyncio, concurrent.futures)))
)
"""Where the frames lie that lead to the tool, in the loop or in a thread."""

_MOST_PLACES: Final = 1_000
"""Places that are remembered: code made at run time has no end of them."""

_LONGEST: Final = 20_000

_lock = threading.Lock()
_warned: set[tuple[str, str, str, int]] = set()
_expected: ContextVar[bool] = ContextVar("agentflow_failures_expected", default=False)


@contextmanager
def failures_expected() -> Generator[None]:
    """Warn of nothing in this context: failures are a part of a test."""
    token = _expected.set(True)
    try:
        yield
    finally:
        _expected.reset(token)


def is_unexpected(error: BaseException) -> bool:
    """Return whether a tool's exception is a fault of its code, rather than something that it has to tell the model.

    Example:
        >>> from agentflow.errors import ToolError
        >>> is_unexpected(ToolError("no such customer")), is_unexpected(NameError("name 'x' is not defined"))
        (False, True)
    """
    if isinstance(error, BaseExceptionGroup):
        return any(is_unexpected(inner) for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions)
    return not isinstance(error, AgentFlowError) or isinstance(
        error, UsageError | SafeExecutionError | WrongRunMethodError
    )


def warn_unexpected(tool: str, error: BaseException, where: object = None) -> None:
    """Log a warning with the traceback of an unexpected exception, once for each place that raises it.

    Args:
        tool: The tool's name.
        error: What it raised.
        where: The run that it belongs to, as `ids_of` takes it.
    """
    if _expected.get() or not is_unexpected(error):
        return
    place = (tool, type(error).__qualname__, *_raised_at(error.__traceback__))
    with _lock:
        if place in _warned or len(_warned) >= _MOST_PLACES:
            return
        _warned.add(place)
    logger.bind(**ids_of(where)).warning(
        "Tool {} raised {}, and the model was told. If that is no bug but something that the model should know, raise "
        "agentflow.errors.ToolError in the tool; this place is not warned about again.\n{}",
        one_line(repr(tool)),
        type(error).__name__,
        _traceback_of(error),
    )


def _raised_at(trace: TracebackType | None) -> tuple[str, int]:
    if trace is None:
        return "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno


def _traceback_of(error: BaseException) -> str:
    shown = traceback.TracebackException.from_exception(error)
    own = list(dropwhile(lambda frame: frame.filename.startswith(_MACHINERY), shown.stack))
    if own:
        shown.stack = traceback.StackSummary.from_list(own)
    text = without_password("".join(shown.format()).rstrip())
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}\n[... {len(text) - _LONGEST} characters ...]\n{text[-_LONGEST // 2 :]}"
    return printable(text)
