"""Find a dependency in the value of `deps=` by its type or the parameter's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from agentflow.errors import UsageError

T = TypeVar("T")


def find_dep(deps: object, kind: type[T], name: str = "") -> T:
    """Return the object of a type in `deps=`: the value, an item of a sequence, or a value of a mapping by type or name.

    Args:
        deps: The value of `deps=`.
        kind: The type.
        name: The name of the parameter; an entry of a mapping with this name is preferred.

    Raises:
        UsageError: There is no such object, or several and the name selects none of them.
    """
    found = dep_in(deps, kind, name)
    if found is not None:
        return found
    raise UsageError(
        f"A dependency of type {kind.__name__} is needed, but deps= contains {_types_in(deps)}. Pass it with the call, "
        f"agent.call(..., deps=my_{kind.__name__.lower()}), or with the turn, Turn(..., "
        f"deps=my_{kind.__name__.lower()}) "
        "(an object, a list of objects, or a mapping by type or by parameter name)."
    )


def dep_in(deps: object, kind: type[T], name: str) -> T | None:
    """Return the object that `find_dep` would return, or None if there is none."""
    if isinstance(deps, kind):
        return deps
    if isinstance(deps, Mapping):
        by_key = cast("Mapping[Any, Any]", deps)
        for key in (name, kind):  # the name first, as it is more specific
            if isinstance(found := by_key.get(key), kind):
                return found
        return _only(kind, name, {key: value for key, value in by_key.items() if isinstance(key, str)})
    if isinstance(deps, list | tuple):
        return _only(kind, name, dict(enumerate(cast("Sequence[object]", deps))))
    return None


def _types_in(deps: object) -> str:
    """Return the names of the types that `deps=` contains."""
    if isinstance(deps, Mapping):
        deps = list(cast("Mapping[Any, object]", deps).values())
    elif not isinstance(deps, list | tuple):
        deps = [] if deps is None else [deps]
    return ", ".join(dict.fromkeys(type(item).__name__ for item in cast("Sequence[object]", deps))) or "nothing"


def _only(kind: type[T], name: str, items: Mapping[str, object] | Mapping[int, object]) -> T | None:
    """Return the only object of a type; if there are several, the only one of exactly that type."""
    found = {key: item for key, item in items.items() if isinstance(item, kind)}
    if len(found) > 1:  # a subclass matches only if nothing else does
        found = {key: item for key, item in found.items() if type(item) is kind} or found
    if len(found) > 1:
        wanted = f"parameter {name!r}" if name else f"deps({kind.__name__})"
        names = ", ".join(repr(key) for key in found if isinstance(key, str))
        have = f" They are named {names}." if names else ""
        raise UsageError(
            f"deps= holds {len(found)} objects of type {kind.__name__}, and {wanted} asks for one of them. Pass them by "
            f"parameter name: deps={{{name or 'the_parameter'!r}: my_{kind.__name__.lower()}, ...}}.{have}"
        )
    return next(iter(found.values()), None)
