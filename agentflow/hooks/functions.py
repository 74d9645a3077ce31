"""`@on(...)`: a plain function of one event as a hook.

Rules:

1. What cannot work is refused when it is registered, with the fix in the message: a function that does not take exactly
   the event, one that would never run (a coroutine object, a generator), an argument annotated for other events, an
   unknown name, a filter by tools where there is no tool.
2. A function carries no marks: each decorator makes a hook of its own, so one function may be several hooks.
3. A decorator over a hook made by another one keeps that hook: what is registered then are both (`FunctionHook.also`).
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace, UnionType
from typing import Any, Generic, Literal, TypedDict, TypeVar, Union, Unpack, cast, get_args, get_origin, overload

from reactivex import Observable

from agentflow.errors import UsageError, close_to
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
from agentflow.hooks.hook_checks import check, takes
from agentflow.hooks.options import about_a_tool
from agentflow.specs import ToolSpec

__all__ = ["EVENT_NAMES", "EventName", "FunctionHook", "HookOptions", "event_named", "kinds_of", "named_hook", "on"]

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


class HookOptions(TypedDict, total=False):
    """The options of a function hook: the attributes of `Hook`, and `tools`.

    Attributes:
        tools: Patterns such as `"delete_*"`; events about other tools pass by. The rest is described at `Hook`.
    """

    priority: int
    timeout: float | None
    on_failure: FailurePolicy | None
    guard: bool
    observer: bool
    scope: Literal["own", "tree"]
    serial: bool
    shadow: bool
    in_thread: bool
    tags: Iterable[str]
    tools: Iterable[str]


F = TypeVar("F", bound="Callable[..., Any]")


class FunctionHook(Hook, Generic[F]):
    """A function as a hook; it can still be called as a function.

    Args:
        function: Takes one argument, the event.
        events: The classes it listens to.
        options: `Hook` attributes.

    Attributes:
        handler: The function.
        also: The hooks that other decorators had made of the function below this one; they are registered with it.

    Raises:
        UsageError: The function or an option cannot be used; the text says why and what to write instead.
    """

    def __init__(self, function: F, events: tuple[type[Event], ...], **options: Any) -> None:
        _check_handler(function)
        _check_annotation(function, events)
        self.handler = function
        self.__dict__["on_event"] = function  # a chain calls the function itself
        self.also: tuple[FunctionHook[Any], ...] = ()
        self.events = events  # pyright: ignore[reportAttributeAccessIssue] - per function here, per class in Hook
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        for option, value in options.items():
            if value is not None:
                setattr(self, option, value)
        self._check_options()

    def _check_options(self) -> None:
        kinds = cast("tuple[type[Event], ...]", self.events)
        if self.only_tools and not any(about_a_tool(kind) for kind in kinds):
            raise UsageError(
                f"Hook function {self.name!r}: tools={list(self.only_tools)} chooses among events about one tool, and "
                f"{' and '.join(kind.__name__ for kind in kinds)} is none. Events with a tool: before_each_tool, "
                "after_each_tool, on_error, ActingChunk, and those with a turn, such as PreTurn. On a round, look at "
                "event.tool_uses."
            )
        if self.in_thread and inspect.iscoroutinefunction(_plain(self.handler)):
            raise UsageError(
                f"Hook function {self.name!r} is `async def` and in_thread=True: a thread runs a plain `def`. Leave out "
                "in_thread, or `async`."
            )
        check(self)

    @property
    def name(self) -> str:
        """The function's name."""
        return _name_of(self.handler)

    def on_event(self, event: Any) -> Any:
        """Call the function."""
        return self.handler(event)

    def __call__(self, event: Any) -> Any:
        return self.handler(event)


@overload
def on(target: Callable[..., Any], /) -> FunctionHook[Any]: ...
@overload
def on(*targets: type[Event] | EventName, **options: Unpack[HookOptions]) -> Callable[[F], FunctionHook[F]]: ...
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
    attributes = _attributes(options)
    if len(targets) == 1 and not options and not isinstance(targets[0], type | str) and callable(targets[0]):
        _check_handler(targets[0])
        return FunctionHook(targets[0], _annotated(targets[0]))
    events = tuple(kind for target in targets for kind in kinds_of(target))

    def decorate(function: Any) -> FunctionHook[Any]:
        if isinstance(function, FunctionHook):
            return _another(cast("FunctionHook[Any]", function), events, attributes)
        _check_handler(function)
        return FunctionHook(function, events or _annotated(function), **attributes)

    return decorate


