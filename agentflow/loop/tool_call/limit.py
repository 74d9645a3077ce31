"""Running a tool's coroutine in the driver's task: in a context of its own, with a time limit of its own.

Rules:

1. The tool sees a copy of the context: what it sets does not leak, inline or parallel.
2. The timer is armed when the tool first suspends; a tool that never does costs no timer. It stands still while an
   event is handed to a reader.
3. The limit cancels the task and takes the cancellation back; a cancellation from outside at the same time wins.
4. A tool that ignores its cancellation, by the limit or from outside, is cancelled all the same: what it makes then is
   dropped, and that is said.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any

from agentflow.ground.time_limit import TimeLimit

__all__ = ["LimitPassed", "drive"]


@types.coroutine
def drive(
    coro: Coroutine[Any, Any, Any], context: Context, seconds: float | None, limit: TimeLimit | None = None
) -> Generator[Any, Any, Any]:
    """Run a coroutine to its end in a context, under a limit; the caller's task does the waiting.

    Args:
        coro: The tool's work, not begun.
        context: Where it runs.
        seconds: The limit; None: none.
        limit: The limit as an object, where somebody else pauses it or several steps share it.

    Raises:
        LimitPassed: The limit passed, and nobody else cancelled.
    """
    run = context.run
    try:
        yielded = run(coro.send, None)
    except StopIteration as stop:
        return stop.value
    if limit is None:
        limit = TimeLimit(seconds)
    limit.start()
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    cut: asyncio.CancelledError | None = None
    try:
        while True:
            try:
                sent = yield yielded
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    cut = error
                yielded = run(coro.throw, error)
            else:
                yielded = run(coro.send, sent)
    except StopIteration as stop:
        if limit.expired and limit.absorb():
            raise LimitPassed(late=True) from None
        if cut is not None and task is not None and task.cancelling() > before:  # what comes late does not count
            raise cut from None
        return stop.value
    except asyncio.CancelledError:
        if limit.expired and limit.absorb():
            raise LimitPassed from None
        raise
    except StopAsyncIteration:
        if limit.expired and limit.absorb():
            raise LimitPassed(late=True) from None
        if cut is not None and task is not None and task.cancelling() > before:  # it has ended only because of that
            raise cut from None
        raise
    except (GeneratorExit, KeyboardInterrupt, SystemExit):
        if limit.expired:
            limit.absorb()
        raise
    except BaseException as error:
        if limit.expired and limit.absorb():  # what its cancellation led to
            raise LimitPassed from error
        raise
    finally:
        limit.stop()
        task = cut = None  # a traceback holds this frame, and a task that fails its traceback


class LimitPassed(Exception):  # noqa: N818 - a signal between this module and its caller
    """A tool passed its time limit.

    Args:
        late: Whether it finished all the same, later.
    """

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.late = late
