"""`StateMap`: objects of a run or a session by their class, saved as JSON data and made again when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from pydantic.errors import PydanticUserError

from agentflow.errors import StoreError, UsageError
from agentflow.ground.frozen import EMPTY
from agentflow.ground.validation import adapter_of

__all__ = ["StateMap", "state_name"]

T = TypeVar("T")
_NOTHING: Final[dict[type, Any]] = {}
"""The objects of a state that nobody has asked for; never added to."""


class StateMap:
    """Typed state: one object per class, made on first use.

    The state of a session is stored when a call opens, a round ends and a call closes. An object of a class with an attribute
    `unsaved` is stored with the next fact, whatever that is, as soon as the attribute is true.

    Example:
        >>> class Counter:
        ...     n = 0
        >>> state = StateMap()
        >>> state[Counter].n += 1
        >>> state[Counter].n
        1
    """

    __slots__ = ("_objects", "_stored", "_urgent")

    def __init__(self) -> None:
        self._urgent: tuple[Any, ...] = ()
        self._objects: dict[type, Any] = _NOTHING
        self._stored: Mapping[str, Any] = EMPTY
        """What was saved and nobody has asked for yet: JSON data by `"module:qualname"` of its class."""

    def __getitem__(self, kind: type[T]) -> T:
        found = self._objects.get(kind)
        if found is None and self._stored:
            found = self._revived(kind)
        if found is None:
            try:
                found = kind()
            except TypeError as error:
                raise UsageError(
                    f"state[{kind.__name__}] does not exist yet and {kind.__name__}() needs arguments ({error}); put one "
                    f"there first: state[{kind.__name__}] = {kind.__name__}(...)."
                ) from error
            self._put(kind, found)
        return found

    def __setitem__(self, kind: type[T], value: T) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"state[{kind.__name__}] takes a {kind.__name__}, not {type(value).__name__}.")
        self._put(kind, value)

    def _put(self, kind: type, value: object) -> None:
        if self._objects is _NOTHING:
            self._objects = {}
        self._objects[kind] = value
        if hasattr(kind, "unsaved"):
            self._urgent = tuple([one for cls, one in self._objects.items() if hasattr(cls, "unsaved")])

    @property
    def unsaved(self) -> bool:
        """Whether an object is to be stored with the next fact."""
        for one in self._urgent:  # noqa: SIM110 - looked at with each fact
            if one.unsaved:
                return True
        return False

    def __contains__(self, kind: type) -> bool:
        return kind in self._objects or state_name(kind) in self._stored

    def __iter__(self) -> Iterator[type]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def _revived(self, kind: type[T]) -> T | None:
        data = self._stored.get(state_name(kind))
        if data is None:
            return None
        try:
            made: T = adapter_of(kind).validate_python(data)
        except ValueError as error:
            raise StoreError(
                f"The saved state of {state_name(kind)} does not fit the class any more ({error}). Give new fields a "
                f"default, or start it afresh: state[{kind.__name__}] = {kind.__name__}(...)."
            ) from error
        self._put(kind, made)
        return made

    def restore(self, values: Mapping[str, Any], *, replace: bool = False) -> None:
        """Take in what `saved` gave; each object is made again when it is asked for by its class.

        Args:
            values: JSON data by `"module:qualname"`.
            replace: Forget the objects that are here; else they win.
        """
        if replace:
            self._objects = _NOTHING
            self._urgent = ()
        self._stored = values

    def saved(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The state as JSON data by `"module:qualname"`, and the names of the classes that pydantic cannot write.

        Example:
            >>> from dataclasses import dataclass
            >>> @dataclass
            ... class Cart:
            ...     items: int = 0
            >>> state = StateMap()
            >>> state[Cart].items = 2
            >>> list(state.saved()[0].values())
            [{'items': 2}]
        """
        found = dict(self._stored)
        refused: list[str] = []
        for kind, value in self._objects.items():
            name = state_name(kind)
            try:
                found[name] = adapter_of(kind).dump_python(value, mode="json")
            except (PydanticUserError, ValueError, TypeError):
                found.pop(name, None)
                refused.append(name)
        return found, tuple(refused)


def state_name(kind: type) -> str:
    """The name under which the state of a class is saved."""
    return f"{kind.__module__}:{kind.__qualname__}"
