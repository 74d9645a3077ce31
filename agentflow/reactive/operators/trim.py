"""Fewer items, or other items at the start or end: take, take_while, take_last, start_with, default_if_empty, buffers
by count.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, TypeVar

from agentflow.reactive.iterators import close

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from agentflow.reactive.publisher import Publisher

__all__ = ["buffer_with_count", "default_if_empty", "skip_last", "start_with", "take", "take_last", "take_while"]

T = TypeVar("T")


async def take(source: Publisher[T], count: int) -> AsyncIterator[T]:
    """The first `count` items. The item after the last one is never pulled."""
    if count == 0:
        return
    iterator = source.open()
    try:
        async for value in iterator:
            count -= 1
            yield value
            if count == 0:
                return
    finally:
        await close(iterator)


async def take_while(source: Publisher[T], predicate: Callable[[T], object], inclusive: bool) -> AsyncIterator[T]:
    """Items until the predicate fails; with `inclusive` the failing one too."""
    iterator = source.open()
    try:
        async for value in iterator:
            if not predicate(value):
                if inclusive:
                    yield value
                return
            yield value
    finally:
        await close(iterator)


async def take_last(source: Publisher[T], count: int) -> AsyncIterator[T]:
    """The last `count` items, once the source has ended."""
    iterator = source.open()
    last: deque[T] = deque(maxlen=count)
    try:
        async for value in iterator:
            last.append(value)
    finally:
        await close(iterator)
    while last:
        yield last.popleft()


async def skip_last(source: Publisher[T], count: int) -> AsyncIterator[T]:
    """All but the last `count` items; each is held until `count` more have arrived."""
    iterator = source.open()
    held: deque[T] = deque()
    try:
        async for value in iterator:
            held.append(value)
            if len(held) > count:
                yield held.popleft()
    finally:
        await close(iterator)


async def start_with(source: Publisher[T], values: Iterable[T]) -> AsyncIterator[T]:
    """The given values, then the source, which is only opened after them."""
    for value in values:
        yield value
    iterator = source.open()
    try:
        async for value in iterator:
            yield value
    finally:
        await close(iterator)


async def default_if_empty(source: Publisher[T], default: T) -> AsyncIterator[T]:
    """The source, or one default item if it has none."""
    iterator = source.open()
    empty = True
    try:
        async for value in iterator:
            empty = False
            yield value
    finally:
        await close(iterator)
    if empty:
        yield default


async def buffer_with_count(source: Publisher[T], count: int, skip: int) -> AsyncIterator[list[T]]:
    """Lists of `count` items, a new one every `skip` items; the last lists can be shorter."""
    iterator = source.open()
    open_buffers: deque[list[T]] = deque()
    index = 0
    try:
        async for value in iterator:
            if index % skip == 0:
                open_buffers.append([])
            index += 1
            for buffer in open_buffers:
                buffer.append(value)
            if open_buffers and len(open_buffers[0]) == count:
                yield open_buffers.popleft()
    finally:
        await close(iterator)
    while open_buffers:
        yield open_buffers.popleft()
