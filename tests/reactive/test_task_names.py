"""Names of tasks in messages: those that users chose, else the function, never asyncio's counter."""

from __future__ import annotations

import asyncio

from agentflow._support.cancellation import task_label


async def fetch() -> str:
    """A task's view of itself."""
    task = asyncio.current_task()
    assert task is not None
    return task_label(task)


async def test_a_task_is_named_as_in_every_other_process() -> None:
    """`Task-17` would be another number in a replay."""
    tasks = [
        asyncio.create_task(fetch()),
        asyncio.create_task(fetch(), name="mine"),
        asyncio.create_task(fetch(), name="Task-x"),
    ]
    assert await asyncio.gather(*tasks) == ["fetch", "mine", "Task-x"]
