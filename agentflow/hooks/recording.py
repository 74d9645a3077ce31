"""What each hook did to each event, told to hooks that want to know: the seam for provenance.

Where a set of hooks holds a `ChangeListener`, the calls of its editing hooks and guards, and its `around` layers, are
compiled with a wrapper that looks at the event before and after (the layers' is in `recorded_layers`). A set without a
listener pays nothing: its compiled calls are the hooks' own methods.

Rules:

1. Values are compared by identity: they are frozen, so another object is a change.
2. A listener changes nothing, and its failure harms nothing: it is logged.
3. Durations are taken from the run's clock, so they are repeatable in virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from operator import is_
from time import perf_counter
from typing import Any, ClassVar, Literal, TypeAlias

from agentflow.chunks import ModelChunk
from agentflow.context import RunContext
from agentflow.events import Event
from agentflow.ground.logs import log_failure
from agentflow.ground.values import frozen
from agentflow.hooks.answers import comes_to, is_later, settle
from agentflow.hooks.hook import Hook
from agentflow.hooks.injections import Injections, injecting
from agentflow.hooks.options import Call, getter
from agentflow.hooks.wrapping import ModelSource
from agentflow.messages import Msg
from agentflow.ports.model import ModelRequest
from agentflow.reactive import Flux

__all__ = [
    "ChangeListener",
    "FieldChange",
    "HookCall",
    "LayerRun",
    "Listeners",
    "SideWrapper",
    "VerdictListener",
    "all_quiet",
    "clock_of",
    "noted",
    "recorded",
    "tell_all",
]


@frozen
class FieldChange:
    """A writable field before and after a hook's call."""

    field: str
    before: Any
    after: Any


@frozen
class HookCall:
    """One call of a hook's `on_event`, and what came of it.

    Attributes:
        hook: The hook.
        event: The event, still open for hooks that come later.
        changes: The fields that it changed.
        verdict: What it decided.
        error: What it raised.
        duration_ms: How long it took.
        shadow: It ran in the shadow: nothing of this was applied.
        injected: What it put into the conversation with `context.inject`: the messages, and `keep`, of each call.
        via: Whether it was `on_event` or `around`; what the latter makes of the work is told apart, as a `LayerRun`.
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
    """What passed one layer of `around`, once its work came to an end.

    Attributes:
        hook: The hook that made the layer.
        event: The sealed Pre event.
        before: What came from inside: a message made of the chunks, a result, the results; None where the layer did not let
            the inner work run, or ran other work.
        after: What went out of it.
        duration_ms: From the call of `around` to the end.
    """

    hook: Hook
    event: Event
    before: Any
    after: Any
    duration_ms: float = 0.0


class ChangeListener(Hook):
    """A hook that is told what the other hooks of its set do; of observers, what they inject. It is an observer.

    Example:
        >>> class Edits(ChangeListener):
        ...     events = ()
        ...     def on_call(self, call: HookCall) -> None:
        ...         for change in call.changes:
        ...             print(call.hook.name, "changed", change.field)
    """

    observer = True
    changes_only: bool = False
    """Told only of calls and layers that changed, decided, injected or failed; what comes to nothing then costs a look."""

    def on_begin(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """A hook is about to be called with an event; what this returns is awaited first."""
        return None

    def on_injection(self, hook: Hook, event: Event) -> None:
        """A hook that handles an event injects something now."""

    def on_call(self, call: HookCall) -> None:
        """An editing hook or a guard has answered an event; or any hook has injected something."""

    def on_layer(self, layer: LayerRun) -> None:
        """The work behind an event has passed a layer of `around`."""


class VerdictListener(Hook):
    """A hook that looks at some events only for what others have decided on them. It is an observer.

    Where no editing hook and no guard hears such an event, nothing can be decided on it: it is not built for this hook.

    Example:
        >>> class Refusals(VerdictListener):
        ...     for_verdicts = events = (PreActing,)
        ...     def on_event(self, event: HookEvent) -> None:
        ...         if event.decision is not None:
        ...             print(event.decision.hook, "decided", event.decision.verdict)
    """

    observer = True
    for_verdicts: ClassVar[tuple[type[Event], ...]] = ()
    """Those of its `events` that it looks at for that only."""


class SideWrapper(Hook):
    """A hook that wraps what other hooks and tools ask a model on the side (`context.complete`), which is no event.

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
        """The work behind a side call.

        Args:
            context: The call that it is made in.
            request: What the model is asked.
            side: What it is for.
            chunks: The model's reply; each subscription asks again, `chunks.using(...)` asks with another request.
        """
        return chunks


Listeners: TypeAlias = tuple[ChangeListener, ...]


def clock_of(event: Event) -> Callable[[], float]:
    """What durations are taken from."""
    frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
    return perf_counter if frame is None else frame.context.clock.monotonic


