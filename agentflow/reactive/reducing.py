"""Reducing a stream to one value: await, `first`, `to_list`, `reduce` and similar, which return a `Mono`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, Never, TypeVar, overload

from reactivex import abc
from reactivex.internal.exceptions import SequenceContainsNoElementsError

from agentflow.errors import UsageError
from agentflow.reactive.iterators import close
from agentflow.reactive.mono import Mono
from agentflow.reactive.operators.items import DROP
from agentflow.reactive.piping import Piping
from agentflow.reactive.publisher import Publisher, Source, refuse_running_loop
from agentflow.reactive.signals import EMPTY, Empty, plain_function

__all__ = ["Reducing"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")


class Reducing(Piping[T_co]):
    """The methods of `Flux` that reduce it to one value."""

    async def resolve(self) -> T_co | Empty:
        """Run to the end; return the last item, or `EMPTY` if there was none."""
        return await _last(self, None)

    def __await__(self) -> Generator[Any, None, T_co]:
        """Return the last item, like reactivex's observables; an empty stream raises."""
        value = yield from self.resolve().__await__()
        if value is EMPTY:
            raise SequenceContainsNoElementsError(
                "This Flux has no items, and awaiting a Flux returns its last one. Read it with `async for`, or await "
                "flux.to_list(), flux.default_if_empty(...) or flux.last()."
            )
        return value

    def first(self, predicate: Callable[[Any], object] | None = None) -> Mono[T_co]:
        """The first item (for which the predicate holds), the source closed at once; empty if there is none."""
        _plain("first", predicate)
        return Mono(lambda: _first(self, predicate))

    def last(self, predicate: Callable[[Any], object] | None = None) -> Mono[T_co]:
        """The last item (for which the predicate holds); empty if there is none."""
        _plain("last", predicate)
        return Mono(lambda: _last(self, predicate))

    def single(self, predicate: Callable[[T_co], object] | None = None) -> Mono[T_co]:
        """The only item; a `UsageError` if there are more; empty if there is none."""
        _plain("single", predicate)
        return Mono(lambda: _single(self, predicate))

    def element_at(self, index: int) -> Mono[T_co]:
        """The item at `index`; empty if the stream is shorter."""
        if index < 0:
            raise UsageError(f"element_at({index}): a number of items cannot be negative")
        return Mono(lambda: _nth(self, index))

    def to_list(self) -> Mono[list[T_co]]:
        """All items in a list."""
        return Mono(lambda: _all_of(self))

    def to_set(self) -> Mono[set[T_co]]:
        """All items in a set."""
        return self.to_list().map(_set_of)

    @overload
    def reduce(self, accumulator: Callable[[Any, T_co], Any]) -> Mono[T_co]: ...
    @overload
    def reduce(self, accumulator: Callable[[A, T_co], A], seed: A) -> Mono[A]: ...
    def reduce(self, accumulator: Callable[[Any, Any], Any], seed: Any = DROP) -> Mono[Any]:
        """All items folded into one; the seed alone for an empty stream, and empty without a seed."""
        return Mono(lambda: _reduced(self, accumulator, seed))

    def count(self, predicate: Callable[[T_co], object] | None = None) -> Mono[int]:
        """How many items there are (for which the predicate holds)."""
        _plain("count", predicate)
        return self.reduce(lambda total, value: total + (predicate is None or bool(predicate(value))), 0)

    def all(self, predicate: Callable[[T_co], object]) -> Mono[bool]:
        """Whether the predicate holds for every item; ends at the first for which it does not."""
        _plain("all", predicate)
        return self.first(lambda value: not predicate(value)).map(_false).default_if_empty(True)

    def some(self, predicate: Callable[[T_co], object] | None = None) -> Mono[bool]:
        """Whether there is an item (for which the predicate holds); ends at the first."""
        return self.first(predicate).map(_true).default_if_empty(False)

    def is_empty(self) -> Mono[bool]:
        """Whether there is no item; ends at the first."""
        return self.first().map(_false).default_if_empty(True)

    def ignore_elements(self) -> Mono[Never]:
        """Only the completion or the failure."""
        return Mono(self.resolve).ignore_elements()

    def then(self, other: Source[A]) -> Mono[A]:
        """After this has completed, the value of `other`; the items are discarded, a failure is not."""
        return Mono(self.resolve).then(other)

    def block_first(self, timeout: float | timedelta | None = None) -> T_co:
        """The first item, from synchronous code (None if there is none). See `Mono.block`."""
        return self.first().block(timeout)

    def block_last(self, timeout: float | timedelta | None = None) -> T_co:
        """The last item, from synchronous code (None if there is none). See `Mono.block`."""
        return self.last().block(timeout)

    def run(self, scheduler: abc.SchedulerBase | None = None) -> T_co:
        """Block for the last item, under reactivex's name; an empty stream raises, as there."""
        refuse_running_loop("run")

        async def run() -> T_co:
            return await self

        return asyncio.run(run())


async def _first(source: Publisher[T], predicate: Callable[[Any], object] | None) -> T | Empty:
    iterator = source.open()
    try:
        async for value in iterator:
            if predicate is None or predicate(value):
                return value
        return EMPTY
    finally:
        await close(iterator)


async def _last(source: Publisher[T], predicate: Callable[[Any], object] | None) -> T | Empty:
    iterator = source.open()
    last: T | Empty = EMPTY
    try:
        async for value in iterator:
            if predicate is None or predicate(value):
                last = value
    finally:
        await close(iterator)
    return last


async def _single(source: Publisher[T], predicate: Callable[[Any], object] | None) -> T | Empty:
    iterator = source.open()
    found: T | Empty = EMPTY
    try:
        async for value in iterator:
            if predicate is not None and not predicate(value):
                continue
            if found is not EMPTY:
                raise UsageError(f"single() found a second item, {value!r:.80}; use first() or last() to choose one")
            found = value
    finally:
        await close(iterator)
    return found


async def _nth(source: Publisher[T], index: int) -> T | Empty:
    iterator = source.open()
    try:
        async for value in iterator:
            if not index:
                return value
            index -= 1
        return EMPTY
    finally:
        await close(iterator)


async def _all_of(source: Publisher[T]) -> list[T]:
    iterator = source.open()
    try:
        return [value async for value in iterator]
    finally:
        await close(iterator)


async def _reduced(source: Publisher[Any], accumulator: Callable[[Any, Any], Any], seed: Any) -> Any:
    iterator = source.open()
    state = seed
    try:
        async for value in iterator:
            state = value if state is DROP else accumulator(state, value)
    finally:
        await close(iterator)
    return EMPTY if state is DROP else state


def _plain(operator: str, predicate: Callable[[Any], object] | None) -> None:
    if predicate is not None:
        plain_function(operator, predicate, "concat_map")


def _set_of(values: list[T]) -> set[T]:
    return set(values)


def _true(_value: object) -> bool:
    return True


def _false(_value: object) -> bool:
    return False
