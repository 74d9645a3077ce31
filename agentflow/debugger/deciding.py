"""What a person types at a pause, as values and as verdicts.

A verdict has one field, and is asked for by its class's name: a new one can be given at the terminal and on the page as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from agentflow.debugger.fields import Json, read_value
from agentflow.errors import UsageError
from agentflow.verdicts import Again, Answer, Deny, Recover, Stop, Verdict

__all__ = ["VERDICTS", "decided", "form_of", "typed"]

VERDICTS: Final[Mapping[str, type[Verdict]]] = {kind.__name__: kind for kind in get_args(Verdict)}
"""All of them, by name."""

_IN_WORDS: Final[tuple[type[Verdict], ...]] = (Again, Deny, Stop)
"""Those that carry a text, whatever it looks like; others carry JSON, or what is none as text."""
_NOT_EMPTY: Final[tuple[type[Verdict], ...]] = (Again, Answer, Recover)
"""Those that say nothing where they carry nothing."""


def typed(text: str) -> Json:
    """A value as a person types it: JSON, and what is none as text.

    Raises:
        UsageError: It begins as JSON does, and is none.
    """
    try:
        return read_value(text)
    except ValueError as error:
        raise UsageError(f"This begins as JSON and is none: {error}.") from error


def form_of(kind: type[Verdict]) -> str:
    """How a verdict is typed.

    Example:
        >>> form_of(Deny), form_of(Answer)
        ('deny [REASON]', 'answer VALUE')
    """
    field = "TEXT" if kind is Again else kind.__match_args__[0].upper()
    return f"{kind.__name__.lower()} {field if kind in _NOT_EMPTY else f'[{field}]'}"


def decided(kind: type[Verdict], text: str) -> Verdict:
    """The verdict that carries what was typed.

    Raises:
        UsageError: It is to carry something, and nothing was typed; or that begins as JSON and is none.

    Example:
        >>> decided(Deny, "not today")
        Deny(reason='not today')
    """
    make: Any = kind
    if text.strip():
        return make(text if kind in _IN_WORDS else typed(text))
    if kind in _NOT_EMPTY:
        raise UsageError(f"{kind.__name__} needs what it is to say.")
    return make()
