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
from typing import Any, TypeVar, cast, overload

from reactivex.abc import DisposableBase

from agentflow.events import Event
from agentflow.errors import UsageError
from agentflow.hooks.functions import FunctionHook, on
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import check_options

__all__ = ["HookScope", "ProcessHooks", "Registered", "process_hooks"]

E = TypeVar("E", bound=Event)


class Registered(DisposableBase):
    """A hook where it was registered; `dispose()` takes it off. Also a context manager.

    Args:
        hook: The hook.
        remove: Takes it off.
    """

    def __init__(self, hook: Hook, remove: Callable[[Hook], object]) -> None:
        self.hook = hook
        self._remove = remove

    def dispose(self) -> None:
        """Take the hook off; doing so again does nothing."""
        self._remove(self.hook)


class HookScope:
    """Hooks registered on one object.

    Attributes:
        hooks: The hooks, in the order of registration.
    """

    __slots__ = ("_guard", "hooks")

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self.hooks: tuple[Hook, ...] = tuple(hooks)
        self._guard = threading.Lock()

    def add(self, hook: Hook) -> Registered:
        """Register a hook; the same one twice counts once.

        Raises:
            UsageError: It is no hook, or its options cannot hold.
        """
        if not isinstance(hook, Hook):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            raise UsageError(
                f"A Hook is registered here, not {type(hook).__name__} ({hook!r:.60}). A function is registered for its "
                "events: .on(PreActing)(function)."
            )
        check_options(hook)
        with self._guard:
            for one in _whole(hook):
                if not any(one is known for known in self.hooks):
                    self.hooks = (*self.hooks, one)
        return Registered(hook, self.remove)

    def remove(self, hook: Hook) -> bool:
        """Take a hook off; returns whether it was there."""
        gone = _whole(hook)
        with self._guard:
            before = self.hooks
            self.hooks = tuple(known for known in before if not any(known is one for one in gone))
            return len(self.hooks) < len(before)

    def clear(self) -> None:
        """Take all hooks off."""
        with self._guard:
            self.hooks = ()

    @overload
    def on(self, event: type[E], /, **options: Any) -> Callable[[Callable[[E], Any]], FunctionHook[Any]]: ...
    @overload
    def on(self, *targets: Any, **options: Any) -> Any: ...
    def on(self, *targets: Any, **options: Any) -> Any:
        """Register a function: `@scope.on(PreActing)`, `@scope.on("before_llm", tools=[...])`, `@scope.on`; as `agentflow.on`.

        Raises:
            UsageError: As `agentflow.on` does.
        """
        if len(targets) == 1 and not options and not isinstance(targets[0], type | str):
            return self.take(targets[0], (), {})

        def decorate(function: Callable[..., Any]) -> FunctionHook[Any]:
            return self.take(function, targets, options)

        return decorate

    def take(self, function: Any, targets: tuple[Any, ...], options: dict[str, Any]) -> FunctionHook[Any]:
        """Register a function for events; without events, one that is a hook already is registered as it is."""
        made: FunctionHook[Any] = (
            cast("FunctionHook[Any]", function)
            if isinstance(function, FunctionHook) and not targets
            else cast("Any", on)(*targets, **options)(function)
        )
        self.add(made)
        return made

    def __len__(self) -> int:
        return len(self.hooks)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self.hooks)


def _whole(hook: Hook) -> tuple[Hook, ...]:
    """A hook with those that decorators below its own have made of the same function."""
    if not isinstance(hook, FunctionHook):
        return (hook,)
    made = cast("FunctionHook[Any]", hook)
    return (*made.also, made)


class ProcessHooks:
    """Hooks for everything in the process that looks them up here; `process_hooks` is the one that all do by default.

    Example:
        >>> audit = ProcessHooks()
        >>> @audit.on(PreActing, tags=["database"])
        ... def log(event: PreActing) -> None:
        ...     print("database:", event.tool_use.name)
        >>> agent = Agent("clerk", "openai/gpt-5", process_hooks=audit)
    """

    __slots__ = ("_scope",)

    def __init__(self) -> None:
        self._scope = HookScope()

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """All hooks, in the order of registration; another tuple after each change."""
        return self._scope.hooks

    def add(self, *hooks: Hook) -> tuple[Registered, ...]:
        """Register hooks; each one's `tags` say what it concerns (none: everything).

        Raises:
            UsageError: A hook's options cannot hold.
        """
        return tuple(self._scope.add(hook) for hook in hooks)

    @overload
    def on(self, event: type[E], /, **options: Any) -> Callable[[Callable[[E], Any]], FunctionHook[Any]]: ...
    @overload
    def on(self, *targets: Any, **options: Any) -> Any: ...
    def on(self, *targets: Any, **options: Any) -> Any:
        """Register a function: `@process_hooks.on(PreActing, tags=["db"])`; arguments as in `agentflow.on`."""
        return self._scope.on(*targets, **options)

    def remove(self, hook: Hook) -> bool:
        """Take a hook off; returns whether it was there."""
        return self._scope.remove(hook)

    def clear(self) -> None:
        """Take all hooks off."""
        self._scope.clear()

    def matching(self, tags: frozenset[str]) -> tuple[Hook, ...]:
        """The hooks that concern something with these tags."""
        return tuple(hook for hook in self._scope.hooks if not hook.tags or not hook.tags.isdisjoint(tags))

    def __len__(self) -> int:
        return len(self._scope)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self._scope.hooks)


process_hooks = ProcessHooks()
"""The process-wide hooks that agents and turns use unless they are given others."""
