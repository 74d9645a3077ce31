"""Parallel tool calls of a run: one task for each call. The first failure cancels the others, once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from agentflow._support.cancellation import count_exactly
from agentflow.loop.scope import RunScope

__all__ = ["Work", "in_tasks"]

Work: TypeAlias = Callable[[], Awaitable[None]]
"""Runs one tool call."""


async def in_tasks(scope: RunScope, works: Sequence[Work], limit: int) -> None:
    """Run tool calls concurrently in separate tasks, at most `limit` at a time.

    The first failure cancels the other calls. After all have ended, this failure is raised itself, without an
    `ExceptionGroup`. If the task that awaits this is cancelled, all calls are cancelled; if the run is cancelled, the calls
    and the run's driver are cancelled at the same moment. A stopped run starts no further call.
    """
    tasks = _CallTasks(scope, works)
    before = scope.tasks.groups
    scope.tasks.groups = (*before, tasks)
    for _ in range(min(limit, len(works))):
        if tasks.waiting:  # not if an eager task has interrupted the run, which clears them
            tasks.begin()
    cancellation: BaseException | None = None
    try:
        while tasks.running:
            try:
                await tasks.all_ended()
            except asyncio.CancelledError as error:
                # Keep waiting, since no task may outlive its round. Later cancellations do not replace the first one.
                cancellation = cancellation or error
                tasks.cancel()
    finally:
        scope.tasks.groups = before
        # If the run itself was not cancelled, it was stopped only to cancel the other calls, and continues.
        if scope.cause is None and scope.requested is None:
            scope.stopped = False
    # A signal has precedence over other failures, since cancelled tasks often fail.
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
    """The tasks of parallel tool calls, and the calls that wait until a task ends."""

    __slots__ = ("_all_ended", "_failed", "_scope", "_timer", "cancelled", "failures", "running", "waiting")

    def __init__(self, scope: RunScope, works: Sequence[Work]) -> None:
        self.failures: list[BaseException] = []
        self.cancelled = False
        self._failed = False
        self._timer: asyncio.TimerHandle | None = None
        self._scope = scope
        self.waiting = list(reversed(works))
        self._all_ended: asyncio.Future[None] | None = None
        # A dict, which keeps order, so that tasks are cancelled in the order in which they started.
        self.running: dict[asyncio.Task[Any], None] = {}

    def all_ended(self) -> Awaitable[None]:
        """Return an awaitable that completes when all tasks have ended."""
        self._all_ended = all_ended = asyncio.get_running_loop().create_future()
        return all_ended

    def begin(self) -> None:
        """Start the next call."""
        task = asyncio.get_running_loop().create_task(self._run(self.waiting.pop()))
        count_exactly(task)
        self.running[task] = None
        task.add_done_callback(self._ended)

    def cancel(self, requester: asyncio.Task[Any] | None = None) -> None:
        """Cancel the running tasks once, or again if their cleanup is late, and discard the waiting calls.

        Args:
            requester: A task to leave out, since the scope cancels it later.
        """
        self.waiting.clear()
        # Once, because each further cancellation would interrupt the cleanup after the first one.
        if not self.cancelled or self._scope.tasks.late:
            self.cancelled = True
            self._scope.tasks.cancel([task for task in self.running if task is not requester])

    def _stop(self) -> None:
        """Cancel the other calls after a failure."""
        if self.running:
            # Stopped before the cancellations, so that a call that swallows its cancellation stops at its next checkpoint.
            self._scope.stop()
            self._timer = asyncio.get_running_loop().call_later(self._scope.tasks.cleanup_timeout, self._cancel_again)
        self.cancel()

    def _cancel_again(self) -> None:
        """Cancel calls again that have not ended within the limit for cleanup, since they swallowed the cancellation."""
        if self._scope.cause is None:  # if the run itself was cancelled, its scope limits the cleanup
            for task in self.running:
                task.cancel()
            # Repeated, since a loop in the tool may swallow one cancellation in each iteration.
            self._timer = asyncio.get_running_loop().call_later(
                self._scope.tasks.cleanup_timeout / 20, self._cancel_again
            )

    async def _run(self, work: Work) -> None:
        if (task := asyncio.current_task()) is not None:  # an eager task runs before `begin` has stored it
            self.running[task] = None
        try:
            await work()
        except asyncio.CancelledError as error:
            if not self._scope.is_cancelled():  # a failure: the call itself has raised this
                self.failures.append(error)
        except BaseException as error:  # raised by `in_tasks`; a signal would escape through the event loop here
            self.failures.append(error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.pop(task, None)
        if self.failures:
            if not self._failed:
                self._failed = True
                self._scope.fail(self._stop)  # only the first failure cancels the others; a replay may delay this
        elif self.waiting and not self._scope.stopped:
            self.begin()
        if not self.running and self._timer is not None:
            self._timer.cancel()
        if not self.running and self._all_ended is not None and not self._all_ended.done():
            self._all_ended.set_result(None)
