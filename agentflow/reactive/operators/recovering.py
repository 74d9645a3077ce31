"""Failures of a source: catch, retry, finally_action.

Only an `Exception` is a failure: cancellation and the other signals are `BaseException`s and are not caught.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, TypeVar

from agentflow.reactive.iterators import close
from agentflow.reactive.publisher import Publisher, open_source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

T = TypeVar("T")
P = TypeVar("P", bound="Publisher[object]")


async def catch(source: P, handler: Callable[[Exception, P], object]) -> AsyncIterator[object]:
    """The source; if it fails, the source that the handler returns, after the items already delivered."""
    iterator = source.open()
    try:
        async for value in iterator:
            yield value
    except Exception as error:
        # The handler is called below, after the failed source has been closed, and outside this `except`, so that its
        # own error does not get the failure as its context.
        failure = error
    else:
        return
    finally:
        await close(iterator)
    try:
        fallback = open_source("catch", handler(failure, source))
    finally:
        del failure  # its traceback refers to this frame, in a cycle
    try:
        async for value in fallback:
            yield value
    finally:
        await close(fallback)


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
