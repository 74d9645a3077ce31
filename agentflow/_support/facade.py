"""Facades: public classes with the members for users. Each instance is of a subclass with the package's own members.

Rules:

1. The subclass of `X` is called `FullX`, and `X(...)` creates one. So there is one object, and nothing is delegated.
2. The package annotates `FullX` if it needs more than users see. A user's value is narrowed once, at the entry point; from
   then on the type checker enforces the border.
3. `dir` of an object lists the public members.
4. An object of a user's own subclass of `X` is a `FullX` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

C = TypeVar("C")


def public_names(cls: type) -> frozenset[str]:
    """Return the names without an underscore that a class and its bases define or annotate."""
    annotated = (name for base in cls.__mro__ for name in vars(base).get("__annotations__", ()))
    return frozenset(name for name in (*dir(cls), *annotated) if name[0] != "_")


def _combined(cls: type[Any], full: type[Any]) -> type[Any]:
    """Return the class that combines a user's subclass and the full class; it is stored on the user's class."""
    # Read from the class's own dict: a subclass needs a combination of its own, not the inherited one.
    found: Any = vars(cls).get("_combined")
    if found is None:
        body = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        try:
            found = cast("Any", type(cls))(cls.__name__, (cls, full), body)
        except TypeError as error:  # raised by Python for conflicting layouts
            raise TypeError(
                f"{cls.__name__} cannot be created: subclasses of {full.__name__} must not define __slots__. Remove them."
            ) from error
        type.__setattr__(cls, "_combined", found)
    return found


def objects_of(
    public: type[Any], refuse: Callable[[Iterable[str], Sequence[str]], None] | None = None
) -> Callable[[type[C]], type[C]]:
    """Let a public class create instances of the decorated subclass, and give the subclass its name.

    Args:
        public: The class that users see.
        refuse: Called with the names of the passed and the known arguments; raises an error for an unknown one.

    Example:
        >>> class Session:
        ...     def close(self) -> None: ...
        >>> @objects_of(Session)
        ... class FullSession(Session):
        ...     def begin(self) -> None: ...
        >>> session = Session()
        >>> isinstance(session, FullSession), [name for name in dir(session) if name[0] != "_"]
        (True, ['close'])
    """

    known: tuple[str, ...] = ()
    if refuse is not None:
        code = cast("Any", public.__init__).__code__
        known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]  # without `self`

    def decorate(full: type[C]) -> type[C]:
        def new(cls: type[Any], *_args: object, **options: object) -> Any:
            if refuse is not None and cls.__init__ is public.__init__:  # a user's own `__init__` takes other arguments
                refuse(options, known)
            return object.__new__(full if cls is public else cls if issubclass(cls, full) else _combined(cls, full))

        def shown(self: object) -> list[str]:
            hidden = public_names(full) - public_names(public)
            return [name for name in object.__dir__(self) if name not in hidden]

        internal = cast("Any", full)
        internal.__name__, internal.__qualname__, internal.__doc__ = (
            public.__name__,
            public.__qualname__,
            public.__doc__,
        )
        internal.__dir__ = shown
        if "__init__" in vars(full):  # errors about arguments should name the public class
            internal.__init__.__qualname__ = f"{public.__qualname__}.__init__"
        vars(new)["__wrapped__"] = public.__init__  # for `inspect.signature`
        public.__new__ = new
        return full

    return decorate
