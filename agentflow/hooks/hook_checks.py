"""Checks of a hook at registration: option types, method signatures, and whether the hook would ever run.

Rules:

1. An option's type is checked, not its truth value: otherwise a method or an object that happens to have an option's
   name would silently disable the hook.
2. Methods are checked once per class, by their signature.
3. Each error message says what to write instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast
from weakref import WeakSet

from agentflow._support.annotations import annotations_of, signature_of
from agentflow._support.values import NamedTuple
from agentflow.errors import UsageError, close_to
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import WRAPPED, handler_of
from agentflow.hooks.recording import ChangeListener, SideWrapper, WorkListener
from agentflow.vocabulary.events import Event


class _Method(NamedTuple):
    """A method that the library calls on hooks."""

    base: Any
    arguments: tuple[str, ...]
    runs: bool
    """Whether a hook that defines only this method has any effect."""


_METHODS: dict[str, _Method] = {
    "on_event": _Method(Hook.on_event, ("event",), True),
    "around": _Method(Hook.around, ("event", "source"), True),
    "around_model": _Method(Hook.around_model, ("event", "source"), True),
    "around_tool": _Method(Hook.around_tool, ("event", "source"), True),
    "tools": _Method(Hook.tools, (), True),
    "concerns": _Method(Hook.concerns, ("reply",), False),
    "on_call": _Method(ChangeListener.on_call, ("call",), True),
    "on_layer": _Method(ChangeListener.on_layer, ("layer",), True),
    "around_side": _Method(SideWrapper.around_side, ("context", "request", "side", "chunks"), True),
    "on_model_work": _Method(WorkListener.on_model_work, ("event", "request", "work"), True),
    "on_tool_work": _Method(WorkListener.on_tool_work, ("event", "work"), True),
}
_OF_HOOK = {name: method for name, method in _METHODS.items() if hasattr(Hook, name)}
"""The methods of every hook; the others belong to listeners and wrappers of side calls."""
_STAGES: frozenset[object] = frozenset(WRAPPED)
_KNOWN = {name.replace("_", ""): name for name in (*Hook.__annotations__, *_METHODS)}
"""Options and methods by their names without underscores, to recognise a name such as `onEvent`."""
_OURS = (Hook, ChangeListener, SideWrapper, WorkListener)
"""The library's base classes, which do nothing themselves."""
_OPTIONS = tuple(Hook.__annotations__)

_checked: WeakSet[type[Hook]] = WeakSet()
"""Classes that passed the checks."""
_harmless: set[str] = set()
"""Instance attributes that are neither an option nor a misspelt one."""


