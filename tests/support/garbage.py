"""Cyclic garbage: what only the collector frees after an operation."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

__all__ = ["garbage_of"]

_TRIES = 3
_COLLECTIONS = 10


async def garbage_of(work: Callable[[], Awaitable[object]]) -> list[str]:
    """Do some work until it leaves no cyclic garbage, three times at most; return what it left the last time.

    It is done once before, since the first time builds what is built once. What the work itself leaves, it leaves each time;
    threads and finalizers of earlier tests in this process leave theirs once.

    Args:
        work: The work; its exceptions are raised.

    Returns:
        The type and the start of the `repr` of each object.
    """
    await work()
    left: list[str] = []
    for _ in range(_TRIES):
        for _ in range(_COLLECTIONS):  # finalizers may leave garbage themselves
            if not gc.collect():
                break
        gc.freeze()  # the last collection sees what the work has made, and not what this process has loaded
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await work()
            await asyncio.sleep(0)  # callbacks of tasks that have ended
            gc.collect()
            left = [f"{type(found).__module__}.{type(found).__name__} {found!r:.80}" for found in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        if not left:
            break
    return left
