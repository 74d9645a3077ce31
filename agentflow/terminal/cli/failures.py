"""The output and exit codes of commands, and the error that ends a command with one line.

Exit codes: 0: the call completed; 1: the call did not complete (denied, stopped, at its limit, suspended, or a hook or store
failed); 2: usage or configuration error (bad arguments, unknown agent or model, missing key, no network); 130: interrupted.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Any, Final, get_args

import click

from agentflow._support.shown import one_line, printable, without_password
from agentflow.errors import ModelError, UsageError
from agentflow.vocabulary.messages import Outcome


def say(text: str, *, err: bool = False) -> None:
    """Print a line to standard output or standard error, with control characters escaped."""
    click.echo(printable(text), err=err)


FAILED: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130

EXIT_CODES: Final[Mapping[Outcome, int]] = MappingProxyType(
    {**dict.fromkeys(get_args(Outcome), FAILED), "completed": 0, "interrupted": INTERRUPTED}
)
"""Exit codes by the outcome of a call."""


class CommandError(click.ClickException):
    """A command failed: one line on standard error, and an exit code.

    Args:
        message: The problem, and how the user should fix it.
        exit_code: The exit code, as listed in the module.
    """

    def __init__(self, message: str, exit_code: int = UNUSABLE) -> None:
        super().__init__(without_password(one_line(message)))
        self.exit_code = exit_code  # pyright: ignore[reportAttributeAccessIssue] - per error here, per class in click

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the error."""
        click.echo(f"agentflow: {self.format_message()}", file=file, err=file is None)


def code_of(error: BaseException) -> int:
    """Return the exit code for an exception that a call raised."""
    return UNUSABLE if isinstance(error, ModelError | UsageError) else FAILED


def place_of(error: BaseException) -> str:
    """Return the origin of an error as `file:line`; for a syntax error, the position of the faulty code."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith("<frozen")]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "unknown place"
