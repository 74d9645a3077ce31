"""The values that `tools=` accepts, and their resolution to tools."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable
from typing import Any, TypeAlias, cast

from agentflow.agent.arguments import wrapped_agent
from agentflow.agent.as_tool import ToolAgent
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import NamedEvent
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.tool import FullTool, Tool, full_tool
from agentflow.tools.tool_registry import default_tools

ToolLike: TypeAlias = (
    "Tool[..., Any] | ToolAgent | str | Iterable[Tool[..., Any]] | LiveToolset | Iterable[LiveToolset]"
)
"""A value for `tools=`: a tool, an agent, a name in the default registry, a collection of tools such as a `Toolset`, or
a `LiveToolset`.
"""


def tools_of(sources: Iterable[Any], live: list[LiveToolset] | None = None) -> dict[str, FullTool[..., Any]]:
    """Return the tools of `tools=` by name: tools, agents, names in the default registry, and collections of tools (a
    `Toolset`, a list).

    Args:
        sources: The values of `tools=`.
        live: Collects the live toolsets; if None, live toolsets are refused.

    Raises:
        UsageError: A source is a plain function, or two tools have the same name.
        NotRegisteredError: A source is a name that is not in the default registry.
    """
    tools: dict[str, FullTool[..., Any]] = {}
    for source in sources:
        for found in (cast("FullTool[..., Any]", source),) if isinstance(source, FullTool) else _tools_in(source, live):
            if (owner := found.lacks_self) is not None:
                raise UsageError(
                    f"Tool {found.name!r} is a method of {owner}, and the model cannot provide `self`. Take the tool from "
                    f"an object: tools=[{owner}(...).{found.function.__name__}]."
                )
            # The same tool may be passed twice, as a part of two toolsets.
            other = tools.setdefault(found.name, found)
            if other is not found:
                raise UsageError(
                    f"Two tools are named {found.name!r}: {_origin(other)} and {_origin(found)}. Rename one of them: "
                    "@tool(name=...), or agent.as_tool(name=...)."
                )
    return tools


def _origin(found: FullTool[..., Any]) -> str:
    agent = wrapped_agent(found.function)
    return repr(found.function) if agent is None else f"the agent {agent.name!r}"


def _tools_in(source: Any, live: list[LiveToolset] | None) -> Iterable[FullTool[..., Any]]:
    """Return the tools of a value that is not a tool itself: an agent, a registered name, a collection."""
    if live is not None and isinstance(source, LiveToolset):
        if source not in live:
            live.append(source)
        return ()
    as_tool = None if isinstance(source, type) else getattr(source, "as_tool", None)
    if callable(as_tool):
        return (full_tool(cast("Tool[..., Any]", as_tool())),)
    if isinstance(source, str):
        return (full_tool(default_tools[source]),)
    # A class, a hook or an awaitable may be iterable, but is no collection of tools.
    if isinstance(source, Iterable) and not isinstance(source, type | Hook | Awaitable):
        return tools_of(cast("Iterable[Any]", source), live).values()
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
