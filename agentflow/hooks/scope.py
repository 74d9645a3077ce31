"""Registration of hooks on one tool, on one turn, and for the whole process.

Rules:

1. Among hooks of the same group (editing hooks, guards, observers) and priority, those of the narrower scope (tool, turn,
   agent, process) run first; those of a call follow its agent's. Nothing else depends on the scope.
2. The hooks are an immutable tuple that is replaced: a run that has begun keeps its own.
3. A process-wide hook with tags applies to agents, turns and tools with one of these tags, and therefore not to those
   without tags. A process-wide hook without tags applies to all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Final

from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import around_of
from agentflow.hooks.registering import TakesHooks, refuse_tools
from agentflow.vocabulary.events import (
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

__all__ = ["TOOL_EVENTS", "TURN_EVENTS", "HookScope", "ProcessHooks", "process_hooks"]

TOOL_EVENTS: Final[tuple[type[Event], ...]] = (PreActing, ActingChunk, PostActing, Error)
"""The events that hooks of a tool receive."""
TURN_EVENTS: Final = (PrePut, PostPut, PreTurn, TurnValue, PostTurn, *TOOL_EVENTS)
"""The events that hooks of a turn receive."""


class HookScope(TakesHooks):
    """Hooks registered on one object.

    Args:
        hooks: The initial hooks.
        owner: The owner, for errors: `"tool 'add'"`.
        events: The events that its hooks receive; None: all.

    Attributes:
        hooks: The hooks, in the order of registration. Each change replaces the tuple.
    """

    __slots__ = ("_events", "_mutex", "_owner", "hooks")

    def __init__(
        self, hooks: Iterable[Hook] = (), owner: str = "", events: tuple[type[Event], ...] | None = None
    ) -> None:
        self.hooks: tuple[Hook, ...] = tuple(hooks)
        self._owner = owner
        self._events = events
        self._mutex = threading.Lock()

    def _registered(self) -> tuple[Hook, ...]:
        return self.hooks

    def _add(self, hooks: tuple[Hook, ...]) -> None:
        # All checks come before the first change, so that a refused list adds none of its hooks.
        refuse_tools(hooks, self._owner)
        for hook in hooks:
            self._check(hook)
        with self._mutex:  # readers need no lock, since the tuple is replaced
            for hook in hooks:
                if not any(hook is known for known in self.hooks):  # not `in`: a hook may define `__eq__`
                    self.hooks = (*self.hooks, hook)

    def _check(self, hook: Hook) -> None:
        received, wanted = self._events, hook.events
        # A hook with `events = ()` is used through other methods, such as those of a listener.
        if received is None or not wanted or any(issubclass(kind, wanted) for kind in received):
            return
        if around_of(hook, PreActing) is not None:
            return
        raise UsageError(
            f"Hook {hook.name!r} handles {' and '.join(kind.__name__ for kind in wanted)}, but hooks of {self._owner} only "
            f"receive {', '.join(kind.__name__ for kind in received)}. Register it on the agent instead."
        )

    def _unregister(self, hooks: tuple[Hook, ...]) -> bool:
        with self._mutex:
            before = self.hooks
            self.hooks = tuple(known for known in before if not any(known is hook for hook in hooks))
            return len(self.hooks) < len(before)

    def copy(self) -> HookScope:
        """Return a scope with the same owner and hooks."""
        return HookScope(self.hooks, self._owner, self._events)

    def clear(self) -> None:
        """Remove all hooks."""
        with self._mutex:
            self.hooks = ()

    def __len__(self) -> int:
        return len(self.hooks)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self.hooks)


class ProcessHooks(HookScope):
    """Process-wide hooks. `process_hooks` is the default for all agents and turns.

    Example:
        >>> audit = ProcessHooks()
        >>> @audit.on(PreActing, tags=["database"])
        ... def log(event: PreActing) -> None:
        ...     print("database:", event.tool_use.name)
        >>> agent = Agent("clerk", "openai/gpt-5", process_hooks=audit)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(owner="the process")

    def matching(self, tags: frozenset[str]) -> tuple[Hook, ...]:
        """Return the hooks that apply to an object with these tags."""
        return tuple(hook for hook in self.hooks if not hook.tags or not hook.tags.isdisjoint(tags))


process_hooks = ProcessHooks()
"""The process-wide hooks that agents and turns use by default."""
