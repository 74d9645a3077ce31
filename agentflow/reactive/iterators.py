"""The pull side: the iterators of `async for` and `async with` over a flux, and closing a source.

Rules:

1. A stream iterator has one reader at a time. A second concurrent reader gets a `UsageError`; the first reader continues.
2. `__anext__` is a real coroutine, so `asyncio.create_task(anext(stream))` works.
3. `aclose()` returns when the source's cleanup is done; calling it again does nothing. If `async with` opened the stream,
   `aclose()` first cancels a read that waits in another task; otherwise the reader has to cancel such a read.
"""

from __future__ import annotations

import asyncio
from abc import ABCMeta
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from types import AsyncGeneratorType
from typing import Generic, Never, Self, TypeVar, cast

from agentflow._support.cancellation import task_label
from agentflow.errors import UsageError
from agentflow.reactive.signals import EMPTY, Empty

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def close(iterator: AsyncIterator[object]) -> Awaitable[None]:
    """Return an awaitable that closes an iterator, if it can be closed."""
    aclose: Callable[[], Awaitable[None]] | None = getattr(iterator, "aclose", None)
    # A shared object instead of a coroutine for each run: a mono's iterator has nothing to close.
    return _NOTHING if aclose is None else aclose()


class _Nothing:
    """An awaitable that does nothing."""

    __slots__ = ()

    def __await__(self) -> Iterator[None]:
        return iter(())


_NOTHING = cast("Awaitable[None]", _Nothing())


async def closing(iterator: AsyncIterator[T]) -> AsyncIterator[T]:
    """Wrap a foreign iterator in an async generator, so that asyncio closes it if it is abandoned."""
    try:
        while True:
            try:
                item = await anext(iterator)
            except StopAsyncIteration:
                return
            yield item
    except BaseException:  # including GeneratorExit of an abandoned stream; a completed iterator needs no closing
        await close(iterator)
        raise


async def raise_in(stream: AsyncIterator[object], error: asyncio.CancelledError) -> None:
    """Raise a cancellation in a stream that is between two items. If the stream raises another error, it propagates."""
    throw: Callable[[BaseException], Awaitable[object]] | None = getattr(stream, "athrow", None)
    if throw is not None:
        with suppress(StopAsyncIteration, asyncio.CancelledError):
            await throw(error)


class SingleIterator(AsyncIterator[T_co]):
    """Iterates an awaitable's value, if there is one."""

    __slots__ = ("_resolve",)

    def __init__(self, resolve: Callable[[], Awaitable[T_co | Empty]]) -> None:
        self._resolve: Callable[[], Awaitable[T_co | Empty]] | None = resolve

    async def __anext__(self) -> T_co:
        resolve, self._resolve = self._resolve, None  # before the await, so that a second read does not run it again
        if resolve is None:
            raise StopAsyncIteration
        try:
            value = await resolve()
        except StopAsyncIteration as error:  # an iterator raises it to signal its end
            raise RuntimeError("a mono raised StopAsyncIteration") from error
        if value is EMPTY:
            raise StopAsyncIteration
        return value


class _IteratorType(ABCMeta):
    # No virtual subclasses are registered, and the check of ABCMeta takes ten times as long.
    __instancecheck__ = type.__instancecheck__


class StreamIterator(AsyncIterator[T], Generic[T], metaclass=_IteratorType):
    """One run of a flux, for its reader.

    Args:
        source: The source's own iterator, which is closed with this iterator.

    Example:
        >>> async with Flux.of(1, 2, 3) as numbers:  # numbers is a StreamIterator[int]
        ...     first = await anext(numbers)
    """

    __slots__ = ("__weakref__", "_next", "_reader", "_source")

    def __init__(self, source: AsyncIterator[T]) -> None:
        # asyncio closes abandoned async generators (`sys.set_asyncgen_hooks`), but no other iterators.
        if not isinstance(source, AsyncGeneratorType) and hasattr(source, "aclose"):
            source = closing(source)
        self._source: AsyncIterator[T] = source
        self._next: Callable[[], Awaitable[T]] = source.__anext__
        self._reader: asyncio.Task[object] | bool | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._reader is not None:
            raise _second_reader(self._reader)
        # A flag instead of the task: `current_task` for each item would cost 0.2 µs, and only `ManagedStream` needs it.
        self._reader = True
        try:
            return await self._next()
        finally:
            self._reader = None

    async def aclose(self) -> None:
        """Stop the run and wait for its cleanup."""
        if self._reader is not None:
            raise UsageError(
                "aclose() on a stream while a task is waiting for its next item; cancel and await that task first, or "
                "use `async with flux as stream`, which does both"
            )
        self._next = _exhausted  # a read after `aclose` ends, instead of raising from a closed source
        await close(self._source)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class ManagedStream(StreamIterator[T]):
    """The stream of `async with flux`. It keeps track of its reader (0.2 µs for each item on 3.11), so that leaving the
    block can end a read.
    """

    __slots__ = ()

    async def __anext__(self) -> T:
        if self._reader is not None:
            raise _second_reader(self._reader)
        self._reader = asyncio.current_task()
        try:
            return await self._next()
        finally:
            self._reader = None

    async def aclose(self) -> None:
        """Stop the run and wait for its cleanup. A read that still waits in another task is cancelled first."""
        self._next = _exhausted
        reader = self._reader
        if isinstance(reader, asyncio.Task):
            reader.cancel()
            await asyncio.wait([reader])  # unlike `await reader`, does not raise its error here
        await close(self._source)


async def _exhausted() -> Never:
    raise StopAsyncIteration


def _second_reader(reader: asyncio.Task[object] | bool) -> UsageError:
    who = f"task {task_label(reader)!r}" if isinstance(reader, asyncio.Task) else "another task"
    return UsageError(
        f"anext() on a stream while {who} is already waiting for its next item; a stream has one reader at a time: "
        "await that read first, or subscribe to the flux twice for two independent runs"
    )
