"""Check a function that should handle an event, and the annotation of its argument.

A function that would not work is refused at registration, and the message says how to fix it.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable
from types import SimpleNamespace, UnionType
from typing import Any, Union, cast, get_args, get_origin

from reactivex import Observable

from agentflow._support.annotations import signature_of
from agentflow.errors import UsageError
from agentflow.hooks.event_names import kinds_of, registered_as
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_checks import takes
from agentflow.vocabulary.events import Event
from agentflow.vocabulary.specs import ToolSpec


def plain(function: Any) -> Any:
    """Unwrap partials and objects with `__call__`."""
    while isinstance(function, functools.partial):
        function = cast("Any", function).func
    if inspect.isroutine(function) or not hasattr(function, "__call__"):  # noqa: B004 - the method itself is wanted
        return function
    return function.__call__


def name_of(function: Any) -> str:
    """Return the name of a handler."""
    while isinstance(function, functools.partial):
        function = cast("Any", function).func
    return getattr(function, "__name__", type(function).__name__)


def check_handler(function: object) -> None:
    """Refuse an object that is not a function with one event as its argument.

    Raises:
        UsageError: The message says what to pass instead.
    """
    if inspect.iscoroutine(function):
        name = function.__name__
        # Otherwise Python would also warn that it was never awaited.
        function.close()
        raise UsageError(
            f"{name}(...) is a coroutine object, which would run at most once instead of for each event. Pass "
            f"the function itself: {name}, without parentheses."
        )
    if isinstance(function, type):
        fix = f"pass an instance: hooks=[{function.__name__}()]"
        fix = fix if issubclass(function, Hook) else "pass a function that takes one event"
        raise UsageError(f"{function.__name__} is a class, not a function; {fix}.")
    if isinstance(function, Hook):
        raise UsageError(
            f"{function.name!r} is a hook already and defines its events itself. Register it with hooks=[...]."
        )
    if isinstance(getattr(function, "spec", None), ToolSpec):
        name = getattr(function, "name", "it")
        raise UsageError(f"{name!r} is a tool, not a hook function. Pass it as tools=[{name}].")
    if not callable(function) or isinstance(function, Observable | Awaitable):
        kind = type(cast("object", function))
        raise UsageError(
            f"{function!r:.80} is not a function but a {kind.__name__}. Pass a function that takes one event; several "
            "functions are separate arguments: after_llm(f, g)."
        )
    # `inspect` does not look inside partials and objects with `__call__`.
    inner = plain(function)
    if inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
        raise UsageError(
            f"Hook function {name_of(function)} is a generator, so calling it would not run its body. Return the event or a "
            "verdict; to wrap a stream, use `around` of a Hook."
        )
    _one_argument(function)


def _one_argument(function: Callable[..., Any]) -> None:
    if takes(function, 1):
        return
    signature = signature_of(function)
    needed = [
        p
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    name = name_of(function)
    if needed and needed[0].name == "self":
        fix = f"pass the bound method: instance.{name}"
    elif len(needed) == 2:
        fix = f"def {name}(event). Read anything else from event.agent and event.context"
    else:
        fix = f"def {name}(event)"
    raise UsageError(f"Hook function {name}{signature} must take one argument, the event: {fix}.")


def _hint(function: Callable[..., Any]) -> Any:
    """Return the annotation of the first parameter with names resolved, or None if there is no annotation.

    Raises:
        NameError: A name in the annotation is undefined.
    """
    try:
        parameter = next(iter(signature_of(function).parameters.values()), None)
    except (TypeError, ValueError):  # a built-in function without a signature
        return None
    if parameter is None or parameter.annotation is parameter.empty:
        return None
    inner = plain(function)
    # Annotations may be texts that refer to names of the function's module; a bound method keeps it in `__func__`.
    scope = getattr(getattr(inner, "__func__", inner), "__globals__", {})
    # Only this annotation: names in the others might be undefined.
    holder = SimpleNamespace(__annotations__={"event": parameter.annotation})
    return typing.get_type_hints(holder, scope)["event"]


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def check_annotation(function: Callable[..., Any], events: tuple[type[Event], ...]) -> None:
    """Refuse a function if the annotation of its argument excludes events that the function would receive."""
    try:
        members = _members(_hint(function))
    except NameError:  # a name that is imported only for type checkers
        return
    if not all(isinstance(member, type) and issubclass(member, Event) for member in members):
        return
    for kind in events:
        if not issubclass(kind, members):
            name = name_of(function)
            raise UsageError(
                f"Hook function {name} takes {' | '.join(member.__name__ for member in members)}, but would receive "
                f"{kind.__name__}, {registered_as(kind)}. Register it for the annotated events, or write "
                f"{name}(event: {kind.__name__})."
            )


def is_annotated(function: Callable[..., Any]) -> bool:
    """Whether a handler's argument has any annotation."""
    try:
        return _hint(function) is not None
    except NameError:
        # `annotated` then raises an error that shows the unresolved name.
        return True


def annotated(function: Callable[..., Any]) -> tuple[type[Event], ...]:
    """Return the event classes in the annotation of a handler's argument.

    Raises:
        UsageError: There is no annotation, or it contains anything but event classes.
    """
    name = name_of(function)
    try:
        annotation = _hint(function)
    except NameError as error:
        raise UsageError(
            f"The annotation of {name}'s argument cannot be resolved ({error}). Name the events: @on(PreActing)."
        ) from error
    if annotation is None:
        raise UsageError(
            f"@on without arguments needs an annotation on {name}'s argument. Write @on(PreActing), or "
            f"def {name}(event: PreActing)."
        )
    kinds: list[type[Event]] = []
    for member in _members(annotation):
        if not (isinstance(member, type) and issubclass(member, Event)):
            raise UsageError(f"{name}'s argument is annotated with {member!r}, which is not an event class.")
        kinds.extend(kinds_of(cast("Any", member)))
    return tuple(dict.fromkeys(kinds))  # a union may name a base class and its subclass
