"""Parse untrusted JSON text within limits: the only possible error is `ValueError`, even for numbers that are not JSON.

Rules:

1. No other module calls `json.loads`: it may raise `RecursionError`, or accept values deep enough to exhaust the stack of
   code that walks them (tests/test_json_from_outside.py).
2. Text of more than about 200 levels is refused, as by `pydantic_core`, which parses almost all JSON of this library.
3. Lone halves of surrogate pairs are accepted, since a server that splits a text within a character sends them; only
   `json` can read them.
4. Python's parsers accept `NaN`, `-Infinity`, and `1e999`, which does not fit a float; every provider refuses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, NoReturn, cast

from pydantic_core import from_json

# Strings come first, so that digits inside them are not taken for numbers.
_TOKENS: Final = r'(?s)"(?:[^"\\]|\\.)*"|-?(?:Infinity|NaN|[0-9][-+.0-9eE]*)'


class NotFiniteError(ValueError):
    """JSON text contains a number that JSON does not allow, or that is out of the range of floats.

    Args:
        number: The number as written.
        position: The position in the text, for the message.
    """

    def __init__(self, number: str, position: str = "") -> None:
        self.number = number
        super().__init__(f"{number:.40}{position} is not a JSON number or does not fit a float")


def _constant(name: str) -> NoReturn:
    raise NotFiniteError(name)


def _number(text: str) -> float:
    number = float(text)
    if isfinite(number):
        return number
    raise NotFiniteError(text)


# `parse_float` is called only for numbers with a fraction or an exponent: integers are always finite.
_decoder = json.JSONDecoder(parse_constant=_constant, parse_float=_number, strict=False)

scan_numbers: Callable[[str, int], object] = vars(_decoder)["scan_once"]
"""`check_numbers` without a Python frame, for the loop; takes the text and the start of the value."""


def check_numbers(text: str) -> None:
    """Check that all numbers of JSON text are finite; the text must be valid.

    Raises:
        NotFiniteError: A number is not finite; the error shows its position.

    Example:
        >>> check_numbers('{"a": 1e308}')
        >>> check_numbers('{"a": [1e309]}')
        Traceback (most recent call last):
        agentflow._support.json_text.NotFiniteError: 1e309 at line 1 column 8 is not a JSON number or does not fit a float
    """
    try:
        scan_numbers(text, len(text) - len(text.lstrip()))
    except NotFiniteError as error:
        raise NotFiniteError(error.number, _position(text)) from None


def _position(text: str) -> str:
    """Return the position of the first number that is not finite, in the format of pydantic's errors."""
    for found in re.finditer(_TOKENS, text):
        token, start = found[0], found.start()
        if token[-1] in "yN" or (
            token[0] != '"' and any(sign in token for sign in ".eE") and not isfinite(float(token))
        ):
            return f" at line {text.count(chr(10), 0, start) + 1} column {start - text.rfind(chr(10), 0, start)}"
    return ""


def all_finite(value: object) -> bool:
    """Whether all numbers in JSON-like data are finite.

    Example:
        >>> all_finite({"a": [1.5, "NaN"]}), all_finite({"a": [float("inf")]})
        (True, False)
    """
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, Mapping):
        return all(map(all_finite, cast("Mapping[Any, Any]", value).values()))
    if isinstance(value, list | tuple):
        return all(map(all_finite, cast("list[Any]", value)))
    return True


_MAX_DEPTH = 200


def read_json_text(text: str | bytes, *, constants: bool = True) -> Any:
    """Parse JSON text.

    Args:
        text: The JSON text, in UTF-8 if it is bytes.
        constants: Whether to accept `NaN` and `Infinity`, which are not JSON.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.

    Example:
        >>> read_json_text('{"a": [1, 2]}')
        {'a': [1, 2]}
        >>> read_json_text("[" * 100_000)
        Traceback (most recent call last):
        ...
        ValueError: recursion limit exceeded at line 1 column 202
    """
    try:
        # If `json` refuses the text too (see rule 3), this parser's error is raised: one error text for each mistake.
        return from_json(text, allow_inf_nan=constants)
    except ValueError as error:
        refused = error
    try:
        value = json.loads(text, parse_constant=None if constants else _refused)
    except (ValueError, RecursionError):
        raise refused from None
    if _is_too_deep(value):
        raise refused
    return value


def _refused(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _is_too_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH):  # level by level, since a recursive check could exhaust the stack
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(cast("Mapping[str, object]", value).values())
    return cast("list[object]", value) if isinstance(value, list) else []
