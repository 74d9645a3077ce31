"""Values that cannot be changed, built at the price of values that can.

A frozen dataclass pays one `object.__setattr__` call per field (about 0.5 µs for five fields on CPython 3.11); a plain
slotted one pays a third of that. So each value class has a *draft*: a subclass of the same layout whose attributes may
be assigned. Building fills a draft and then switches its `__class__` to the real one, which costs 0.03 µs. Events use a
third layout twin, the *open* form, for the time in which hooks may write to them.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

T = TypeVar("T")


def draft_class(cls: type[T], init: str = "") -> type[T]:
    """Make the draft of a slotted dataclass: same layout, same name, plain attribute writes, positional `__init__`.

    Args:
        cls: A dataclass with `slots=True`.
        init: Names of the fields that the draft's `__init__` takes by position, separated by spaces; the others are set
            to their defaults. Empty: all of them, in order.

    Returns:
        The draft class; `instance.__class__ = cls` turns an instance into the real thing.
    """
    all_fields = fields(cast("Any", cls))
    names = init.split() or [f.name for f in all_fields]
    constants: dict[str, object] = {}
    lines: list[str] = []
    for f in all_fields:
        if f.name in names:
            lines.append(f"    self.{f.name} = {f.name}")
        elif f.default is not MISSING:
            constants[f"_d_{f.name}"] = f.default
            lines.append(f"    self.{f.name} = _d_{f.name}")
        else:
            raise TypeError(f"{cls.__name__}.{f.name} has no default, so its draft must take it")
    source = f"def __init__(self, {', '.join(names)}):\n" + "\n".join(lines) + "\n"
    namespace: dict[str, Any] = {}
    exec(source, constants, namespace)  # field names of our own dataclasses, as dataclasses itself does
    body = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        # The C slots themselves, both: the interpreter then specialises the stores as for a plain class.
        "__setattr__": object.__setattr__,
        "__delattr__": object.__delattr__,
        "__init__": namespace["__init__"],
    }
    return cast("type[T]", type(cls.__name__, (cls,), body))
