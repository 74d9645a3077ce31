"""The named events as decorators and as keys of a mapping, and the values that `hooks=` accepts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, Unpack, cast, overload

from agentflow._support.values import TypedDict
from agentflow.errors import UsageError
from agentflow.hooks.event_names import EVENT_NAMES, EventName, kinds_of
from agentflow.hooks.functions import FunctionHook, HookOptions, named_hook, on
from agentflow.hooks.handlers import annotated, is_annotated
from agentflow.hooks.hook import Hook, HookResult
from agentflow.hooks.hook_checks import check
from agentflow.hooks.registered import Registered
from agentflow.vocabulary.events import (
    Error,
    Event,
    Paused,
    PostActing,
    PostCall,
    PostPut,
    PostReasoning,
    PostToolRound,
    PostTurn,
    PreActing,
    PreCall,
    PrePut,
    PreReasoning,
    PreToolRound,
    PreTurn,
    Resumed,
    TurnValue,
)
from agentflow.vocabulary.specs import ToolSpec

E = TypeVar("E", bound=Event)
R = TypeVar("R", bound=HookResult)

Handler: TypeAlias = Callable[[E], HookResult]
"""A function that takes one event: plain or `async`, or one that returns a Mono or another Observable."""

Handlers: TypeAlias = Handler[E] | Sequence[Handler[E]]


class NamedEvent(Generic[E]):
    """A named event as a decorator (`@after_llm`), with options (`@after_llm(priority=10)`), or as a function
    (`after_llm(f, g)`).

    A function with two such decorators handles both events, each with the options of its own decorator.

    Args:
        name: The name.
        kind: The class of the event.
        about: When it fires.

    Example:
        >>> @before_each_tool(priority=10, tools=["delete_*"], on_failure="deny")
        ... def careful(event: PreActing) -> Deny:
        ...     return Deny("not today")
        >>> @after_llm
        ... def tokens(event: PostReasoning) -> None:
        ...     print(event.usage.output_tokens)
        >>> agent = Agent("tidy", "openai/gpt-5", hooks=[careful, tokens, on_complete(print)])
    """

    def __init__(self, name: EventName, kind: type[E], about: str) -> None:
        EVENT_NAMES[name] = kind
        self.name = name
        self.__name__ = name
        self.__doc__ = f"Make a hook from a function that takes one `{kind.__name__}`: {about}. See `NamedEvent`."

    @overload
    def __call__(
        self, function: Callable[[E], R], /, **options: Unpack[HookOptions]
    ) -> FunctionHook[Callable[[E], R]]: ...
    @overload
    def __call__(
        self, first: Handler[E], second: Handler[E], /, *more: Handler[E], **options: Unpack[HookOptions]
    ) -> list[FunctionHook[Handler[E]]]: ...
    @overload
    def __call__(
        self, **options: Unpack[HookOptions]
    ) -> Callable[[Callable[[E], R]], FunctionHook[Callable[[E], R]]]: ...
    def __call__(self, *functions: Any, **options: Unpack[HookOptions]) -> Any:
        """Make hooks from functions.

        Args:
            functions: The functions. If there are none, a decorator with these options is returned.
            options: As in `on`.

        Returns:
            One hook for one function, a list of hooks for several.

        Raises:
            UsageError: A function or an option cannot be used.
        """
        make: Callable[[Any], FunctionHook[Any]] = cast("Any", on)(self.name, **options)
        if not functions:
            return make
        hooks = [make(function) for function in functions]
        return hooks[0] if len(hooks) == 1 else hooks

    def __repr__(self) -> str:
        return f"<{self.name}: {EVENT_NAMES[self.name].__name__}>"


after_user_input = NamedEvent("after_user_input", PreCall, "a call was accepted; nothing is stored yet")
before_llm = NamedEvent("before_llm", PreReasoning, "a model call is about to be made")
after_llm = NamedEvent("after_llm", PostReasoning, "the model's reply is complete but not yet stored")
before_tool_round = NamedEvent("before_tool_round", PreToolRound, "the model called tools; once per reply")
before_each_tool = NamedEvent("before_each_tool", PreActing, "a tool is about to run; once per call")
after_each_tool = NamedEvent("after_each_tool", PostActing, "a tool call has finished; once per call")
after_tool_round = NamedEvent("after_tool_round", PostToolRound, "all results of a round are recorded; once per round")
on_complete = NamedEvent("on_complete", PostCall, "the call has a reply")
on_error = NamedEvent("on_error", Error, "a model call, a tool, a hook or a store failed")
before_put = NamedEvent("before_put", PrePut, "a turn is about to be put into a queue")
after_put = NamedEvent("after_put", PostPut, "a turn was put into a queue")
before_turn = NamedEvent("before_turn", PreTurn, "a turn is about to run, directly or from a queue")
on_turn_value = NamedEvent("on_turn_value", TurnValue, "a turn has yielded a value, or returned its result")
after_turn = NamedEvent("after_turn", PostTurn, "a turn has finished")
on_pause = NamedEvent("on_pause", Paused, "the queue was paused between two turns")
on_resume = NamedEvent("on_resume", Resumed, "the queue continues")


class HooksByName(TypedDict, total=False):
    """Functions by the name of their event: `hooks={"after_llm": [f, g]}`. Type checkers report a misspelt name."""

    after_user_input: Handlers[PreCall]
    before_llm: Handlers[PreReasoning]
    after_llm: Handlers[PostReasoning]
    before_tool_round: Handlers[PreToolRound]
    before_each_tool: Handlers[PreActing]
    after_each_tool: Handlers[PostActing]
    after_tool_round: Handlers[PostToolRound]
    on_complete: Handlers[PostCall]
    on_error: Handlers[Error]
    before_put: Handlers[PrePut]
    after_put: Handlers[PostPut]
    before_turn: Handlers[PreTurn]
    on_turn_value: Handlers[TurnValue]
    after_turn: Handlers[PostTurn]
    on_pause: Handlers[Paused]
    on_resume: Handlers[Resumed]


HookSource: TypeAlias = (
    Hook
    | Registered
    | HooksByName
    | Mapping[type[Event], Handlers[Any]]
    | Callable[[Any], HookResult]
    | Iterable[Hook]
    | Sequence["HookSource"]
    | None
)
"""The values that `hooks=` accepts: a hook, a function with an annotated argument, a mapping by name or event class, a
list of these (nested to any depth), or None."""


def hooks_of(source: HookSource) -> tuple[Hook, ...]:
    """Return the hooks of a hook, an annotated function, a (nested) list of these, or a mapping from events to functions.

    Raises:
        UsageError: It contains anything else; the message says how to make a hook from it.

    Example:
        >>> [hook.name for hook in hooks_of([[after_llm(print)], {"on_complete": [repr]}])]
        ['print', 'repr']
    """
    if source.__class__ is tuple and not source:  # the most frequent argument
        return ()
    return tuple(_flat(source))


def _flat(source: Any) -> Iterator[Hook]:
    if isinstance(source, FunctionHook):
        function = cast("FunctionHook[Any]", source)
        # The hooks of the decorators below it come first, since they were applied first.
        yield from function.also
        yield function  # checked by its constructor
    elif isinstance(source, Hook):
        check(source)
        yield source
    # Tested before functions, because a `Registered` is callable, but its hooks are meant.
    elif isinstance(source, Registered):
        yield from source.hooks
    elif isinstance(source, Mapping):
        for event, functions in cast("Mapping[Any, Any]", source).items():
            yield from _by_event(event, functions)
    elif _is_annotated_function(source):
        yield FunctionHook(source, annotated(source))
    elif (
        # A str is iterable, and a coroutine may be `f()` written instead of `f`.
        isinstance(source, str | bytes | Awaitable)
        or callable(source)
        or not (source is None or isinstance(source, Iterable))
    ):
        raise _no_hook(cast("object", source))
    elif source is not None:
        for item in cast("Iterable[Any]", source):
            yield from _flat(item)


def _is_annotated_function(source: Any) -> bool:
    """Whether this is a plain function with an annotated argument."""
    if not callable(source) or isinstance(source, type | NamedEvent | Iterable | Awaitable):
        return False
    return not isinstance(getattr(source, "spec", None), ToolSpec) and is_annotated(source)


def _by_event(event: Any, functions: Any) -> Iterator[Hook]:
    kinds_of(event)  # check the event even if the list is empty
    for function in cast("Iterable[Any]", functions) if isinstance(functions, list | tuple) else (functions,):
        # A hook's own events could contradict the key.
        if isinstance(function, Hook):
            key = event if isinstance(event, type) else repr(event)
            raise UsageError(
                f"hooks={{{getattr(key, '__name__', key)}: ...}} takes plain functions, but {function.name!r} is a "
                "hook already. Pass it in a list: hooks=[...]."
            )
        yield named_hook(event, function)


def _no_hook(source: object) -> UsageError:
    name = getattr(source, "__name__", None) or getattr(source, "name", None) or f"{source!r:.60}"
    if isinstance(source, type) and issubclass(source, Hook):
        return UsageError(f"{name} is a hook class. Pass an instance: {name}().")
    if isinstance(source, type):
        return UsageError(f"{name} is a class, not a hook. Subclass Hook, and pass an instance.")
    if isinstance(getattr(source, "spec", None), ToolSpec):
        return UsageError(f"{name!r} is a tool, not a hook. Pass it as tools=[{name}].")
    if isinstance(source, NamedEvent):
        return UsageError(f"{name} is a decorator without a function. Pass {name}(my_function).")
    if callable(source):
        return UsageError(
            f"{name} is a plain function without an event. Decorate it with @after_llm (or another of "
            f"{', '.join(EVENT_NAMES)}), or annotate its argument: def {name}(event: PostReasoning)."
        )
    if isinstance(source, str):
        return UsageError(
            f"{source!r:.60} is a str, not a hook. To register a function by name, pass hooks={{{source!r:.60}: my_function}}."
        )
    return UsageError(
        f"A hook is a Hook, a function decorated with @on or @after_llm, or a list of these, not {type(source).__name__}."
    )
