"""Where hooks may be registered besides an agent: on one tool, on one turn, and for the whole process.

Rules:

1. A hook of a narrower scope (tool, turn, agent, process) comes first in a tie of class and priority; nothing else differs.
2. What is registered is an immutable tuple that is swapped: a run that has begun keeps what it found.
3. A process-wide hook with tags concerns what has one of them (an agent, a turn, a tool); without tags it concerns all.
   So what has no tags never matches a hook that has some.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Final

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
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import around_of
from agentflow.hooks.registering import TakesHooks, refuse_tools

__all__ = ["TOOL_EVENTS", "TURN_EVENTS", "HookScope", "ProcessHooks", "process_hooks"]

TOOL_EVENTS: Final[tuple[type[Event], ...]] = (PreActing, ActingChunk, PostActing, Error)
"""What is told to the hooks of a tool."""
TURN_EVENTS: Final = (PrePut, PostPut, PreTurn, TurnValue, PostTurn, *TOOL_EVENTS)
"""What is told to the hooks of a turn."""


class HookScope(TakesHooks):
    """Hooks registered on one object.

    Args:
        hooks: Those that it begins with.
        whose: What it is, for errors: `"tool 'add'"`.
        events: The events that are told to its hooks; None: all.

    Attributes:
        hooks: The hooks, in the order of registration; another tuple after each change.
    """

    __slots__ = ("_events", "_guard", "_whose", "hooks")

    def __init__(
        self, hooks: Iterable[Hook] = (), whose: str = "", events: tuple[type[Event], ...] | None = None
    ) -> None:
        self.hooks: tuple[Hook, ...] = tuple(hooks)
        self._whose = whose
        self._events = events
        self._guard = threading.Lock()

    def _registered(self) -> tuple[Hook, ...]:
        return self.hooks

    def _add(self, hooks: tuple[Hook, ...]) -> None:
        refuse_tools(hooks, self._whose)
        for hook in hooks:
            self._check(hook)
        with self._guard:
            for hook in hooks:
                if not any(hook is known for known in self.hooks):
                    self.hooks = (*self.hooks, hook)

    def _check(self, hook: Hook) -> None:
        told, wanted = self._events, hook.events
        if told is None or not wanted or any(issubclass(kind, wanted) for kind in told):
            return
        if around_of(hook, PreActing) is not None:
            return
        raise UsageError(
            f"Hook {hook.name!r} is for {' and '.join(kind.__name__ for kind in wanted)}, which hooks of {self._whose} are "
            f"never told. They are told {', '.join(kind.__name__ for kind in told)}; register this one on the agent."
        )

    def _take_off(self, hooks: tuple[Hook, ...]) -> bool:
        with self._guard:
            before = self.hooks
            self.hooks = tuple(known for known in before if not any(known is one for one in hooks))
            return len(self.hooks) < len(before)

    def copy(self) -> HookScope:
        """Another scope of the same kind with the same hooks."""
        return HookScope(self.hooks, self._whose, self._events)

    def clear(self) -> None:
        """Take all hooks off."""
        with self._guard:
            self.hooks = ()

    def __len__(self) -> int:
        return len(self.hooks)

    def __iter__(self) -> Iterator[Hook]:
        return iter(self.hooks)


class ProcessHooks(HookScope):
    """Hooks for everything in the process that looks them up here; `process_hooks` is the one that all do by default.

    Example:
        >>> audit = ProcessHooks()
        >>> @audit.on(PreActing, tags=["database"])
        ... def log(event: PreActing) -> None:
        ...     print("database:", event.tool_use.name)
        >>> agent = Agent("clerk", "openai/gpt-5", process_hooks=audit)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(whose="the process")

    def matching(self, tags: frozenset[str]) -> tuple[Hook, ...]:
        """The hooks that concern something with these tags; those without tags concern everything."""
        return tuple(hook for hook in self.hooks if not hook.tags or not hook.tags.isdisjoint(tags))


process_hooks = ProcessHooks()
"""The process-wide hooks that agents and turns use unless they are given others."""
