"""Any value as plain data that JSON knows.

There are two ways. What a run has used is never lost: `dumps` writes the text of what JSON does not know. What a person
saves comes back as it was: `as_data` refuses what would not.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from pydantic_core import PydanticSerializationError, from_json, to_json

from agentflow.errors import StoreError, UsageError
from agentflow.ground.encodable import encodable
from agentflow.ground.validation import adapter_of
from agentflow.messages import ToolUseBlock

__all__ = ["as_data", "dumps", "not_data", "plain", "read_json", "text_of"]

_DEEPEST = 100
"""Levels of nesting after which a value is stored as its text (readers stop at 200)."""


def dumps(value: object) -> str:
    """A value as JSON text; what JSON does not know, NaN included, as its text."""
    try:
        return to_json(value, fallback=_fallback, inf_nan_mode="strings").decode()
    except (ValueError, RecursionError):  # half a surrogate pair, bytes that are no text, a value that holds itself
        return to_json(_simple(value, 0), inf_nan_mode="strings").decode()


def plain(value: object) -> Any:
    """A value as data; what JSON does not know as its text."""
    return from_json(dumps(value))


def as_data(what: str, value: object) -> Any:
    """A value as data that says all of it.

    Raises:
        UsageError: It is none; `what` says where it stands.
    """
    try:
        return from_json(to_json(value, fallback=_strictly, inf_nan_mode="strings"))
    except PydanticSerializationError as error:
        raise not_data(what, error) from error


def not_data(what: str, why: object) -> UsageError:
    """Why something cannot be saved."""
    return UsageError(f"{what} cannot be saved: {why}. Only what JSON knows travels.")


def read_json(text: str | bytes, what: str) -> Any:
    """Parse JSON text.

    Raises:
        StoreError: It is none.
    """
    try:
        return from_json(text)
    except ValueError as error:
        raise StoreError(f"This is no saved {what}: it is not JSON ({error}).") from error


def text_of(value: object) -> str:
    """The text of a value, whatever it is."""
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
    raise TypeError(f"a {type(value).__name__} is no data")


def _simple(value: object, depth: int) -> object:
    """The slow way: the value as plain data that JSON certainly knows."""
    if value is None or isinstance(value, bool | int | float):
        return value  # `to_json` writes NaN as its text
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if depth > _DEEPEST:
        return text_of(type(value))
    if isinstance(value, ToolUseBlock):
        value = adapter_of(ToolUseBlock).dump_python(value)
    if isinstance(value, Mapping):
        return {text_of(k): _simple(v, depth + 1) for k, v in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_simple(item, depth + 1) for item in cast("Iterable[object]", value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _simple(getattr(value, f.name, None), depth + 1) for f in fields(value)}
    try:
        return from_json(to_json(value, fallback=text_of, inf_nan_mode="strings"))
    except (ValueError, RecursionError):
        return text_of(value)
