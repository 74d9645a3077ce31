"""The library's log: loguru's, silent until somebody asks for it, each record bound to the run that it tells of.

Rules:

1. Nothing is logged until `logger.enable("agentflow")`, or `log_to_std()`: a library does not write to a program's standard
   error. There are two exceptions: `EventLog`, because whoever attaches it has asked for its lines, and bugs in tools and
   hooks that end no run, because no person would learn of them otherwise (`agentflow.ground.once`).
2. A record's `extra` has `run_id`, `call_id`, `session_id` and `source`; what does not apply is `""`, so that formats may
   name them.
3. One line says what failed; the traceback stands at level TRACE. A traceback of loguru has a hundred lines, and shows the
   values of variables: whoever looks for one asks for it (`logger.add(sys.stderr, level="TRACE")`). DEBUG would not do:
   loguru shows it to everybody who has configured nothing.
"""

from __future__ import annotations

from typing import Literal

from loguru import logger as _loguru

from agentflow.ground.shown import described, one_line

__all__ = ["ids_of", "log_failure", "logger", "reset_to_default"]

_IDS = ("run_id", "call_id", "session_id", "source")

logger = _loguru.bind(**dict.fromkeys(_IDS, ""))
"""What modules of the library log with."""

_ENABLED_BY_DEFAULT = ("agentflow.plugins.logging", "agentflow.tools.unexpected", "agentflow.hooks.skipped")


def reset_to_default() -> None:
    """Disable the library's log, but for the parts that are enabled by default."""
    _loguru.disable("agentflow")
    for name in _ENABLED_BY_DEFAULT:
        _loguru.enable(name)


reset_to_default()


def ids_of(where: object) -> dict[str, str]:
    """The ids that a record is bound to: `logger.bind(**ids_of(event)).warning(...)`.

    Args:
        where: An event, what events share, a context; anything that has some of them.

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
    """Log that something failed.

    Args:
        level: Loguru's.
        error: Why.
        what: What failed and what became of it, in loguru's form (`"hook {} was skipped"`); the error stands behind it.
        values: For the braces.
        where: The run that it belongs to, as `ids_of` takes it.
    """
    told = [one_line(value) if isinstance(value, str) else value for value in values]
    bound = logger.bind(**ids_of(where))
    bound.opt(depth=1).log(level, f"{what}: {{}}", *told, described(error))
    bound.opt(depth=1, exception=error).trace(what, *told)
