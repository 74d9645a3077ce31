"""Run blocking work in a thread that does not keep the process alive.

`asyncio.to_thread` uses the event loop's pool, which is joined when the loop ends: a call to an unresponsive database would
keep the program from exiting. A separate thread costs about 50 µs more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def in_daemon(work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Run a function in a daemon thread, in a copy of the context, and return its result.

    Cancelling the wait abandons the thread, which completes its work or ends with the process.

    Example:
        >>> await in_daemon(sum, [1, 2])
        3
    """
    done: concurrent.futures.Future[T] = concurrent.futures.Future()
    context = contextvars.copy_context()

    def run() -> None:
        # False if the wait was cancelled before the thread started. From here on `done` cannot be cancelled, so setting its
        # result cannot fail.
        if not done.set_running_or_notify_cancel():
            return
        try:
            result = context.run(work, *args, **named)
        except BaseException as error:  # the awaited result raises it
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=run, name=f"agentflow: {getattr(work, '__name__', 'work')}", daemon=True).start()
    return await asyncio.wrap_future(done)
