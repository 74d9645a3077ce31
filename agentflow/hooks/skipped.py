"""Log a warning if a failing hook or listener is skipped, or a hook denies because it failed. Nothing else would report the
failure: the run continues, or is denied as if the hook had intended it.

This module's log is enabled by default, like that of `EventLog`: `logger.disable("agentflow.hooks.skipped")` silences it,
and so does `logger.disable("agentflow")`.
"""

from __future__ import annotations

from typing import Final

from agentflow._support.once import warn_once
from agentflow.hooks.hook import Hook

_LATER: Final = "it is logged only once, unless logger.enable('agentflow') is called"


def warn_skipped(hook: Hook, event: str, error: Exception, where: object) -> bool:
    """Log a warning with the traceback, once for each place that raises.

    Args:
        hook: The hook.
        event: The name of the event's class.
        error: The exception that the hook raised.
        where: The run in which it was raised, in a form that `ids_of` accepts.

    Returns:
        Whether it was logged.
    """
    return warn_once(
        hook.name,
        error,
        f"hook {{}} (priority {{}}) failed on {{}} and was skipped; {_LATER}.",
        hook.name,
        hook.priority,
        event,
        where=where,
    )


def warn_denied(hook: Hook, event: str, error: Exception, where: object) -> bool:
    """Log the same warning for a hook that refuses because it failed, by `on_failure="deny"` or by its own rule."""
    return warn_once(
        hook.name,
        error,
        "hook {} (priority {}) failed on {}, so the request was denied; this failure is logged only once.",
        hook.name,
        hook.priority,
        event,
        where=where,
    )


def warn_skipped_listener(name: str, error: Exception) -> bool:
    """Log the same warning for a failing listener."""
    return warn_once(name, error, f"listener {{}} failed and was skipped; {_LATER}.", name)
