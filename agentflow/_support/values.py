"""Immutable values that cost no more to build than mutable ones.

`@frozen` makes a frozen, slotted dataclass. The decorator of the standard library costs one `object.__setattr__` call per
field to build a value (1.0 µs for a value of nine fields on CPython 3.12), and compiles eight methods for each
class (0.45 ms). Here a class has a *draft*, a subclass of the same layout with assignable attributes: building a value
fills a draft and switches its `__class__` to the real one (0.3 µs), and the methods are shared. `fields`, `replace`,
`match`, pydantic and type checkers treat the class as a dataclass.

`NamedTuple` replaces that of `typing`, which compiles and checks each annotation when the class is created. Here
annotations stay text, which `typing.get_type_hints` and pydantic can read, and `__new__` is compiled on first use (a class
costs a fifth as much). `TypedDict` is for keyword arguments in the same way; pydantic needs that of `typing_extensions`.

`fast_build` and `maker` compile functions that fill drafts directly, for the loop: one frame, and no call from C into
an `__init__` (0.1 µs up to CPython 3.12).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from types import MethodType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, dataclass_transform, overload

T = TypeVar("T")
P = ParamSpec("P")
_put = object.__setattr__
_drafts: dict[type[Any], type[Any]] = {}


# ---- the decorator


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, eq_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, kw_only: bool = False) -> type[T] | Callable[[type[T]], type[T]]:
    """Turn a class into a frozen, slotted dataclass.

    Example:
        >>> @frozen
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(1)
        Point(x=1, y=0)
        >>> Point(1).x = 2
        Traceback (most recent call last):
        dataclasses.FrozenInstanceError: Point.x is read-only; make a changed copy: replace(point, x=...)
    """
    return _frozen(cls, kw_only) if cls is not None else lambda cls: _frozen(cls, kw_only)


def _frozen(cls: type[T], kw_only: bool) -> type[T]:
    found = fields_of(cls, kw_only)
    compared = tuple(f.name for f in found.values() if f.compare)
    body: dict[str, object] = {
        "__dataclass_params__": _PARAMS,
        "_compared": attrgetter(*compared) if compared else _nothing,
        "__setattr__": _refuse_set,
        "__delattr__": _refuse_delete,
        "__getstate__": _get_state,
        "__setstate__": _set_state,
        "__init__": (later := _InitLater()),
    }
    if "__repr__" not in cls.__dict__:
        body["__repr__"] = _repr
    if "__eq__" not in cls.__dict__:
        # Both or none: a class with its own `__eq__` decides about its hash, as in Python.
        body["__eq__"], body["__hash__"] = _eq, _hash
    later.cls = full = slotted(cls, found, body)
    return full


def fields_of(cls: type[Any], kw_only: bool) -> dict[str, Field[Any]]:
    """Return the fields of a class by name, the inherited ones first, as `dataclass` would find them."""
    found: dict[str, Field[Any]] = {}
    for base in cls.__mro__[:0:-1]:  # from the most general base to the nearest
        if "__dataclass_fields__" in base.__dict__:
            found.update({f.name: f for f in fields(base)})
    own = cls.__dict__
    for name, hint in inspect.get_annotations(cls).items():
        if "ClassVar" in str(hint):  # annotations are text
            continue
        default = own.get(name, MISSING)
        new_field = cast("Any", default if isinstance(default, Field) else field(default=default))
        new_field.name, new_field.type, new_field._field_type = name, hint, _FIELD
        if new_field.kw_only is MISSING:
            new_field.kw_only = kw_only
        found[name] = new_field
    return found


def slotted(cls: type[T], found: Mapping[str, Field[Any]], body: Mapping[str, object]) -> type[T]:
    """Rebuild the class as a dataclass with slots and more attributes.

    `dataclass(slots=True)` takes three times as long: it sets attributes one by one, each of which updates the class.

    Args:
        cls: The class.
        found: Its fields.
        body: The additional attributes.
    """
    inherited = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    # The first two describe the layout of the old class. A field's default would conflict with its slot.
    left_out = {"__dict__", "__weakref__", *found}
    namespace = {
        **{name: value for name, value in cls.__dict__.items() if name not in left_out},
        "__slots__": tuple(name for name in found if name not in inherited),
        "__dataclass_fields__": found,
        "__match_args__": tuple(f.name for f in found.values() if not f.kw_only),
        **body,
    }
    rebuilt: Any = type(cls)(cls.__name__, cls.__bases__, namespace)
    rebuilt.__qualname__ = cls.__qualname__
    return cast("type[T]", rebuilt)


@dataclass(init=False, repr=False, eq=False)
class _Sample:
    """A sample of the attributes that `dataclass` sets on a class and on its fields."""

    field: None


_PARAMS: Any = cast("Any", _Sample).__dataclass_params__
# `dataclasses` reads it from base classes: a subclass of a frozen class must be frozen too.
_PARAMS.frozen = True
_FIELD: object = cast("Any", fields(_Sample)[0])._field_type


def _nothing(_instance: object) -> tuple[()]:
    return ()


def _refuse_set(self: Any, name: str, value: object) -> None:
    cls = type(self).__name__
    known = [f.name for f in fields(self)]
    if name not in known:
        problem = (
            f"{cls}.{name} is computed from its fields"
            if hasattr(cast("object", type(self)), name)
            else f"{cls} has no field {name!r}"
        )
        shown = "content" if "content" in known else known[0]  # computed, such as the text of a message or a result
        raise FrozenInstanceError(
            f"{problem} ({', '.join(known)}), and those are read-only; make a changed copy: replace({cls.lower()}, "
            f"{shown}=...)"
        )
    raise FrozenInstanceError(f"{cls}.{name} is read-only; make a changed copy: replace({cls.lower()}, {name}=...)")


def _refuse_delete(self: object, name: str) -> None:
    raise FrozenInstanceError(f"{type(self).__name__}.{name} is read-only and cannot be deleted")


def _get_state(self: Any) -> list[object]:
    return [getattr(self, f.name) for f in fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for f, content in zip(fields(self), state, strict=True):
        _put(self, f.name, content)


def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> bool:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


class _InitLater:
    """An `__init__` that is compiled and replaces itself on first use; most are never used."""

    __slots__ = ("cls",)
    cls: Any

    def __get__(self, instance: object, owner: type[Any]) -> Any:
        init = self.cls.__init__ = _compiled_init(self.cls)
        # The class has the compiled function now; this first call needs it bound once.
        return init if instance is None else MethodType(init, instance)


def _compiled_init(cls: Any) -> Callable[..., None]:
    # Defaults are passed as globals of the compiled function: their `repr` need not be code.
    names: dict[str, object] = {"_put": _put, "_draft": draft_class(cls), "_real": cls, "_fill": _fill}
    plain: list[str] = []
    by_name: list[str] = []
    lines: list[str] = []
    parameter_names: list[str] = []
    for f in fields(cls):
        if not f.init:
            raise TypeError(
                f"{cls.__name__}.{f.name}: fields with init=False are not supported in a frozen class; give it a default"
            )
        names[f"_default_{f.name}"] = _FactoryDefault if f.default_factory is not MISSING else f.default
        if f.default_factory is not MISSING:
            names[f"_factory_{f.name}"] = f.default_factory
            lines.append(f"if {f.name} is _default_{f.name}: {f.name} = _factory_{f.name}()")
        has_default = f.default is not MISSING or f.default_factory is not MISSING
        (by_name if f.kw_only else plain).append(f"{f.name}=_default_{f.name}" if has_default else f.name)
        parameter_names.append(f.name)
    parameters = ", ".join(["self", *plain, *(["*", *by_name] if by_name else [])])
    lines += [
        f"if self.__class__ is not _real: return _fill(self, ({''.join(name + ', ' for name in parameter_names)}))",
        "_put(self, '__class__', _draft)",
        *[f"self.{name} = {name}" for name in parameter_names],
        "self.__class__ = _real",
    ]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    init = cast("Any", _compiled("__init__", parameters, lines, names))
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {f.name: f.type for f in fields(cls)} | {"return": None}
    return init


class _FactoryDefault:
    """The default of parameters for fields with a default factory."""


def _fill(self: Any, contents: tuple[object, ...]) -> None:
    """Set the fields of an instance of a subclass, which has no draft because its layout differs."""
    for f, content in zip(_fields_of_frozen(cast("type[Any]", type(self))), contents, strict=True):
        _put(self, f.name, content)
    post_init = getattr(self, "__post_init__", None)
    if post_init is not None:
        post_init()


def _fields_of_frozen(cls: type[Any]) -> tuple[Field[Any], ...]:
    """Return the fields of the nearest frozen base class."""
    return next(fields(base) for base in cls.__mro__ if "_compared" in base.__dict__)


# ---- named tuples and typed dicts

if TYPE_CHECKING or sys.version_info >= (3, 14):  # annotations are not evaluated there
    from typing import NamedTuple as NamedTuple
    from typing import TypedDict as TypedDict
else:

    class _Named(type):
        def __new__(cls, name, _bases, body):
            hints = body.pop("__annotations__", {})
            defaults = {field: body.pop(field) for field in hints if field in body}
            named = type(
                name,
                (_Record,),
                {
                    **dict(zip(hints, _GETTERS[: len(hints)], strict=True)),
                    **body,
                    "__slots__": (),
                    "__annotations__": hints,
                    "__match_args__": tuple(hints),
                    "_fields": tuple(hints),
                    "_field_defaults": defaults,
                    "__new__": (later := _NewLater()),
                },
            )
            later.cls = named
            return named

    class _Record(tuple):
        """The methods of named tuples."""

        __slots__ = ()

        @classmethod
        def _make(cls, iterable):
            record = tuple.__new__(cls, iterable)
            if len(record) != len(cls._fields):
                raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(record)}")
            return record

        def _replace(self, /, **changes: object):
            record = self._make(map(changes.pop, self._fields, self))
            if changes:
                raise TypeError(f"Got unexpected field names: {list(changes)!r}")
            return record

        __replace__ = _replace

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            shown = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({shown})"

    class _NewLater:
        """A `__new__` that is compiled and replaces itself on first use, like `_InitLater`."""

        __slots__ = ("cls",)

        def __get__(self, instance, owner):
            names = self.cls._fields
            lines = [f"return _new(_cls, ({''.join(f'{name}, ' for name in names)}))"]
            new = _compiled("__new__", ", ".join(("_cls", *names)), lines, {"_new": tuple.__new__})
            new.__defaults__ = tuple(self.cls._field_defaults.values())
            new.__annotations__ = self.cls.__annotations__
            new.__qualname__ = f"{self.cls.__qualname__}.__new__"
            self.cls.__new__ = staticmethod(new)
            return new

    _GETTERS = [
        vars(example)[name]
        for example in [namedtuple("_Getters", "a b c d e f g h i j k l m n o p")]
        for name in example._fields
    ]
    """Attributes that return an element of a tuple, by its position."""
    # Made without `_Named.__new__`, which would make a tuple class of it.
    NamedTuple = type.__new__(_Named, "NamedTuple", (), {})

    # Only keyword arguments of functions use it, so an instance is a plain dict.
    class _Keys(type):
        def __new__(cls, name, bases, body, total=True):
            hints = {key: hint for base in bases for key, hint in base.__annotations__.items()}
            return super().__new__(
                cls, name, (dict,), {**body, "__annotations__": {**hints, **body["__annotations__"]}}
            )

        __call__ = dict

    TypedDict = type.__new__(_Keys, "TypedDict", (dict,), {"__annotations__": {}})


# ---- drafts


def draft_class(cls: type[T]) -> type[T]:
    """Return the draft of a slotted class: a class with the same layout and name, and writable attributes.

    `draft.__class__ = cls` turns its instance into one of the real class.
    """
    draft = _drafts.get(cls)
    if draft is None:
        body = {
            "__slots__": (),
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            # Both are C slots, so that the interpreter specialises assignments as for a plain class.
            "__setattr__": object.__setattr__,
            "__delattr__": object.__delattr__,
        }
        draft = _drafts[cls] = type(cls.__name__, (cls,), body)
    return cast("type[T]", draft)


def maker(
    cls: type[Any],
    positional: tuple[str, ...],
    form: type[Any] | None = None,
    computed: Mapping[str, str] | None = None,
) -> Callable[..., Any]:
    """Compile a function that builds an instance of a slotted dataclass; `__post_init__` is not called.

    Args:
        cls: The dataclass.
        positional: The fields that the function takes, by position; the others get their defaults.
        form: The final class of the instance, if it is not `cls` but a class with the same layout.
        computed: Expressions by field, which compute its value from `source`. If given, the function takes `source`, and
            the positional fields as one tuple (unpacking costs 0.1 µs less than `*`).
    """
    names: dict[str, object] = {"_new": object.__new__, "_draft": draft_class(cls), "_real": form or cls}
    lines = ["self = _new(_draft)"]
    parameters, unpacked = positional, ()
    if computed is not None:
        parameters, unpacked = ("source", "values"), positional
        lines.append(f"({''.join(f'self.{name}, ' for name in unpacked)}) = values")
    for f in fields(cls):
        source = f.name
        if f.name in unpacked:
            continue
        if computed is not None and f.name in computed:
            source = computed[f.name]
        elif f.name not in positional:
            if f.default is MISSING:
                raise TypeError(f"{cls.__name__}.{f.name} has no default, so it must be among the positional fields")
            source = f"_default_{f.name}"
            names[source] = f.default
        lines.append(f"self.{f.name} = {source}")
    lines += ["self.__class__ = _real", "return self"]
    build = _compiled(f"make_{cls.__name__}", ", ".join(parameters), lines, names)
    build.__doc__ = f"Build a `{cls.__name__}` from {', '.join(positional)}, by position."
    return build


def fast_build(cls: type[Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Replace a function that builds a slotted dataclass with a compiled one that fills a draft.

    The function's body only documents the result; the function is available as `__wrapped__`.

    Example:
        >>> @frozen
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> @fast_build(Point)
        ... def point(x, y=0):
        ...     return Point(x, y)
        >>> point(1)
        Point(x=1, y=0)
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        plain = cast("Any", function)
        positional = plain.__code__.co_varnames[: plain.__code__.co_argcount]
        build = cast("Any", maker(cls, positional))
        build.__defaults__ = plain.__defaults__
        return functools.update_wrapper(build, function)

    return decorate


def _compiled(name: str, parameters: str, lines: list[str], names: dict[str, object]) -> Callable[..., Any]:
    source = f"def {name}({parameters}):\n" + "".join(f"    {line}\n" for line in lines)
    exec(source, names)  # only field names of our own dataclasses, like the dataclasses module
    return cast("Callable[..., Any]", names[name])
