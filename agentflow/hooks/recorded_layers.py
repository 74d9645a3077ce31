"""Report to `ChangeListener`s how each `around` wrapper changes its work, by observing its input and its output."""

from __future__ import annotations

from collections.abc import AsyncIterator
from operator import is_
from typing import Any, TypeAlias, cast

from agentflow.hooks.hook import Hook
from agentflow.hooks.injections import Injections, injecting
from agentflow.hooks.recorded_calls import clock_of, notify_all, skip_unchanged
from agentflow.hooks.recording import HookCall, LayerRun, Listeners
from agentflow.hooks.wrapping import Around, observed_as
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.reactive.signals import EMPTY
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.events import Event, PreReasoning


def recorded_around(around: Around, hook: Hook, listeners: Listeners) -> Around:
    """Wrap a hook's `around` so that its changes are reported to the listeners."""

    def layered(event: Any, source: Any) -> Any:
        layer = _Layer(hook, event, listeners)
        inner = layer.inside(source)
        outer = injecting.get()
        injecting.set(layer.injections)
        try:
            wrapped = around(event, inner)
        finally:
            injecting.set(outer)
        # The hook changed nothing, so the next hook gets the source without the observer.
        if wrapped is inner:
            layer.report_injections()
            return source
        return layer.outside(wrapped) if hasattr(wrapped, "subscribe") else wrapped

    return layered


class Side:
    """One side of a wrapper: the chunks of the last run, or one value."""

    __slots__ = ("chunks", "ended", "value")

    def __init__(self) -> None:
        self.chunks: list[ModelChunk] = []
        self.ended = False  # whether the run has ended, so that the next chunk belongs to another run
        self.value: Any = None

    def take_chunk(self, chunk: ModelChunk) -> None:
        """Add the next chunk. A chunk that restarts the reply discards the earlier ones."""
        if self.ended or chunk.restart:
            self.chunks, self.ended = [], False
        self.chunks.append(chunk)

    def seen(self) -> Any:
        """Return the message folded from the chunks, or the value."""
        return fold(self.chunks, id="") if self.chunks else self.value

    def same(self, other: Side) -> bool:
        """Whether identical objects passed through both sides."""
        return (
            self.value is other.value
            and len(self.chunks) == len(other.chunks)
            and all(map(is_, self.chunks, other.chunks))
        )


class _WatchedModel(Flux[ModelChunk]):
    """A model's chunks, observed as they pass.

    Args:
        inner: The stream to observe.
        side: Collects the chunks.
        layer: The wrapper that returned this stream, or None if it is the wrapper's input.
    """

    def __init__(self, inner: Flux[ModelChunk], side: Side, layer: _Layer | None = None) -> None:
        self._watched = inner
        self._layer = layer
        self.side = side

    def open(self) -> AsyncIterator[ModelChunk]:
        return self._run()

    async def _run(self) -> AsyncIterator[ModelChunk]:
        take, layer = self.side.take_chunk, self._layer
        chunks = self._watched.open() if layer is None else layer.with_injections(self._watched.open())
        try:
            async for chunk in chunks:
                take(chunk)
                yield chunk
        finally:
            await close(chunks)
            if layer is not None:
                layer.report_injections()  # also if the stream failed or was closed early
        # Not in `finally`: only a completed run has a result to compare.
        self.side.ended = True
        if layer is not None:
            layer.report()


class _WatchedWork(Mono[Any]):
    """Work with one value, observed as it passes; see `_WatchedModel`."""

    def __init__(self, inner: Mono[Any], side: Side, layer: _Layer | None = None) -> None:
        self._watched = inner
        self._layer = layer
        self.side = side

    async def resolve(self) -> Any:
        layer = self._layer
        if layer is None:
            value = await self._watched.resolve()
        else:
            outer = injecting.get()
            injecting.set(layer.injections)
            try:
                value = await self._watched.resolve()
            finally:
                injecting.set(outer)
                layer.report_injections()
        if value is not EMPTY:
            self.side.value = value
            if layer is not None:
                layer.report()
        return value


_Watched: TypeAlias = _WatchedModel | _WatchedWork


class _Layer:
    """One hook's wrapper around the work of one event."""

    __slots__ = ("after", "before", "began", "clock", "event", "hook", "injections", "listeners")

    def __init__(self, hook: Hook, event: Event, listeners: Listeners) -> None:
        self.hook = hook
        self.event = event
        self.listeners = listeners
        self.before = Side()
        self.after = Side()
        self.clock = clock_of(event)
        self.began = self.clock()
        self.injections = Injections.of(event)

    def inside(self, source: Any) -> Any:
        """Return the observed source to pass to the wrapper; it has the methods of the original (`using`, `chunks`).

        The output of one wrapper is the input of the next one, and is observed only once.
        """
        inner = getattr(source, "inner", source)
        # Observed already, as the output of the next inner wrapper.
        if isinstance(inner, _Watched):
            self.before = inner.side
            return source
        if isinstance(source, Flux):
            return observed_as(source, _WatchedModel(cast("Flux[ModelChunk]", source), self.before))
        if isinstance(source, Mono):
            return observed_as(source, _WatchedWork(cast("Mono[Any]", source), self.before))
        return source

    def outside(self, wrapped: Any) -> Any:
        """Return the output of the wrapper, observed."""
        watched: _Watched
        if isinstance(self.event, PreReasoning):
            flux = cast("Flux[ModelChunk]", wrapped if isinstance(wrapped, Flux) else Flux.from_observable(wrapped))
            watched = _WatchedModel(flux, self.after, self)
        else:
            mono = cast("Mono[Any]", wrapped if isinstance(wrapped, Mono) else Mono.from_observable(wrapped))
            watched = _WatchedWork(mono, self.after, self)
        return observed_as(wrapped, watched)

    async def with_injections(self, chunks: AsyncIterator[ModelChunk]) -> AsyncIterator[ModelChunk]:
        """Yield the chunks; messages that are injected while the wrapper works are recorded as the wrapper's."""
        outer = injecting.get()
        try:
            while True:
                # Set for each step only: between the steps, the reader's own injections must not count as the
                # wrapper's.
                injecting.set(self.injections)
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                finally:
                    injecting.set(outer)
                yield chunk
        finally:
            await close(chunks)

    def report_injections(self) -> None:
        """Report the messages that the wrapper has injected so far; called also if its work failed or was closed early."""
        # Emptied, because the wrapper may be run several times.
        added, self.injections.added = tuple(self.injections.added), []
        if added:
            call = HookCall(self.hook, self.event, injected=added, via="around")
            notify_all(self.listeners, lambda listener: listener.on_call(call))

    def report(self) -> None:
        """Report both sides, unless they are the same and all listeners skip unchanged work."""
        if self.before.same(self.after) and skip_unchanged(self.listeners):
            return
        duration = (self.clock() - self.began) * 1000
        layer = LayerRun(self.hook, self.event, self.before.seen(), self.after.seen(), duration)
        notify_all(self.listeners, lambda listener: listener.on_layer(layer))
