"""What passes each layer of `around`, told to hooks that want to know: a layer's work is watched on both sides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from operator import is_
from typing import Any, TypeAlias, cast

from agentflow.chunks import ModelChunk, fold
from agentflow.events import Event, PreReasoning
from agentflow.hooks.hook import Hook
from agentflow.hooks.injections import Injections, injecting
from agentflow.hooks.recording import (
    HookCall,
    LayerRun,
    Listeners,
    all_quiet,
    clock_of,
    tell_all,
)
from agentflow.hooks.wrapping import Around, standing_for
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.reactive.signals import EMPTY

__all__ = ["Side", "recorded_around"]


def recorded_around(around: Around, hook: Hook, listeners: Listeners) -> Around:
    """A hook's `around`, with what passes its layer told to the listeners."""

    def layered(event: Any, source: Any) -> Any:
        layer = _Layer(hook, event, listeners)
        inner = layer.inside(source)
        outer = injecting.get()
        injecting.set(layer.injections)
        try:
            wrapped = around(event, inner)
        finally:
            injecting.set(outer)
        if wrapped is inner:
            layer.tell_injections()
            return source
        return layer.outside(wrapped) if hasattr(wrapped, "subscribe") else wrapped

    return layered


class Side:
    """What passes one side of a layer: the chunks of the last run, or one value."""

    __slots__ = ("_value", "chunks", "ended")

    def __init__(self) -> None:
        self.chunks: list[ModelChunk] = []
        self.ended = False
        self._value: Any = None

    def take_chunk(self, chunk: ModelChunk) -> None:
        """The next chunk; one that begins anew makes those before it void."""
        if self.ended or chunk.restart:
            self.chunks, self.ended = [], False
        self.chunks.append(chunk)

    def take_value(self, value: Any) -> None:
        """The one value."""
        self._value = value

    def end(self) -> None:
        """No chunk follows."""
        self.ended = True

    def seen(self) -> Any:
        """The message that the chunks make, or the value."""
        return fold(self.chunks, id="") if self.chunks else self._value

    def same(self, other: Side) -> bool:
        """Whether the very same things have passed."""
        return (
            self._value is other._value
            and len(self.chunks) == len(other.chunks)
            and all(map(is_, self.chunks, other.chunks))
        )


class _WatchedModel(Flux[ModelChunk]):
    """A model's work whose chunks are looked at in passing.

    Args:
        inner: The work.
        side: What passes.
        layer: The layer that it comes out of; None: it goes into one.
    """

    def __init__(self, inner: Flux[ModelChunk], side: Side, layer: _Layer | None = None) -> None:
        self._watched = inner
        self._layer = layer
        self.side = side

    def open(self) -> AsyncIterator[ModelChunk]:
        return self._run()

    async def _run(self) -> AsyncIterator[ModelChunk]:
        take, layer = self.side.take_chunk, self._layer
        chunks = self._watched.open() if layer is None else layer.noting(self._watched.open())
        try:
            async for chunk in chunks:
                take(chunk)
                yield chunk
        finally:
            await close(chunks)
            if layer is not None:
                layer.tell_injections()
        self.side.end()
        if layer is not None:
            layer.tell()


class _WatchedWork(Mono[Any]):
    """Work of one value, which is looked at in passing; see `_WatchedModel`."""

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
                layer.tell_injections()
        if value is not EMPTY:
            self.side.take_value(value)
            if layer is not None:
                layer.tell()
        return value


_Watched: TypeAlias = _WatchedModel | _WatchedWork


class _Layer:
    """One hook's layer around one piece of work."""

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
        """The source as the layer gets it; what only sources can do (`using`, `chunks`) it can do too.

        What goes out of a layer goes into the next one, and is looked at once.
        """
        inner = getattr(source, "inner", source)
        if isinstance(inner, _Watched):
            self.before = inner.side
            return source
        if isinstance(source, Flux):
            return standing_for(source, _WatchedModel(cast("Flux[ModelChunk]", source), self.before))
        if isinstance(source, Mono):
            return standing_for(source, _WatchedWork(cast("Mono[Any]", source), self.before))
        return source

    def outside(self, wrapped: Any) -> Any:
        """What the layer made of it, watched."""
        watched: _Watched
        if isinstance(self.event, PreReasoning):
            flux = cast("Flux[ModelChunk]", wrapped if isinstance(wrapped, Flux) else Flux.from_observable(wrapped))
            watched = _WatchedModel(flux, self.after, self)
        else:
            mono = cast("Mono[Any]", wrapped if isinstance(wrapped, Mono) else Mono.from_observable(wrapped))
            watched = _WatchedWork(mono, self.after, self)
        return standing_for(wrapped, watched)

    async def noting(self, chunks: AsyncIterator[ModelChunk]) -> AsyncIterator[ModelChunk]:
        """The chunks, with what the layer injects while it makes them noted as its own."""
        outer = injecting.get()
        try:
            while True:
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

    def tell_injections(self) -> None:
        """Tell what the layer has injected so far, however its work ends."""
        added, self.injections.added = tuple(self.injections.added), []
        if added:
            told = HookCall(self.hook, self.event, injected=added, via="around")
            tell_all(self.listeners, lambda listener: listener.on_call(told))

    def tell(self) -> None:
        """Tell what has passed, where it was changed."""
        if self.before.same(self.after) and all_quiet(self.listeners):
            return
        duration = (self.clock() - self.began) * 1000
        told = LayerRun(self.hook, self.event, self.before.seen(), self.after.seen(), duration)
        tell_all(self.listeners, lambda listener: listener.on_layer(told))
