"""Parse external JSON text within limits: no text can cause any error but `ValueError`.

Rules:

1. No other module calls `json.loads` (tests/test_json_from_outside.py), which raises an unexpected `RecursionError`, or
   accepts values deep enough to exhaust the stack of code that walks them.
2. Text of more than 200 levels is refused, as by `pydantic_core`, which parses almost all JSON of this library.
3. Lone halves of surrogate pairs are accepted, since a server that splits a text within a character sends them; only
   `json` can read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import from_json

_DEEPEST = 200


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
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(cast("Mapping[str, object]", value).values())
    return cast("list[object]", value) if isinstance(value, list) else []
