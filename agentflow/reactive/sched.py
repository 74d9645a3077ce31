"""Worker threads for blocking work: `subscribe_on(threads())`."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, TypeVar

from reactivex.scheduler import NewThreadScheduler

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable

R = TypeVar("R")


class Threads(NewThreadScheduler):
    """Worker threads for blocking callables. Used as a reactivex scheduler, it starts a new thread for each action.

    Args:
        executor: The pool to use; None means the running loop's default pool.
    """

    def __init__(self, executor: concurrent.futures.Executor | None = None) -> None:
        super().__init__()
        self._pool = executor

    async def call(self, function: Callable[[], R]) -> R:
        """Run `function` in a worker with a copy of the caller's context variables.

        A thread cannot be interrupted: a cancellation stops the wait, but the function runs to its end.
        """
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, function)


def threads(executor: concurrent.futures.Executor | None = None) -> Threads:
    """Worker threads for `subscribe_on`.

    Args:
        executor: The pool to use; None is the running loop's default one.

    Example:
        >>> text = await Mono.from_callable(Path("notes.txt").read_text).subscribe_on(threads())
    """
    return Threads(executor)
