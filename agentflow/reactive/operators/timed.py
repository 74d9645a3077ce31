"""Operators that use the clock: timeout, deadline, delay, buffer_with_time.

Limits run only while the operator itself awaits its source; a reader can hold an item for any time.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, cast

from agentflow._support.time_limit import TimeLimit
from agentflow.errors import UsageError
from agentflow.reactive.iterators import close
from agentflow.reactive.operators.hub import TaskHub
from agentflow.reactive.publisher import Publisher, Source, open_source, resolve_source
from agentflow.reactive.signals import EMPTY, Empty, SourceTimeoutError, seconds_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

T = TypeVar("T")

DELAY_PREFETCH = 256
"""How many items `delay` reads ahead, so that gaps between items keep their length."""


def label(operator: str, due: float | datetime) -> str:
    """Return an operator's call as its author wrote it."""
    return f"{operator}({due.isoformat()})" if isinstance(due, datetime) else f"{operator}({due:g})"


class _Limited:
    """Awaits parts of the work under a limit, in the current task.

    Args:
        operator: The operator's name in the error, for example `timeout(5)`.
        what: The event that did not happen, for example `no item came`.
        seconds: The limit for all parts together; None if each part has its own.
    """

    __slots__ = ("_limit", "_operator", "_seconds", "_what", "error")

    def __init__(self, operator: str, what: str, seconds: float | None = None) -> None:
        self._operator = operator
        self._what = what
        self._seconds = seconds
        self._limit = TimeLimit(seconds)
        self.error: SourceTimeoutError | None = None
        """This limit's own error, to distinguish it from one that the source passed on."""

    async def run(self, start: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
        """Await `start()` for at most `seconds`, or for the time that remains after the previous parts.

        Raises:
            SourceTimeoutError: The limit passed first; the awaited work was cancelled.
        """
        if asyncio.current_task() is None:
            raise UsageError(f"{self._operator} needs a running asyncio task to cancel; it was driven by hand")
        limit = self._limit
        if seconds is not None:
            limit.renew(seconds)
        elif limit.expired:  # the source swallowed its cancellation and returned an item: no time is left
            limit.renew(0.0)
        limit.start()
        try:
            value = await start()
        except asyncio.CancelledError as error:
            if self._passed():
                allowed = self._seconds if seconds is None else seconds
                self.error = SourceTimeoutError(self._operator, allowed or 0.0, self._what)
                raise self.error from error
            raise
        except BaseException:  # the work has ended, whatever ended it; a cancellation by the limit is still undone
            self._passed()
            raise
        self._passed()
        return value

    def _passed(self) -> bool:
        """End the wait. Return whether only this limit's own cancellation ended it."""
        self._limit.pause()
        return self._limit.expired and self._limit.uncancel()

    def stop(self) -> None:
        """Cancel the timer; for `finally`."""
        self._limit.stop()


async def timeout(source: Publisher[T], due: float | datetime, other: Source[T] | None) -> AsyncIterator[T]:
    """Fail (or switch to `other`) if the next item takes longer than `due`."""
    iterator = source.open()
    limit = _Limited(label("timeout", due), "no item came")
    try:
        while True:
            # A point in time limits all items together, a duration each item.
            seconds = seconds_until(due) if isinstance(due, datetime) else due
            try:
                value = await limit.run(iterator.__anext__, seconds)
            except StopAsyncIteration:
                return
            except SourceTimeoutError as error:
                if other is None or error is not limit.error:
                    raise
                break  # the other source is opened after this one has been closed
            yield value
    finally:
        limit.stop()
        await close(iterator)
    following = cast("AsyncIterator[T]", open_source("timeout", other))
    try:
        async for value in following:
            yield value
    finally:
        await close(following)


async def deadline(source: Publisher[T], seconds: float) -> AsyncIterator[T]:
    """Fail if the source has worked for longer than `seconds` in total; the reader's own time is not counted."""
    iterator = source.open()
    limit = _Limited(f"deadline({seconds:g})", "the source did not end", seconds)
    try:
        while True:
            try:
                value = await limit.run(iterator.__anext__)
            except StopAsyncIteration:
                return
            yield value
    finally:
        limit.stop()
        await close(iterator)


async def limit_value(
    source: Callable[[], Awaitable[T]], due: float | datetime, operator: str, what: str, other: Source[T] | None
) -> T:
    """Await one value under a limit."""
    limit = _Limited(operator, what)
    try:
        return await limit.run(source, seconds_until(due) if isinstance(due, datetime) else due)
    except SourceTimeoutError as error:
        if other is None or error is not limit.error:
            raise
    finally:
        limit.stop()
    return cast("T", await resolve_source(operator, other))


async def delay(source: Publisher[T], seconds: float) -> AsyncIterator[T]:
    """Each item `seconds` after it arrived, with the gaps kept; a failure is passed on as soon as it is reached."""
    clock = asyncio.get_running_loop().time
    hub = TaskHub[tuple[float, T]](DELAY_PREFETCH)

    async def stamped() -> AsyncIterator[tuple[float, T]]:
        iterator = source.open()
        try:
            async for value in iterator:
                # Stamped in the hub's task, so the time that an item waits for the reader counts as delay.
                yield clock() + seconds, value
        finally:
            await close(iterator)

    try:
        hub.spawn(hub.feed(stamped()))
        while (item := await hub.take()) is not EMPTY:
            due, value = item
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            yield value
    finally:
        await hub.close()


async def delay_subscription(source: Publisher[T], seconds: float) -> AsyncIterator[T]:
    """Open the source after `seconds`."""
    await asyncio.sleep(seconds)
    iterator = source.open()
    try:
        async for value in iterator:
            yield value
    finally:
        await close(iterator)


async def buffer_with_time(source: Publisher[T], seconds: float) -> AsyncIterator[list[T]]:
    """Lists of the items that arrived within `seconds`.

    A span begins when the reader requests a list, so a slow reader slows the source instead of filling memory.
    """
    clock = asyncio.get_running_loop().time
    hub = TaskHub[T]()
    limit = _Limited("buffer_with_time", "no item came")
    try:
        hub.spawn(hub.feed(source.open()))
        while True:
            end = clock() + seconds
            buffer: list[T] = []
            ended = False
            while (value := await _before(limit, hub, end - clock())) is not None:
                if value[0] is EMPTY:
                    ended = True
                    break
                buffer.append(value[0])
            if buffer or not ended:
                yield buffer
            if ended:
                return
    finally:
        limit.stop()
        await hub.close()


async def _before(limit: _Limited, hub: TaskHub[T], seconds: float) -> tuple[T | Empty] | None:
    """Return one item (or the end) from the hub; None if the span passed first."""
    if seconds <= 0:
        return None
    try:
        # A cancelled `take` loses no item: it removes one from the queue only after its last await.
        return (await limit.run(hub.take, seconds),)
    except SourceTimeoutError as error:
        if error is not limit.error:
            raise
        return None
