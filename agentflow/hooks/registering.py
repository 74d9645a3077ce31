"""One way to register hooks, on whatever has them: a tool, a turn, an agent, the process.

Rules:

1. `hook` takes what an agent takes as `hooks=`; `on` takes a function for an event. What they return, or were given, `remove`
   takes off.
2. What cannot be heard there, or brings tools where none can come, is refused: nothing is dropped in silence.
3. Who has begun keeps the hooks that it began with.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, Unpack, cast, overload

from agentflow.errors import UsageError
from agentflow.events import Event
from agentflow.hooks.event_names import EventName, kinds_of
from agentflow.hooks.functions import FunctionHook, HookOptions, on
from agentflow.hooks.handlers import check_handler
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.hooks.registered import Registered

__all__ = ["TakesHooks", "meant_by", "refuse_tools"]

E = TypeVar("E", bound=Event)

_ELSEWHERE: Final = {
    **dict.fromkeys(("off", "unhook", "unregister", "remove_hook", "remove_hooks", "remove_listener"), "remove(hook)"),
    **dict.fromkeys(("add_hook", "add_hooks", "register", "register_hook", "use"), "hook(hook)"),
    **dict.fromkeys(("add_listener", "listen", "once"), "on(PreActing, function)"),
}
"""What other libraries call it, and what it is called here."""


def meant_by(name: str) -> str:
    """Return a hint for errors about an attribute that another library has; empty where there is none.

    Example:
        >>> meant_by("off")
        '. Hooks are registered with hook(...) and on(...) and removed with remove(...); here: remove(hook)'
    """
    right = _ELSEWHERE.get(name)
    said = ". Hooks are registered with hook(...) and on(...) and removed with remove(...); here: "
    return "" if right is None else f"{said}{right}"


class TakesHooks:
    """What hooks can be registered on.

    Example:
        >>> agent.on("after_llm", print).dispose()
        >>> @agent.on(PreActing, tools=["delete_*"])
        ... def log(event: PreActing) -> None:
        ...     print(event.tool_use)
        >>> agent.remove(log)
        True
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # a checker must not believe that it has every attribute

        def __getattr__(self, name: str) -> NoReturn:
            message = f"{type(self).__name__!r} object has no attribute {name!r}{meant_by(name)}"
            raise AttributeError(message, name=name, obj=self)

    @abstractmethod
    def _registered(self) -> Iterable[Hook]:
        """The hooks that are here."""

    @abstractmethod
    def _add(self, hooks: tuple[Hook, ...]) -> None:
        """Put hooks behind those that are here; one that is here already counts once."""

    @abstractmethod
    def _take_off(self, hooks: tuple[Hook, ...]) -> bool:
        """Take hooks off; returns whether one of them was here."""

    def hook(self, hook: HookSource) -> Registered:
        """Register a hook, or whatever else an agent takes as `hooks=`; what begins later has it. Threads may register at once.

        Args:
            hook: The hook; the same one twice counts once.

        Returns:
            A disposable that takes it off, also a context manager.

        Raises:
            UsageError: It is no hook, its options cannot hold, it would never be told anything here, or it brings tools.

        Example:
            >>> with agent.hook(after_llm(print)):
            ...     await agent.call("Hi")
        """
        given = hooks_of(hook)
        self._add(given)
        return Registered(given, self)

    @overload
    def on(self, event: type[E], function: Callable[[E], Any], /, **options: Unpack[HookOptions]) -> Registered: ...
    @overload
    def on(self, event: EventName, function: Callable[[Any], Any], /, **options: Unpack[HookOptions]) -> Registered: ...
    @overload
    def on(self, event: type[E], /, **options: Unpack[HookOptions]) -> Callable[[Callable[[E], Any]], Registered]: ...
    @overload
    def on(
        self, *events: type[Event] | EventName, **options: Unpack[HookOptions]
    ) -> Callable[[Callable[[Any], Any]], Registered]: ...
    @overload
    def on(self, function: Callable[..., Any], /, **options: Unpack[HookOptions]) -> Registered: ...
    def on(self, *targets: Any, **options: Unpack[HookOptions]) -> Any:
        """Register a function for an event; what begins later has it.

        Args:
            targets: Event classes, or names such as `"before_llm"`, and behind them the function. Without a function a
                decorator is returned; without events the annotation of the function's argument says them.
            options: As in `agentflow.on`: `priority`, `tools`, `timeout` and so on.

        Returns:
            A disposable that takes it off. It can be called as the function.

        Raises:
            UsageError: The event, the function or an option cannot be used, or it would never be told anything here.

        Example:
            >>> agent.on("after_llm", print).dispose()
            >>> @agent.on(PreActing, tools=["delete_*"])
            ... def log(event): ...
        """
        if targets and not isinstance(targets[-1], type | str):
            return self._on(targets[-1], targets[:-1], options)
        for target in targets:
            kinds_of(target)

        def decorate(function: Any) -> Registered:
            return self._on(function, targets, options)

        return decorate

    def _on(self, function: Any, targets: tuple[Any, ...], options: HookOptions) -> Registered:
        below: tuple[Hook, ...] = ()
        if isinstance(function, Registered):  # a decorator above another one
            below, function = function.hooks, function.function
        check_handler(function)
        made = cast("Hook", cast("Any", on)(*targets, **options)(function))
        self._add((made,))
        return Registered((*below, made), self, function)

    def remove(self, registered: Registered | HookSource | Callable[[Any], Any]) -> bool:
        """Take off what `hook` or `on` was given, or has returned; what has begun keeps it.

        Args:
            registered: The handle, the hook, the function (from all its events), or the mapping or list of these.

        Returns:
            Whether it was there.

        Raises:
            UsageError: It is nothing that can be registered.
        """
        return self._take_off(tuple(self._meant(registered)))

    def _meant(self, registered: Any) -> Iterator[Hook]:
        """The hooks that something stands for."""
        if isinstance(registered, Registered):
            yield from registered.hooks
        elif isinstance(registered, FunctionHook):
            function = cast("FunctionHook[Any]", registered)
            yield from (*function.also, function)
        elif isinstance(registered, Hook):
            yield registered
        elif isinstance(registered, Mapping):
            for event, functions in cast("Mapping[Any, Any]", registered).items():
                for function in (
                    cast("Iterable[Any]", functions) if isinstance(functions, list | tuple) else [functions]
                ):
                    yield from self._made_of(function, kinds_of(event))
        elif callable(registered):
            yield from self._made_of(registered)
        elif isinstance(registered, Iterable) and not isinstance(registered, str | bytes):
            for one in cast("Iterable[Any]", registered):
                yield from self._meant(one)
        elif registered is not None:
            raise UsageError(
                f"remove(...) takes a hook, a function, or what hook(...) or on(...) returned, not {registered!r:.60}."
            )

    def _made_of(self, function: object, kinds: tuple[type[Event], ...] | None = None) -> Iterator[Hook]:
        for hook in self._registered():
            if isinstance(hook, FunctionHook):
                made = cast("FunctionHook[Any]", hook)
                if made.handler == function and (kinds is None or made.events == kinds):
                    yield made


def refuse_tools(hooks: Iterable[Hook], whose: str) -> None:
    """Refuse hooks that bring tools where none can come.

    Args:
        hooks: The hooks.
        whose: Where they are given, for the error: `"a turn of 'add'"`.

    Raises:
        UsageError: One brings tools.
    """
    for hook in hooks:
        if type(hook).tools is not Hook.tools and tuple(hook.tools()):
            raise UsageError(
                f"Hook {hook.name!r} brings tools, and the tools of {whose} are settled: build an agent with it, "
                "Agent(..., hooks=[...])."
            )
