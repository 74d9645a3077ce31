"""The tasks that operators create, and the task that each of them works for.

A source can be bound to the task that opened it (`agentflow.loop.stage`). An operator that reads several sources at
once does so in its own tasks; these work for the task that reads the operator, and end before it does.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from agentflow._support.cancellation import count_exactly

# The code of the functions that `asyncio.create_eager_task_factory` returns, `eager_task_factory` among them (Python 3.12).
_EAGER = getattr(getattr(asyncio, "eager_task_factory", None), "__code__", None)

# Weak in both directions: a reader that has failed holds its traceback, and through its frames the tasks that worked for it.
_readers: WeakKeyDictionary[asyncio.Task[Any], ReferenceType[asyncio.Task[Any]]] = WeakKeyDictionary()


def create_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, None],
    context: contextvars.Context | None = None,
) -> asyncio.Task[None]:
    """Create a task that works for the current one."""
    # An eager task would run before its reader is known.
    if getattr(loop.get_task_factory(), "__code__", None) is _EAGER is not None:
        task = asyncio.Task(work, loop=loop, context=context)
    else:
        task = loop.create_task(work, context=context)
    count_exactly(task)
    reader = asyncio.current_task()
    if reader is not None:
        _readers[task] = ref(reader)
    return task


def reader_of(task: asyncio.Task[Any]) -> asyncio.Task[Any] | None:
    """Return the task that an operator's task works for; None if no operator created it."""
    reader = _readers.get(task)
    return None if reader is None else reader()


def works_for(task: asyncio.Task[Any] | None, reader: asyncio.Task[Any] | None) -> bool:
    """Whether a task was created, directly or through nested operators, by an operator that `reader` reads."""
    while task is not None and task is not reader:
        task = reader_of(task)
    return task is not None
