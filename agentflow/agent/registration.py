"""Turning what users pass as `tools=` into tools, checked; `hooks=` is `hooks_of`'s work."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, cast

from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, NamedEvent, hooks_of
from agentflow.tools.tool import Tool

__all__ = ["HookSource", "hooks_of", "tools_of"]


def tools_of(sources: Iterable[Any]) -> dict[str, Tool[..., Any]]:
    """Resolve tools by name.

    Raises:
        UsageError: A plain function, or two tools of one name.
    """
    tools: dict[str, Tool[..., Any]] = {}
    for source in sources:
        if not isinstance(source, Tool):
            made = getattr(source, "as_tool", None)
            if callable(made):
                source = made()
            else:
                raise _no_tool(source)
        found = cast("Tool[..., Any]", source)
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
