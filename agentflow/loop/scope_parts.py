"""The parts of a run's scope: its tasks and time limits, the cause of its cancellation, and how a replay controls it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias

from agentflow._support.values import NamedTuple
from agentflow.reactive.tasks import reader_of

__all__ = [
    "CLEANUP_TIMEOUT",
    "Cause",
    "CauseKind",
    "Notice",
    "ReplayControl",
    "Requester",
    "RunTasks",
    "ToolTasks",
]

CLEANUP_TIMEOUT: Final = 5.0
"""The default limit for cleanup after a cancellation, in seconds."""

Notice: TypeAlias = Literal["cancelled", "failed", "pending", "swallowed", "twice"]
"""The notifications for the listener of a run; see `RunScope.listener`."""

CauseKind: TypeAlias = Literal["interrupted", "timeout", "cancelled", "closed", "shutdown"]


Requester: TypeAlias = Literal["interrupt", "failure", "caller"]
"""The origin of a cancellation from inside: `interrupt`: a hook or tool; `failure`: a failed tool call, which cancels
only the calls parallel to it; `caller`: the caller's run.
"""


class ReplayControl:
    """How a replay repeats the recorded order in one run.

    Args:
        wait: Awaited before each call of a parallel round starts, with the call's id and a function that returns whether the
            round starts no more calls.
        wake: Called when a round starts no more calls.
        delay: Called instead of a cancellation that a `Requester` requests, with the function that cancels, which it calls at
            the recorded position.

    Attributes:
        passes: Whether the next check between hooks should raise nothing.
    """

    __slots__ = ("delay", "passes", "wait", "wake")

    def __init__(
        self,
        wait: Callable[[str, Callable[[], bool]], Awaitable[None]],
        wake: Callable[[], None],
        delay: Callable[[Callable[[], None], Requester], object],
    ) -> None:
        self.wait = wait
        self.wake = wake
        self.delay = delay
        self.passes = False


class Cause(NamedTuple):
    """The reason for which a run is cancelled.

    Attributes:
        kind: `interrupted`: `agent.interrupt`, a hook or a tool requested it. `timeout`: the call's time limit passed.
            `cancelled`: its caller was cancelled. `closed`: its stream was closed. `shutdown`: the process shuts down; the
            run stays open as after a crash.
        reason: The reason, as text.
        inside: Whether a hook or tool of the run requested it.
        by_caller: Whether a hook or tool of a parent run requested it, or a parent run was cancelled.
        at: The `positions` at which it was cancelled from outside.
    """

    kind: CauseKind
    reason: str
    inside: bool = False
    by_caller: bool = False
    at: tuple[str, ...] = ()


class ToolTasks(Protocol):
    """The tasks of parallel tool calls."""

    @property
    def running(self) -> Mapping[asyncio.Task[Any], None]:
        """The running tasks, in the order in which they started."""
        ...

    def cancel(self, requester: asyncio.Task[Any] | None = None) -> None:
        """Cancel the running tasks, except for the task that requests this, and start no others."""
        ...


class RunTasks:
    """The tasks of one run, and the limits of their time. One timer serves both: for the run until it is cancelled, then
    for its cleanup.

    Args:
        timeout: The limit for the whole run in seconds; None: no limit.
        cleanup_timeout: The limit for cleanup after a cancellation, in seconds.

    Attributes:
        driver: The driver's task; None before it starts and after it has finished.
        groups: The parallel tool calls, by group.
        cleaning: The tasks in which library code cleans up. Hooks run in them although the run is stopped.
        raised_in: The tasks in which a checkpoint has raised a cancellation.
        timer: The running timer.
        cancellations: How often the tasks were cancelled: more than once only if cleanup has exceeded its limit.
    """

    __slots__ = (
        "cancellations",
        "cleaning",
        "cleanup_timeout",
        "driver",
        "groups",
        "raised_in",
        "timeout",
        "timer",
    )

    def __init__(self, timeout: float | None, cleanup_timeout: float) -> None:
        self.timeout = timeout
        self.cleanup_timeout = cleanup_timeout
        self.driver: asyncio.Task[Any] | None = None
        self.groups: tuple[ToolTasks, ...] = ()
        self.cleaning: tuple[asyncio.Task[Any] | None, ...] = ()
        self.raised_in: tuple[asyncio.Task[Any] | None, ...] = ()
        self.cancellations = 0
        self.timer: asyncio.TimerHandle | None = None

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

    def cancel(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Cancel tasks of the run. Until cleanup is late, tasks that are already stopping (`is_stopping`) are left out, since
        another cancellation would interrupt their cleanup."""
        for task in tasks:
            if self.late or not self.is_stopping(task):
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

    # ---- limits of time

    @property
    def late(self) -> bool:
        """Whether cleanup has exceeded its limit."""
        return self.cancellations > 1

    def start_timer(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> None:
        """Start the limit of the run, if it has one and was not cancelled.

        Args:
            loop: The run's event loop.
            expire: Called if the limit passes.
        """
        if self.timeout is not None and not self.cancellations:
            self.stop_timer()
            self.timer = loop.call_later(self.timeout, expire)

    def stop_timer(self) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def start_cleanup_timer(
        self, loop: asyncio.AbstractEventLoop, cancel_again: Callable[[], None], share: float = 1.0
    ) -> None:
        """Start the limit of cleanup, because the run's tasks are being cancelled.

        Args:
            loop: The run's event loop.
            cancel_again: Called if the limit passes.
            share: The part of `cleanup_timeout` to allow.
        """
        self.cancellations = 1
        self.call_after(loop, cancel_again, share)

    def call_after(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None], share: float) -> None:
        """Call a function after a part of `cleanup_timeout`, instead of what the timer would have called."""
        self.stop_timer()
        self.timer = loop.call_later(self.cleanup_timeout * share, function)
