"""Parallel work of a run: one task for each tool call. The first failure cancels the others, once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from agentflow._support.cancellation import count_exactly
from agentflow.loop.scope import RunScope

__all__ = ["Work", "in_tasks"]

Work: TypeAlias = Callable[[], Awaitable[None]]


async def in_tasks(scope: RunScope, works: Sequence[Work], limit: int) -> None:
    """Run works concurrently in separate tasks, at most `limit` at a time.

    The first failure cancels the others; when all are finished it is raised, unwrapped. Cancelling the caller
    cancels them all; cancelling the run cancels them and its driver at the same moment. A stopped run starts no further work.
    """
    tasks = _CallTasks(scope, works)
    before = scope.tasks.groups
    scope.tasks.groups = (*before, tasks)
    for _ in range(min(limit, len(works))):
        if tasks.waiting:  # an eager task may have interrupted the run
            tasks.begin()
    cancellation: BaseException | None = None
    try:
        while tasks.running:
            try:
                await tasks.changed()
            except asyncio.CancelledError as error:
                # Keep waiting, since no task outlives its round. Later requests do not replace the first one.
                cancellation = cancellation or error
                tasks.cancel()
    finally:
        scope.tasks.groups = before
        # Only the failure of a call stopped the work: the run itself continues, and reports it.
        if scope.cause is None and scope.requested is None:
            scope.stopped = False
    # A signal has precedence over failures, which tasks often raise while they are being cancelled.
    signals = [error for error in tasks.failures if isinstance(error, KeyboardInterrupt | SystemExit)]
    failure = signals[0] if signals else cancellation or (tasks.failures[0] if tasks.failures else None)
    if failure is not None:
        try:
            raise failure
        finally:
            tasks.failures.clear()
            del cancellation, failure, signals  # their tracebacks hold this frame
    if scope.stopped:  # the run was stopped before its cancellation arrived in this task
        scope.check()


class _CallTasks:
    """The tasks of some works, and the works that wait for a task to end."""

    __slots__ = ("_changed", "_failed", "_scope", "_timer", "cancelled", "failures", "running", "waiting")

    def __init__(self, scope: RunScope, works: Sequence[Work]) -> None:
        self.failures: list[BaseException] = []
        self.cancelled = False
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None
        self._scope = scope
        self.waiting = list(reversed(works))
        self._changed: asyncio.Future[None] | None = None
        # Ordered, so that tasks are cancelled in the order in which they started.
        self.running: dict[asyncio.Task[Any], None] = {}

    def changed(self) -> Awaitable[None]:
        """Return an awaitable that completes when all tasks have ended."""
        self._changed = changed = asyncio.get_running_loop().create_future()
        return changed

    def begin(self) -> None:
        """Start the next work."""
        task = asyncio.get_running_loop().create_task(self._run(self.waiting.pop()))
        count_exactly(task)
        self.running[task] = None
        task.add_done_callback(self._ended)

    def cancel(self, requester: asyncio.Task[Any] | None = None) -> None:
        """Cancel the running tasks once, or again if their cleanup is late, and discard the waiting works.

        Args:
            requester: A task to leave out, since it is cancelled elsewhere.
        """
        self.waiting.clear()
        # Once, because each further request would interrupt the cleanup that the first one started.
        if not self.cancelled or self._scope.limits.late:
            self.cancelled = True
            self._scope.cancel_tasks([task for task in self.running if task is not requester])

    def _stop(self) -> None:
        if self.running:
            # Before the cancellations, so that a call that swallows its own still stops at its next checkpoint.
            self._scope.stop()
            self._timer = asyncio.get_running_loop().call_later(self._scope.limits.cleanup_timeout, self._cancel_again)
        self.cancel()

    def _cancel_again(self) -> None:
        """Cancel calls again that have not ended within the limit for cleanup, since they swallowed the cancellation."""
        if self._scope.cause is None:  # if the run was cancelled, its scope limits the cleanup
            for task in self.running:
                task.cancel()
            # Repeated, since a loop in the tool may swallow one request in each iteration.
            self._timer = asyncio.get_running_loop().call_later(
                self._scope.limits.cleanup_timeout / 20, self._cancel_again
            )

    async def _run(self, work: Work) -> None:
        if (task := asyncio.current_task()) is not None:  # an eager task runs before `begin` has stored it
            self.running[task] = None
        try:
            await work()
        except asyncio.CancelledError as error:
            if not self._scope.is_cancelled():  # the work itself has raised this, so it is a failure
                self.failures.append(error)
        except BaseException as error:  # signals are raised in the driver, not through the event loop
            self.failures.append(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.pop(task, None)
        if self.failures:
            if not self._failed:
                self._failed = True
                self._scope.fail(self._stop)  # only the first failure cancels; a replay may delay it
        elif self.waiting and not self._scope.stopped:
            self.begin()
        if not self.running and self._timer is not None:
            self._timer.cancel()
        if not self.running and self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
