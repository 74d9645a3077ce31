"""Parts of A2A messages as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentflow.serve.a2a.sdk import helpers, types


def data_in(parts: Sequence[types.Part]) -> list[Any]:
    """Return the values of the data parts. The format has only floats and unordered keys: whole numbers become integers, and
    keys are sorted.

    Example:
        >>> from a2a.helpers import new_data_part
        >>> data_in([new_data_part({"b": 1, "a": [2.5]})])
        [{'a': [2.5], 'b': 1}]
    """
    return [_plain(value) for value in helpers.get_data_parts(parts)]


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in sorted(cast("Mapping[str, object]", value).items())}
    if isinstance(value, list):
        return [_plain(inner) for inner in cast("list[object]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value
