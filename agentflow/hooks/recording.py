"""What each hook did to each event, told to hooks that want to know: the seam for provenance.

Where a set of hooks holds a `ChangeListener`, the calls of its editing hooks and guards, and its `around` layers, are
compiled with a wrapper that looks at the event before and after. A set without a listener pays nothing: its compiled calls
are the hooks' own methods.

Rules:

1. Values are compared by identity: they are frozen, so another object is a change.
2. A listener changes nothing, and its failure harms nothing: it is logged.
3. Durations are taken from the run's clock, so they are repeatable in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias, cast

from agentflow.chunks import ModelChunk, fold
from agentflow.events import Event, PreReasoning
from agentflow.ground.frozen import EMPTY
from agentflow.ground.logs import log_failure
from agentflow.ground.values import frozen
from agentflow.hooks.answers import comes_to, is_later, settle
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import Call
from agentflow.hooks.wrapping import standing_for
from agentflow.reactive import Flux, Mono

__all__ = ["Around", "ChangeListener", "FieldChange", "HookCall", "LayerRun", "recorded", "recorded_around"]

Around: TypeAlias = Callable[[Any, Any], Any]


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
    """

    hook: Hook
    event: Event
    changes: tuple[FieldChange, ...] = ()
    verdict: Any = None
    error: BaseException | None = None
    duration_ms: float = 0.0
    shadow: bool = False


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
    """A hook that is told what the other hooks of its set do. It is an observer.

    Example:
        >>> class Edits(ChangeListener):
        ...     events = ()
        ...     def on_call(self, call: HookCall) -> None:
        ...         for change in call.changes:
        ...             print(call.hook.name, "changed", change.field)
    """

    observer = True

    def on_call(self, call: HookCall) -> None:
        """An editing hook or a guard has answered an event."""

    def on_layer(self, layer: LayerRun) -> None:
        """The work behind an event has passed a layer of `around`."""


Listeners: TypeAlias = tuple[ChangeListener, ...]


def _clock(event: Event) -> Callable[[], float]:
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

    def watching(event: Any) -> Any:
        watch = _Watch(hook, kind, event, names, listeners)
        try:
            result = call(event)
        except BaseException as error:
            watch.tell(None, error)
            raise
        if is_later(result):
            return watch.later(result)
        watch.tell(result, None)
        return result

    return watching


class _Watch:
    """One call of one hook."""

    __slots__ = ("before", "began", "clock", "event", "hook", "kind", "listeners", "shadows")

    def __init__(
        self, hook: Hook, kind: type[Event], event: Event, names: tuple[str, ...], listeners: Listeners
    ) -> None:
        self.hook = hook
        self.kind = kind
        self.event = event
        self.listeners = listeners
        self.before: Mapping[str, Any] = {name: getattr(event, name) for name in names} if names else EMPTY
        self.shadows = len(event.context.shadows) if hook.shadow else 0
        self.clock = _clock(event)
        self.began = self.clock()

    async def later(self, result: Any) -> Any:
        """Wait for the answer, and tell then."""
        try:
            result = await settle(result)
        except BaseException as error:
            self.tell(None, error)
            raise
        self.tell(result, None)
        return result

    def tell(self, result: Any, error: BaseException | None) -> None:
        """Tell what the call has done."""
        duration = (self.clock() - self.began) * 1000
        if self.hook.shadow:
            self._tell_shadow(duration)
            return
        after, verdict, error = comes_to(self.hook, self.kind, self.event, result, error)
        changes = tuple(
            FieldChange(name, before, now)
            for name, before in self.before.items()
            if (now := getattr(after, name)) is not before
        )
        told = HookCall(self.hook, self.event, changes, verdict, error, duration)
        _tell(self.listeners, lambda listener: listener.on_call(told))

    def _tell_shadow(self, duration: float) -> None:
        changes: tuple[FieldChange, ...] = ()
        verdict: Any = None
        error: BaseException | None = None
        for shadow in self.event.context.shadows[self.shadows :]:
            if shadow.seq != self.event.seq or shadow.hook != self.hook.name:
                continue
            changes = tuple(FieldChange(name, self.before[name], value) for name, value in shadow.changes.items())
            if isinstance(shadow.verdict, BaseException):
                error = shadow.verdict
            else:
                verdict = shadow.verdict
        told = HookCall(self.hook, self.event, changes, verdict, error, duration, True)
        _tell(self.listeners, lambda listener: listener.on_call(told))


def _tell(listeners: Listeners, say: Callable[[ChangeListener], None]) -> None:
    for listener in listeners:
        try:
            say(listener)
        except Exception as error:
            log_failure("WARNING", error, "listener {} failed and was skipped", listener.name)


def recorded_around(around: Around, hook: Hook, listeners: Listeners) -> Around:
    """A hook's `around`, with what passes its layer told to the listeners."""

    def layered(event: Any, source: Any) -> Any:
        layer = _Layer(hook, event, listeners)
        inner = layer.inside(source)
        wrapped = around(event, inner)
        if wrapped is inner:
            return source
        return layer.outside(wrapped) if hasattr(wrapped, "subscribe") else wrapped

    return layered


@dataclass(slots=True)
class _Side:
    """What passes one side of a layer: the chunks of the last run, or one value."""

    chunks: list[ModelChunk] = field(default_factory=list[ModelChunk])
    ended: bool = False
    value: Any = None

    def take_chunk(self, chunk: ModelChunk) -> None:
        if self.ended or chunk.restart:
            self.chunks, self.ended = [], False
        self.chunks.append(chunk)

    def take_value(self, value: Any) -> None:
        self.value = value

    def end(self) -> None:
        self.ended = True

    def seen(self) -> Any:
        return fold(self.chunks, id="") if self.chunks else self.value


class _Layer:
    """One hook's layer around one piece of work."""

    __slots__ = ("before", "began", "clock", "event", "hook", "listeners")

    def __init__(self, hook: Hook, event: Event, listeners: Listeners) -> None:
        self.hook = hook
        self.event = event
        self.listeners = listeners
        self.before = _Side()
        self.clock = _clock(event)
        self.began = self.clock()

    def inside(self, source: Any) -> Any:
        """The source as the layer gets it; what only sources can do (`using`, `chunks`) it can do too."""
        side = self.before
        if isinstance(source, Flux):
            watched: Any = cast("Flux[ModelChunk]", source).tap(side.take_chunk, on_completed=side.end)
        elif isinstance(source, Mono):
            watched = cast("Mono[Any]", source).tap(side.take_value)
        else:
            return source
        return standing_for(source, watched)

    def outside(self, wrapped: Any) -> Any:
        """What the layer made of it, watched."""
        side = _Side()

        def told_value(value: Any) -> None:
            side.take_value(value)
            self._tell(side)

        def told_end() -> None:
            side.end()
            self._tell(side)

        if isinstance(self.event, PreReasoning):
            flux = cast("Flux[ModelChunk]", wrapped if isinstance(wrapped, Flux) else Flux.from_observable(wrapped))
            return standing_for(wrapped, flux.tap(side.take_chunk, on_completed=told_end))
        mono = cast("Mono[Any]", wrapped if isinstance(wrapped, Mono) else Mono.from_observable(wrapped))
        return standing_for(wrapped, mono.tap(told_value))

    def _tell(self, after: _Side) -> None:
        duration = (self.clock() - self.began) * 1000
        told = LayerRun(self.hook, self.event, self.before.seen(), after.seen(), duration)
        _tell(self.listeners, lambda listener: listener.on_layer(told))
