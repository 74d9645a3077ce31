"""Wrap the calls of hooks so that their effects are reported to `ChangeListener`s (`agentflow.hooks.recording`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import is_
from time import perf_counter
from typing import Any

from agentflow._support.frames import frame_at
from agentflow._support.logs import log_failure
from agentflow.hooks.answers import is_later, outcome_of, settle
from agentflow.hooks.hook import Hook
from agentflow.hooks.injections import Injections, injecting
from agentflow.hooks.options import Call, getter
from agentflow.hooks.recording import ChangeListener, FieldChange, HookCall, Listeners
from agentflow.hooks.skipped import warn_skipped_listener
from agentflow.vocabulary.events import Event
from agentflow.vocabulary.events.base import frame_of


def clock_of(event: Event) -> Callable[[], float]:
    """Return the clock for durations."""
    frame = frame_of(event)
    return perf_counter if frame is None else frame.context.clock.monotonic  # an event built by hand has no run


def recorded(call: Call, hook: Hook, kind: type[Event], listeners: Listeners) -> Call:
    """Wrap a hook's call for one event class so that its effects are reported. The only reported effect of an observer is
    the injection of messages.

    Args:
        call: The call, wrapped by the hook's options.
        hook: The hook.
        kind: The event class.
        listeners: The listeners to notify.
    """
    observes, names = hook.observer, tuple(kind.writable)
    values_of = getter(names)
    may_skip = observes or (not hook.shadow and skip_unchanged(listeners))
    marking = _Marking(hook, listeners)

    def watching(event: Any) -> Any:
        # Values are frozen, so keeping the objects is enough to see a change.
        before = () if observes else values_of(event)
        began = 0.0 if observes else clock_of(event)()
        shadows = len(event.context.shadows) if hook.shadow else 0
        injections = marking.injections(event)

        def report(result: Any, error: BaseException | None) -> None:
            if observes:
                if injections.added:
                    call = HookCall(hook, event, injected=tuple(injections.added))
                    notify_all(listeners, lambda listener: listener.on_call(call))
                return
            watch = _Watch(hook, kind, event, dict(zip(names, before, strict=True)), listeners, injections)
            watch.report(result, error, began, shadows)

        # Most calls have no effect to report: this is found out without building a `HookCall`.
        def unchanged() -> bool:
            return may_skip and not injections.added and (observes or all(map(is_, before, values_of(event))))

        outer = injecting.get()
        injecting.set(injections)
        try:
            result = call(event)
        except BaseException as error:  # recorded, then handled by the chain
            report(None, error)
            raise
        finally:
            injecting.set(outer)
        if result is None or result is event:
            if not unchanged():
                report(result, None)
            return result
        if is_later(result):
            return _settled(result, event, injections, unchanged, report)
        report(result, None)
        return result

    return marking.around(watching)


async def _settled(
    result: Any,
    event: Event,
    injections: Injections,
    unchanged: Callable[[], bool],
    report: Callable[[Any, BaseException | None], None],
) -> Any:
    """Wait for a hook's answer, and report its effects as `recorded` does."""
    outer = injecting.get()
    injecting.set(injections)
    try:
        result = await settle(result)
    except BaseException as error:  # recorded, then handled by the chain
        report(None, error)
        raise
    finally:
        injecting.set(outer)
    if not ((result is None or result is event) and unchanged()):
        report(result, None)
    return result


def in_awaited_hook() -> bool:
    """Whether the running code belongs to a hook that had to be awaited."""
    frame = frame_at(0)
    # While an awaited hook runs, the coroutine that awaits it is on the stack.
    while frame is not None and frame.f_code is not _settled.__code__:
        frame = frame.f_back
    return frame is not None


