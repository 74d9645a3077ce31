"""A hook's options as wrappers around its call, applied once when a chain is compiled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from agentflow._support.locks import FairLock
from agentflow._support.patterns import fits
from agentflow._support.time_limit import strict
from agentflow.errors import HookTimeoutError
from agentflow.hooks.answers import evaluate, failure_of, is_later, outcome_of, settle
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import Around
from agentflow.vocabulary.context import Shadow, note_caller
from agentflow.vocabulary.events import Event, PreActing, PreCall, PreReasoning, PreToolRound, TurnEvent
from agentflow.vocabulary.messages import ToolUseBlock

Call: TypeAlias = Callable[[Any], Any]

WRAPPED: Final = (PreCall, PreReasoning, PreToolRound, PreActing)
"""The events that `around` can wrap."""


def listens_to(hook: Hook, kind: type[Event]) -> bool:
    """Whether a hook handles events of a class."""
    if type(hook).on_event is Hook.on_event:
        return False
    return hook.events is None or issubclass(kind, hook.events)


def around_of(hook: Hook, kind: type[Event]) -> Around | None:
    """Return the hook's `around` for this event class, or None. Shadow hooks never wrap."""
    cls = type(hook)
    if hook.shadow:
        return None
    if kind is PreReasoning and cls.around_model is not Hook.around_model:
        return hook.around_model
    if kind is PreActing and cls.around_tool is not Hook.around_tool:
        return hook.around_tool
    if cls.around is Hook.around or kind not in (WRAPPED if hook.wraps is None else hook.wraps):
        return None
    return cast("Around", hook.around)


def handler_of(hook: Hook) -> Call:
    """Return the callable for events: the function itself for a function hook."""
    return cast("Call", hook.on_event)


def call_of(hook: Hook, kind: type[Event]) -> Call:
    """Return the hook's call for one event class, wrapped by its options."""
    call = handler_of(hook)
    # The order matters. The time limit includes the thread, but not the wait for the `serial` lock; undoing and the
    # shadow see the failures of all options inside them.
    if hook.in_thread:
        call = _threaded(call)
    if hook.timeout is not None:
        call = _timed(call, hook, kind)
    if hook.serial:
        call = _serial(call, hook)
    if hook.on_failure == "skip" and kind.writable:
        call = _undoing(call, hook, kind)
    if hook.shadow:
        call = _shadowed(call, hook, kind)
    # Outermost, so that an event of another tool costs no thread, lock or copy.
    return _filtered(call, hook, kind) if hook.only_tools and about_a_tool(kind) else call


@cache
def about_a_tool(kind: type[Event]) -> bool:
    """Whether each event of a class belongs to one tool, as the events of tool calls and turns do."""
    return not {"tool_use", "turn"}.isdisjoint(field.name for field in fields(kind))


def concerns_tool(hook: Hook, use: ToolUseBlock | None) -> bool:
    """Whether a hook's `only_tools` matches the tool of a call."""
    return use is not None and fits(hook.only_tools, use.name)  # an `Error` outside a tool call has no tool


def _filtered(call: Call, hook: Hook, kind: type[Event]) -> Call:
    use_of = attrgetter("turn.tool_use" if issubclass(kind, TurnEvent) else "tool_use")

    def filtered(event: Any) -> Any:
        return call(event) if concerns_tool(hook, use_of(event)) else None

    return filtered


def for_its_tools(around: Around, hook: Hook) -> Around:
    """Wrap a hook's `around` so that it applies only to tools that match `only_tools`."""

    def chosen(event: Any, source: Any) -> Any:
        return around(event, source) if concerns_tool(hook, event.tool_use) else source

    return chosen


def of_its_replies(call: Call, hook: Hook) -> Call:
    """Wrap a hook's call for `PostReasoning` so that the hook receives only the replies that concern it."""

    def chosen(event: Any) -> Any:
        return call(event) if hook.concerns(event.reasoning_result) else None

    return chosen


