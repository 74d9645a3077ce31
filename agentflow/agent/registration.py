"""Turning what users pass as `tools=` into tools, checked; `hooks=` is `hooks_of`'s work."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias, cast

from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, NamedEvent, hooks_of
from agentflow.tools.tool import Tool
from agentflow.tools.tool_registry import default_tools

__all__ = ["HookSource", "ToolSource", "hooks_of", "tools_of"]


ToolSource: TypeAlias = "Tool[..., Any] | MakesTool | str | Iterable[Tool[..., Any]]"
"""What `tools=` takes: a tool, an agent, a name in the default registry, or what holds tools, such as a `Toolset`."""


class MakesTool(Protocol):
    """What can be a tool: an agent."""

    def as_tool(self) -> Tool[..., Any]:
        """The tool."""
        ...


def tools_of(sources: Iterable[Any]) -> dict[str, Tool[..., Any]]:
    """Resolve tools by name: tools, agents, names in the default registry, and what holds tools (a `Toolset`, a list).

    Raises:
        UsageError: A plain function, or two tools of one name.
        NotRegisteredError: A name that the default registry does not know.
    """
    tools: dict[str, Tool[..., Any]] = {}
    for found in _flat(sources):
        other = tools.get(found.name)
        if other is found:
            continue
        if other is not None:
            raise UsageError(
                f"Two tools are named {found.name!r}: {other.function!r} and {found.function!r}. Give one another name: "
                "@tool(name=...)."
            )
        tools[found.name] = found
    return tools


def _flat(sources: Iterable[Any]) -> Iterator[Tool[..., Any]]:
    """One tool after the other: themselves, agents as tools, registered names, and whatever holds tools."""
    for source in sources:
        made = getattr(source, "as_tool", None)
        if isinstance(source, Tool):
            yield cast("Tool[..., Any]", source)
        elif callable(made):
            yield cast("Tool[..., Any]", made())
        elif isinstance(source, str):
            yield default_tools[source]
        elif isinstance(source, Iterable) and not isinstance(source, type | Hook | Awaitable):
            yield from _flat(cast("Iterable[Any]", source))
        else:
            raise _no_tool(source)


def _no_tool(source: Any) -> UsageError:
    name = getattr(source, "__name__", repr(source))
    if isinstance(source, Hook | NamedEvent):
        name = cast("Hook", source).name
        return UsageError(f"{name!r} is a hook, not a tool; hooks are passed as hooks=[...].")
    if inspect.isfunction(source) or inspect.ismethod(source):
        fix = (
            "@tool"
            if inspect.iscoroutinefunction(source) or inspect.isasyncgenfunction(source)
            else "@tool(in_thread=True)"
        )
        return UsageError(f"{name} is a plain function, not a tool. Decorate it: {fix}.")
    return UsageError(f"tools= takes tools and agents, not {type(source).__name__} ({name:.60}).")
