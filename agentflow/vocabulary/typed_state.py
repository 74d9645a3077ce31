"""`StateMap`: objects of a run or a session by their class, saved as JSON data and rebuilt on first use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from pydantic.errors import PydanticUserError

from agentflow._support.frozen import EMPTY
from agentflow._support.validation import adapter_of
from agentflow.errors import StoreError, UsageError

T = TypeVar("T")
_NOTHING: Final[dict[type, Any]] = {}
"""The mapping of every state without objects; always empty."""


class StateMap:
    """Typed state: one object per class, created on first use.

    The state of a session is stored when a call opens, a round ends or a call closes. If an object has a
    true attribute `unsaved`, it is also stored with the next fact of any kind.

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
        self._urgent: tuple[Any, ...] = ()  # the objects with an attribute `unsaved`
        self._objects: dict[type, Any] = _NOTHING
        self._stored: Mapping[str, Any] = EMPTY
        """The loaded values: JSON data by `"module:qualname"` of its class. Objects rebuilt from them take precedence."""

    def __getitem__(self, kind: type[T]) -> T:
        found = self._objects.get(kind)
        if found is None and self._stored:
            found = self._rebuilt(kind)
        if found is None:
            try:
                found = kind()
            except TypeError as error:
                raise UsageError(
                    f"state[{kind.__name__}] does not exist yet and {kind.__name__}() needs arguments ({error}). Set "
                    f"it first: state[{kind.__name__}] = {kind.__name__}(...)."
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
        # Looked up here once, because `unsaved` is read with each fact.
        if hasattr(kind, "unsaved"):
            self._urgent = tuple([state for cls, state in self._objects.items() if hasattr(cls, "unsaved")])

    @property
    def unsaved(self) -> bool:
        """Whether an object must be stored with the next fact."""
        for state in self._urgent:  # noqa: SIM110 - checked with each fact
            if state.unsaved:
                return True
        return False

    def __contains__(self, kind: type) -> bool:
        return kind in self._objects or state_name(kind) in self._stored

    def __iter__(self) -> Iterator[type]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def _rebuilt(self, kind: type[T]) -> T | None:
        data = self._stored.get(state_name(kind))
        if data is None:
            return None
        try:
            rebuilt: T = adapter_of(kind).validate_python(data)
        except ValueError as error:
            raise StoreError(
                f"The saved state of {state_name(kind)} no longer fits the class ({error}). Give new fields a "
                f"default, or reset it: state[{kind.__name__}] = {kind.__name__}(...)."
            ) from error
        self._put(kind, rebuilt)
        return rebuilt

    def restore(self, values: Mapping[str, Any], *, replace: bool = False) -> None:
        """Load saved values; each object is rebuilt when its class is first used.

        Args:
            values: JSON data by `"module:qualname"`.
            replace: Whether to discard the existing objects; if False, these take precedence over `values`.
        """
        if replace:
            self._objects = _NOTHING
            self._urgent = ()
        self._stored = values

    def saved(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the state as JSON data by `"module:qualname"`, and the names of the classes that pydantic cannot
        serialise.

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
        found = dict(self._stored)  # values that this process has not used are kept
        refused: list[str] = []
        for kind, value in self._objects.items():
            name = state_name(kind)
            try:
                found[name] = adapter_of(kind).dump_python(value, mode="json")
            except (PydanticUserError, ValueError, TypeError):
                found.pop(name, None)  # an old value must not come back after a restart
                refused.append(name)
        return found, tuple(refused)


def state_name(kind: type) -> str:
    """Return the name under which the state of a class is saved.

    If a class is moved or renamed, its attribute `__saved_as__` should be set to the old name, so that stored sessions match.
    """
    return vars(kind).get("__saved_as__") or f"{kind.__module__}:{kind.__qualname__}"
