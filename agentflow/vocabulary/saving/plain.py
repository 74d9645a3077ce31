"""Convert any value to data with a JSON form.

`dumps` is for values that a run used, none of which may be lost: it writes the text of a value without a JSON form.
`as_data` is for data that a person saves, which should be restored: it refuses such a value, except NaN and the infinities.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from agentflow._support.shown import encodable
from agentflow._support.validation import adapter_of
from agentflow.errors import StoreError, UsageError
from agentflow.vocabulary.messages import ToolUseBlock

_MAX_DEPTH = 100
"""The depth of nesting beyond which values are stored as text; `from_json` refuses more than 201 levels."""


def dumps(value: object) -> str:
    """Return a value as JSON text. Values without a JSON form, including NaN, become their text."""
    try:
        return to_json(value, fallback=_fallback, inf_nan_mode="strings").decode()
    except (ValueError, RecursionError):  # a lone surrogate, bytes that are not UTF-8, a cyclic value
        return to_json(_simple(value, 0), inf_nan_mode="strings").decode()


def plain(value: object) -> Any:
    """Return a value as data. Values without a JSON form become their text."""
    return from_json(dumps(value))


def as_data(label: str, value: object) -> Any:
    """Return a value as JSON-compatible data; NaN and the infinities become their text.

    Raises:
        UsageError: Another value has no JSON form; `label` names the object in the message.
    """
    try:
        return from_json(to_json(value, fallback=_strictly, inf_nan_mode="strings"))
    except PydanticSerializationError as error:
        raise not_data(label, error) from error


def not_data(label: str, reason: object) -> UsageError:
    """Return the error for a value that cannot be saved."""
    return UsageError(f"{label} cannot be saved: {reason}. Use only values with a JSON form.")


def read_json(text: str | bytes, label: str) -> Any:
    """Parse JSON text.

    Raises:
        StoreError: The text is not JSON.
    """
    try:
        return from_json(text)
    except ValueError as error:
        raise StoreError(f"This is not a saved {label}: it is not JSON ({error}).") from error


def text_of(value: object) -> str:
    """Return the text of any value."""
    if type(value) is str and value.isascii():
        return value
    try:
        return encodable(str(value))
    except Exception:  # noqa: BLE001, RUF100 - a broken __str__ must not lose the fact
        return f"({type(value).__name__} without a readable text)"


def _fallback(value: object) -> object:
    if isinstance(value, ToolUseBlock):
        return adapter_of(ToolUseBlock).dump_python(value)
    return text_of(value)


def _strictly(value: object) -> object:
    if isinstance(value, ToolUseBlock):
        return adapter_of(ToolUseBlock).dump_python(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _simple(value: object, depth: int) -> object:
    """Convert any value to plain data with a JSON form (slow)."""
    if value is None or isinstance(value, bool | int | float):
        return value  # `to_json` writes NaN as text
    if isinstance(value, str):  # repairs lone surrogates, the most frequent reason for this slow path
        return encodable(value)
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if depth > _MAX_DEPTH:  # also ends cyclic values
        return text_of(type(value))
    if isinstance(value, ToolUseBlock):
        value = adapter_of(ToolUseBlock).dump_python(value)
    if isinstance(value, Mapping):
        return {text_of(k): _simple(v, depth + 1) for k, v in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_simple(item, depth + 1) for item in cast("Iterable[object]", value)]
    # Field by field, since `to_json` would refuse the whole object for one bad value.
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _simple(getattr(value, f.name, None), depth + 1) for f in fields(value)}
    try:
        return from_json(to_json(value, fallback=text_of, inf_nan_mode="strings"))
    except (ValueError, RecursionError):
        return text_of(value)
