"""Name the tools and hooks in a saved turn, queue or agent, and find them again on loading.

Code that is not importable by its name (a closure, a lambda) is refused on saving, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import unwrap
from types import FunctionType
from typing import Any, Protocol, TypeVar, cast, runtime_checkable
from weakref import WeakSet

from agentflow.errors import NotRegisteredError, UsageError, close_to
from agentflow.hooks.functions import FunctionHook
from agentflow.hooks.hook import Hook
from agentflow.tools.tool import Tool
from agentflow.tools.tool_registry import ToolRegistry, default_tools

F = TypeVar("F")

_by_name: WeakSet[FunctionType] = WeakSet()  # weak: each agent as a tool makes a function of its own


def found_by_name(function: F) -> F:
    """Mark a closure of the library that can be found by name, such as the function of an agent as a tool."""
    assert isinstance(function, FunctionType)
    _by_name.add(function)
    return function


def named_function(what: str, function: object) -> None:
    """Refuse a function that is not importable by its name.

    Raises:
        UsageError: The function is a lambda, or closes over variables.
    """
    plain = unwrap(function) if callable(function) else None
    plain = getattr(plain, "__func__", plain)
    if not isinstance(plain, FunctionType) or plain in _by_name:
        return
    if plain.__name__ == "<lambda>":
        raise UsageError(f"{what} cannot be saved: it is a lambda, which has no name. Define it with `def`.")
    if plain.__closure__:
        closed = ", ".join(plain.__code__.co_freevars)
        raise UsageError(
            f"{what} cannot be saved: it is a closure over {closed}, whose values would be lost. Define it at the top level "
            "of a module, and pass the values as fixed arguments, metadata or deps."
        )


@runtime_checkable
class NoData(Protocol):
    """A hook that prevents its agent from being saved."""

    @property
    def no_data(self) -> str:
        """The reason, and a workaround."""
        ...


def hook_names(hooks: Iterable[Hook], label: str) -> list[str]:
    """Return the names by which hooks can be found.

    Raises:
        UsageError: A hook is a closure or a lambda, or cannot be saved.
    """
    names: list[str] = []
    for hook in hooks:
        if isinstance(hook, NoData):
            raise UsageError(f"A{label[1:]} cannot be saved: {hook.no_data}")
        if isinstance(hook, FunctionHook):
            named_function(f"Hook {hook.name!r} of {label}", cast("FunctionHook[Any]", hook).handler)
        names.append(hook.name)
    return names


class Finder:
    """Finds tools and hooks by name.

    Args:
        tools: A registry, or tools.
        hooks: Hooks; several hooks with the same name are used in order.
    """

    def __init__(
        self, tools: ToolRegistry | Iterable[Tool[..., Any]] | None = None, hooks: Iterable[Hook] = ()
    ) -> None:
        self._registry = default_tools if tools is None else tools if isinstance(tools, ToolRegistry) else None
        self._tools = {} if tools is None or isinstance(tools, ToolRegistry) else {t.name: t for t in tools}
        self._hooks = tuple(hooks)

    def tool(self, name: str) -> Tool[..., Any]:
        """Return the tool with this name.

        Raises:
            NotRegisteredError: There is no such tool.
        """
        if self._registry is not None:
            return self._registry[name]
        found = self._tools.get(name)
        if found is None:
            raise NotRegisteredError("tool", name, tuple(self._tools), close_to(name, self._tools))
        return found

    def hooks(self, names: Iterable[str]) -> tuple[Hook, ...]:
        """Return the hooks with these names, in order.

        Raises:
            NotRegisteredError: A hook is missing, or passed fewer times than it was saved.
        """
        left = list(self._hooks)
        found: list[Hook] = []
        for name in names:
            match = next((hook for hook in left if hook.name == name), None)
            if match is None:
                known = tuple(hook.name for hook in self._hooks)
                raise NotRegisteredError("hook", name, known, close_to(name, known))
            left.remove(match)  # if the name is repeated, the next hook of this name is found
            found.append(match)
        return tuple(found)
