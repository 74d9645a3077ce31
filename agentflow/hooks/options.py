"""A hook's options as wrappers around its call, put on once when a chain is compiled."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import fields
from fnmatch import fnmatchcase
from operator import attrgetter
from types import CoroutineType
from typing import Any, TypeAlias, cast
from weakref import WeakKeyDictionary

from reactivex import Observable

from agentflow.context import Shadow
from agentflow.errors import HookTimeoutError, UsageError, Veto
from agentflow.events import Event, PostActing, PreActing, PreCall, PreReasoning, PreToolRound, TurnEvent
from agentflow.hooks.hook import Hook
from agentflow.messages import ToolUseBlock
from agentflow.reactive import EMPTY, Mono, first_value
from agentflow.verdicts import Deny

__all__ = ["Call", "about_a_tool", "call_of", "check_options", "concerns_tool", "listens_to"]

Call: TypeAlias = Callable[[Any], Any]


def listens_to(hook: Hook, kind: type[Event]) -> bool:
    """Whether a hook gets events of a class."""
    if type(hook).on_event is Hook.on_event:
        return False
    return hook.events is None or issubclass(kind, hook.events)


def check_options(hook: Hook) -> None:
    """Refuse options that cannot hold.

    Raises:
        UsageError: The text names the hook, the option and the fix.
    """
    kinds: object = hook.events
    if kinds is not None and not (
        type(kinds) is tuple
        and all(isinstance(kind, type) and issubclass(kind, Event) for kind in cast("tuple[object, ...]", kinds))
    ):
        raise UsageError(
            f"Hook {hook.name!r}: events={kinds!r:.60}; it names the event classes that the hook listens to (a tuple), or is "
            "None for all. Call what you collect something else."
        )
    stages: object = hook.wraps
    if stages is not None and not (
        type(stages) is tuple
        and not set(cast("tuple[object, ...]", stages)) - {PreCall, PreReasoning, PreToolRound, PreActing}
    ):
        raise UsageError(
            f"Hook {hook.name!r}: wraps={stages!r:.80}; it names the events whose work around() wraps (a tuple of PreCall, "
            "PreReasoning, PreToolRound, PreActing), or is None for all four."
        )
    if type(hook.priority) is not int and type(hook.priority) is not float:
        raise UsageError(f"Hook {hook.name!r}: priority={hook.priority!r}; it is a number, lower runs earlier.")
    if hook.scope not in ("own", "tree"):
        raise UsageError(f"Hook {hook.name!r}: scope={hook.scope!r}; legal are 'own' and 'tree'.")
    if hook.guard and hook.observer:
        raise UsageError(f"Hook {hook.name!r} is guard=True and observer=True; a guard may veto, an observer may not.")
    if hook.on_failure not in (None, "abort", "skip", "deny"):
        raise UsageError(
            f"Hook {hook.name!r}: on_failure={hook.on_failure!r}; legal are 'abort', 'skip', 'deny', None."
        )
    if hook.timeout is not None:
        if hook.timeout <= 0:
            raise UsageError(f"Hook {hook.name!r}: timeout={hook.timeout}; it is seconds and must be above 0.")
        if not hook.in_thread and not _may_suspend(handler_of(hook)):
            raise UsageError(
                f"Hook {hook.name!r} has a timeout and is synchronous, so nothing can interrupt it: make it `async def`, "
                "or set in_thread=True."
            )
    if hook.in_thread and inspect.iscoroutinefunction(handler_of(hook)):
        raise UsageError(f"Hook {hook.name!r} is `async def` and in_thread=True; a thread runs a plain `def`.")


def handler_of(hook: Hook) -> Call:
    """The function behind a hook, where it is one."""
    return cast("Call", getattr(hook, "handler", hook.on_event))


def _may_suspend(function: Call) -> bool:
    if inspect.iscoroutinefunction(function):
        return True
    annotation = str(getattr(function, "__annotations__", {}).get("return", ""))
    return any(word in annotation for word in ("Mono", "Flux", "Observable", "Awaitable", "HookResult"))


def call_of(hook: Hook, kind: type[Event]) -> Call:
    """The hook's call for one event class, its options around it."""
    call = handler_of(hook)
    if hook.only_tools and about_a_tool(kind):
        call = _filtered(call, hook, kind)
    if hook.in_thread:
        call = _threaded(call)
    if hook.timeout is not None:
        call = _timed(call, hook, kind)
    if hook.serial:
        call = _serial(call, hook)
    if hook.on_failure == "deny" and Deny in kind.verdicts:
        call = _denying(call, hook, kind)
    elif hook.on_failure == "deny" and kind is PostActing:
        call = _withholding(call, hook)
    elif hook.on_failure == "skip" and kind.writable:
        call = _undoing(call, kind)
    return _shadowed(call, hook) if hook.shadow else call


async def _resolve(result: Any) -> Any:
    if type(result) is CoroutineType:
        return await cast("Awaitable[Any]", result)
    if isinstance(result, Mono):
        value = await cast("Mono[Any]", result).resolve()
        return None if value is EMPTY else value
    if isinstance(result, Observable):
        value = await first_value(cast("Observable[Any]", result))
        return None if value is EMPTY else value
    return await cast("Awaitable[Any]", result) if isinstance(result, Awaitable) else result


