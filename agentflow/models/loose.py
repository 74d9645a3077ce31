"""Fields that servers send in other types than their wire says.

Rules:

1. A field of known meaning (text, arguments, an id, a count) is understood in each form that servers are known to send. Any
   other form is a `NotUnderstoodError`: what a model said is never dropped, and a tool never runs with defaults instead of it.
2. A type of event, block, delta or part that this version does not know is skipped, with one line in the log: vendors add
   new ones at any time, and none of them ends a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

import msgspec

from agentflow.ground.logs import logger
from agentflow.ground.shown import one_line
from agentflow.saving.plain import dumps

__all__ = ["NotUnderstoodError", "count", "field", "items", "json_text", "one_or_more", "place", "skipped", "words"]

_LONGEST_SHOWN = 120
_LARGEST_PLACE = 1 << 31
_encode = msgspec.json.Encoder().encode


class NotUnderstoodError(Exception):
    """A server sent something that carries meaning in a form that is not known.

    Args:
        what: Which field, and what it holds.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.message = what


def field(value: object, name: str) -> object:
    """A field of an object or a mapping that came from outside; None where there is none."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).get(name)
    return getattr(value, name, None)


def items(value: object) -> Sequence[object]:
    """The members of a list that came from outside; none where it is no list."""
    return cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else ()


def one_or_more(value: object) -> Sequence[object]:
    """The same, where some servers send the only member without a list around it."""
    return (cast("object", value),) if isinstance(value, Mapping) else items(value)


def words(value: object, where: str) -> str:
    """Text, whether it came as a string, a number, an object with a `text`, or a list of such parts.

    Args:
        value: What came.
        where: The field, for the error.

    Raises:
        NotUnderstoodError: It holds something else.

    Example:
        >>> words([{"type": "text", "text": "Hel"}, "lo"], "content")
        'Hello'
    """
    if isinstance(value, str):
        return value
    if value is None or value is False or (not value and not isinstance(value, (int, float))):
        return ""
    if isinstance(value, (list, tuple)):
        return "".join(words(part, where) for part in cast("Sequence[object]", value))
    if isinstance(value, Mapping) and "text" in value:
        return words(cast("Mapping[str, object]", value)["text"], where)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return json_text(value)
    raise NotUnderstoodError(f"{where} is {_shown(cast('object', value))}, and not text")


def json_text(value: object) -> str:
    """A tool call's arguments as JSON text; servers send the text, or the object that it stands for.

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
    """A number of tokens; 0 where it is none.

    Example:
        >>> count(7.0), count("3"), count(None), count(float("inf"))
        (7, 3, 0, 0)
    """
    try:
        return max(0, int(value)) if isinstance(value, (int, float, str)) else 0
    except (ValueError, OverflowError):
        return 0


def place(value: object) -> int | None:
    """The index of a block or a call; None where it is none.

    Example:
        >>> place(0.0), place("1"), place(None)
        (0, 1, None)
    """
    if isinstance(value, str):
        return int(value[:9]) if value.isascii() and value.isdecimal() else None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
        return int(min(value, _LARGEST_PLACE))
    return None


@lru_cache(maxsize=256)
def skipped(model: str, what: str) -> None:
    """Log, once for each model and type, that something of a type that is not known was skipped."""
    logger.warning("{} sent {}, which is not known to this version and was skipped", model, one_line(what))


def _shown(value: object) -> str:
    text = repr(value)
    return one_line(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")
