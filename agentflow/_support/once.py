"""Warn of failures that would otherwise be invisible, by default once for each place that raises.

Rules:

1. There is one warning for each name, exception class and line: a failure in each round does not flood the log.
2. The traceback begins outside the library, and does not show the values of variables.
3. The log of the warning module must be enabled by default; see `agentflow._support.logs`.
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
from typing import Final

from agentflow._support.logs import ids_of, logger
from agentflow._support.shown import one_line, printable, without_password

_PACKAGE: Final = os.path.dirname(os.path.dirname(__file__))
_MACHINERY: Final = tuple(
    f"{folder}{os.sep}"
    for folder in (_PACKAGE, *(os.path.dirname(str(module.__file__)) for module in (asyncio, concurrent.futures)))
)
"""The directories of the frames that call a tool, in the loop or in a thread."""

_MAX_PLACES: Final = 1_000
"""The maximum number of remembered places: code generated at run time could add places without end."""

_MAX_LENGTH: Final = 20_000
"""The maximum length of a logged traceback, in characters."""

_lock = threading.Lock()
_warned: set[tuple[str, str, str, int]] = set()
_expected: ContextVar[bool] = ContextVar("agentflow_failures_expected", default=False)


@contextmanager
def failures_expected() -> Generator[None]:
    """Suppress the warnings in this context, for tests that cause failures."""
    token = _expected.set(True)
    try:
        yield
    finally:
        _expected.reset(token)


def warn_once(name: str, error: BaseException, what: str, *values: object, where: object = None) -> bool:
    """Log a warning with the traceback of an exception, under the name of the calling module.

    Args:
        name: The name of the failed object, which is part of the place.
        error: The exception.
        what: The failure and its consequence, in loguru's format; the traceback is appended.
        values: The values for the braces.
        where: The run, as for `ids_of`.

    Returns:
        Whether it was logged; False if the place was reported before, or failures are expected.
    """
    if _expected.get():
        return False
    key = (name, type(error).__qualname__, *_raised_at(error.__traceback__))
    with _lock:
        if key in _warned or len(_warned) >= _MAX_PLACES:
            return False
        _warned.add(key)
    texts = [one_line(value) if isinstance(value, str) else value for value in values]
    # `depth=1`: the record belongs to the caller's module, by which loguru enables and disables it.
    logger.bind(**ids_of(where)).opt(depth=1).warning(f"{what}\n{{}}", *texts, traceback_of(error))
    return True


def _raised_at(trace: TracebackType | None) -> tuple[str, int]:
    if trace is None:
        return "", 0
    while trace.tb_next is not None:  # the innermost frame, which raised the error
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno


def traceback_of(error: BaseException) -> str:
    """Return a traceback that begins outside the library, without the values of variables and passwords."""
    shown = traceback.TracebackException.from_exception(error)
    own = list(dropwhile(lambda frame: frame.filename.startswith(_MACHINERY), shown.stack))
    if own:
        shown.stack = traceback.StackSummary.from_list(own)
    bare = not own and shown.__cause__ is None and shown.__context__ is None  # raised by the library itself
    text = without_password("".join(shown.format_exception_only() if bare else shown.format()).rstrip())
    if len(text) > _MAX_LENGTH:
        text = (
            f"{text[: _MAX_LENGTH // 2]}\n[... {len(text) - _MAX_LENGTH} characters ...]\n{text[-_MAX_LENGTH // 2 :]}"
        )
    return printable(text)
