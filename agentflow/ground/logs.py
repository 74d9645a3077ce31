"""How a failure that ends nothing is told: one line at its level, its traceback at TRACE.

A traceback of loguru has a hundred lines, and shows the values of variables: whoever looks for one asks for it
(`logger.add(sys.stderr, level="TRACE")`). DEBUG would not do: loguru shows it to everybody who has configured nothing.
"""

from __future__ import annotations

from typing import Literal

from loguru import logger

from agentflow.ground.shown import described, one_line

__all__ = ["log_failure"]


def log_failure(level: Literal["DEBUG", "WARNING", "ERROR"], error: BaseException, what: str, *values: object) -> None:
    """Log that something failed.

    Args:
        level: Loguru's.
        error: Why.
        what: What failed and what became of it, in loguru's form (`"hook {} was skipped"`); the error stands behind it.
        values: For the braces.
    """
    told = [one_line(value) if isinstance(value, str) else value for value in values]
    logger.opt(depth=1).log(level, f"{what}: {{}}", *told, described(error))
    logger.opt(depth=1, exception=error).trace(what, *told)
