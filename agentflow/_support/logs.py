"""The library's log, using loguru: silent until enabled, with each record bound to its run.

Rules:

1. Nothing is logged before `logger.enable("agentflow")` or `log_to_std()`: a library should not write to a program's
   standard error. There are three exceptions: `EventLog`, because attaching it requests its lines; bugs in tools and
   hooks that do not end the run, because they would be invisible otherwise (`agentflow._support.once`); and a server's
   failures, because its clients get only a reference.
2. A record's `extra` has `run_id`, `call_id`, `session_id` and `source`; an id that does not apply is `""`, so that
   formats can use all of them.
3. One line names the failure; the traceback is logged at level TRACE, because a traceback of loguru has a hundred lines
   and shows the values of variables, so it should be requested (`logger.add(sys.stderr, level="TRACE")`). Loguru shows
   level DEBUG by default.
"""

from __future__ import annotations

from typing import Literal

from loguru import logger as _loguru

from agentflow._support.shown import described, one_line

_IDS = ("run_id", "call_id", "session_id", "source")

logger = _loguru.bind(**dict.fromkeys(_IDS, ""))
"""The logger of the library's modules."""

_ENABLED_BY_DEFAULT = (
    "agentflow.plugins.logging",
    "agentflow.tools.unexpected",
    "agentflow.hooks.skipped",
    "agentflow.serve.failures",
)


def reset_to_default() -> None:
    """Disable the library's log, except for the parts that are enabled by default."""
    _loguru.disable("agentflow")
    for name in _ENABLED_BY_DEFAULT:
        _loguru.enable(name)


reset_to_default()


def ids_of(where: object) -> dict[str, str]:
    """Return the ids for binding a record to a run: `logger.bind(**ids_of(event)).warning(...)`.

    Args:
        where: An event, an event's frame, a context, or any object with some of these attributes.

    Example:
        >>> ids_of(None)
        {'run_id': '', 'call_id': '', 'session_id': '', 'source': ''}
    """
    return {name: getattr(where, name, "") for name in _IDS}


def log_failure(
    level: Literal["DEBUG", "WARNING", "ERROR"],
    error: BaseException,
    what: str,
    *values: object,
    where: object = None,
) -> None:
    """Log a failure.

    Args:
        level: The level.
        error: The cause.
        what: The failure and its consequence, in loguru's format (`"hook {} was skipped"`); the error is appended.
        values: The values for the braces.
        where: The run, as for `ids_of`.
    """
    texts = [one_line(value) if isinstance(value, str) else value for value in values]
    bound = logger.bind(**ids_of(where))
    # `depth=1`: the record belongs to the caller's module, by which loguru enables and disables it.
    bound.opt(depth=1).log(level, f"{what}: {{}}", *texts, described(error))
    bound.opt(depth=1, exception=error).trace(what, *texts)
