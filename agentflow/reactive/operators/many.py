"""Several sources as one: merge, flat_map, concat, concat_map, switch_map, zip, amb.

Prefetch: `merge` and `zip` hold one item of each source; `flat_map` pulls its outer source ahead by at most
`max_concurrent` items; `concat` and `concat_map` pull nothing ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar

from agentflow._support.cancellation import cancel_requests
from agentflow.reactive.iterators import close, raise_in
from agentflow.reactive.operators.hub import TaskHub, cancel_all
from agentflow.reactive.publisher import open_source
from agentflow.reactive.signals import EMPTY, identity

T = TypeVar("T")
Mapper = Callable[[object], object]


async def _each(values: Iterable[T]) -> AsyncIterator[T]:
    for value in values:
        yield value


async def merge(sources: Sequence[object], max_concurrent: int | None) -> AsyncIterator[object]:
    """All sources at once, items in order of arrival; the first failure cancels the rest."""
    if max_concurrent is not None and max_concurrent < len(sources):
        flattened = flat_map(_each(sources), identity, max_concurrent, "merge")
        try:
            async for value in flattened:
                yield value
        finally:
            await close(flattened)
        return
    hub = TaskHub[object]()
    try:
        for source in sources:
            hub.spawn(hub.feed(open_source("merge", source)))
        while (value := await hub.take()) is not EMPTY:
            yield value
    finally:
        await hub.close()


async def flat_map(
    outer: AsyncIterator[object], mapper: Mapper, max_concurrent: int, operator: str
) -> AsyncIterator[object]:
    """The items of the mapped sources, in order of arrival, with at most `max_concurrent` runs at once."""
    hub = TaskHub[object]()
    slots = asyncio.Semaphore(max_concurrent)

    async def inner(iterator: AsyncIterator[object]) -> None:
        try:
            await hub.feed(iterator)
        finally:
            slots.release()

    async def spread() -> None:
        try:
            async for value in outer:
                # Taken before the source is opened, and released when its task has ended, however it ends.
                await slots.acquire()
                hub.spawn(inner(open_source(operator, mapper(value))))
        finally:
            await close(outer)

    try:
        hub.spawn(spread())
        while (value := await hub.take()) is not EMPTY:
            yield value
    finally:
        await hub.close()


async def concat(sources: Iterable[object]) -> AsyncIterator[object]:
    """One source after the other; each is opened when the previous one has ended."""
    for source in sources:
        iterator = open_source("concat", source)
        try:
            async for value in iterator:
                yield value
        finally:
            await close(iterator)


async def concat_map(outer: AsyncIterator[object], mapper: Mapper) -> AsyncIterator[object]:
    """The items of the mapped sources, strictly in order, in the reader's own task."""
    try:
        async for value in outer:
            iterator = open_source("concat_map", mapper(value))
            try:
                async for item in iterator:
                    yield item
            finally:
                await close(iterator)
    finally:
        await close(outer)


async def switch_map(outer: AsyncIterator[object], mapper: Mapper) -> AsyncIterator[object]:
    """Only the items of the newest mapped source: a new outer item cancels the previous run."""
    hub = TaskHub[object]()

    async def spread() -> None:
        current: asyncio.Task[None] | None = None
        try:
            async for value in outer:
                if current is not None:
                    await hub.drop([current])
                current = hub.spawn(hub.feed(open_source("switch_map", mapper(value))))
        finally:
            await close(outer)

    try:
        hub.spawn(spread())
        while (value := await hub.take()) is not EMPTY:
            yield value
    finally:
        await hub.close()


async def _close_all(hubs: Iterable[TaskHub[object]]) -> None:
    # Not with `gather`, which would end when the first task is cancelled.
    await cancel_all([task for hub in hubs for task in hub.begin_close()])


async def zip_rows(sources: Sequence[object]) -> AsyncIterator[tuple[object, ...]]:
    """Rows of one item from each source, all pulled at once; ends as soon as any source ends or fails."""
    hubs: list[TaskHub[object]] = []
    changed = asyncio.Event()
    try:
        for source in sources:
            hub = TaskHub[object](changed=changed)
            hubs.append(hub)
            hub.spawn(hub.feed(open_source("zip", source)))
        while True:
            for hub in hubs:  # so that all sources work on the next row at the same time
                hub.release()
            row: dict[int, object] = {}
            while len(row) < len(hubs):
                # Cleared before the hubs are checked, so that no item that arrives during the check is missed.
                changed.clear()
                for index, hub in enumerate(hubs):
                    if index not in row and hub.ready:
                        value = await hub.take()
                        if value is EMPTY:
                            return
                        row[index] = value
                if len(row) < len(hubs):
                    await changed.wait()
            yield tuple([row[index] for index in range(len(hubs))])
    finally:
        await _close_all(hubs)


class _Failure:
    """The failure of a source."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _tagged(iterator: AsyncIterator[object], index: int) -> AsyncIterator[tuple[int, object]]:
    """Pair each item with its source's index, and report the end as an item: the completion as `EMPTY`, or a failure.

    This lets `amb` ignore the failure of a source that has already lost. It cannot prevent the failure: whether the source
    fails before it is cancelled depends on the event loop.
    """
    try:
        value: object = None
        while not (value is EMPTY or isinstance(value, _Failure)):
            try:
                value = await anext(iterator, EMPTY)
            except GeneratorExit:  # the iterator is being closed: not a failure of the source
                raise
            except BaseException as error:  # raised again by `amb`
                if cancel_requests() or isinstance(error, KeyboardInterrupt | SystemExit):
                    raise  # the source is no longer needed, or the process ends
                value = _Failure(error)
            try:
                yield index, value
            except asyncio.CancelledError as error:  # `TaskHub.feed` raises this here
                await raise_in(iterator, error)
                raise
    finally:
        await close(iterator)


async def amb(sources: Sequence[object]) -> AsyncIterator[object]:
    """The source that signals first (item, completion or failure); the others are then cancelled."""
    hub = TaskHub[tuple[int, object]]()
    tasks: list[asyncio.Task[None]] = []
    try:
        tasks.extend(
            hub.spawn(hub.feed(_tagged(open_source("amb", source), index))) for index, source in enumerate(sources)
        )
        winner: int | None = None
        while (item := await hub.take()) is not EMPTY:
            index, value = item
            if winner is None:
                winner = index
                await hub.drop([task for number, task in enumerate(tasks) if number != index])
            # A loser may have put an item before it was dropped.
            if index == winner:
                if value is EMPTY:
                    return
                if isinstance(value, _Failure):
                    raise value.error
                yield value
    finally:
        await hub.close()
