"""Parse a person's input at a pause into values and verdicts.

A verdict has one field and is entered by its class's name, so new verdict classes work in the terminal and on the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from agentflow.errors import UsageError
from agentflow.plugins.debugger.fields import Json, read_value
from agentflow.vocabulary.verdicts import Again, Answer, Deny, Recover, Stop, Verdict

VERDICTS: Final[Mapping[str, type[Verdict]]] = {kind.__name__: kind for kind in get_args(Verdict)}
"""All verdict classes by name."""

_WITH_TEXT: Final[tuple[type[Verdict], ...]] = (Again, Deny, Stop)
"""Verdicts with a text: the input is used literally. For other verdicts the input is parsed as JSON; if it is not JSON, it is
used as a text.
"""
_NOT_EMPTY: Final[tuple[type[Verdict], ...]] = (Again, Answer, Recover)
"""Verdicts that require a value."""


def parse_value(text: str) -> Json:
    """Parse a value: JSON, or else a plain text.

    Raises:
        UsageError: The text starts like JSON but is not valid.
    """
    try:
        return read_value(text)
    except ValueError as error:
        raise UsageError(f"This looks like JSON but is not valid: {error}.") from error


def form_of(kind: type[Verdict]) -> str:
    """Return the syntax for entering a verdict.

    Example:
        >>> form_of(Deny), form_of(Answer)
        ('deny [REASON]', 'answer VALUE')
    """
    field = "TEXT" if kind is Again else kind.__match_args__[0].upper()
    return f"{kind.__name__.lower()} {field if kind in _NOT_EMPTY else f'[{field}]'}"


def parse_verdict(kind: type[Verdict], text: str) -> Verdict:
    """Create a verdict from its text.

    Raises:
        UsageError: A required value is missing, or the text starts like JSON but is not valid.

    Example:
        >>> parse_verdict(Deny, "not today")
        Deny(reason='not today')
    """
    make: Any = kind
    if text.strip():
        return make(text if kind in _WITH_TEXT else parse_value(text))
    if kind in _NOT_EMPTY:
        raise UsageError(f"{kind.__name__} needs a value.")
    return make()
