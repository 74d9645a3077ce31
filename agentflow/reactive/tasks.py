"""The tasks that operators create: which task each of them works for.

A source may be bound to the task that opened it (`agentflow.loop.stage`). An operator that reads several sources at once does
so in tasks of its own; these work for the task that reads the operator, and end before it does.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["create_task", "reader_of", "works_for"]

_readers: WeakKeyDictionary[asyncio.Task[Any], asyncio.Task[Any]] = WeakKeyDictionary()


def create_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, None],
    context: contextvars.Context | None = None,
) -> asyncio.Task[None]:
    """Create a task that works for the current one."""
    task = loop.create_task(work, context=context)
    reader = asyncio.current_task()
    if reader is not None:
        _readers[task] = reader
    return task


def reader_of(task: asyncio.Task[Any]) -> asyncio.Task[Any] | None:
    """The task that an operator's task works for; None: no operator has created it."""
    return _readers.get(task)


def works_for(task: asyncio.Task[Any] | None, reader: asyncio.Task[Any] | None) -> bool:
    """Whether a task was created by an operator, or by an operator in that operator, that `reader` reads."""
    while task is not None and task is not reader:
        task = _readers.get(task)
    return task is not None
