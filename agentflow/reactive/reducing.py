"""Reducing a stream to one value: await, `first`, `to_list`, `then`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Never, TypeVar

from reactivex import abc
from reactivex.internal.exceptions import SequenceContainsNoElementsError

from agentflow.reactive.iterators import close
from agentflow.reactive.mono import Mono
from agentflow.reactive.piping import Piping
from agentflow.reactive.publisher import Publisher, Source, refuse_running_loop
from agentflow.reactive.signals import EMPTY, Empty, plain_function

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")


class Reducing(Piping[T_co]):
    """The methods of `Flux` that reduce it to one value."""

    async def resolve(self) -> T_co | Empty:
        """Run to the end; return the last item, or `EMPTY` if there was none."""
        iterator = self.open()
        last: T_co | Empty = EMPTY
        try:
            async for value in iterator:
                last = value
        finally:
            await close(iterator)
        return last

    def __await__(self) -> Generator[Any, None, T_co]:
        """Return the last item, like reactivex's observables. An empty stream raises an error."""
        value = yield from self.resolve().__await__()
        if value is EMPTY:
            raise SequenceContainsNoElementsError(
                "This Flux has no items, and awaiting a Flux returns its last one. Read it with `async for`, or await "
                "flux.to_list() or flux.default_if_empty(...)."
            )
        return value

    def first(self, predicate: Callable[[Any], object] | None = None) -> Mono[T_co]:
        """The first item (for which the predicate holds), after which the source is closed; empty if there is none."""
        if predicate is not None:
            plain_function("first", predicate, "concat_map")
        return Mono(lambda: _first(self, predicate))

    def to_list(self) -> Mono[list[T_co]]:
        """All items in a list."""
        return Mono(lambda: _all_of(self))

    def ignore_elements(self) -> Mono[Never]:
        """Only the completion or the failure."""
        return Mono(self.resolve).ignore_elements()

    def then(self, other: Source[A]) -> Mono[A]:
        """The value of `other`, which runs after this flux. This flux's items are discarded; its failure is raised."""
        return Mono(self.resolve).then(other)

    def run(self, scheduler: abc.SchedulerBase | None = None) -> T_co:
        """Block until the last item is available, and return it. As in reactivex, an empty stream raises an error."""
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


async def _all_of(source: Publisher[T]) -> list[T]:
    iterator = source.open()
    try:
        return [value async for value in iterator]
    finally:
        await close(iterator)
