"""`Toolset`: the annotated public methods of an object, as tools."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from types import FunctionType
from typing import Any, Final, TypeAlias, cast

from agentflow.errors import NotRegisteredError, UsageError
from agentflow.tools.contracts import MISSING, return_annotation
from agentflow.tools.tool import DEFAULT_TIMEOUT, Tool
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.specs import ToolType

SomeTool: TypeAlias = Tool[..., Any]

_OF_ONE: Final = ("name", "description")
"""Options that apply to one tool only."""

_WILD: Final = frozenset("*?[")


type_ = type  # `Toolset` has an argument of that name


class Toolset(Iterable[SomeTool]):
    """The annotated public methods of an object, as tools that share its state.

    Tools are made from methods with a return annotation and without a leading underscore, including inherited, static
    and class methods, but not from properties and other attributes. A method with `@tool` keeps its own options.

    Args:
        obj: The object.
        prefix: Put before each name, so that one agent can have the tools of two objects of a class.
        include: Names of the methods to include; `*` and `?` are wildcards.
        exclude: Names of methods to exclude.
        in_thread: Whether to run plain methods in threads; async ones run in the event loop.
        type: As in `@tool`; like the options below, for methods without `@tool`.
        timeout: As in `@tool`.
        lock: As in `@tool`; each tool has a separate lock.
        retries: As in `@tool`.
        tags: As in `@tool`.
        idempotent: As in `@tool`.
        requires_approval: As in `@tool`.
        external: As in `@tool`.
        fixed: Fixed arguments for parameters that have the name of an option.
        validation_context: As in `@tool`.
        **fixed_arguments: Every other keyword fixes the parameter of that name, in the methods that have it.

    Raises:
        UsageError: There is no method to include, a method is a plain def, or an option is not legal.

    Example:
        >>> class Notes:
        ...     def __init__(self) -> None:
        ...         self.all: list[str] = []
        ...     async def add(self, text: str) -> str:
        ...         self.all.append(text)
        ...         return f"{len(self.all)} notes"
        ...     @tool(type="read")
        ...     async def list_notes(self) -> list[str]:
        ...         return self.all
        >>> toolset = Toolset(Notes(), prefix="my_")
        >>> toolset.names, toolset["my_list_notes"].type
        (('my_add', 'my_list_notes'), 'read')
    """

    def __init__(
        self,
        obj: object,
        *,
        prefix: str = "",
        include: str | Iterable[str] = ("*",),
        exclude: str | Iterable[str] = (),
        in_thread: bool = False,
        type: ToolType = "action",  # noqa: A002 - the option's name in `@tool`
        timeout: float | None = DEFAULT_TIMEOUT,
        lock: bool = False,
        retries: int = 0,
        tags: Iterable[str] = (),
        idempotent: bool = False,
        requires_approval: bool = False,
        external: bool = False,
        fixed: Mapping[str, object] | None = None,
        validation_context: Callable[[RunContext], Any] | object = None,
        **fixed_arguments: object,
    ) -> None:
        if isinstance(obj, type_):
            raise UsageError(f"Toolset got the class {obj.__name__}; its methods need an object: {obj.__name__}(...).")
        self._of = type_(obj).__name__
        found = _methods(type_(obj))
        chosen = self._choose(found, _patterns(include), _patterns(exclude))
        labels = (tags,) if isinstance(tags, str) else tuple(tags)
        options: dict[str, Any] = {"type": type, "timeout": timeout, "lock": lock, "retries": retries, "tags": labels}
        options.update(idempotent=idempotent, requires_approval=requires_approval, external=external)
        options.update(validation_context=validation_context)
        fixed = self._check_fixed({**(fixed or {}), **fixed_arguments})
        self._tools: dict[str, SomeTool] = {}
        used: set[str] = set()
        for name in chosen:
            bound: object = getattr(obj, name)
            if isinstance(bound, Tool):
                own = cast("SomeTool", bound)
                tool = own.renamed(prefix + own.name) if prefix else own  # shares the method's lock and hooks
            else:
                method = cast("Callable[..., Any]", bound)
                plain = cast("FunctionType", found[name])
                is_async = inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain)
                if not is_async and not in_thread:
                    raise UsageError(
                        f"Toolset of {self._of}: {plain.__name__} is a plain def, which would block the event loop. Make it "
                        "an async def, run plain methods in threads (in_thread=True), or leave it out "
                        f"(exclude={plain.__name__!r})."
                    )
                bound_values = {key: value for key, value in fixed.items() if key in _parameters(plain)}
                used.update(bound_values)
                tool = Tool(method, name=prefix + name, in_thread=not is_async, fixed=bound_values, **options)
            if tool.name in self._tools:
                raise UsageError(
                    f"Toolset of {self._of}: two of its methods become a tool named {tool.name!r}. Rename one with "
                    "@tool(name=...), or exclude it."
                )
            self._tools[tool.name] = tool
        unused = [key for key in fixed if key not in used]
        if unused:
            raise UsageError(
                f"Toolset of {self._of} got {', '.join(unused)}, which is neither an option of @tool nor a parameter "
                "of a method that becomes a tool."
            )

    def _choose(self, found: Mapping[str, object], include: tuple[str, ...], exclude: tuple[str, ...]) -> list[str]:
        for pattern in (*include, *exclude):
            # A misspelt name in `exclude` would expose a method that the model should not be able to call.
            if not _WILD.intersection(pattern) and pattern not in found:
                raise UsageError(
                    f"Toolset of {self._of}: {pattern!r} in include= or exclude= is none of its annotated public methods "
                    f"({', '.join(found) or 'there are none'})."
                )
        chosen = [name for name in found if _matches(name, include) and not _matches(name, exclude)]
        if not chosen:
            reason = f"include and exclude leave none of {', '.join(found)}" if found else "it has none"
            raise UsageError(
                f"Toolset takes the annotated public methods of an object, but {self._of} has no such methods: {reason}. A "
                "method counts if it has a return annotation: async def read(self, name: str) -> str."
            )
        return chosen

    def _check_fixed(self, fixed: dict[str, object]) -> dict[str, object]:
        for name in _OF_ONE:
            if name in fixed:
                raise UsageError(
                    f"Toolset of {self._of} got {name}=, which is for one tool. Put @tool({name}=...) on the method."
                )
        return fixed

    @property
    def names(self) -> tuple[str, ...]:
        """The tools' names, in the order of the methods."""
        return tuple(self._tools)

    def __iter__(self) -> Iterator[SomeTool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __getitem__(self, name: str) -> SomeTool:
        found = self._tools.get(name)
        if found is None:
            raise NotRegisteredError("tool", name, self.names)
        return found

    def __repr__(self) -> str:
        return f"Toolset({self._of}: {', '.join(self._tools)})"


def _methods(kind: type) -> dict[str, FunctionType | SomeTool]:
    """Return the annotated public methods of a class and its bases, in the order of their first definition."""
    found: dict[str, object] = {}
    # Bases first, so that an overriding method keeps the place of the first definition.
    for owner in reversed(kind.__mro__[:-1]):
        found.update({name: value for name, value in vars(owner).items() if not name.startswith("_")})
    methods: dict[str, FunctionType | SomeTool] = {}
    for name, value in found.items():
        inner: object = cast("Any", value).__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(inner, Tool):
            methods[name] = cast("SomeTool", inner)
        elif isinstance(inner, FunctionType) and return_annotation(inner) is not MISSING:
            methods[name] = inner
    return methods


def _parameters(function: FunctionType) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _patterns(patterns: str | Iterable[str]) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