def check(hook: Hook) -> None:
    """Refuse a hook that would not work.

    Its class is checked once; the attributes of an instance are checked each time.

    Raises:
        UsageError: The message names the hook, the problem and the fix.
    """
    kind, own = type(hook), vars(hook)
    if kind in _checked:
        if own.keys() <= _harmless:  # the frequent case: a known class, and no new attributes
            return
        options = own.keys() & _CHECKS.keys()
    else:
        _check_methods(hook)
        options = _CHECKS.keys()
    others = own.keys() - _CHECKS.keys() - _harmless
    if others:
        _check_instance(hook)
    for option in options:
        if not _CHECKS[option][0](getattr(hook, option)):
            raise _wrong(hook, option)
    _check_roles(hook)
    _check_time(hook)
    # Without methods: assigning `on_event` to an instance is legal only if its class defines one too.
    _harmless.update(others - _METHODS.keys())
    # An option that is a property may have another value for each instance, so its class is checked each time.
    if kind not in _checked and not any(isinstance(getattr(kind, name), property) for name in Hook.__annotations__):
        _checked.add(kind)


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with exactly this many positional arguments; True if its signature is unknown."""
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):  # a built-in function without a signature
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


# ---- methods


def _check_methods(hook: Hook) -> None:
    kind = type(hook)
    _check_spelling(hook, [name for owner in _owners(kind) for name in _named(vars(owner))])
    defined = {name: m for name, m in _methods_of(kind).items() if getattr(kind, name, m.base) is not m.base}
    if not any(method.runs for method in defined.values()):
        raise _does_nothing(hook)
    for name, method in defined.items():
        _check_method(hook, name, method)


def _owners(kind: type[Hook]) -> list[type]:
    """Return the user-defined hook classes among the bases."""
    return [owner for owner in kind.__mro__ if issubclass(owner, Hook) and owner not in _OURS]


def _methods_of(kind: type[Hook]) -> Mapping[str, _Method]:
    # Other hooks may use names such as `on_call` for methods of their own.
    return _METHODS if issubclass(kind, ChangeListener | SideWrapper | WorkListener) else _OF_HOOK


def _check_method(hook: Hook, name: str, method: _Method) -> None:
    found = getattr(hook, name)
    written = f"def {name}({', '.join(('self', *method.arguments))})"
    if not callable(found):
        raise UsageError(f"Hook {_name(hook)!r}: {name}={found!r:.60} must be a method: {written}.")
    if not takes(found, len(method.arguments)):
        raise UsageError(
            f"Hook {_name(hook)!r}: {name}{signature_of(found)} is called with {_listed(method.arguments)}; write "
            f"{written}." + (" Read anything else from event.agent and event.context." if name == "on_event" else "")
        )
    if inspect.isasyncgenfunction(found) or inspect.isgeneratorfunction(found):
        if name == "tools" and inspect.isgeneratorfunction(found):  # its result is only iterated, so a generator works
            return
        fix = {
            "on_event": "Return the event or a verdict; to wrap a stream, use `around`",
            "around": (
                looped := "Move the loop to another method, and `return Flux(lambda: self.that_method(source))`"
            ),
            "around_model": looped,
            "around_tool": looped,
        }
        raise UsageError(
            f"Hook {_name(hook)!r}: {name} is a generator, so a call would not run its body. {fix.get(name, 'Return a value')}."
        )
    if name != "on_event" and inspect.iscoroutinefunction(found):  # the chain awaits `on_event` only
        fix = ", and return a Mono or Flux that does the asynchronous work" if name.startswith("around") else ""
        raise UsageError(f"Hook {_name(hook)!r}: {name} is `async def`, but it is never awaited. Write {written}{fix}.")


def _listed(arguments: tuple[str, ...]) -> str:
    return " and ".join(arguments) or "no arguments"


def _named(names: Mapping[str, Any]) -> Iterable[str]:
    """Return the names of public attributes, without constants and classes."""
    return [n for n, value in names.items() if n[0] != "_" and not n.isupper() and not isinstance(value, type)]


def _check_spelling(hook: Hook, names: Iterable[str]) -> None:
    for name in names:
        meant = _KNOWN.get(name.replace("_", "").lower()) or _misspelt(hook, name) or name
        if meant != name:
            raise UsageError(
                f"Hook {_name(hook)!r} has {name!r}, which is never used. Did you mean {meant!r}? If it is your own attribute, "
                "rename it."
            )


def _misspelt(hook: Hook, name: str) -> str | None:
    """Return the option that a name is similar to, if its value has the type of that option."""
    # Short names are similar to too many others: `tag` or `score` are likely to be a user's own attributes.
    close = close_to(name, _OPTIONS, 1, 0.85) if len(name) > 5 and name not in _OPTIONS else ()
    return close[0] if close and type(getattr(hook, name, None)) is type(getattr(Hook, close[0])) else None


def _does_nothing(hook: Hook) -> UsageError:
    kind = type(hook)
    if kind in _OURS:
        return UsageError(f"A plain {kind.__name__} does nothing. Subclass it and define on_event(self, event).")
    own = [n for owner in _owners(kind) for n in _named(vars(owner))]
    functions = [name for name in own if callable(getattr(kind, name, None))]
    close = [(name, *close_to(name.lower(), _OF_HOOK, 1)) for name in functions]
    meant = next((f" Did you mean {pair[1]!r} by {pair[0]!r}?" for pair in close if len(pair) > 1), "")
    return UsageError(
        f"Hook {_name(hook)!r} would never be called: it should define on_event(self, event), around(self, event, source) "
        f"or tools(self).{meant}"
    )


def _check_instance(hook: Hook) -> None:
    own = vars(hook)
    for name, method in _methods_of(type(hook)).items():
        if name in own and getattr(type(hook), name) is method.base:
            raise UsageError(
                f"Hook {_name(hook)!r}: {name} was assigned to the instance, but is not called without a method in the class. "
                "Define it in the class, or make a hook from a function with @on."
            )
    _check_spelling(hook, _named(own))


# ---- options


_Option: TypeAlias = tuple[Callable[[object], bool], str, str]
"""Whether a value is valid, the valid values, and an example."""


def _each(values: object, kinds: tuple[type, ...], fits: Callable[[object], bool]) -> bool:
    """Whether a value is a collection of one of these classes, and its items fit."""
    return type(values) in kinds and all(map(fits, cast("Iterable[object]", values)))


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def _is_event_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Event)


# By identity: a method or an object with this name would be true as well (rule 1).
_FLAG: _Option = (lambda flag: flag is True or flag is False, "True or False", "")
_CHECKS: dict[str, _Option] = {
    "name": (_is_str, "a str", ""),
    # `n == n` excludes NaN, which cannot be sorted.
    "priority": (lambda n: _is_number(n) and n == n, "a number, lower runs earlier", "priority = 10"),
    "on_failure": (lambda policy: policy in (None, "abort", "skip", "deny"), "'abort', 'skip', 'deny' or None", ""),
    "timeout": (lambda limit: limit is None or _is_number(limit), "seconds, or None", "timeout = 2.5"),
    "scope": (lambda scope: scope in ("own", "tree"), "'own' or 'tree'", ""),
    "tags": (lambda tags: _each(tags, (frozenset, set), _is_str), "a frozenset of str", "tags = frozenset({'money'})"),
    "only_tools": (
        lambda patterns: _each(patterns, (tuple, list, frozenset, set), _is_str),
        "a tuple of patterns",
        "only_tools = ('delete_*',)",
    ),
    "events": (
        lambda kinds: kinds is None or _each(kinds, (tuple,), _is_event_class),
        "a tuple of the event classes that it handles, or None for all",
        "events = (PreActing,)",
    ),
    "wraps": (
        lambda stages: stages is None or _each(stages, (tuple,), _STAGES.__contains__),
        "a tuple of PreCall, PreReasoning, PreToolRound and PreActing (the events that around() wraps), or None for all",
        "wraps = (PreReasoning,)",
    ),
    **dict.fromkeys(("guard", "observer", "serial", "shadow", "in_thread"), _FLAG),
}
"""The options of a hook."""


def _check_roles(hook: Hook) -> None:
    if hook.guard and hook.observer:
        raise UsageError(
            f"Hook {hook.name!r} is guard=True and observer=True. A guard may veto, an observer must not; choose one."
        )
    if hook.observer and hook.on_failure == "deny":
        raise UsageError(
            f"Hook {hook.name!r} is observer=True and on_failure='deny', but an observer cannot refuse anything. Use "
            "guard=True."
        )


def _check_time(hook: Hook) -> None:
    limit = hook.timeout
    if limit is None and not hook.in_thread:
        return
    handler = handler_of(hook)
    if limit is not None:
        if not limit > 0:
            raise UsageError(f"Hook {hook.name!r}: timeout={limit}, but it must be above 0 seconds.")
        if not hook.in_thread and not _may_suspend(handler):
            raise UsageError(
                f"Hook {hook.name!r} has a timeout but is synchronous, so it cannot be interrupted. Make it `async def`, "
                "or set in_thread=True."
            )
    if hook.in_thread and inspect.iscoroutinefunction(handler):
        raise UsageError(
            f"Hook {hook.name!r} is `async def` with in_thread=True, but a thread runs a plain `def`. Remove "
            "in_thread=True or `async`."
        )


def _may_suspend(function: Callable[..., Any]) -> bool:
    if inspect.iscoroutinefunction(function):
        return True
    # As text, since an annotation need not be resolvable.
    annotation = str(annotations_of(function).get("return", ""))
    return any(word in annotation for word in ("Mono", "Flux", "Observable", "Awaitable", "HookResult"))


def _is_number(value: object) -> bool:
    return type(value) is int or type(value) is float  # and not bool, a subclass of int


def _wrong(hook: Hook, option: str) -> UsageError:
    value: object = getattr(hook, option)
    _, what, example = _CHECKS[option]
    write = f", such as {example}" if example else ""
    kind = "a method" if inspect.ismethod(value) else "a function" if inspect.isroutine(value) else ""
    actual = f"{option} is {kind}" if kind else f"{option}={value!r:.60}"
    text = f"Hook {_name(hook)!r}: {actual}, but it must be {what}{write}."
    if callable(value) or not isinstance(value, str | int | float | tuple | list | set | frozenset | None):
        text += f" Every hook has this option; rename your attribute {option!r}."
    return UsageError(text)


def _name(hook: Hook) -> str:
    return hook.name if _is_str(hook.name) else type(hook).__name__
