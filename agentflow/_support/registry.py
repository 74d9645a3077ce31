"""Objects by name: the common part of the registries of tools and of agents.

Rules:

1. A name belongs to one object; registering another object under it is an error that names both places.
2. Nothing is registered implicitly: importing a module does not change a registry, unless this is documented.
3. Reading needs no lock: a change replaces one entry of a dict.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from inspect import currentframe
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, overload

from agentflow.errors import DuplicateNameError, NotRegisteredError, close_to


class HasName(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str:
        """The name."""
        ...


T = TypeVar("T", bound=HasName)


class NamedRegistry(Generic[T]):
    """Objects of one kind, by name.

    A subclass defines the kind (`_kind`, `_check`). It can also define how an object is stored under another name
    (`_stored`), where it was defined (`_place`), and the fix if a name is taken (`_fix`).
    """

    _kind: ClassVar[str] = "item"
    _fix: ClassVar[str] = "Register one of them under another name: register(..., name=...)."

    def __init__(self) -> None:
        self._entries: dict[str, tuple[T, T, str]] = {}  # registered object, stored object, place of the registration
        self._mutex = threading.RLock()

    @overload
    def register(self, item: T, /, *, name: str | None = None) -> T: ...
    @overload
    def register(self, /, *, name: str) -> Callable[[T], T]: ...
    def register(self, item: Any = None, /, *, name: str | None = None) -> Any:
        """Register an object, and return it unchanged. Registering the same object again does nothing.

        Args:
            item: The object; without it, a decorator is returned.
            name: The name under which to register the object; by default its own.

        Raises:
            UsageError: The object is not of the registry's kind.
            DuplicateNameError: Another object has the name; a `ValueError` that names both places.
        """
        if item is None and name is not None:
            return partial(self.register, name=name)
        self._check(item)
        new: T = cast("Any", item)
        known = new.name if name is None else name
        where = _caller()
        with self._mutex:
            existing = self._entries.get(known)
            if existing is None:
                self._entries[known] = (new, self._stored(new, known), where)
            elif existing[0] is not new:
                raise DuplicateNameError(
                    self._kind, known, self._describe(existing[0], existing[2]), self._describe(new, where), self._fix
                )
        return new

    def _check(self, item: object) -> None:
        """Check that an object is of the registry's kind."""

    def _stored(self, item: T, name: str) -> T:
        """Return the object to store under a name."""
        return item

    def _place(self, item: T) -> str | None:
        """Return the place of an object's definition, as `file:line`."""
        return None

    def _describe(self, item: T, where: str) -> str:
        source = self._place(item)
        written = "" if source is None else f"written at {source} and "
        return f"{item!r} ({written}registered at {where})"

    def get(self, name: str) -> T:
        """Return the object that is registered under a name.

        Raises:
            NotRegisteredError: There is none; a `LookupError` that lists the registered names.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise self._unknown(name)
        return entry[1]

    def __getitem__(self, name: str) -> T:
        return self.get(name)

    def unregister(self, name: str) -> T:
        """Remove the object that is registered under a name, and return it.

        Raises:
            NotRegisteredError: There is none.
        """
        with self._mutex:
            entry = self._entries.pop(name, None)
        if entry is None:
            raise self._unknown(name)
        return entry[1]

    def clear(self) -> None:
        """Remove all objects."""
        with self._mutex:
            self._entries.clear()

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of registration."""
        return tuple(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the currently registered objects, in the order of registration."""
        with self._mutex:
            entries = tuple(self._entries.values())  # a copy, since the dict may change during the iteration
        return iter([entry[1] for entry in entries])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.names))})"

    def _unknown(self, name: str) -> NotRegisteredError:
        known = self.names
        return NotRegisteredError(self._kind, name, known, close_to(str(name), known))


def _caller() -> str:
    """Return the place of the registration: the first frame outside the registries."""
    frame = currentframe()
    frame = None if frame is None else frame.f_back
    while frame is not None and isinstance(frame.f_locals.get("self"), NamedRegistry):
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
