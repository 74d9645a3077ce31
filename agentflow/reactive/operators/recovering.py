"""Failures of a source: catch, retry, on_error_resume_next, finally; and repeating a source that completed.

`except Exception` is the whole rule: cancellation and the other signals are `BaseException`s and pass.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, TypeVar, cast

from agentflow.reactive.iterators import close
from agentflow.reactive.publisher import Publisher, Source, open_source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["catch", "finally_action", "on_error_resume_next", "repeat", "retry"]

T = TypeVar("T")
P = TypeVar("P", bound="Publisher[object]")


async def catch(source: P, handler: Callable[[Exception, P], object]) -> AsyncIterator[object]:
    """The source; if it fails, the source that the handler returns, after the items already delivered."""
    iterator = source.open()
    try:
        async for value in iterator:
            yield value
    except Exception as error:
        failure = error
    else:
        return
    finally:
        await close(iterator)
    try:
        fallback = open_source("catch", handler(failure, source))
    finally:
        del failure  # its traceback holds this frame
    try:
        async for value in fallback:
            yield value
    finally:
        await close(fallback)


async def on_error_resume_next(source: Publisher[T], second: Source[T]) -> AsyncIterator[T]:
    """The source, then the second one, whether the first completed or failed."""
    iterator = source.open()
    try:
        async for value in iterator:
            yield value
    except Exception:
        pass
    finally:
        await close(iterator)
    following = cast("AsyncIterator[T]", open_source("on_error_resume_next", second))
    try:
        async for value in following:
            yield value
    finally:
        await close(following)


async def retry(source: Publisher[T], attempts: int | None) -> AsyncIterator[T]:
    """Run the source until it completes, at most `attempts` times in total."""
    attempt = 0
    while True:
        attempt += 1
        iterator = source.open()
        try:
            async for value in iterator:
                yield value
            return
        except Exception:
            if attempt == attempts:
                raise
        finally:
            await close(iterator)
        await asyncio.sleep(0)  # a source that fails without suspending must not lock up the loop


async def repeat(source: Publisher[T], times: int | None) -> AsyncIterator[T]:
    """Run the source `times` times, one after the other; None repeats without end."""
    run = 0
    while run != times:
        run += 1
        iterator = source.open()
        try:
            async for value in iterator:
                yield value
        finally:
            await close(iterator)
        await asyncio.sleep(0)


async def finally_action(source: Publisher[T], action: Callable[[], object]) -> AsyncIterator[T]:
    """Call (or await) the action when the run has ended, for any reason, after the source's cleanup."""
    iterator = source.open()
    try:
        async for value in iterator:
            yield value
    finally:
        try:
            await close(iterator)
        finally:
            result = action()
            if inspect.isawaitable(result):
                await result
