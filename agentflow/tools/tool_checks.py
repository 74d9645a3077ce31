"""The checks of `@tool` at decoration. Most of them only test a flag, so that imports stay fast."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from agentflow._support.annotations import signature_of
from agentflow.errors import UsageError
from agentflow.vocabulary.specs import TOOL_ORDER, is_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import FunctionType

    from agentflow.vocabulary.specs import ToolType

_NAME: Final = r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}"
_VARIADIC: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


class HasType(Protocol):
    """A tool."""

    @property
    def type(self) -> ToolType:
        """The kind of work."""
        ...


def strictest(tools: Iterable[HasType]) -> ToolType:
    """Return the type of a tool that uses these tools: "write" if one of them writes, else "read" if one reads."""
    last = max((TOOL_ORDER[tool.type] for tool in tools), default=0)
    return "research" if last == TOOL_ORDER["research"] else "read" if last == TOOL_ORDER["read"] else "write"


def checked_name(name: str | None, function: object) -> str:
    kind = type(function).__name__
    if kind in ("staticmethod", "classmethod"):
        raise UsageError(
            f"@tool was applied to a {kind}. Put @tool below @staticmethod, next to the function; for a "
            "class method, wrap the bound method: tool(TheClass.the_method)."
        )
    if not callable(function):
        raise UsageError(f"@tool takes a function, not {kind} ({function!r:.60}).")
    found = name if name is not None else getattr(function, "__name__", None)
    if found is None:
        raise UsageError(f'@tool got a {kind}, which has no name. Pass a name: tool(..., name="...").')
    if not re.fullmatch(_NAME, found):
        raise UsageError(
            f"A tool cannot be named {found!r}: providers require a letter or _ first, then letters, digits, _ or -, 64 "
            'at most. Name it: @tool(name="...").'
        )
    return found


def checked_type(name: str, kind: ToolType) -> ToolType:
    if kind not in TOOL_ORDER:
        raise UsageError(f"Tool {name!r} has type={kind!r}; use one of {', '.join(map(repr, TOOL_ORDER))}.")
    return kind


def check_kind(name: str, function: Callable[..., Any], in_thread: bool, flags: int) -> None:
    is_async = bool(flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)) or inspect.iscoroutinefunction(
        function
    )
    if is_async and in_thread:
        raise UsageError(f"Tool {name!r} is an async def, which runs in the event loop. Remove in_thread=True.")
    if flags & inspect.CO_GENERATOR:
        raise UsageError(f"Tool {name!r} is a plain generator; make it an async generator: `async def` with `yield`.")
    if not is_async and not in_thread:
        raise UsageError(
            f"Tool {name!r} is a plain def, which would block the event loop. Make it an `async def`, or run it in a "
            "thread: @tool(in_thread=True)."
        )


def check_limits(name: str, timeout: float | None, retries: int) -> None:
    if timeout is not None and not is_seconds(timeout):
        raise UsageError(
            f"Tool {name!r} has timeout={timeout!r}; use a number of seconds above 0, or None for no limit."
        )
    if retries != 0 and (type(retries) is not int or retries < 0):  # `type`, because True is an int
        raise UsageError(
            f"Tool {name!r} has retries={retries!r}; use the number of further attempts, a whole number from 0."
        )


def check_external(
    name: str,
    in_thread: bool,
    lock: bool,
    retries: int,
    requires_approval: bool,
    streaming: bool,
    limited: bool,
    in_run: bool,
    fixed: Mapping[str, object] | None,
) -> None:
    never = "its function never runs, so there is nothing to"
    for option, what, reason in (
        (in_thread, "in_thread=True", f"{never} move to a thread"),
        (lock, "lock=True", f"{never} lock"),
        (retries, f"retries={retries}", f"{never} try again"),
        (requires_approval, "requires_approval=True", "its calls always wait for an answer"),
        (streaming, "`yield`", "an answer is one value; make it a coroutine function"),
        (limited, "timeout=", f"{never} limit; limit the wait in the code that answers"),
        (in_run, "a function as validation_context=", "there is no run in which to call it; pass a value"),
        (fixed, "fixed arguments", f"{never} pass {', '.join(fixed or ())} to"),
    ):
        if option:
            raise UsageError(f"Tool {name!r} has external=True together with {what}: {reason}. Leave one of them out.")


def check_signature(
    name: str,
    plain: FunctionType,
    function: Callable[..., Any],
    fixed: Mapping[str, object] | None,
    options: Iterable[str],
) -> None:
    code = plain.__code__
    # Reads the code object, since `inspect.signature` for each tool would slow down imports.
    if function is plain and not hasattr(plain, "__wrapped__"):
        if not code.co_flags & _VARIADIC and not fixed:
            return
        known: Iterable[str] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        variadic = bool(code.co_flags & _VARIADIC)
    else:
        parameters = signature_of(function).parameters
        known = parameters
        variadic = any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values())
    if variadic:
        raise UsageError(
            f"Tool {name!r} takes *args or **kwargs, but a model passes named arguments only. Name each parameter, or "
            "take a list or a dict."
        )
    unknown = [key for key in fixed or () if key not in known]
    if unknown:
        raise UsageError(
            f"@tool on {name!r} got {', '.join(unknown)}, which is neither an option ({', '.join(options)}) nor "
            f"a parameter that can be fixed ({', '.join(known) or 'the function has none'})."
            f"{f' Hooks are registered on the tool: {name}.hook(h).' if 'hooks' in unknown else ''}"
        )
