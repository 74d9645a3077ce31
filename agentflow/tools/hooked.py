"""Hooks on one tool: `@my_tool.before_invoke` and its like. They see this tool's calls, whoever makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

from agentflow.events import ActingChunk, Error, PostActing, PreActing
from agentflow.hooks.functions import FunctionHook
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource
from agentflow.hooks.scope import TOOL_EVENTS, HookScope, Registered

__all__ = ["HookedTool", "ScopeHolder"]

Before = TypeVar("Before", bound="Callable[[PreActing], Any]")
After = TypeVar("After", bound="Callable[[PostActing], Any]")
Chunk = TypeVar("Chunk", bound="Callable[[ActingChunk], Any]")
Failed = TypeVar("Failed", bound="Callable[[Error], Any]")
F = TypeVar("F", bound="Callable[..., Any]")
Decorator = Callable[[F], FunctionHook[F]]


class ScopeHolder(Protocol):
    """What all copies of a tool share."""

    scope: HookScope | None


class HookedTool:
    """The hooks of a tool: its narrowest scope.

    Example:
        >>> @tool
        ... async def add(a: int, b: int) -> int:
        ...     return a + b
        >>> @add.before_invoke
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

    def hook(self, hook: HookSource) -> Registered:
        """Register a hook on this tool: it gets `PreActing`, `ActingChunk`, `PostActing` and `Error` of its calls.

        Args:
            hook: A hook, or whatever else an agent takes as `hooks=`.

        Returns:
            A disposable that takes it off.

        Raises:
            UsageError: It is no hook, its options cannot hold, or it is for none of these events.
        """
        return self._scope().add(hook)

    def remove_hook(self, hook: Hook) -> bool:
        """Take a hook off; returns whether it was there."""
        return self._scope().remove(hook)

    @overload
    def before_invoke(self, function: Before, /) -> FunctionHook[Before]: ...
    @overload
    def before_invoke(self, /, **options: Any) -> Decorator[Any]: ...
    def before_invoke(self, function: Any = None, /, **options: Any) -> Any:
        """Register a function of `PreActing`; it may edit the call, deny it, answer it or suspend it.

        Args:
            function: Takes the event.
            options: As in `agentflow.on`.
        """
        return self._named(PreActing, function, options)

    @overload
    def after_invoke(self, function: After, /) -> FunctionHook[After]: ...
    @overload
    def after_invoke(self, /, **options: Any) -> Decorator[Any]: ...
    def after_invoke(self, function: Any = None, /, **options: Any) -> Any:
        """Register a function of `PostActing`; it may edit the result. It fires for every end, failures too."""
        return self._named(PostActing, function, options)

    @overload
    def on_chunk(self, function: Chunk, /) -> FunctionHook[Chunk]: ...
    @overload
    def on_chunk(self, /, **options: Any) -> Decorator[Any]: ...
    def on_chunk(self, function: Any = None, /, **options: Any) -> Any:
        """Register a function of `ActingChunk`: each value that a generator tool yields, each piece that a tool emits."""
        return self._named(ActingChunk, function, options)

    @overload
    def on_error(self, function: Failed, /) -> FunctionHook[Failed]: ...
    @overload
    def on_error(self, /, **options: Any) -> Decorator[Any]: ...
    def on_error(self, function: Any = None, /, **options: Any) -> Any:
        """Register a function of `Error`: the tool raised, timed out, or got arguments that do not fit."""
        return self._named(Error, function, options)

    def _named(self, event: type[Any], function: Any, options: dict[str, Any]) -> Any:
        scope: Any = self._scope()
        return scope.on(event, **options) if function is None else scope.take(function, (event,), options)

    def _scope(self) -> HookScope:
        scope = self._blueprint.scope
        if scope is None:
            scope = self._blueprint.scope = HookScope(whose=f"tool {self.name!r}", events=TOOL_EVENTS)
        return scope