def about_a_tool(kind: type[Event]) -> bool:
    """Whether events of a class are about one tool: a call of it, or a turn."""
    return not {"tool_use", "turn"}.isdisjoint(field.name for field in fields(kind))


def concerns_tool(hook: Hook, use: ToolUseBlock | None) -> bool:
    """Whether a hook's `only_tools` names the tool of a call."""
    if use is None:
        return False
    return any(pattern == use.name or fnmatchcase(use.name, pattern) for pattern in hook.only_tools)


def _filtered(call: Call, hook: Hook, kind: type[Event]) -> Call:
    def filtered(event: Any) -> Any:
        return call(event) if concerns_tool(hook, event.tool_use) else None

    def filtered_turn(event: Any) -> Any:
        return call(event) if concerns_tool(hook, event.turn.tool_use) else None

    return filtered_turn if issubclass(kind, TurnEvent) else filtered


def _threaded(call: Call) -> Call:
    async def threaded(event: Any) -> Any:
        loop = asyncio.get_running_loop()
        context = copy_context()
        return await loop.run_in_executor(None, lambda: context.run(call, event))

    return threaded


def _timed(call: Call, hook: Hook, kind: type[Event]) -> Call:
    limit = cast("float", hook.timeout)

    async def in_time(result: Any) -> Any:
        deadline = asyncio.timeout(limit)
        try:
            async with deadline:
                return await _resolve(result)
        except TimeoutError as error:
            if deadline.expired():
                raise HookTimeoutError(hook.name, kind.__name__, limit) from error
            raise

    def timed(event: Any) -> Any:
        result = call(event)
        return in_time(result) if _is_later(result) else result

    return timed


_locks: WeakKeyDictionary[Hook, WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]] = WeakKeyDictionary()


def _serial(call: Call, hook: Hook) -> Call:
    locks = _locks.setdefault(hook, WeakKeyDictionary())

    async def serial(event: Any) -> Any:
        async with locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return await _resolve(call(event))

    return serial


def _legal(result: object, event: Event, kind: type[Event]) -> bool:
    return result is event or result is None or isinstance(result, (kind, *kind.verdicts))


def _is_later(result: object) -> bool:
    """Whether an answer has to be waited for; what a synchronous hook gives at once costs no coroutine."""
    if result is None or isinstance(result, Event):
        return False
    return type(result) is CoroutineType or isinstance(result, Awaitable | Observable)


def _denying(call: Call, hook: Hook, kind: type[Event]) -> Call:
    def failed(error: Exception) -> Deny:
        return Deny(f"{hook.name} failed ({type(error).__name__}), so this is refused")

    def judged(result: Any, event: Any) -> Any:
        if _legal(result, event, kind):
            return result
        return Deny(f"{hook.name} failed (it answered with {type(result).__name__}), so this is refused")

    async def later(result: Any, event: Any) -> Any:
        try:
            result = await _resolve(result)
        except Veto:
            raise
        except Exception as error:
            return failed(error)
        return judged(result, event)

    def denying(event: Any) -> Any:
        try:
            result = call(event)
        except Veto:
            raise
        except Exception as error:
            return failed(error)
        return later(result, event) if _is_later(result) else judged(result, event)

    return denying


def _withholding(call: Call, hook: Hook) -> Call:
    async def withholding(event: Any) -> Any:
        try:
            return await _resolve(call(event))
        except Exception as error:
            result = event.tool_result
            text = f"(withheld: {hook.name} failed with {type(error).__name__})"
            withheld = type(result)(result.tool_use_id, result.name, text, "denied")
            object.__setattr__(event, "tool_result", withheld)  # a guard sees the sealed event
            return event

    return withholding


def _getter(names: tuple[str, ...]) -> Callable[[Event], tuple[Any, ...]]:
    """Reads the fields in one call."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda event: tuple([getattr(event, name) for name in names])


def _undoing(call: Call, kind: type[Event]) -> Call:
    names = tuple(kind.writable)
    values_of = _getter(names)

    def undo(event: Event, before: tuple[Any, ...]) -> None:
        if not event.sealed:
            for name, value in zip(names, before, strict=True):
                object.__setattr__(event, name, value)

    async def later(result: Any, event: Any, before: tuple[Any, ...]) -> Any:
        try:
            result = await _resolve(result)
        except Veto:
            raise
        except Exception:
            undo(event, before)
            raise
        if not _legal(result, event, kind):  # the chain will say so; the edits go with it
            undo(event, before)
        return result

    def undoing(event: Any) -> Any:
        before = values_of(event)
        try:
            result = call(event)
        except Veto:
            raise
        except Exception:
            undo(event, before)
            raise
        if _is_later(result):
            return later(result, event, before)
        if not _legal(result, event, kind):
            undo(event, before)
        return result

    return undoing


def _shadowed(call: Call, hook: Hook) -> Call:
    async def shadowed(event: Any) -> None:
        copy = event.replace()
        verdict: Any = None
        try:
            verdict = await _resolve(call(copy))
        except Exception as error:
            verdict = error
        if isinstance(verdict, Event):
            copy, verdict = verdict, None
        changes = {
            name: getattr(copy, name) for name in event.writable if getattr(copy, name) is not getattr(event, name)
        }
        if changes or verdict is not None:
            event.context.shadows.append(Shadow(hook.name, type(event).__name__, event.seq, changes, verdict))

    return shadowed
