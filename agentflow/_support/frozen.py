"""Read-only dicts and lists, for deeply frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A read-only dict: for JSON encoders, pydantic and pickle it is a dict; writing raises a `TypeError`.

    Example:
        >>> FrozenDict(a=1)["a"]
        1
        >>> FrozenDict(a=1)["a"] = 2
        Traceback (most recent call last):
        TypeError: this mapping is read-only; build a new one from it: {**mapping, key: value}. ...
    """

    __slots__ = ()

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError(
            "this mapping is read-only; build a new one from it: {**mapping, key: value}. The arguments of a tool call "
            "are "
            "changed with event.tool_use = event.tool_use.replace(input={**event.tool_use.input, key: value})."
        )

    __setitem__ = __delitem__ = update = setdefault = pop = popitem = clear = __ior__ = cast("Any", _refuse)

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - frozen, so hashable by content
        # Of the keys only, because values may be unhashable. Equal dicts have equal keys.
        return hash(frozenset(self))

    def __copy__(self) -> FrozenDict[K, V]:
        return self

    def __deepcopy__(self, memo: object) -> FrozenDict[K, V]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenDict, (dict(self),))  # by default, pickle would fill it with `__setitem__`


class FrozenList(list[V]):
    """A read-only list, equal to the list it was made from."""

    __slots__ = ()

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("this list is read-only; build a new one from it: [*values, value]")

    __setitem__ = __delitem__ = append = extend = insert = pop = remove = clear = sort = reverse = cast("Any", _refuse)
    __iadd__ = __imul__ = _refuse

    def __deepcopy__(self, memo: object) -> FrozenList[V]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenList, (list(self),))


EMPTY: FrozenDict[str, Any] = FrozenDict()
"""The empty mapping, shared."""


def freeze(mapping: Mapping[K, V]) -> FrozenDict[K, V]:
    """Return `mapping` if it is already frozen, otherwise a frozen shallow copy."""
    if isinstance(mapping, FrozenDict):
        return mapping
    return FrozenDict(mapping)


_ATOMS = frozenset({str, int, float, bool, type(None)})
"""The most common types of JSON-like data, which are recognised without the slow checks of abstract classes."""


_FROZEN: tuple[type[Any], ...] = (FrozenDict, FrozenList)


def deep_freeze(value: Any) -> Any:
    """Return JSON-like data with all mappings and lists frozen."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, _FROZEN):  # frozen already, and possibly large
        return value
    if isinstance(value, Mapping):
        return FrozenDict({key: deep_freeze(item) for key, item in cast("Mapping[Any, Any]", value).items()})
    if isinstance(value, list):
        return FrozenList([deep_freeze(item) for item in cast("list[Any]", value)])
    return value