def named_hook(
    event: str | type[Event], function: Callable[[Any], Any], **options: Unpack[HookOptions]
) -> FunctionHook[Any]:
    """A hook of a plain function for an event, by its name or class; a function that is a hook already is refused.

    Raises:
        UsageError: The name, the function or an option cannot be used.

    Example:
        >>> named_hook("before_each_tool", print, tools=["delete_*"]).only_tools
        ('delete_*',)
    """
    return FunctionHook(function, kinds_of(event), **_attributes(dict(options)))


def _attributes(options: dict[str, Any]) -> dict[str, Any]:
    """The attributes of `Hook` that options stand for."""
    known = HookOptions.__annotations__
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        close = close_to(unknown[0], known, 1)
        did_you = f" Did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"A hook has no option {unknown[0]!r}.{did_you} Options: {', '.join(sorted(known))}.")
    attributes = dict(options)
    for given, attribute, kind in (("tags", "tags", frozenset), ("tools", "only_tools", tuple)):
        if given in attributes:
            value = attributes.pop(given)
            values = (value,) if isinstance(value, str) else value
            attributes[attribute] = kind(cast("Iterable[Any]", values)) if isinstance(values, Iterable) else value
    return attributes


def _another(hook: FunctionHook[Any], events: tuple[type[Event], ...], attributes: dict[str, Any]) -> FunctionHook[Any]:
    """A second hook of the function of a first one, which it brings with it."""
    known = (*hook.also, hook)
    twice = [kind.__name__ for kind in events for one in known if one.events is not None and kind in one.events]
    if twice or not events:
        why = f"listens to {twice[0]} already" if twice else "is a hook already"
        raise UsageError(
            f"Hook function {hook.name!r} {why}; a decorator above another one adds other events: @before_llm above "
            "@after_llm, or all in one, @on(PreReasoning, PostReasoning)."
        )
    made: FunctionHook[Any] = FunctionHook(hook.handler, events, **attributes)
    made.also = known
    return made


