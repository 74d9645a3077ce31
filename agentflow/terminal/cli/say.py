"""Output of commands outside a call's events."""

from __future__ import annotations

import click

from agentflow._support.shown import printable


def say(text: str, *, err: bool = False) -> None:
    """Print a line to standard output or standard error, with control characters escaped."""
    click.echo(printable(text), err=err)
