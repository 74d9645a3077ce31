"""`@on(...)`: a plain function of one event as a hook."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin, overload

from agentflow.errors import UsageError
from agentflow.events import (
    EVENT_TYPES,
    Error,
    Event,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
)
from agentflow.hooks.hook import FailurePolicy, Hook
from agentflow.hooks.options import check_options

__all__ = ["EVENT_NAMES", "EventName", "FunctionHook", "on"]

EventName = Literal[
    "after_user_input",
    "before_llm",
    "after_llm",
    "before_tool_round",
    "before_each_tool",
    "after_each_tool",
    "after_tool_round",
    "on_complete",
    "on_error",
]

EVENT_NAMES: dict[str, type[Event]] = {
    "after_user_input": PreCall,
    "before_llm": PreReasoning,
    "after_llm": PostReasoning,
    "before_tool_round": PreToolRound,
    "before_each_tool": PreActing,
    "after_each_tool": PostActing,
    "after_tool_round": PostToolRound,
    "on_complete": PostCall,
    "on_error": Error,
}
"""The names of function hooks and the events they stand for; there are no others and no aliases."""

_OPTIONS = frozenset(
    [
        "priority",
        "timeout",
        "on_failure",
        "guard",
        "observer",
        "scope",
        "serial",
        "shadow",
        "in_thread",
        "tags",
        "tools",
    ]
)

F = TypeVar("F", bound="Callable[..., Any]")


class FunctionHook(Hook, Generic[F]):
    """A function as a hook; it can still be called as a function.

    Args:
        function: Takes one argument, the event.
        events: The classes it listens to.
        options: `Hook` attributes.
    """

    def __init__(self, function: F, events: tuple[type[Event], ...], **options: Any) -> None:
        _one_argument(function)
        self.handler = function
        self.events = events  # pyright: ignore[reportAttributeAccessIssue] - per function here, per class in Hook
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        for option, value in options.items():
            if value is not None:
                setattr(self, option, value)
        check_options(self)

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.handler, "__name__", type(self.handler).__name__)

    def on_event(self, event: Any) -> Any:
        """Call the function."""
        return self.handler(event)

    def __call__(self, event: Any) -> Any:
        return self.handler(event)


@overload
def on(target: Callable[..., Any], /) -> FunctionHook[Any]: ...
@overload
def on(
    *targets: type[Event] | EventName,
    priority: int = 100,
    timeout: float | None = None,
    on_failure: FailurePolicy | None = None,
    guard: bool = False,
    observer: bool = False,
    scope: Literal["own", "tree"] = "own",
    serial: bool = False,
    shadow: bool = False,
    in_thread: bool = False,
    tags: Iterable[str] = (),
    tools: Iterable[str] = (),
) -> Callable[[F], FunctionHook[F]]: ...
def on(*targets: Any, **options: Any) -> Any:
    """Make a hook of a function of one event.

    Args:
        targets: Event classes (or base classes, such as `ActingEvent`), or names such as `"before_llm"`. None at all:
            the annotation of the function's argument says it, unions too.
        options: `priority`, `timeout`, `on_failure`, `guard`, `observer`, `scope`, `serial`, `shadow`, `in_thread`,
            `tags`, as in `Hook`, and `tools`: patterns such as `"delete_*"`; events about other tools pass by.

    Raises:
        UsageError: An unknown name, a missing annotation, a function that does not take exactly one argument.

    Example:
        >>> @on(PreActing, priority=10)
        ... def no_deletes(event: PreActing):
        ...     if event.tool_use.name == "delete_file":
        ...         return Deny("not allowed")
        >>> @on
        ... async def log(event: PostReasoning | PostActing) -> None:
        ...     print(event)
    """
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise UsageError(f"@on has no option {sorted(unknown)}; options: {', '.join(sorted(_OPTIONS))}.")
    if "tags" in options:
        options["tags"] = frozenset(options["tags"])
    if "tools" in options:
        patterns = options.pop("tools")
        options["only_tools"] = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    if len(targets) == 1 and not options and callable(targets[0]) and not isinstance(targets[0], type):
        return FunctionHook(targets[0], _annotated(targets[0]))
    events = tuple(kind for target in targets for kind in _kinds(target))

    def decorate(function: F) -> FunctionHook[F]:
        if isinstance(function, FunctionHook):
            raise UsageError(f"{function.name!r} is a hook already; name all events in one @on(...).")
        _one_argument(function)
        return FunctionHook(function, events or _annotated(function), **options)

    return decorate


def _kinds(target: Any) -> tuple[type[Event], ...]:
    if isinstance(target, str):
        return (event_named(target),)
    if isinstance(target, type) and issubclass(target, Event):
        return tuple(kind for kind in EVENT_TYPES if issubclass(kind, target))
    raise UsageError(f"@on takes event classes and names, not {target!r}. Names: {', '.join(EVENT_NAMES)}.")


def event_named(name: str) -> type[Event]:
    """The event that a function hook's name stands for.

    Raises:
        UsageError: There is no such name; the text lists those it could mean.
    """
    kind = EVENT_NAMES.get(name)
    if kind is not None:
        return kind
    words = set(name.split("_"))
    close = [known for known in EVENT_NAMES if len(words & set(known.replace("tools", "tool").split("_"))) > 1]
    could = f"it could mean {' or '.join(repr(c) for c in close)}" if close else f"names are {', '.join(EVENT_NAMES)}"
    raise UsageError(f"There is no event named {name!r}; {could}.")


def _one_argument(function: Callable[..., Any]) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keyword_only = [p for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) > 1 or keyword_only or not (positional or takes_any):
        name = getattr(function, "__name__", repr(function))
        raise UsageError(
            f"Hook function {name}{inspect.signature(function)} must take one argument, the event: def {name}(event)."
        )


def _annotated(function: Callable[..., Any]) -> tuple[type[Event], ...]:
    _one_argument(function)
    name = getattr(function, "__name__", repr(function))
    parameter = next(iter(inspect.signature(function).parameters.values()))
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise UsageError(
            f"The annotation of {name}'s argument cannot be read ({error}); name the events: @on(PreActing)."
        ) from error
    annotation = hints.get(parameter.name)
    if annotation is None:
        raise UsageError(
            f"@on alone reads the annotation of {name}'s argument, and there is none; write @on(PreActing), or "
            f"def {name}(event: PreActing)."
        )
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds: list[type[Event]] = []
    for member in members:
        if not (isinstance(member, type) and issubclass(member, Event)):
            raise UsageError(f"{name}'s argument is annotated {member!r}, which is no event class.")
        kinds.extend(_kinds(cast("Any", member)))
    return tuple(kinds)
