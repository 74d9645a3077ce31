"""Turning what users pass as `hooks=` and `tools=` into hooks and tools, checked."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

from agentflow.errors import UsageError
from agentflow.hooks.functions import FunctionHook, event_named
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import check_options
from agentflow.tools.tool import Tool

__all__ = ["HookSource", "hooks_of", "tools_of"]

HookSource: TypeAlias = "Hook | Iterable[Any] | Mapping[str, Any]"


def hooks_of(source: Any) -> tuple[Hook, ...]:
    """Flatten a hook, a list (of lists) of hooks, or a mapping from event names to functions.

    Raises:
        UsageError: Something else is among them; the text says how to make a hook of it.
    """
    if isinstance(source, Hook):
        check_options(source)
        return (source,)
    if isinstance(source, Mapping):
        named = cast("Mapping[str, Any]", source)
        return tuple(h for name, functions in named.items() for h in _named(name, functions))
    if isinstance(source, type) and issubclass(source, Hook):
        raise UsageError(f"{source.__name__} is a hook's class; pass an instance: {source.__name__}().")
    given = cast("object", source)
    if callable(given):
        name = getattr(given, "__name__", repr(given))
        raise UsageError(
            f"{name} is a plain function: nothing says which event it is for. Mark it: @on(PreActing), @on with an "
            "annotated argument, or @on('before_llm')."
        )
    if isinstance(source, Iterable) and not isinstance(source, str | bytes):
        return tuple(h for item in cast("Iterable[Any]", source) for h in hooks_of(item))
    raise UsageError(f"A hook is a Hook, a function marked with @on, or a list of them, not {type(given).__name__}.")


def _named(name: str, functions: Any) -> Iterable[Hook]:
    kind = event_named(name)
    for function in cast("Iterable[Any]", functions) if isinstance(functions, list | tuple) else (functions,):
        if isinstance(function, Hook):
            raise UsageError(f"hooks={{{name!r}: ...}} takes plain functions; {function.name!r} is a hook already.")
        yield FunctionHook(function, (kind,))


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
    if inspect.isfunction(source) or inspect.ismethod(source):
        fix = (
            "@tool"
            if inspect.iscoroutinefunction(source) or inspect.isasyncgenfunction(source)
            else "@tool(in_thread=True)"
        )
        return UsageError(f"{name} is a plain function, not a tool. Decorate it: {fix}.")
    return UsageError(f"tools= takes tools and agents, not {type(source).__name__} ({name:.60}).")
