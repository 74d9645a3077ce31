"""Report the effect of each hook on each event to `ChangeListener`s: the interface for provenance.

If a set of hooks contains a `ChangeListener`, the calls of its editing hooks and guards, and its `around` wrappers, are
wrapped in code that compares the event before and after (`recorded_layers` does this for `around`). A set
without a listener pays nothing: its compiled calls are the hooks' own methods.

Rules:

1. Values are compared by identity: they are frozen, so another object is a change.
2. A listener changes nothing. If it fails, the failure is logged.
3. Durations use the run's clock, so they are repeatable in virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import is_
from time import perf_counter
from typing import Any, ClassVar, Literal, TypeAlias

from agentflow._support.frames import frame_at
from agentflow._support.logs import log_failure
from agentflow._support.values import frozen
from agentflow.hooks.answers import is_later, outcome_of, settle
from agentflow.hooks.hook import Hook
from agentflow.hooks.injections import Injections, injecting
from agentflow.hooks.options import Call, getter
from agentflow.hooks.skipped import warn_skipped_listener
from agentflow.hooks.wrapping import ModelSource
from agentflow.reactive import Flux
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import Event, PreActing, PreReasoning
from agentflow.vocabulary.events.base import frame_of
from agentflow.vocabulary.messages import Msg, ToolResultBlock
from agentflow.vocabulary.ports.model import ModelRequest


@frozen
class FieldChange:
    """A writable field before and after a hook's call."""

    field: str
    before: Any
    after: Any


@frozen
class HookCall:
    """One call of a hook's `on_event`, and its effect.

    Attributes:
        hook: The hook.
        event: The event, still open for later hooks.
        changes: The fields that the hook changed.
        verdict: The hook's verdict.
        error: The exception that the hook raised.
        duration_ms: How long it took.
        shadow: Whether the hook ran as a shadow, so that its changes were not applied.
        injected: The messages of each `context.inject` call of the hook, with `keep`.
        via: `on_event` or `around`; changes by `around` are reported as a `LayerRun` instead.
    """

    hook: Hook
    event: Event
    changes: tuple[FieldChange, ...] = ()
    verdict: Any = None
    error: BaseException | None = None
    duration_ms: float = 0.0
    shadow: bool = False
    injected: tuple[tuple[tuple[Msg, ...], bool], ...] = ()
    via: Literal["on_event", "around"] = "on_event"


@frozen
class LayerRun:
    """The input and output of one `around` wrapper, after its work has finished.

    Attributes:
        hook: The hook.
        event: The sealed Pre event.
        before: The result of the inner work: a message folded from chunks, a result, or results. None if the wrapper
            did not run the inner work, or ran other work.
        after: The result of the wrapper.
        duration_ms: From the call of `around` until the result.
    """

    hook: Hook
    event: Event
    before: Any
    after: Any
    duration_ms: float = 0.0