class _Marking:
    """Notifies listeners when a hook begins, when it injects messages, and when an awaited hook ends.

    Args:
        hook: The hook.
        listeners: The listeners to notify.
    """

    def __init__(self, hook: Hook, listeners: Listeners) -> None:
        self._hook = hook
        self._begins = tuple(
            [listener for listener in listeners if type(listener).on_begin is not ChangeListener.on_begin]
        )
        self._ends = tuple([listener for listener in listeners if type(listener).on_end is not ChangeListener.on_end])
        self._injects = tuple(
            [listener for listener in listeners if type(listener).on_injection is not ChangeListener.on_injection]
        )

    def injections(self, event: Event) -> Injections:
        """Return the record for messages that a call of the hook injects."""
        return Injections.of(event, partial(self._injected, event) if self._injects else None)

    def _injected(self, event: Event, _what: str) -> None:
        notify_all(self._injects, lambda listener: listener.on_injection(self._hook, event))

    def around(self, call: Call) -> Call:
        """Wrap the hook's call so that listeners are notified of its beginning and, if it is awaited, of its end."""
        if self._ends:
            call = partial(self._until_end, call)
        if not self._begins:
            return call

        async def later(ready: Awaitable[None], event: Event, others: Listeners) -> Any:
            await ready
            for listener in others:
                if (other := listener.on_begin(self._hook, event)) is not None:
                    await other
            result = call(event)
            if result is not None and is_later(result):
                return await settle(result)
            for listener in self._begins:
                listener.on_answer(event)
            return result

        def begun(event: Event) -> Any:
            for number, listener in enumerate(self._begins, 1):
                ready = listener.on_begin(self._hook, event)
                if ready is not None:
                    return later(ready, event, self._begins[number:])
            return call(event)

        return begun

    def _until_end(self, call: Call, event: Event) -> Any:
        result = call(event)
        return result if result is None or not is_later(result) else self._settled_until_end(result, event)

    async def _settled_until_end(self, result: Any, event: Event) -> Any:
        try:
            return await settle(result)
        finally:
            for listener in self._ends:
                ready = listener.on_end(self._hook, event)
                if ready is not None:
                    await ready


@dataclass(slots=True, repr=False, eq=False)
class _Watch:
    """One call of one hook."""

    hook: Hook
    kind: type[Event]
    event: Event
    before: Mapping[str, Any]
    listeners: Listeners
    injections: Injections

    def report(self, result: Any, error: BaseException | None, began: float, shadows: int) -> None:
        """Report the call, given its start time and the number of shadow records before it."""
        duration = (clock_of(self.event)() - began) * 1000
        if self.hook.shadow:
            self._report_shadow(duration, shadows)
            return
        after, verdict, error = outcome_of(self.hook, self.kind, self.event, result, error)
        changes = tuple(
            FieldChange(name, before, now)
            for name, before in self.before.items()
            if (now := getattr(after, name)) is not before
        )
        injected = tuple(self.injections.added)
        if not (changes or injected or verdict is not None or error is not None) and skip_unchanged(self.listeners):
            return
        call = HookCall(self.hook, self.event, changes, verdict, error, duration, injected=injected)
        notify_all(self.listeners, lambda listener: listener.on_call(call))

    def _report_shadow(self, duration: float, shadows: int) -> None:
        changes: tuple[FieldChange, ...] = ()
        verdict: Any = None
        error: BaseException | None = None
        for shadow in self.event.context.shadows[shadows:]:
            # Parallel tool calls append their own records to the same list.
            if shadow.seq != self.event.seq or shadow.hook != self.hook.name:
                continue
            changes = tuple(FieldChange(name, self.before[name], value) for name, value in shadow.changes.items())
            if isinstance(shadow.verdict, BaseException):
                error = shadow.verdict
            else:
                verdict = shadow.verdict
        call = HookCall(self.hook, self.event, changes, verdict, error, duration, True)
        notify_all(self.listeners, lambda listener: listener.on_call(call))


def notify_all(listeners: Listeners, notify: Callable[[ChangeListener], None]) -> None:
    """Call `notify` with each listener; log a failure instead of raising it."""
    for listener in listeners:
        try:
            notify(listener)
        except Exception as error:  # rule 2 of `agentflow.hooks.recording`
            # The first failure at a place is logged with its traceback, the later ones without.
            if not warn_skipped_listener(listener.name, error):
                log_failure("WARNING", error, "listener {} failed and was skipped", listener.name)


def skip_unchanged(listeners: Listeners) -> bool:
    """Whether all listeners ignore calls without effect."""
    return all(listener.changes_only for listener in listeners)
