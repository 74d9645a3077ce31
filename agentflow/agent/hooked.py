"""The hooks of an agent: those that it was built with, those that are added and taken off while it lives, and those of the
process that match.

Rules:

1. `hook`, `on`, `off` and `remove_hook` swap in a new set; a run keeps the one it began with.
2. Threads may register at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, Unpack, cast, overload

from reactivex.abc import DisposableBase

from agentflow.errors import UsageError
from agentflow.events import Event
from agentflow.hooks.chain import HookSet
from agentflow.hooks.functions import EventName, FunctionHook, HookOptions, kinds_of, named_hook
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.hooks.scope import Registered, whole
from agentflow.loop.run import LoopConfig

__all__ = ["HookedAgent"]

E = TypeVar("E", bound=Event)
F = TypeVar("F", bound="Callable[..., Any]")


class HookedAgent:
    """The hooks of an `Agent`.

    Args:
        config: What it gives the loop.
        hooks: The hooks that it begins with, in the order of registration.
    """

    config: LoopConfig
    _given_hooks: Iterable[Hook]
    _hooks: HookSet | None = None  # put in order at the first call
    _process_seen: tuple[Hook, ...] = ()
    _swapping: threading.RLock

    def __init__(self, config: LoopConfig, hooks: Iterable[Hook]) -> None:
        own = vars(self)  # an assignment is looked at, which would double the time that building an agent takes
        own["config"], own["_given_hooks"], own["_swapping"] = config, hooks, threading.RLock()

    @property
    def name(self) -> str:
        """Its name."""
        return self.config.view.name

    @property
    def hooks(self) -> HookSet:
        """Its hooks, in order, the process-wide ones that match included; `describe()` prints them event by event."""
        process = self.config.process.hooks
        found = self._hooks
        if found is None or process is not self._process_seen:
            with self._swapping:
                own = self._given_hooks if self._hooks is None else self._hooks.own
                self._hooks = found = HookSet(own, self.config.process.matching(self.config.tags))
                self._process_seen = process
        return found

    @overload
    def on(
        self, event: EventName, function: Callable[[Any], Any], **options: Unpack[HookOptions]
    ) -> DisposableBase: ...
    @overload
    def on(self, event: type[E], function: Callable[[E], Any], **options: Unpack[HookOptions]) -> DisposableBase: ...
    @overload
    def on(
        self, event: EventName | type[Event], function: None = None, **options: Unpack[HookOptions]
    ) -> Callable[[F], F]: ...
    def on(self, event: EventName | type[Event], function: Any = None, **options: Unpack[HookOptions]) -> Any:
        """Add a function for an event; calls that begin later have it. It may be called from any thread.

        Args:
            event: An event class, or one of the nine names of function hooks.
            function: The function; without it, a decorator is returned.
            options: As in `agentflow.on`: `priority`, `tools`, `timeout` and so on.

        Returns:
            A disposable that takes it off; without `function`, a decorator.

        Raises:
            UsageError: The event, the function or an option cannot be used.

        Example:
            >>> agent.on("after_llm", print).dispose()
            >>> @agent.on(PreActing, tools=["delete_*"])
            ... def log(event): ...
        """
        if isinstance(cast("object", event), Hook):
            raise UsageError(f"agent.on(event, f) takes an event, and {event!r} is a hook already: agent.hook(it).")
        if function is None:
            kinds_of(event)

            def decorate(function: F) -> F:
                self.on(cast("Any", event), function, **options)
                return function

            return decorate
        hook = named_hook(event, function, **options)
        with self._swapping:
            self._hooks = self.hooks.with_hooks([hook])
        return Registered((hook,), self.remove_hook)

    def hook(self, hook: HookSource) -> Registered:
        """Register a hook, or whatever else the constructor takes as `hooks=`; calls that begin later have it.

        Args:
            hook: The hook; the same one twice counts once.

        Returns:
            A disposable that takes it off.

        Raises:
            UsageError: It is no hook, its options cannot hold, or it brings tools: those come with the agent.

        Example:
            >>> with agent.hook(after_llm(print)):
            ...     await agent.call("Hi")
        """
        given = hooks_of(hook)
        for one in given:
            if type(one).tools is not Hook.tools:
                raise UsageError(
                    f"Hook {one.name!r} brings tools, and the tools of agent {self.name!r} are settled: build the agent with "
                    "it, Agent(..., hooks=[...])."
                )
        with self._swapping:
            self._hooks = self.hooks.with_hooks(given)
        return Registered(given, self.remove_hook)

    def off(self, event: EventName | type[Event], function: Callable[[Any], Any]) -> bool:
        """Take a function off an event.

        Args:
            event: An event class, or one of the nine names.
            function: What `on` was given, or what a decorator such as `@after_llm` made of it.

        Returns:
            Whether it was there.

        Raises:
            UsageError: There is no such event, or the function is one hook for other events too.
        """
        kinds = kinds_of(event)
        plain = _handler(function)
        with self._swapping:
            for hook in self.hooks:
                if not isinstance(hook, FunctionHook) or _handler(cast("Hook", hook)) != plain:
                    continue
                if hook.events == kinds:
                    self._hooks = self.hooks.without(cast("Hook", hook))
                    return True
                if set(kinds) & set(hook.events or ()):
                    raise UsageError(
                        f"Hook {hook.name!r} of agent {self.name!r} is one hook for "
                        f"{' and '.join(kind.__name__ for kind in hook.events or ())}, so it cannot be taken off one of "
                        "them. Take it off all: agent.remove_hook(hook)."
                    )
        return False

    def remove_hook(self, hook: Hook) -> bool:
        """Take a hook off; runs that have begun keep it. Returns whether it was there."""
        with self._swapping:
            before = after = self.hooks
            for one in whole(hook):
                after = after.without(one)
            self._hooks = after
            return len(after) < len(before)


def _handler(function: object) -> object:
    return cast("FunctionHook[Any]", function).handler if isinstance(function, FunctionHook) else function
