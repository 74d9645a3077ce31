"""Worker threads for blocking work: `subscribe_on(threads())`."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, TypeVar

from reactivex.scheduler import NewThreadScheduler

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")


class Threads(NewThreadScheduler):
    """Worker threads for blocking callables. Used as a reactivex scheduler, it starts a new thread for each action."""

    async def call(self, function: Callable[[], R]) -> R:
        """Run `function` in a thread of the running loop's pool, with a copy of the caller's context variables.

        A thread cannot be interrupted: a cancellation stops the wait, but the function runs to its end.
        """
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(None, context.run, function)


def threads() -> Threads:
    """Worker threads for `subscribe_on`.

    Example:
        >>> text = await Mono.from_callable(Path("notes.txt").read_text).subscribe_on(threads())
    """
    return Threads()
