"""Warns of exceptions that a tool did not raise on purpose: a model reads them, and no person would.

Rules:

1. This module's log is enabled by default, as that of `EventLog` is: `logger.disable("agentflow.tools.unexpected")` silences
   it, `logger.disable("agentflow")` too.
2. What is meant for the model (`ToolError`), or says that somebody outside has to act (`ModelError`, `StoreError`), is no bug.
"""

from __future__ import annotations

from typing import cast

from agentflow.errors import AgentFlowError, SafeExecutionError, UsageError, WrongRunMethodError
from agentflow.ground.once import warn_once

__all__ = ["is_unexpected", "warn_unexpected"]


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
    if is_unexpected(error):
        warn_once(
            tool,
            error,
            "Tool {} raised {}, and the model was told. If that is no bug but something that the model should know, raise "
            "agentflow.errors.ToolError in the tool; this place is not warned about again.",
            repr(tool),
            type(error).__name__,
            where=where,
        )
