"""Pydantic's validators, imported on first use, because importing `TypeAdapter` takes 25 ms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields
from functools import lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import ValidationError, core_schema

from agentflow.errors import AgentFlowError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def is_a(value: object, kind: type | UnionType) -> bool:
    """Return whether an untrusted value really has its annotated type. (Type checkers would call `isinstance` unnecessary.)"""
    return isinstance(value, kind)


def adapter_of(form: Any) -> TypeAdapter[Any]:
    """Return the validator and serializer of a type; cached if the type is hashable.

    Raises:
        PydanticUserError: Pydantic cannot validate this type.

    Example:
        >>> adapter_of(list[int]).validate_json("[1]")
        [1]
    """
    return _cached(form) if isinstance(form, Hashable) else _build(form)


def _build(form: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(form)


_cached = lru_cache(maxsize=512)(_build)  # bounded: programs may create types at run time


class Above:
    """A bound for `Annotated` numbers: `Annotated[float, Above(0)]`."""

    def __init__(self, bound: float) -> None:
        self.bound = bound

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(source), "gt": self.bound}


class Within:
    """Bounds for `Annotated` numbers, both included: `Annotated[int, Within(0, 10)]`."""

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._high = high

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(source), "ge": self._low, "le": self._high}


class Refers:
    """Marks an `Annotated` string as a reference, which must name an existing object of the validation's `context`.

    Args:
        kind: The kind of object; the context's `has(kind, ref)` returns whether it exists.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return core_schema.with_info_after_validator_function(self._check, handler(source))

    def _check(self, ref: str, info: core_schema.ValidationInfo) -> str:
        if info.context is not None and not info.context.has(self._kind, ref):
            raise ValueError(f"no line before this one holds the {self._kind} {ref!r:.80}")
        return ref


class Check:
    """A check for `Annotated`: a function that returns the value, changed or not, or raises `ValueError`."""

    def __init__(self, check: Callable[[Any], Any]) -> None:
        self._check = check

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return core_schema.no_info_after_validator_function(self._check, handler(source))


def fits(kind: Any) -> Check:
    """Return a check that a dict is valid data for a dataclass, without unknown keys; the dict is not converted."""

    def check(data: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(data.keys() - {field.name for field in fields(kind)})
        if unknown:
            raise ValueError(f"unknown field {unknown[0]!r:.80}")
        try:
            adapter_of(kind).validate_python(data)
        except (ValueError, TypeError, AgentFlowError) as error:
            raise ValueError(first_problem(error)) from None
        return data

    return Check(check)


class TaggedBy:
    """Distinguishes the members of an `Annotated` union by a tag.

    Args:
        tag: Returns the tag of data or of an object, or None.
        members: The types by tag.
    """

    def __init__(self, tag: Callable[[object], str | None], members: Mapping[str, type]) -> None:
        self._tag = tag
        self._members = members

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        choices = {tag: handler.generate_schema(kind) for tag, kind in self._members.items()}
        return core_schema.tagged_union_schema(choices, self._tag)


def closed(form: type[T]) -> type[T]:
    """Forbid unknown keys in a `TypedDict` (like `pydantic.with_config`, without importing pydantic's models)."""
    setattr(form, "__pydantic_config__", {"extra": "forbid"})  # noqa: B010 - no declared attribute
    return form


def first_problem(error: Exception) -> str:
    """Return the first problem of a validation error, with its position."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    found = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in found["loc"])
    return f"{where or 'the value'}: {found['msg'].removeprefix('Value error, ')}"
