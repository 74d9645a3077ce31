"""How a command ends, and the one line that says why it failed.

Exit codes: 0 the reply is there; 1 the call ran and did not complete (denied, stopped, at its limit, suspended, or a hook
or store failed); 2 there was nothing to run or nobody to ask (arguments, agent, key, model, network); 130 interrupted.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any, Final

import click

from agentflow.errors import ModelError, UsageError
from agentflow.ground.shown import one_line, without_password
from agentflow.messages import Outcome

__all__ = ["EXIT_CODES", "FAILED", "INTERRUPTED", "UNUSABLE", "CommandError", "code_of", "place_of"]

FAILED: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130

EXIT_CODES: Final[Mapping[Outcome, int]] = MappingProxyType(
    {
        "completed": 0,
        "denied": FAILED,
        "stopped": FAILED,
        "suspended": FAILED,
        "limited": FAILED,
        "failed": FAILED,
        "interrupted": INTERRUPTED,
    }
)
"""The exit code of a call that ended in an outcome."""


class CommandError(click.ClickException):
    """A command cannot go on: one line on standard error, and an exit code.

    Args:
        message: What was wrong, and what would be right.
        exit_code: See the module.
    """

    def __init__(self, message: str, exit_code: int = UNUSABLE) -> None:
        super().__init__(without_password(one_line(message)))
        self.exit_code = exit_code  # pyright: ignore[reportAttributeAccessIssue] - per error here, per class in click

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the line."""
        click.echo(f"agentflow: {self.format_message()}", file=file, err=file is None)


def code_of(error: BaseException) -> int:
    """The exit code of a call that raised."""
    return UNUSABLE if isinstance(error, ModelError | UsageError) else FAILED


def place_of(error: BaseException) -> str:
    """Where an error was raised, as `file:line`; for a syntax error, where the syntax is wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "unknown place"
