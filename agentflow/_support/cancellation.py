"""The current task: its label in messages, and its count of cancellation requests.

The count may include a cancellation that the task survived, such as one by its time limit. To detect a new request, compare
the count before and after.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from typing import Any

from agentflow._support.frames import frame_at


def task_label(task: asyncio.Task[Any]) -> str:
    """Return a task's name, or the name of its function if it has none.

    asyncio numbers tasks without a name. Such a number in an error would differ in each process and replay.

    Example:
        >>> async def fetch() -> str:
        ...     return task_label(asyncio.current_task())
        >>> asyncio.run(fetch())
        'fetch'
    """
    name = task.get_name()
    numbered = name.startswith("Task-") and name[5:].isdecimal()
    return getattr(task.get_coro(), "__qualname__", "?") if numbered else name


def cancel_requests() -> int:
    """Return how often the current task was cancelled without `uncancel()`; 0 outside a task."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def forget_cancellations() -> None:
    """Reset the current task's count after its cancellations were handled, as time limits and task groups expect."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():  # one request may have been counted several times
        task.uncancel()


def running_task() -> asyncio.Task[Any] | None:
    """Return the running task, or None without a task or event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


if sys.version_info >= (3, 13):

    def count_exactly(task: asyncio.Task[Any]) -> None:
        """Do nothing: this Python counts the cancellations of its task groups correctly."""

else:

    def count_exactly(task: asyncio.Task[Any]) -> None:
        """Undo the cancellations that a failed `asyncio.TaskGroup` requested of a task and did not undo itself.

        Before Python 3.13, if a child fails while its group waits in `__aexit__`, the group leaves `task.cancelling()` at 1
        (see asyncio in "What's New In Python 3.13"), so code that handles the failure would seem to swallow a cancellation.
        """
        counted: Any = task
        if counted.cancel.__class__ is not _Cancel:
            # Set on the task itself, since the group calls `parent.cancel()`; a subclass would need a task factory.
            counted.cancel = _Cancel(task)

    class _Cancel(weakref.ref[asyncio.Task[Any]]):
        """Cancels a task, and does not count the request of a `TaskGroup` that is already exiting.

        It is itself a weak reference: otherwise its cycle with the task would live until a garbage collection.
        """

        __slots__ = ()

        def __call__(self, msg: Any = None) -> Any:
            task = super().__call__()
            if task is None:
                return False
            requested = type(task).cancel(task, msg)
            # `_on_task_done` cancels the group's parent. If that already waits in `__aexit__` (`_exiting`), the group's own
            # `uncancel` has been passed.
            caller = frame_at(1)
            if requested and caller.f_code is _CHILD_DONE and caller.f_locals["self"]._exiting:
                task.uncancel()
            return requested

    _CHILD_DONE = asyncio.TaskGroup._on_task_done.__code__
