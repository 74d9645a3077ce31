"""Where hooks may be registered besides an agent: on one tool, on one turn, and for the whole process.

Rules:

1. A hook of a narrower scope (tool, turn, agent, process) comes first in a tie of class and priority; nothing else differs.
2. What is registered is an immutable tuple that is swapped: a run that has begun keeps what it found.
3. A process-wide hook with tags concerns what has one of them (an agent, a turn, a tool); without tags it concerns all.
   So what has no tags never matches a hook that has some.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar, cast, overload

from reactivex.abc import DisposableBase

from agentflow.errors import UsageError
from agentflow.events import (
    ActingChunk,
    Error,
    Event,
    PostActing,
    PostPut,
    PostTurn,
    PreActing,
    PrePut,
    PreTurn,
    TurnValue,
)
from agentflow.hooks.functions import FunctionHook, on
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, hooks_of

__all__ = ["TOOL_EVENTS", "TURN_EVENTS", "HookScope", "ProcessHooks", "Registered", "process_hooks", "whole"]

E = TypeVar("E", bound=Event)

TOOL_EVENTS: Final[tuple[type[Event], ...]] = (PreActing, ActingChunk, PostActing, Error)
"""What is told to the hooks of a tool."""
TURN_EVENTS: Final = (PrePut, PostPut, PreTurn, TurnValue, PostTurn, *TOOL_EVENTS)
"""What is told to the hooks of a turn."""


class Registered(DisposableBase):
    """Hooks where they were registered; `dispose()` takes them off. Also a context manager.

    Args:
        hooks: The hooks.
        remove: Takes one off.
    """

    def __init__(self, hooks: tuple[Hook, ...], remove: Callable[[Hook], object]) -> None:
        self.hooks = hooks
        self._remove = remove

    def dispose(self) -> None:
        """Take the hooks off; doing so again does nothing."""
        for hook in self.hooks:
            self._remove(hook)


class HookScope:
    """Hooks registered on one object.

    Args:
        hooks: Those that it begins with.
        whose: What it is, for errors: `"tool 'add'"`.
        events: The events that are told to its hooks; None: all.

    Attributes:
        hooks: The hooks, in the order of registration.
    """

    __slots__ = ("_events", "_guard", "_whose", "hooks")

    def __init__(
        self, hooks: Iterable[Hook] = (), whose: str = "", events: tuple[type[Event], ...] | None = None
    ) -> None:
        self.hooks: tuple[Hook, ...] = tuple(hooks)
        self._whose = whose
        self._events = events
        self._guard = threading.Lock()

    def add(self, hooks: HookSource) -> Registered:
        """Register a hook, or whatever else an agent takes as `hooks=`; the same one twice counts once.

        Raises:
            UsageError: It is no hook, its options cannot hold, or none of its events is told here.
        """
        given = hooks_of(hooks)
        for hook in given:
            self._check(hook)
        with self._guard:
            for one in given:
                if not any(one is known for known in self.hooks):
                    self.hooks = (*self.hooks, one)
        return Registered(given, self.remove)

    def _check(self, hook: Hook) -> None:
        told, wanted = self._events, hook.events
        if told is None or not wanted or any(issubclass(kind, wanted) for kind in told):
            return
        if type(hook).around is not Hook.around and (hook.wraps is None or PreActing in hook.wraps):
            return
        raise UsageError(
            f"Hook {hook.name!r} is for {' and '.join(kind.__name__ for kind in wanted)}, which hooks of {self._whose} are "
            f"never told. They are told {', '.join(kind.__name__ for kind in told)}; register this one on the agent."
        )

    def copy(self) -> HookScope:
        """Another scope of the same kind with the same hooks."""
        return HookScope(self.hooks, self._whose, self._events)

    def remove(self, hook: Hook) -> bool:
        """Take a hook off; returns whether it was there."""
        gone = whole(hook)
        with self._guard:
            before = self.hooks
            self.hooks = tuple(known for known in before if not any(known is one for one in gone))
            return len(self.hooks) < len(before)

    def clear(self) -> None:
        """Take all hooks off."""
        with self._guard:
            self.hooks = ()

    @overload
    def on(self, event: type[E], function: Callable[[E], Any], /, **options: Any) -> Registered: ...
    @overload
    def on(self, event: type[E], /, **options: Any) -> Callable[[Callable[[E], Any]], FunctionHook[Any]]: ...
    @overload
    def on(self, *targets: Any, **options: Any) -> Any: ...
    def on(self, *targets: Any, **options: Any) -> Any:
        """Register a function: `scope.on(PreActing, f)`, `@scope.on(PreActing)`, `@scope.on("before_llm", tools=[...])`,
        `@scope.on`.

        Args:
            targets: Events, as in `agentflow.on`; last, if you like, the function.
            options: As in `agentflow.on`.

        Returns:
            For events and a function a disposable that takes it off; for events alone a decorator; for a function alone,
            whose annotation names its events, the hook made of it.

        Raises:
            UsageError: As `agentflow.on` does.
        """
        if targets and not isinstance(targets[-1], type | str):
            *events, function = targets
            made = self.take(function, tuple(events), options)
            return Registered((made,), self.remove) if events else made

        def decorate(function: Callable[..., Any]) -> FunctionHook[Any]:
            return self.take(function, targets, options)

        return decorate

    def take(self, function: Any, targets: tuple[Any, ...], options: dict[str, Any]) -> FunctionHook[Any]:
        """Register a function for events; without events, one that is a hook already is registered as it is."""
        made: FunctionHook[Any] = (
            cast("FunctionHook[Any]", function)
            if isinstance(function, FunctionHook) and not targets and not options
            else cast("Any", on)(*targets, **options)(function)
        )
        self.add(made)
        return made

    def __len__(self) -> int:
        return len(self.hooks)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self.hooks)


def whole(hook: Hook) -> tuple[Hook, ...]:
    """A hook with those that decorators below its own have made of the same function."""
    if not isinstance(hook, FunctionHook):
        return (hook,)
    made = cast("FunctionHook[Any]", hook)
    return (*made.also, made)


class ProcessHooks:
    """Hooks for everything in the process that looks them up here; `process_hooks` is the one that all do by default.

    Attributes:
        scope: Where they are registered.

    Example:
        >>> audit = ProcessHooks()
        >>> @audit.on(PreActing, tags=["database"])
        ... def log(event: PreActing) -> None:
        ...     print("database:", event.tool_use.name)
        >>> agent = Agent("clerk", "openai/gpt-5", process_hooks=audit)
    """

    __slots__ = ("scope",)

    def __init__(self) -> None:
        self.scope = HookScope()

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """All hooks, in the order of registration; another tuple after each change."""
        return self.scope.hooks

    def add(self, *hooks: HookSource) -> tuple[Registered, ...]:
        """Register hooks; each one's `tags` say what it concerns (none: everything).

        Raises:
            UsageError: It is no hook, or its options cannot hold.
        """
        return tuple(self.scope.add(hook) for hook in hooks)

    @overload
    def on(self, event: type[E], function: Callable[[E], Any], /, **options: Any) -> Registered: ...
    @overload
    def on(self, event: type[E], /, **options: Any) -> Callable[[Callable[[E], Any]], FunctionHook[Any]]: ...
    @overload
    def on(self, *targets: Any, **options: Any) -> Any: ...
    def on(self, *targets: Any, **options: Any) -> Any:
        """Register a function: `process_hooks.on(PreActing, f, tags=["db"])`, or `@process_hooks.on(PreActing)`; as in
        `HookScope.on`."""
        return cast("Any", self.scope).on(*targets, **options)

    def remove(self, hook: Hook) -> bool:
        """Take a hook off; returns whether it was there."""
        return self.scope.remove(hook)

    def clear(self) -> None:
        """Take all hooks off."""
        self.scope.clear()

    def matching(self, tags: frozenset[str]) -> tuple[Hook, ...]:
        """The hooks that concern something with these tags."""
        return tuple(hook for hook in self.scope.hooks if not hook.tags or not hook.tags.isdisjoint(tags))

    def __len__(self) -> int:
        return len(self.scope)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self.scope.hooks)


process_hooks = ProcessHooks()
"""The process-wide hooks that agents and turns use unless they are given others."""
