"""The methods to register hooks on a tool, a turn, an agent or the process.

Rules:

1. `hook` takes the same values as `hooks=` of an agent; `on` takes a function for an event. `remove` takes the arguments
   or the return values of both.
2. A hook is refused if the object would never call it, or if it brings tools that cannot be added: no hook is ignored
   silently.
3. Work that has begun keeps its hooks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, Unpack, cast, overload

from agentflow.errors import UsageError
from agentflow.hooks.event_names import EventName, kinds_of
from agentflow.hooks.functions import FunctionHook, HookOptions, on
from agentflow.hooks.handlers import check_handler
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.hooks.registered import Registered
from agentflow.vocabulary.events import Event

E = TypeVar("E", bound=Event)

_FOREIGN_NAMES: Final = {
    **dict.fromkeys(("off", "unhook", "unregister", "remove_hook", "remove_hooks", "remove_listener"), "remove(hook)"),
    **dict.fromkeys(("add_hook", "add_hooks", "register", "register_hook", "use"), "hook(hook)"),
    **dict.fromkeys(("add_listener", "listen", "once"), "on(PreActing, function)"),
}
"""Names in other libraries, and the equivalent here."""


def hint_for(name: str) -> str:
    """Return a hint for an error about a method name of another library, or "".

    Example:
        >>> hint_for("off")
        '. Hooks are registered with hook(...) and on(...) and removed with remove(...); here: remove(hook)'
    """
    right = _FOREIGN_NAMES.get(name)
    advice = ". Hooks are registered with hook(...) and on(...) and removed with remove(...); here: "
    return "" if right is None else f"{advice}{right}"


class TakesHooks:
    """Base class of objects on which hooks can be registered.

    Example:
        >>> agent.on("after_llm", print).dispose()
        >>> @agent.on(PreActing, tools=["delete_*"])
        ... def log(event: PreActing) -> None:
        ...     print(event.tool_use)
        >>> agent.remove(log)
        True
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            message = f"{type(self).__name__!r} object has no attribute {name!r}{hint_for(name)}"
            raise AttributeError(message, name=name, obj=self)

    @abstractmethod
    def _registered(self) -> Iterable[Hook]:
        """Return the registered hooks."""

    @abstractmethod
    def _add(self, hooks: tuple[Hook, ...]) -> None:
        """Append hooks. A hook that is registered already is ignored."""

    @abstractmethod
    def _unregister(self, hooks: tuple[Hook, ...]) -> bool:
        """Remove hooks. Return whether one of them was registered."""

    def hook(self, hook: HookSource) -> Registered:
        """Register a hook, or any other value that `hooks=` accepts. It applies to work that begins later. Thread-safe.

        Args:
            hook: The hook. If it is registered already, nothing changes.

        Returns:
            A disposable that removes it, also a context manager.

        Raises:
            UsageError: The value is not a hook, its options are invalid, it would never be called here, or it brings tools.

        Example:
            >>> with agent.hook(after_llm(print)):
            ...     await agent.call("Hi")
        """
        hooks = hooks_of(hook)
        self._add(hooks)
        return Registered(hooks, self)

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
        """Register a function for an event. It applies to work that begins later.

        Args:
            targets: Event classes, or names such as `"before_llm"`, followed by the function. Without a function, a
                decorator is returned; without events, the annotation of the function's argument is used.
            options: As in `agentflow.on`: `priority`, `tools`, `timeout` and so on.

        Returns:
            A disposable that removes the hook. Calling it calls the function.

        Raises:
            UsageError: The event, the function or an option cannot be used, or the hook would never be called here.

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
        added = cast("Hook", cast("Any", on)(*targets, **options)(function))
        self._add((added,))
        return Registered((*below, added), self, function)

    def remove(self, registered: Registered | HookSource | Callable[[Any], Any]) -> bool:
        """Remove hooks, given an argument or a return value of `hook` or `on`. Work that has begun keeps them.

        Args:
            registered: The handle, the hook, the function (removed from all its events), or a mapping or list of these.

        Returns:
            Whether one of the hooks was registered.

        Raises:
            UsageError: The argument is not a value that can be registered.
        """
        return self._unregister(tuple(self._hooks_of_argument(registered)))

    def _hooks_of_argument(self, registered: Any) -> Iterator[Hook]:
        """Return the hooks for an argument of `remove`."""
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
                    yield from self._hooks_of_function(function, kinds_of(event))
        elif callable(registered):
            yield from self._hooks_of_function(registered)
        elif isinstance(registered, Iterable) and not isinstance(registered, str | bytes):
            for item in cast("Iterable[Any]", registered):
                yield from self._hooks_of_argument(item)
        elif registered is not None:
            raise UsageError(
                f"remove(...) takes a hook, a function, or a return value of hook(...) or on(...), not {registered!r:.60}."
            )

    def _hooks_of_function(self, function: object, kinds: tuple[type[Event], ...] | None = None) -> Iterator[Hook]:
        for hook in self._registered():
            if isinstance(hook, FunctionHook):
                candidate = cast("FunctionHook[Any]", hook)
                # By equality: each access to a bound method creates another object.
                if candidate.handler == function and (kinds is None or candidate.events == kinds):
                    yield candidate


def refuse_tools(hooks: Iterable[Hook], label: str) -> None:
    """Refuse hooks that bring tools to an object with fixed tools.

    Args:
        hooks: The hooks.
        label: The owner of the hooks, for the error: `"a turn of 'add'"`.

    Raises:
        UsageError: A hook brings tools.
    """
    for hook in hooks:
        if type(hook).tools is not Hook.tools and tuple(hook.tools()):
            raise UsageError(
                f"Hook {hook.name!r} brings tools, but the tools of {label} are fixed. Build an agent with it: "
                "Agent(..., hooks=[...])."
            )