class ChangeListener(Hook):
    """An observer that is notified of the effects of the other hooks in its set, and of messages that observers inject.

    Example:
        >>> class Edits(ChangeListener):
        ...     events = ()
        ...     def on_call(self, call: HookCall) -> None:
        ...         for change in call.changes:
        ...             print(call.hook.name, "changed", change.field)
    """

    observer = True
    changes_only: bool = False
    """Whether to report only calls and wrappers that changed something, decided, injected messages or failed. Reporting
    then costs one comparison for each call without effect."""

    def on_begin(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """Called before a hook receives an event. If it returns an awaitable, that is awaited first."""
        return None

    def on_end(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """Called after an awaited hook has returned or failed. If it returns an awaitable, that is awaited first."""
        return None

    def on_answer(self, event: Event) -> None:
        """Called after a hook has answered without an await, if `on_begin` had made the hook wait."""

    def on_injection(self, hook: Hook, event: Event) -> None:
        """Called when a hook that handles an event injects messages."""

    def on_call(self, call: HookCall) -> None:
        """Called after an editing hook or a guard has answered, or after any hook has injected messages."""

    def on_layer(self, layer: LayerRun) -> None:
        """Called after the work of an event has passed an `around` wrapper."""


class VerdictListener(Hook):
    """An observer that needs some events only to see the verdicts of other hooks.

    If neither an editing hook nor a guard handles such an event, no verdict is possible, and the event is not built for
    this hook.

    Example:
        >>> class Refusals(VerdictListener):
        ...     for_verdicts = events = (PreActing,)
        ...     def on_event(self, event: HookEvent) -> None:
        ...         if event.decision is not None:
        ...             print(event.decision.hook, "decided", event.decision.verdict)
    """

    observer = True
    for_verdicts: ClassVar[tuple[type[Event], ...]] = ()
    """The `events` that are needed only for their verdicts."""


class ConditionalWrapper(Hook):
    """A hook that needs to wrap work in some calls only.

    If all hooks that wrap an event are of this class, and none of them needs to wrap it, the work runs as if no hook
    wrapped it.

    Example:
        >>> class Sampled(ConditionalWrapper):
        ...     def wraps_in(self, context: RunContext) -> bool:
        ...         return hash(context.call_id) % 100 == 0
    """

    def wraps_in(self, context: RunContext) -> bool:
        """Whether to wrap the next work of a call. The function should be fast, and must not raise."""
        return True


class SideWrapper(Hook):
    """A hook that wraps the side calls (`context.complete`) of other hooks and tools. Side calls have no event.

    The hooks nest as in `around`: the lowest priority is outermost.

    Example:
        >>> class Counts(SideWrapper):
        ...     def around_side(self, context, request, side, chunks):
        ...         print(side, "asks", request.model)
        ...         return chunks
    """

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: ModelSource
    ) -> Flux[ModelChunk]:
        """Wrap a side call.

        Args:
            context: The context of the call in which it is made.
            request: The request to the model.
            side: The purpose of the side call.
            chunks: The model's reply. Each subscription sends a request; `chunks.using(...)` sends another request.
        """
        return chunks


ModelWork: TypeAlias = Callable[[], AsyncIterator[ModelChunk]]
"""Opens the model's reply to one request."""
ToolWork: TypeAlias = Callable[[], Awaitable[ToolResultBlock]]
"""Starts one attempt of a tool call."""


class WorkListener(Hook):
    """An observer of the work of models and tools: their begin, their chunks and their end, inside all `around` wrappers.

    It costs less than a wrapper, since nothing changes the work: each method returns work that passes on the same chunks,
    result and failure. A listener that also wraps models with `around` is not called for models; likewise for tools.

    Example:
        >>> class Times(WorkListener):
        ...     def on_tool_work(self, event: PreActing, work: ToolWork) -> ToolWork:
        ...         async def timed() -> ToolResultBlock:
        ...             began = event.context.clock.monotonic()
        ...             try:
        ...                 return await work()
        ...             finally:
        ...                 print(event.tool_use.name, event.context.clock.monotonic() - began)
        ...         return timed
    """

    observer = True

    def on_model_work(self, event: PreReasoning, request: ModelRequest, work: ModelWork) -> ModelWork | None:
        """Return the work of a model, observed; None means `work` itself.

        A generator that reads the reply should close it in a `finally`. Otherwise, if a wrapper stops reading early,
        the model call continues after its stage.

        Args:
            event: The sealed event of the model call.
            request: The request to the model.
            work: Opens the reply.
        """
        return work

    def on_tool_work(self, event: PreActing, work: ToolWork) -> ToolWork | None:
        """Return the work of a tool, observed; None means `work` itself.

        Args:
            event: The sealed event of the tool call.
            work: Starts an attempt, including the tool's own lock and retries.
        """
        return work


Listeners: TypeAlias = tuple[ChangeListener, ...]


def clock_of(event: Event) -> Callable[[], float]:
    """Return the clock for durations."""
    frame = frame_of(event)
    return perf_counter if frame is None else frame.context.clock.monotonic


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
    quiet = observes or (not hook.shadow and skip_unchanged(listeners))
    marking = _Marking(hook, listeners)

    def watching(event: Any) -> Any:
        before = () if observes else values_of(event)
        began = 0.0 if observes else clock_of(event)()
        shadows = len(event.context.shadows) if hook.shadow else 0
        injections = marking.injections(event)

        def report(result: Any, error: BaseException | None) -> None:
            if observes:
                if injections.added:
                    made = HookCall(hook, event, injected=tuple(injections.added))
                    notify_all(listeners, lambda listener: listener.on_call(made))
                return
            watch = _Watch(hook, kind, event, dict(zip(names, before, strict=True)), listeners, injections)
            watch.report(result, error, began, shadows)

        def unchanged() -> bool:
            return quiet and not injections.added and (observes or all(map(is_, before, values_of(event))))

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
    while frame is not None and frame.f_code is not _settled.__code__:
        frame = frame.f_back
    return frame is not None


class _Marking:
    """Notifies listeners when a hook begins and when it injects messages.

    Args:
        hook: The hook.
        listeners: The listeners to notify.
    """

    def __init__(self, hook: Hook, listeners: Listeners) -> None:
        self._hook = hook
        self._begins = tuple([one for one in listeners if type(one).on_begin is not ChangeListener.on_begin])
        self._ends = tuple([one for one in listeners if type(one).on_end is not ChangeListener.on_end])
        self._injects = tuple([one for one in listeners if type(one).on_injection is not ChangeListener.on_injection])

    def injections(self, event: Event) -> Injections:
        """Return the record for messages that a call of the hook injects."""
        return Injections.of(event, partial(self._injected, event) if self._injects else None)

    def _injected(self, event: Event, _what: str) -> None:
        notify_all(self._injects, lambda listener: listener.on_injection(self._hook, event))

    def around(self, call: Call) -> Call:
        """Wrap the hook's call so that its beginning is reported."""
        if self._ends:
            call = partial(self._until_end, call)
        if not self._begins:
            return call

        async def later(waits: Awaitable[None], event: Event) -> Any:
            await waits
            result = call(event)
            if result is not None and is_later(result):
                return await settle(result)
            for listener in self._begins:
                listener.on_answer(event)
            return result

        def begun(event: Event) -> Any:
            for listener in self._begins:
                waits = listener.on_begin(self._hook, event)
                if waits is not None:
                    return later(waits, event)
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
                waits = listener.on_end(self._hook, event)
                if waits is not None:
                    await waits


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
        made = HookCall(self.hook, self.event, changes, verdict, error, duration, injected=injected)
        notify_all(self.listeners, lambda listener: listener.on_call(made))

    def _report_shadow(self, duration: float, shadows: int) -> None:
        changes: tuple[FieldChange, ...] = ()
        verdict: Any = None
        error: BaseException | None = None
        for shadow in self.event.context.shadows[shadows:]:
            if shadow.seq != self.event.seq or shadow.hook != self.hook.name:
                continue
            changes = tuple(FieldChange(name, self.before[name], value) for name, value in shadow.changes.items())
            if isinstance(shadow.verdict, BaseException):
                error = shadow.verdict
            else:
                verdict = shadow.verdict
        made = HookCall(self.hook, self.event, changes, verdict, error, duration, True)
        notify_all(self.listeners, lambda listener: listener.on_call(made))


def notify_all(listeners: Listeners, say: Callable[[ChangeListener], None]) -> None:
    """Notify all listeners."""
    for listener in listeners:
        try:
            say(listener)
        except Exception as error:
            if not warn_skipped_listener(listener.name, error):
                log_failure("WARNING", error, "listener {} failed and was skipped", listener.name)


def skip_unchanged(listeners: Listeners) -> bool:
    """Whether no listener needs reports of calls without effect."""
    return all(listener.changes_only for listener in listeners)
