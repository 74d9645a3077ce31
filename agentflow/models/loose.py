"""Reads fields that servers send with types other than specified.

Rules:

1. A field of known meaning (text, arguments, an id, a count) is read in each form that servers are known to send. Any other
   form is a `NotUnderstoodError`: output is never dropped, and a tool never runs with defaults instead of its arguments.
2. An unknown type of event, block, delta or part is skipped, with one line in the log: vendors add new ones at any time, and
   they should not end a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

import msgspec

from agentflow._support.logs import logger
from agentflow._support.shown import one_line
from agentflow.vocabulary.saving.plain import dumps

_MAX_SHOWN = 120
_MAX_INDEX = 1 << 31  # a float may be infinite
_encode = msgspec.json.Encoder().encode


class NotUnderstoodError(Exception):
    """A server sent meaningful data in an unknown form.

    Args:
        problem: The field and its value.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.message = problem


def field(value: object, name: str) -> object:
    """Return a field of an external object or mapping; None if there is none."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).get(name)
    return getattr(value, name, None)


def items(value: object) -> Sequence[object]:
    """Return the members of an external list; empty if it is not a list."""
    return cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else ()


def one_or_more(value: object) -> Sequence[object]:
    """Return the members of an external list; a single object, which some servers send, counts as a list of one."""
    return (cast("object", value),) if isinstance(value, Mapping) else items(value)


def text_or_none(value: object) -> str | None:
    """Return an external value if it is text; None otherwise."""
    return value if isinstance(value, str) else None


def as_text(value: object, where: str) -> str:
    """Read text from a string, a number, an object with a `text`, or a list of such parts.

    Args:
        value: The field's value.
        where: The field, for the error.

    Raises:
        NotUnderstoodError: The value is something else.

    Example:
        >>> as_text([{"type": "text", "text": "Hel"}, "lo"], "content")
        'Hello'
    """
    if isinstance(value, str):
        return value
    # An empty list or object means no text; 0 is text.
    if value is None or value is False or (not value and not isinstance(value, (int, float))):
        return ""
    if isinstance(value, (list, tuple)):
        return "".join(as_text(part, where) for part in cast("Sequence[object]", value))
    if isinstance(value, Mapping) and "text" in value:
        return as_text(cast("Mapping[str, object]", value)["text"], where)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return json_text(value)
    raise NotUnderstoodError(f"{where} is {_shown(cast('object', value))} instead of text")


def json_text(value: object) -> str:
    """Return a tool call's arguments as JSON text; servers send the text, or the object.

    Example:
        >>> json_text('{"a": 1}'), json_text({"a": 1}), json_text(None)
        ('{"a": 1}', '{"a":1}', '')
    """
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return dumps(value)
    except TypeError as error:
        raise NotUnderstoodError(f"the arguments of a tool call are {_shown(value)}") from error


def count(value: object) -> int:
    """Read a number of tokens; 0 if it is not a number.

    Example:
        >>> count(7.0), count("3"), count(None), count(float("inf"))
        (7, 3, 0, 0)
    """
    try:
        return max(0, int(value)) if isinstance(value, (int, float, str)) else 0
    except (ValueError, OverflowError):
        return 0


def place(value: object) -> int | None:
    """Read the index of a block or a call; None if it is not an index.

    Example:
        >>> place(0.0), place("1"), place(None)
        (0, 1, None)
    """
    if isinstance(value, str):
        # The length is limited before `int`, which raises for more than 4,300 digits.
        return int(value[:9]) if value.isascii() and value.isdecimal() else None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return int(min(value, _MAX_INDEX))
    return None


@lru_cache(maxsize=256)
def log_skipped(model: str, what: str) -> None:
    """Log, once for each model and type, that data of an unknown type was skipped."""
    logger.warning("{} sent {}, which is unknown to this version and was skipped", model, one_line(what))


def _shown(value: object) -> str:
    text = repr(value)
    return one_line(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")
