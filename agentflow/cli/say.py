"""What a command prints that is no part of a call."""

from __future__ import annotations

import click

from agentflow.ground.shown import printable

__all__ = ["say"]


def say(text: str, *, err: bool = False) -> None:
    """Print a line to standard output, or to standard error; control characters are shown as escapes, whoever wrote them."""
    click.echo(printable(text), err=err)
