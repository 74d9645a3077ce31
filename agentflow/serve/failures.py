"""The server's log of failures whose cause clients do not see: enabled by default, so that a reference leads to it.

`logger.disable("agentflow.serve.failures")` silences it, and so does `logger.disable("agentflow")`.
"""

from __future__ import annotations

from agentflow._support.logs import logger
from agentflow._support.once import traceback_of
from agentflow._support.shown import described
from agentflow.tools.unexpected import is_unexpected


def log_failed(what: str, error: BaseException | None = None) -> None:
    """Log a failure: with the traceback of a bug, but only the message of a provider's or store's error.

    Args:
        what: The failure and its consequence.
        error: The cause.
    """
    if error is None:
        logger.error("{}", what)
    elif is_unexpected(error):
        logger.error("{}\n{}", what, traceback_of(error))
    else:
        logger.error("{}: {}", what, described(error))
