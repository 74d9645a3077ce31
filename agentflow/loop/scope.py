"""The task of a run, and the one way to end it before it is finished.

Rules (trio's cancel scopes are the model):

1. One owner: a run's driver runs in one task, which only its scope holds. No reader and no caller executes driver code.
2. One way to end a run early: `cancel`. Interrupts, time limits, closed streams, cancelled callers and shutdowns all take it,
   and the first cause counts.
3. The task is cancelled once. While a cause is set the library's checkpoints (`check`) raise again, so a hook, model or tool
   that swallows the cancellation does not continue the run.
4. A `CancelledError` without a cause is not the run's: a hook, model or tool has raised it itself, or one of its own time
   limits has.
5. Cleanup has a limit. What still runs after `cleanup_timeout` seconds is cancelled again and again; what ignores that too is
   abandoned, and named in the log.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable, Set
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias, cast

from agentflow.ground.values import NamedTuple
from agentflow.loop.suspended import positions
from agentflow.reactive.tasks import reader_of

__all__ = ["CLEANUP_TIMEOUT", "Cause", "CauseKind", "RunScope", "forget_cancellations"]

CLEANUP_TIMEOUT: Final = 5.0
"""Seconds that cleanup may take after a run was cancelled, unless the agent says otherwise."""

_INSISTENCE: Final = 100
"""How often late cleanup is cancelled before it is abandoned: code may swallow a few cancellations for good reason."""

CauseKind: TypeAlias = Literal["interrupted", "timeout", "cancelled", "closed", "shutdown"]


class Cause(NamedTuple):
    """Why a run is cancelled.

    Attributes:
        kind: `interrupted` by `agent.interrupt` or a hook; `timeout` of the call; its caller was `cancelled`; its stream was
            `closed`; the process shuts down (`shutdown`): the run stays open, as after a crash.
        reason: In words.
        inside: Whether the run's own hooks or tools asked for it.
        by_caller: Whether hooks or tools of a run that it belongs to did, or that run was cancelled itself.
    """

    kind: CauseKind
    reason: str
    inside: bool = False
    by_caller: bool = False


class RunScope:
    """The task of one run.

    Args:
        parent: The scope of the run that this one belongs to.
        timeout: Seconds for the whole run; None: no limit.
        cleanup_timeout: Seconds that cleanup may take after a cancellation.

    Attributes:
        task: The task that runs the driver; None before it starts and after it has finished.
        caller: The task that started it, if it belongs to another run. Held weakly: a task that was cancelled keeps its
            traceback, and with it the stream of events that it has abandoned.
        tasks: The tasks of parallel tool calls, by group.
        state: `new` until its driver has begun; `ending` once the outcome is settled and only hooks of the last event are
            running.
        cause: Why the run was cancelled; None: it was not.
        stopped: Whether its work must not continue: it was cancelled, or one of several parallel tool calls has failed.
        cleaning: The tasks in which library code cleans up: hooks run there although the run is stopped.
        halting: Whether it was asked to stop at its next safe point.
        at: The `positions` at which something outside cancelled it; `listener` is called then, once the cause is set.
    """

    __slots__ = (
        "_abandon",
        "_caller",
        "_inner",
        "_noticed",
        "_result",
        "_timer",
        "_tries",
        "_waiters",
        "at",
        "cause",
        "cleaning",
        "cleanup_timeout",
        "halting",
        "listener",
        "parent",
        "state",
        "stopped",
        "task",
        "tasks",
        "timeout",
    )

    def __init__(self, parent: RunScope | None, timeout: float | None, cleanup_timeout: float) -> None:
        self.parent = parent
        self.timeout = timeout
        self.cleanup_timeout = cleanup_timeout
        self.task: asyncio.Task[Any] | None = None
        self._caller: weakref.ref[asyncio.Task[Any]] | None = None
        self.tasks: tuple[Set[asyncio.Task[Any]], ...] = ()
        self.state: Literal["new", "running", "ending", "done"] = "new"
        self.cause: Cause | None = None
        self.stopped = False
        self.cleaning: tuple[asyncio.Task[Any] | None, ...] = ()
        self.halting = False
        self.at: tuple[str, ...] = ()
        self.listener: Callable[[], object] | None = None
        self._abandon: Callable[[], object] | None = None
        self._inner: list[RunScope] | None = None
        self._noticed: tuple[asyncio.Task[Any] | None, ...] = ()
        self._result: tuple[Any, BaseException | None] = (None, None)
        self._timer: asyncio.TimerHandle | None = None
        self._tries = 0  # how often the task was cancelled
        self._waiters: list[asyncio.Future[None]] | None = None

    # ---- starting and finishing

    def start(self, driver: Coroutine[Any, Any, object], abandon: Callable[[], object]) -> None:
        """Run the driver in a task of its own, with the caller's context copied.

        Args:
            driver: Runs the run: calls `begin` first and `finish` last, and raises nothing.
            abandon: Called if cleanup does not end in spite of everything; finishes the run without the driver.
        """
        loop = asyncio.get_running_loop()
        self._abandon = abandon
        parent = self.parent
        if parent is not None:
            caller = asyncio.current_task()
            self._caller = None if caller is None else weakref.ref(caller)
            if not parent.late:  # a late one waits for those that it had, and for no further ones
                parent.add_inner(self)
        task = loop.create_task(driver)
        if self.state == "done":  # an eager task
            return
        self.task = task
        task.add_done_callback(self._driver_ended)
        if self.cause is not None:
            loop.call_soon(self._deliver)
        elif self.timeout is not None:
            self._timer = loop.call_later(self.timeout, self._expire)

    def begin(self) -> None:
        """The driver has begun: from here on the run ends with its last events, whatever cancels it."""
        self.state = "running"

    def finish(self, value: object, error: BaseException | None) -> None:
        """Settle the result, and wake those who wait for it."""
        self.state = "done"
        closed = self.cause is not None and self.cause.kind == "closed"
        if not closed or isinstance(error, KeyboardInterrupt | SystemExit):
            self._result = (value, error)
        else:  # nobody asks for it, and its traceback leads back here
            self._result = (None, None)
        self.task = self._abandon = self.listener = None
        self._noticed = ()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        parent = self.parent
        if parent is not None:
            parent.remove_inner(self)
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done() and not waiter.get_loop().is_closed():
                waiter.set_result(None)

    @property
    def caller(self) -> asyncio.Task[Any] | None:
        """The task that started this run, if it belongs to another run and the task still exists."""
        return None if self._caller is None else self._caller()

    def add_inner(self, scope: RunScope) -> None:
        """Wait for the end of another run, which works for this one, before late cleanup of this one is abandoned."""
        if self._inner is None:
            self._inner = []
        self._inner.append(scope)

    def remove_inner(self, scope: RunScope) -> None:
        """Wait for it no longer; without effect if `add_inner` was not called."""
        if self._inner is not None and scope in self._inner:
            self._inner.remove(scope)

    def _driver_ended(self, task: asyncio.Task[Any]) -> None:
        """A task that is cancelled before its first step (the event loop shuts down) never runs its driver."""
        if not task.cancelled():
            task.exception()  # of an abandoned one nobody wants to know
        if task is self.task and self._abandon is not None:
            self._abandon()

    async def result(self) -> Any:
        """Wait until the run is finished; return its reply or raise its error.

        If the waiting task is cancelled the run is too. The wait goes on until it is cleaned up, however often the task is
        cancelled meanwhile, and raises the cancellation then.
        """
        if self.state != "done":
            await self.wait("cancelled", "its caller was cancelled")
        value, error = self._result
        self._result = (value, None)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return value

    def settle(self, value: object, error: BaseException | None) -> None:
        """What comes of the run is settled; only hooks of its last event are left."""
        self.state = "ending"
        self._result = (value, error)

    @property
    def settled(self) -> tuple[Any, BaseException | None]:
        """What was settled; see `settle`."""
        return self._result

    async def wait(self, kind: CauseKind, reason: str) -> None:
        """Wait until the run is finished, also if this task is cancelled: then the run is too, with this cause.

        Raises:
            asyncio.CancelledError: This task was cancelled.
            KeyboardInterrupt: Or `SystemExit`: raised in the run, whose result nobody gets any more.
        """
        cut: asyncio.CancelledError | None = None
        loop = asyncio.get_running_loop()
        while self.state != "done":
            waiter: asyncio.Future[None] = loop.create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError as error:
                cut = error
                self.cancel(kind, reason)
            except GeneratorExit:  # the event loop was closed under both
                self.drop_lost()
                raise
        error = self._result[1]
        signal = error if isinstance(error, KeyboardInterrupt | SystemExit) else None
        raised = signal if cut is not None or kind == "closed" else None
        if raised is None:
            raised = cut
        if raised is not None:
            self._result = (None, None)
            try:
                raise raised
            finally:
                del cut, error, signal, raised  # their tracebacks hold this frame

    @property
    def lost(self) -> bool:
        """Whether its event loop was closed under it: nothing of it runs any more."""
        task = self.task
        return task is not None and task.get_loop().is_closed()

    def drop_lost(self) -> None:
        """Close a driver whose event loop was closed under it: its `finally` blocks run, and await nothing."""
        if self.task is not None and self.lost:
            cast("Coroutine[Any, Any, Any]", self.task.get_coro()).close()

    # ---- cancelling

    def cancel(self, kind: CauseKind, reason: str) -> None:
        """Cancel the run, from any task or thread. The first cause counts; without effect once the run is finished."""
        if self.state == "done":
            return
        running = _running_task()
        inside = self.works_in(running)
        if self.cause is None and self.state != "ending":
            by_caller = not inside and self.parent is not None and self.parent.includes(running)
            self.cause = Cause(kind, reason, inside, by_caller)
            self.stopped = True
            if not inside and not by_caller and self._here():
                self.at = self.positions()
            if self.listener is not None:
                self.listener()
        task = self.task
        if task is None or (loop := task.get_loop()).is_closed():
            return
        if not inside and self._here() and self.state != "new":
            self._deliver()
        else:  # later: a task that cancels itself would be hit at its next await, which may belong to its cleanup
            loop.call_soon_threadsafe(self._deliver)

    def _here(self) -> bool:
        """Whether this is the thread of its event loop."""
        task = self.task
        return task is None or asyncio._get_running_loop() is task.get_loop()

    @property
    def inner(self) -> tuple[RunScope, ...]:
        """The scopes of the runs that belong to this one."""
        return tuple(self._inner or ())

    def positions(self) -> tuple[str, ...]:
        """Where it is suspended: its driver, then its parallel tool calls and the runs that belong to it, in order of text."""
        if self.task is None or self.state == "new":
            return ("new",)
        return positions(self.task, self.tasks, [inner.positions() for inner in self.inner])

    def _deliver(self) -> None:
        """Cancel the task once, unless a checkpoint has raised in it, and limit what its cleanup may take."""
        task = self.task
        if task is None or self._tries:
            return
        self._tries = 1
        if self._timer is not None:
            self._timer.cancel()
        self._timer = task.get_loop().call_later(self.cleanup_timeout, self._hurry)
        if task not in self.cleaning and task not in self._noticed:
            task.cancel()

    def limit_time(self, limited: bool) -> None:
        """Take the time limit off the run, or put it back, from now on: a replay ends it at the recorded place."""
        if self._timer is not None and not self._tries:
            self._timer.cancel()
        if limited and self.timeout and self.task and not self._tries:
            self._timer = self.task.get_loop().call_later(self.timeout, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.cancel("timeout", f"timeout of {self.timeout:g} s")

    def _hurry(self) -> None:
        """Cleanup has used up its time: cancel what holds it up; give up on what ignores that."""
        task = self.task
        if task is None:
            return
        loop = task.get_loop()
        inner = [one for one in self.inner if not one.lost]
        if inner:  # once cancelled, a run inside this one always ends: it has a limit of its own
            self._tries = 2
            for one in inner:
                one.cancel("cancelled", "the cleanup of its caller took too long")
            self._timer = loop.call_later(self.cleanup_timeout / 20, self._hurry)
            return
        self._tries += 1
        if self._tries <= _INSISTENCE:
            task.cancel()
            loop.call_soon(self._hurry)
        elif self._abandon is not None:
            self._abandon()

    def hand_to(self, driver: Coroutine[Any, Any, object], abandon: Callable[[], object]) -> None:
        """Give the run to another driver, in a task of its own, which ends it at once or is abandoned too."""
        loop = asyncio.get_running_loop()
        self.tasks = self.cleaning = self._noticed = ()
        self._abandon = abandon
        self._tries = 1
        self._timer = loop.call_later(self.cleanup_timeout / 5, self._hurry)
        task = loop.create_task(driver)
        if self.state == "done":  # an eager task
            return
        self.task = task
        task.add_done_callback(self._driver_ended)

    @property
    def late(self) -> bool:
        """Whether its cleanup has used up its time."""
        return self._tries > 1

    def check(self) -> None:
        """Raise if the run's work must not continue."""
        if self.stopped:
            task = asyncio.current_task()
            if task not in self._noticed:
                self._noticed = (*self._noticed, task)
            raise asyncio.CancelledError("" if self.cause is None else self.cause.reason)

    def cancel_tasks(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Cancel tasks of parallel tool calls, but for those in which a checkpoint has raised already."""
        for task in tasks:
            if task not in self._noticed or self.late:
                task.cancel()

    def cleans(self) -> bool:
        """Whether library code is cleaning up in this task."""
        return bool(self.cleaning) and asyncio.current_task() in self.cleaning

    def is_cancelled(self) -> bool:
        """Whether a `CancelledError` that was just caught cancels the work here; else some code has raised it itself."""
        if self.stopped and not self.cleans():
            return True
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def adopt(self) -> None:
        """Take a cancellation of the run's task from outside (the event loop shuts down) for a cancellation of the run."""
        task = self.task
        if self.cause is None and task is not None and task.cancelling():
            self.cause = Cause("cancelled", "its task was cancelled")
            self.stopped = True

    @contextmanager
    def cleanup(self) -> Generator[None]:
        """A section of library code that cleans up in this task: hooks run in it although the run is stopped."""
        task = asyncio.current_task()
        self.cleaning = (*self.cleaning, task)
        if self.stopped:
            forget_cancellations(task)
        try:
            yield
        finally:
            left = list(self.cleaning)
            if task in left:  # else the run was taken away from this task meanwhile
                left.remove(task)
                self.cleaning = tuple(left)

    # ---- shutting down

    def halts(self) -> bool:
        """Whether this run, or one that it belongs to, is to stop at its next safe point."""
        return self.halting or (self.parent is not None and self.parent.halts())

    def leaves(self) -> bool:
        """Whether this run, or one that it belongs to, is left open for a later process: nothing more is stored."""
        if self.cause is not None and self.cause.kind == "shutdown":
            return True
        return self.parent is not None and self.parent.leaves()

    # ---- whose task

    def works_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task runs the driver or one of its parallel tool calls, or is an operator's that works for one of these."""
        while task is not None:
            if task is self.task or any(task in tasks for tasks in self.tasks):
                return True
            task = reader_of(task)
        return False

    def includes(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task works in this run, or in one that it belongs to."""
        return self.works_in(task) or (self.parent is not None and self.parent.includes(task))

    def waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the run cannot finish before a task does: it works in that task, or that works for it in another thread."""
        if self.works_in(task):
            return True
        return self.task is not None and task is not None and task.get_loop() is not self.task.get_loop()


def forget_cancellations(task: asyncio.Task[Any] | None) -> None:
    """Take back the cancellations of a task, which were noticed: time limits and task groups count from 0 again."""
    while task is not None and task.cancelling():
        task.uncancel()


def _running_task() -> asyncio.Task[Any] | None:
    """The task that is running here; None if there is no task or no event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