def recorded(call: Call, hook: Hook, kind: type[Event], listeners: Listeners) -> Call:
    """A hook's call for one event class, with what it does told to the listeners.

    Args:
        call: The call, its options around it.
        hook: The hook.
        kind: The event class.
        listeners: Who is told.
    """
    names = tuple(kind.writable)
    values_of = getter(names)
    quiet = not hook.shadow and all(listener.changes_only for listener in listeners)
    marking = _Marking(hook, listeners)

    def watching(event: Any) -> Any:
        before = values_of(event)
        began = clock_of(event)()
        shadows = len(event.context.shadows) if hook.shadow else 0
        injections = marking.injections(event)

        def tell(result: Any, error: BaseException | None) -> None:
            watch = _Watch(hook, kind, event, dict(zip(names, before, strict=True)), listeners, injections)
            watch.tell(result, error, began, shadows)

        def unchanged() -> bool:
            return quiet and not injections.added and all(map(is_, before, values_of(event)))

        async def later(result: Any) -> Any:
            outer = injecting.get()
            injecting.set(injections)
            try:
                result = await settle(result)
            except BaseException as error:
                tell(None, error)
                raise
            finally:
                injecting.set(outer)
            if not ((result is None or result is event) and unchanged()):
                tell(result, None)
            return result

        outer = injecting.get()
        injecting.set(injections)
        try:
            result = call(event)
        except BaseException as error:
            tell(None, error)
            raise
        finally:
            injecting.set(outer)
        if result is None or result is event:
            if not unchanged():
                tell(result, None)
            return result
        if is_later(result):
            return later(result)
        tell(result, None)
        return result

    return marking.around(watching)


def noted(call: Call, hook: Hook, listeners: Listeners) -> Call:
    """An observer's call for one event class, with what it injects told to the listeners.

    Args:
        call: The call, its options around it.
        hook: The hook.
        listeners: Who is told.
    """

    marking = _Marking(hook, listeners)

    def watching(event: Any) -> Any:
        injections = marking.injections(event)

        def tell() -> None:
            if injections.added:
                told = HookCall(hook, event, injected=tuple(injections.added))
                tell_all(listeners, lambda listener: listener.on_call(told))

        async def later(result: Any) -> Any:
            outer = injecting.get()
            injecting.set(injections)
            try:
                return await settle(result)
            finally:
                injecting.set(outer)
                tell()

        outer = injecting.get()
        injecting.set(injections)
        try:
            result = call(event)
        except BaseException:
            tell()
            raise
        finally:
            injecting.set(outer)
        if result is not None and is_later(result):
            return later(result)
        tell()
        return result

    return marking.around(watching)


class _Marking:
    """Marks where a hook begins and injects, for listeners that want to know.

    Args:
        hook: The hook.
        listeners: Who is told.
    """

    def __init__(self, hook: Hook, listeners: Listeners) -> None:
        self._hook = hook
        self._begins = tuple([one for one in listeners if type(one).on_begin is not ChangeListener.on_begin])
        self._injects = tuple([one for one in listeners if type(one).on_injection is not ChangeListener.on_injection])

    def injections(self, event: Event) -> Injections:
        """Where injections of a call of the hook are noted."""
        return Injections.of(event, partial(self._injected, event) if self._injects else None)

    def _injected(self, event: Event, _what: str) -> None:
        tell_all(self._injects, lambda listener: listener.on_injection(self._hook, event))

    def around(self, call: Call) -> Call:
        """The hook's call, with its beginning told."""
        if not self._begins:
            return call

        async def later(waits: Awaitable[None], event: Event) -> Any:
            await waits
            result = call(event)
            return await settle(result) if result is not None and is_later(result) else result

        def begun(event: Event) -> Any:
            for listener in self._begins:
                waits = listener.on_begin(self._hook, event)
                if waits is not None:
                    return later(waits, event)
            return call(event)

        return begun


class _Watch:
    """One call of one hook."""

    __slots__ = ("before", "event", "hook", "injections", "kind", "listeners")

    def __init__(
        self,
        hook: Hook,
        kind: type[Event],
        event: Event,
        before: Mapping[str, Any],
        listeners: Listeners,
        injections: Injections,
    ) -> None:
        self.hook = hook
        self.kind = kind
        self.event = event
        self.before = before
        self.listeners = listeners
        self.injections = injections

    def tell(self, result: Any, error: BaseException | None, began: float, shadows: int) -> None:
        """Tell what the call has done, since when, and how many shadows there were before."""
        duration = (clock_of(self.event)() - began) * 1000
        if self.hook.shadow:
            self._tell_shadow(duration, shadows)
            return
        after, verdict, error = comes_to(self.hook, self.kind, self.event, result, error)
        changes = tuple(
            FieldChange(name, before, now)
            for name, before in self.before.items()
            if (now := getattr(after, name)) is not before
        )
        injected = tuple(self.injections.added)
        if not (changes or injected or verdict is not None or error is not None) and all_quiet(self.listeners):
            return
        told = HookCall(self.hook, self.event, changes, verdict, error, duration, injected=injected)
        tell_all(self.listeners, lambda listener: listener.on_call(told))

    def _tell_shadow(self, duration: float, shadows: int) -> None:
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
        told = HookCall(self.hook, self.event, changes, verdict, error, duration, True)
        tell_all(self.listeners, lambda listener: listener.on_call(told))


def tell_all(listeners: Listeners, say: Callable[[ChangeListener], None]) -> None:
    """Tell all listeners."""
    for listener in listeners:
        try:
            say(listener)
        except Exception as error:
            log_failure("WARNING", error, "listener {} failed and was skipped", listener.name)


def all_quiet(listeners: Listeners) -> bool:
    """Whether none wants to know what comes to nothing."""
    return all(listener.changes_only for listener in listeners)
