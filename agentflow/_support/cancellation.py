"""The current task, its name in messages, and its cancellations that were requested and not undone, as asyncio counts them.

A task that survived a cancellation, such as one by its time limit, may still count it. Code that must distinguish its own
cancellation from others compares the count before and after.
"""

from __future__ import annotations

import asyncio
from typing import Any


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
