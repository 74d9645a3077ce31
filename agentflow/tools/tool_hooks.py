"""Hooks on one tool, which see all calls of this tool."""

from __future__ import annotations

from typing import Protocol

from agentflow.hooks.hook import Hook
from agentflow.hooks.registering import TakesHooks
from agentflow.hooks.scope import TOOL_EVENTS, HookScope


class ScopeHolder(Protocol):
    """The part that all copies of a tool share."""

    scope: HookScope | None


class HookedTool(TakesHooks):
    """The hooks of a tool, the narrowest scope of hooks. They receive `PreActing`, `ActingChunk`, `PostActing` and `Error`
    of the tool's calls.

    Example:
        >>> @tool
        ... async def add(a: int, b: int) -> int:
        ...     return a + b
        >>> @add.on(PreActing)
        ... def show(event: PreActing) -> None:
        ...     print("adds", dict(event.tool_use.input))
    """

    _blueprint: ScopeHolder
    name: str

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks registered on this tool."""
        scope = self._blueprint.scope
        return () if scope is None else scope.hooks

    def _registered(self) -> tuple[Hook, ...]:
        return self.hooks

    def _add(self, hooks: tuple[Hook, ...]) -> None:
        scope = self._blueprint.scope
        if scope is None:  # created for the first hook, since most tools have none
            scope = self._blueprint.scope = HookScope(owner=f"tool {self.name!r}", events=TOOL_EVENTS)
        scope.hook(hooks)

    def _unregister(self, hooks: tuple[Hook, ...]) -> bool:
        scope = self._blueprint.scope
        return scope is not None and scope.remove(hooks)
