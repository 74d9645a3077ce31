"""The hooks of an agent: its initial ones, those added and removed later, and the matching process-wide ones.

Rules:

1. `hook`, `on` and `remove` swap in a new set; a run keeps the one it began with.
2. Several threads can register hooks at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import FullHookSet, HookSet
from agentflow.hooks.registering import TakesHooks, refuse_tools
from agentflow.loop.config import LoopConfig

__all__ = ["HookedAgent"]


class HookedAgent(TakesHooks):
    """The hooks of an `Agent`.

    Args:
        config: The configuration for the loop.
        hooks: The initial hooks, in the order of registration.
    """

    _config: LoopConfig
    _given_hooks: Iterable[Hook]
    _hooks: FullHookSet | None = None  # sorted at the first call
    _process_seen: tuple[Hook, ...] = ()
    _swapping: threading.RLock

    def __init__(self, config: LoopConfig, hooks: Iterable[Hook]) -> None:
        own = vars(self)  # plain assignments go through `__setattr__`, which would double the time to build an agent
        own["_config"], own["_given_hooks"], own["_swapping"] = config, hooks, threading.RLock()

    @property
    def name(self) -> str:
        """Its name."""
        return self._config.view.name

    @property
    def hooks(self) -> HookSet:
        """Its hooks, in order, including matching process-wide ones; `describe()` prints them event by event."""
        return self._hook_set()

    def _hook_set(self) -> FullHookSet:
        process = self._config.process.hooks
        found = self._hooks
        if found is None or process is not self._process_seen:
            with self._swapping:
                own = self._given_hooks if self._hooks is None else self._hooks.own
                self._hooks = found = FullHookSet(own, self._config.process.matching(self._config.tags))
                self._process_seen = process
        return found

    def _registered(self) -> Iterable[Hook]:
        return self.hooks

    def _add(self, hooks: tuple[Hook, ...]) -> None:
        refuse_tools(hooks, f"agent {self.name!r}")
        with self._swapping:
            self._hooks = self._hook_set().with_hooks(hooks)

    def _take_off(self, hooks: tuple[Hook, ...]) -> bool:
        with self._swapping:
            before = after = self._hook_set()
            for hook in hooks:
                after = after.without(hook)
            self._hooks = after
            return len(after) < len(before)
