"""The tasks of one run: its driver and its parallel tool calls, and which of them must not be cancelled (again)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from agentflow.reactive.tasks import reader_of

__all__ = ["RunTasks", "ToolTasks"]


class ToolTasks(Protocol):
    """The tasks of parallel tool calls."""

    @property
    def running(self) -> Mapping[asyncio.Task[Any], None]:
        """The running tasks, in the order in which they started."""
        ...

    def cancel(self, requester: asyncio.Task[Any] | None = None) -> None:
        """Cancel the running tasks, except for one that requests it, and start no others."""
        ...


class RunTasks:
    """The tasks of one run.

    Attributes:
        driver: The driver's task; None before it starts and after it has finished.
        groups: The parallel tool calls, by group.
        cleaning: The tasks in which library code cleans up. Hooks run in them although the run is stopped.
        raised_in: The tasks in which a checkpoint has raised a cancellation.
    """

    # Class attributes, since most runs set only the driver: this saves an `__init__` for each call.
    driver: asyncio.Task[Any] | None = None
    groups: tuple[ToolTasks, ...] = ()
    cleaning: tuple[asyncio.Task[Any] | None, ...] = ()
    raised_in: tuple[asyncio.Task[Any] | None, ...] = ()

    @property
    def running(self) -> list[asyncio.Task[Any]]:
        """The driver and the running parallel tool calls."""
        driver = () if self.driver is None else (self.driver,)
        return [*driver, *(task for group in self.groups for task in group.running)]

    def owner_of(self, task: asyncio.Task[Any] | None) -> asyncio.Task[Any] | None:
        """Return the driver's or parallel tool call's task for which a task works (possibly itself), or None."""
        while task is not None and task is not self.driver and not any(task in group.running for group in self.groups):
            task = reader_of(task)
        return task

    def includes(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task runs the driver, a parallel tool call, or an operator that works for one of these."""
        return self.owner_of(task) is not None

    def cancel(self, tasks: Iterable[asyncio.Task[Any]], late: bool) -> None:
        """Cancel tasks of the run.

        Args:
            tasks: The tasks.
            late: Whether cleanup has exceeded its limit. Until then, tasks that are already stopping (`is_stopping`) are
                left out, since another cancellation would interrupt their cleanup.
        """
        for task in tasks:
            if late or not self.is_stopping(task):
                task.cancel()

    def mark_raised(self) -> None:
        """Record that a checkpoint raises a cancellation in this task."""
        task = asyncio.current_task()
        if task not in self.raised_in:  # once for each task, however often it checks
            self.raised_in = (*self.raised_in, task)

    def is_stopping(self, task: asyncio.Task[Any]) -> bool:
        """Whether a checkpoint has raised in a task, or library code is cleaning up in it."""
        return task in self.raised_in or task in self.cleaning

    def is_cleaning(self) -> bool:
        """Whether library code is cleaning up in this task."""
        return bool(self.cleaning) and asyncio.current_task() in self.cleaning

    def begin_cleaning(self) -> asyncio.Task[Any] | None:
        """Mark this task as one in which library code cleans up. Sections can be nested. Return the task."""
        task = asyncio.current_task()
        self.cleaning = (*self.cleaning, task)
        return task

    def end_cleaning(self, task: asyncio.Task[Any] | None) -> None:
        """End the innermost such section of a task. No effect if `RunScope.hand_to` has moved the run to another task."""
        remaining = list(self.cleaning)
        if task in remaining:
            remaining.remove(task)
            self.cleaning = tuple(remaining)
