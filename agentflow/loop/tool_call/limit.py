"""Run a tool's coroutine in the driver's task, in its own context and with its own time limit.

Rules:

1. The tool runs in a copy of the context, so context variables that it sets do not leak, inline or in parallel.
2. The timer starts when the tool first suspends; a tool that never suspends costs no timer. It is paused while an event
   is handed to a reader.
3. The limit cancels the task and uncancels it afterwards. A cancellation from outside at the same time has precedence.
4. A tool that swallows its cancellation, by the limit or from outside, is treated as cancelled: its later result is
   dropped, and the error says so.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any

from agentflow._support.time_limit import TimeLimit

__all__ = ["LimitPassed", "drive"]


@types.coroutine
def drive(
    coro: Coroutine[Any, Any, Any], context: Context, seconds: float | None, limit: TimeLimit | None = None
) -> Generator[Any, Any, Any]:
    """Run a coroutine to its end in a context, under a limit, in the caller's task.

    Args:
        coro: The tool's work, not started.
        context: The context.
        seconds: The limit; None: no limit.
        limit: The limit as an object, if it can be paused or is shared by several steps.

    Raises:
        LimitPassed: The limit passed, and there was no other cancellation.
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
        if limit.expired and limit.uncancel():
            raise LimitPassed(late=True) from None
        if cut is not None and task is not None and task.cancelling() > before:  # a late result is dropped
            raise cut from None
        return stop.value
    except asyncio.CancelledError:
        if limit.expired and limit.uncancel():
            raise LimitPassed from None
        raise
    except StopAsyncIteration:
        if limit.expired and limit.uncancel():
            raise LimitPassed(late=True) from None
        if cut is not None and task is not None and task.cancelling() > before:  # ended because of the cancellation
            raise cut from None
        raise
    except (GeneratorExit, KeyboardInterrupt, SystemExit):
        if limit.expired:
            limit.uncancel()
        raise
    except BaseException as error:
        if limit.expired and limit.uncancel():  # a consequence of its cancellation
            raise LimitPassed from error
        raise
    finally:
        limit.stop()
        task = cut = None  # a failing task keeps its traceback, which holds this frame


class LimitPassed(Exception):  # noqa: N818 - a signal between this module and its caller
    """A tool passed its time limit.

    Args:
        late: Whether it finished later.
    """

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        self.late = late