def _threaded(call: Call) -> Call:
    async def threaded(event: Any) -> Any:
        loop = asyncio.get_running_loop()
        # The executor does not pass on context variables.
        context = copy_context()
        # Set only in the copy, so that code in the thread can find its call.
        context.run(note_caller, event.context)
        return await loop.run_in_executor(None, lambda: context.run(call, event))

    return threaded


def _timed(call: Call, hook: Hook, kind: type[Event]) -> Call:
    limit = cast("float", hook.timeout)

    async def in_time(result: Any) -> Any:
        deadline = asyncio.timeout(limit)
        try:
            async with strict(deadline):
                return await settle(result)
        except TimeoutError as error:
            if deadline.expired():
                raise HookTimeoutError(hook.name, kind.__name__, limit) from error
            raise  # the hook itself raised it, which is an ordinary failure

    def timed(event: Any) -> Any:
        result = call(event)
        return in_time(result) if is_later(result) else result

    return timed


_locks: WeakKeyDictionary[Hook, FairLock] = WeakKeyDictionary()


def _serial(call: Call, hook: Hook) -> Call:
    # Looked up by hook, so that all chains of all agents share the lock, also those on other event loops and threads.
    lock = _locks.setdefault(hook, FairLock())

    async def serial(event: Any) -> Any:
        await lock.acquire()
        try:
            return await settle(call(event))
        finally:
            lock.release()

    return serial


def getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these fields in one call."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda _: ()
    of = attrgetter(*names)
    return lambda value: (of(value),)


def _undoing(call: Call, hook: Hook, kind: type[Event]) -> Call:
    """Wrap a call so that its edits are undone if it fails."""
    names = tuple(kind.writable)
    values_of = attrgetter(*names)

    def failed(error: BaseException, event: Event, before: Any) -> None:
        # A Veto is an intended answer, so edits made before it stay. A sealed event has no edits to undo.
        denies = isinstance(error, Exception) and not isinstance(failure_of(hook, kind, event, error), Exception)
        if not denies and not event.sealed:
            # `attrgetter` with one name returns the value itself.
            for name, value in zip(names, before if len(names) > 1 else (before,), strict=True):
                object.__setattr__(event, name, value)

    async def later(answer: Any, event: Any, before: Any) -> Any:
        try:
            answer = await settle(answer)
            # An invalid answer is a failure too. The chain raises the same error, but could not undo the edits.
            evaluate(hook, kind, event, answer)
        # A CancelledError may be the hook's own, which counts as a failure (see `_cancelled` in the chain).
        except (Exception, asyncio.CancelledError) as error:
            failed(error, event, before)
            raise
        return answer

    def undoing(event: Any) -> Any:
        before = values_of(event)
        try:
            answer = call(event)
            if answer is None or answer is event:
                return answer
            if is_later(answer):
                return later(answer, event, before)
            evaluate(hook, kind, event, answer)
        except (Exception, asyncio.CancelledError) as error:  # as in `later`
            failed(error, event, before)
            raise
        return answer

    return undoing


def _shadowed(call: Call, hook: Hook, kind: type[Event]) -> Call:
    """Wrap a call so that it runs on a copy, and record its effects."""

    async def shadowed(event: Any) -> None:
        # `replace` returns the open form, in which a guard or an observer could write.
        copy = event.replace()
        if event.sealed:
            object.__setattr__(copy, "__class__", kind)
        answer: Any = None
        failure: BaseException | None = None
        try:
            answer = await settle(call(copy))
        except Exception as error:  # recorded, since a shadow should not end the call
            failure = error
        copy, verdict, failure = outcome_of(hook, kind, copy, answer, failure)
        outcome = verdict if failure is None else failure
        changes = {
            name: getattr(copy, name) for name in event.writable if getattr(copy, name) is not getattr(event, name)
        }
        if changes or outcome is not None:
            event.context.shadows.append(Shadow(hook.name, type(event).__name__, event.seq, changes, outcome))

    return shadowed
