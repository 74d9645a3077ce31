"""Warns about unintended exceptions in tools, which otherwise only the model would see.

Rules:

1. This module's log is enabled by default, like that of `EventLog`: `logger.disable("agentflow.tools.unexpected")`
   silences it, and so does `logger.disable("agentflow")`.
2. An exception that is meant for the model (`ToolError`), or has its cause outside the tool (`ModelError`, `StoreError`),
   does not count as a bug.
"""

from __future__ import annotations

from typing import cast

from agentflow._support.once import warn_once
from agentflow.errors import AgentFlowError, SafeExecutionError, UsageError, WrongRunMethodError

__all__ = ["is_unexpected", "warn_unexpected"]


def is_unexpected(error: BaseException) -> bool:
    """Return whether a tool's exception is a bug in the tool's code rather than a message for the model.

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
        error: The exception.
        where: The run in which it was raised, in a form that `ids_of` accepts.
    """
    if is_unexpected(error):
        warn_once(
            tool,
            error,
            "Tool {} raised {}, and the model got its message. If it is not a bug but meant for the model, raise "
            "agentflow.errors.ToolError in the tool; this failure is logged only once.",
            repr(tool),
            type(error).__name__,
            where=where,
        )