def kinds_of(target: Any) -> tuple[type[Event], ...]:
    """The event classes that a class, a base class or a name stands for.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(target, str):
        return (event_named(target),)
    if isinstance(target, type) and issubclass(target, Event):
        return tuple(kind for kind in EVENT_TYPES if issubclass(kind, target))
    raise UsageError(f"@on takes event classes and names, not {target!r}. Names: {', '.join(EVENT_NAMES)}.")


def event_named(name: str) -> type[Event]:
    """The event that a function hook's name stands for.

    Raises:
        UsageError: There is no such name; the text lists those it could mean.

    Example:
        >>> event_named("after_llm").__name__
        'PostReasoning'
    """
    kind = EVENT_NAMES.get(name) if isinstance(name, str) else None  # pyright: ignore[reportUnnecessaryIsInstance] - from outside
    if kind is not None:
        return kind
    close = _meant(str(name))
    could = f"it could mean {' or '.join(repr(c) for c in close)}" if close else f"names are {', '.join(EVENT_NAMES)}"
    raise UsageError(f"There is no event named {name!r}; {could}.")


def _meant(name: str) -> list[str]:
    """The names that somebody may have meant, the best first."""
    by_class = [known for known, kind in EVENT_NAMES.items() if name.removesuffix("Event") == kind.__name__]
    if by_class:
        return by_class
    typed = name.strip().lower().replace("-", "_").replace(" ", "_")
    typo = close_to(typed, EVENT_NAMES, 1, 0.85)
    if typo:
        return list(typo)
    words = set(typed.replace("tools", "tool").split("_"))
    shared = {known: len(words & set(known.split("_"))) for known in EVENT_NAMES}
    most = max(shared.values())
    if most > 1:
        return [known for known, count in shared.items() if count == most]
    return list(close_to(typed, EVENT_NAMES, 2, 0.7))


# ---- what a handler must be


def _plain(function: Any) -> Any:
    """The function behind partials and objects with `__call__`."""
    while isinstance(function, functools.partial):
        function = cast("Any", function).func
    if inspect.isroutine(function) or not hasattr(function, "__call__"):  # noqa: B004 - the method itself is wanted
        return function
    return function.__call__


def _name_of(function: Any) -> str:
    plain = function
    while isinstance(plain, functools.partial):
        plain = cast("Any", plain).func
    return getattr(plain, "__name__", type(plain).__name__)


def _check_handler(function: object) -> None:
    """Refuse what is no function of one event.

    Raises:
        UsageError: The text says what came, and what to pass instead.
    """
    if inspect.iscoroutine(function):
        name = function.__name__
        function.close()
        raise UsageError(
            f"{name}(...) was called, and its coroutine object passed: it would run at most once, not at each event. Pass "
            f"the function itself: {name}, without the parentheses."
        )
    if isinstance(function, type):
        fix = f"an instance is registered as it is: hooks=[{function.__name__}()]"
        fix = fix if issubclass(function, Hook) else "pass a function of one event"
        raise UsageError(f"{function.__name__} is a class, not a function; {fix}.")
    if isinstance(function, Hook):
        raise UsageError(
            f"{function.name!r} is a hook already, and says itself which events it is for; register it as it is: "
            "hooks=[...]."
        )
    if isinstance(getattr(function, "spec", None), ToolSpec):
        name = getattr(function, "name", "it")
        raise UsageError(f"{name!r} is a tool, not a function of an event; tools are passed as tools=[{name}].")
    if not callable(function) or isinstance(function, Observable | Awaitable):
        raise UsageError(
            f"{function!r:.80} is no function (it is a {type(function).__name__}); pass a function of one event. Several "  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            "are passed one by one: after_llm(f, g)."
        )
    plain = _plain(function)
    if inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain):
        raise UsageError(
            f"Hook function {_name_of(function)} has a `yield`, so calling it would run none of it. Return the event or a "
            "verdict; what wraps a stream is a Hook's `around`."
        )
    _one_argument(function)


def _one_argument(function: Callable[..., Any]) -> None:
    if takes(function, 1):
        return
    signature = inspect.signature(function)
    needed = [
        p
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    name = _name_of(function)
    if needed and needed[0].name == "self":
        fix = f"it is a method: pass it bound, as instance.{name}"
    elif len(needed) == 2:
        fix = f"def {name}(event). What else it may need is on the event: event.agent, event.context"
    else:
        fix = f"def {name}(event)"
    raise UsageError(f"Hook function {name}{signature} must take one argument, the event: {fix}.")


def _hint(function: Callable[..., Any]) -> Any:
    """The annotation of the first parameter, names resolved; None where there is none.

    Raises:
        NameError: It names something that cannot be found.
    """
    try:
        parameter = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return None
    if parameter is None or parameter.annotation is parameter.empty:
        return None
    plain = _plain(function)
    scope = getattr(getattr(plain, "__func__", plain), "__globals__", {})
    holder = SimpleNamespace(__annotations__={"event": parameter.annotation})  # only this one: others may not resolve
    return typing.get_type_hints(holder, scope)["event"]


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _check_annotation(function: Callable[..., Any], events: tuple[type[Event], ...]) -> None:
    """Refuse a function whose argument is annotated for other events than it would get."""
    try:
        members = _members(_hint(function))
    except NameError:
        return
    if not all(isinstance(member, type) and issubclass(member, Event) for member in members):
        return
    for kind in events:
        if not issubclass(kind, members):
            name = _name_of(function)
            raise UsageError(
                f"Hook function {name} takes {' | '.join(member.__name__ for member in members)}, and would be given "
                f"{kind.__name__}: {_registered_as(kind)}. Register it for what it takes, or write {name}(event: "
                f"{kind.__name__})."
            )


def _registered_as(kind: type[Event]) -> str:
    named = next((name for name, event in EVENT_NAMES.items() if event is kind), None)
    return f"that is what {named!r} stands for" if named else "that is what it is registered for"


def _annotated(function: Callable[..., Any]) -> tuple[type[Event], ...]:
    name = _name_of(function)
    try:
        annotation = _hint(function)
    except NameError as error:
        raise UsageError(
            f"The annotation of {name}'s argument cannot be read ({error}); name the events: @on(PreActing)."
        ) from error
    if annotation is None:
        raise UsageError(
            f"@on alone reads the annotation of {name}'s argument, and there is none; write @on(PreActing), or "
            f"def {name}(event: PreActing)."
        )
    kinds: list[type[Event]] = []
    for member in _members(annotation):
        if not (isinstance(member, type) and issubclass(member, Event)):
            raise UsageError(f"{name}'s argument is annotated {member!r}, which is no event class.")
        kinds.extend(kinds_of(cast("Any", member)))
    return tuple(dict.fromkeys(kinds))
