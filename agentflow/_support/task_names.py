"""Names of tasks in messages."""

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
