"""`@on(...)`: a plain function that handles one event, as a hook.

Rules:

1. Registration refuses a function that would not work as a hook, with a message that says how to fix it. Reasons: the
   function does not take exactly one argument or would never run (a coroutine object, a generator), its argument is
   annotated for other events, the event's name is unknown, or `tools` is set for events that have no tool.
2. A decorator does not change the function: it creates a separate hook, so one function may be several hooks.
3. If decorators are stacked, the upper one keeps the hook of the lower one: both are registered (`FunctionHook.also`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, TypeVar, Unpack, cast, overload

from agentflow._support.values import TypedDict
from agentflow.errors import UsageError, close_to
from agentflow.hooks.event_names import EventName, kinds_of
from agentflow.hooks.handlers import annotated, check_annotation, check_handler, name_of, plain
from agentflow.hooks.hook import FailurePolicy, Hook
from agentflow.hooks.hook_checks import check
from agentflow.hooks.options import about_a_tool
from agentflow.vocabulary.events import Event


class _Attributes(TypedDict, total=False):
    priority: int
    timeout: float | None
    on_failure: FailurePolicy | None
    guard: bool
    observer: bool
    scope: Literal["own", "tree"]
    serial: bool
    shadow: bool
    in_thread: bool


class HookAttributes(_Attributes, total=False):
    """The attributes of a `Hook`, as `FunctionHook` takes them."""

    tags: frozenset[str]
    only_tools: tuple[str, ...]


class HookOptions(_Attributes, total=False):
    """The options of a function hook: the attributes of `Hook`, and `tools`.

    Attributes:
        tools: Patterns such as `"delete_*"`; events of other tools are skipped. See `Hook` for the other options.
    """

    tags: Iterable[str]
    tools: Iterable[str]


F = TypeVar("F", bound="Callable[..., Any]")


class FunctionHook(Hook, Generic[F]):
    """A function as a hook; it can still be called as a function.

    Args:
        function: Takes one argument, the event.
        events: The event classes that the hook handles.
        attributes: The attributes of `Hook`; None means the default.

    Attributes:
        handler: The function.
        also: The hooks that decorators below this one created from the same function. All are registered together.

    Raises:
        UsageError: The function or an option cannot be used; the message says how to fix it.
    """

    def __init__(self, function: F, events: tuple[type[Event], ...], **attributes: Unpack[HookAttributes]) -> None:
        check_handler(function)
        check_annotation(function, events)
        self.handler = function
        self.__dict__["on_event"] = function  # so that a chain calls the function directly
        self.also: tuple[FunctionHook[Any], ...] = ()
        self.events = events
        self.__doc__ = function.__doc__
        self.__wrapped__ = function  # for `inspect.signature`
        for option, value in attributes.items():
            if value is not None:
                setattr(self, option, value)
        self._check_options()

    def _check_options(self) -> None:
        kinds = cast("tuple[type[Event], ...]", self.events)
        if self.only_tools and not any(about_a_tool(kind) for kind in kinds):
            raise UsageError(
                f"Hook function {self.name!r}: tools={list(self.only_tools)} selects events by their tool, but "
                f"{' and '.join(kind.__name__ for kind in kinds)} has no tool. Events with a tool: before_each_tool, "
                "after_each_tool, on_error, ActingChunk, and events of turns such as PreTurn. For a round, check "
                "event.tool_uses in the function."
            )
        if self.in_thread and inspect.iscoroutinefunction(plain(self.handler)):
            raise UsageError(
                f"Hook function {self.name!r} is `async def` with in_thread=True, but a thread runs a plain `def`. Remove "
                "in_thread=True or `async`."
            )
        check(self)

    @property
    def name(self) -> str:
        """The function's name."""
        return name_of(self.handler)

    def on_event(self, event: Any) -> Any:
        """Call the function."""
        return self.handler(event)

    def __call__(self, event: Any) -> Any:
        return self.handler(event)


@overload
def on(target: Callable[..., Any], /) -> FunctionHook[Any]: ...
@overload
def on(*targets: type[Event] | EventName, **options: Unpack[HookOptions]) -> Callable[[F], FunctionHook[F]]: ...
def on(*targets: Any, **options: Unpack[HookOptions]) -> Any:
    """Make a hook from a function that takes one event.

    Args:
        targets: Event classes (or base classes such as `ActingEvent`), or names such as `"before_llm"`. Without them, the
            annotation of the function's argument is used, which may be a union.
        options: `priority`, `timeout`, `on_failure`, `guard`, `observer`, `scope`, `serial`, `shadow`, `in_thread` and
            `tags` as in `Hook`, and `tools`: patterns such as `"delete_*"`; events of other tools are skipped.

    Raises:
        UsageError: A name is unknown, an annotation is missing, or the function does not take exactly one argument.

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
    # `@on` without parentheses.
    if len(targets) == 1 and not options and not isinstance(targets[0], type | str) and callable(targets[0]):
        check_handler(targets[0])
        return FunctionHook(targets[0], annotated(targets[0]))
    events = tuple(kind for target in targets for kind in kinds_of(target))

    def decorate(function: Any) -> FunctionHook[Any]:
        if isinstance(function, FunctionHook):
            return _another(cast("FunctionHook[Any]", function), events, attributes)
        check_handler(function)
        return FunctionHook(function, events or annotated(function), **attributes)

    return decorate


def named_hook(
    event: str | type[Event], function: Callable[[Any], Any], **options: Unpack[HookOptions]
) -> FunctionHook[Any]:
    """Make a hook from a plain function for an event class or name. A function that is a hook already is refused.

    Raises:
        UsageError: The name, the function or an option cannot be used.

    Example:
        >>> named_hook("before_each_tool", print, tools=["delete_*"]).only_tools
        ('delete_*',)
    """
    return FunctionHook(function, kinds_of(event), **_attributes(options))


def _attributes(options: HookOptions) -> HookAttributes:
    """Convert options to attributes of `Hook`."""
    known = HookOptions.__annotations__
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        close = close_to(unknown[0], known, 1)
        did_you = f" Did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"A hook has no option {unknown[0]!r}.{did_you} Options: {', '.join(sorted(known))}.")
    attributes: dict[str, Any] = {**options}
    for option, attribute, kind in (("tags", "tags", frozenset), ("tools", "only_tools", tuple)):
        if option in attributes:
            value = attributes.pop(option)
            # A str is iterable, but one tag or pattern is meant, not its characters. A value that is not iterable is
            # passed on: `check` refuses it with a better message.
            values = (value,) if isinstance(value, str) else value
            attributes[attribute] = kind(cast("Iterable[Any]", values)) if isinstance(values, Iterable) else value
    return cast("HookAttributes", attributes)


def _another(hook: FunctionHook[Any], events: tuple[type[Event], ...], attributes: HookAttributes) -> FunctionHook[Any]:
    """Make a second hook from the function of an existing one; both are registered together."""
    known = (*hook.also, hook)
    twice = [kind.__name__ for kind in events for other in known if other.events is not None and kind in other.events]
    if twice or not events:
        reason = f"handles {twice[0]} already" if twice else "is a hook already"
        raise UsageError(
            f"Hook function {hook.name!r} {reason}. A decorator above another one should add other events: @before_llm above "
            "@after_llm. Or use one decorator: @on(PreReasoning, PostReasoning)."
        )
    copy: FunctionHook[Any] = FunctionHook(hook.handler, events, **attributes)
    copy.also = known
    return copy
