"""The task of a run, and the only way to cancel it.

Rules (modelled on trio's cancel scopes):

1. One owner: a run's driver runs in one task, referenced only by the run's scope. Readers and callers never execute driver
   code.
2. One way to end a run early: `cancel`. It is used by interrupts, time limits, closed streams, cancelled callers and
   shutdowns. The first cause counts. Child runs that a task of this run awaits stop at the same moment.
3. The driver's task and those of parallel tool calls are cancelled once, at the same moment; a task that requests this
   continues until its next checkpoint, or the next iteration of the event loop. While a cause is set, the library's
   checkpoints (`check`) raise again, so a hook, model or tool that swallows the cancellation does not continue the run.
4. A `CancelledError` without a cause is not a cancellation of the run: a hook, model or tool raised it, or one of its
   time limits did.
5. Cleanup has a limit. Code that is still running after `cleanup_timeout` seconds is cancelled repeatedly; if it
   ignores that too, it is abandoned and named in the log.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal, cast

from agentflow._support.cancellation import cancel_requests, count_exactly, forget_cancellations, running_task
from agentflow.loop.scope_parts import Cause, CauseKind, Notice, ReplayControl, RunTasks
from agentflow.loop.suspended import positions
from agentflow.loop.waits import Waits

__all__ = ["RunScope"]

_INSISTENCE: Final = 100
"""How often late cleanup is cancelled before it is abandoned, since code may legitimately swallow a few cancellations."""


class RunScope:
    """The task of one run.

    Args:
        parent: The scope of the parent run.
        timeout: The limit for the whole run in seconds; None: no limit.
        cleanup_timeout: The limit for cleanup after a cancellation, in seconds.

    Attributes:
        tasks: The driver's task and those of parallel tool calls, and the limits of their time.
        caller: The task that started it, if it has a parent run. A weak reference: a cancelled task keeps its
            traceback, and with it the stream of events that it abandoned.
        state: `new` until its driver starts (from then on it ends with its last events, even if cancelled); `ending` once
            the outcome is settled and only hooks of the last event are running.
        value_and_error: The reply and the error, once its outcome is fixed.
        cause: The cause of its cancellation, or None.
        requested: The kind and reason of a cancellation from another thread, until it is the `cause`.
        stopped: Whether its work should stop: it was cancelled, or one of several parallel tool calls has failed.
        halting: Whether it should stop at its next safe point.
        listener: Called with a `Notice`. `cancelled`: the cause was set. `failed`: one of several parallel tool calls failed.
            `twice`: a hook subscribed twice at once to a source that allows one subscription. `pending`: the run is about
            to be cancelled, and a hook's cancellation of its own task has not been raised yet. `swallowed`: a model or hook
            swallowed such a cancellation.
        replay: How a replay controls it, if it is being replayed.
        waits: Its waits, if it is part of a tool call; otherwise None.
    """

    # Most runs never set these, so they become instance attributes only when they are set.
    cause: Cause | None = None
    requested: tuple[CauseKind, str] | None = None
    halting: bool = False
    listener: Callable[[Notice], object] | None = None
    replay: ReplayControl | None = None
    waits: Waits | None = None
    value_and_error: tuple[Any, BaseException | None] = (None, None)
    _abandon: Callable[[], object] | None = None
    _caller: weakref.ref[asyncio.Task[Any]] | None = None
    _inner: list[RunScope] | None = None
    _waiters: list[asyncio.Future[None]] | None = None

    def __init__(self, parent: RunScope | None, timeout: float | None, cleanup_timeout: float) -> None:
        self.parent = parent
        self.tasks = RunTasks(timeout, cleanup_timeout)
        self.state: Literal["new", "running", "ending", "done"] = "new"
        self.stopped = False

    # ---- starting and finishing

    def start(self, driver: Coroutine[Any, Any, object], abandon: Callable[[], object]) -> None:
        """Run the driver in a new task, with a copy of the caller's context.

        Args:
            driver: Executes the run: sets `state` to `running` first, calls `finish` last, and raises nothing.
            abandon: Called if cleanup never finishes; must finish the run without the driver.
        """
        loop = asyncio.get_running_loop()
        self._abandon = abandon
        parent = self.parent
        if parent is not None:
            caller = asyncio.current_task()
            self._caller = None if caller is None else weakref.ref(caller)
            if not parent.tasks.late:  # a parent with late cleanup waits for no further runs
                parent.add_inner(self)
            if self.waits is not None:
                self.waits.enter()
        task = loop.create_task(driver)
        if self.state == "done":  # an eager task has finished already
            return
        count_exactly(task)
        self.tasks.driver = task
        task.add_done_callback(self._driver_ended)
        if self.cause is not None:
            loop.call_soon(self._deliver)  # after the driver's first step, so that it can still emit its last events
        elif self.tasks.timeout is not None:
            self.tasks.start_timer(loop, self._expire)

    def finish(self, value: object, error: BaseException | None) -> None:
        """Settle the result, and wake the waiting tasks."""
        self.state = "done"
        self.value_and_error = (value, error)
        tasks, self._abandon = self.tasks, None
        task, tasks.driver = tasks.driver, None
        if task is not None and task is running_task():  # it ends normally, so its callback is not needed
            task.remove_done_callback(self._driver_ended)
        cause = self.cause
        if cause is not None:
            if cause.kind == "closed" and not isinstance(error, KeyboardInterrupt | SystemExit):
                self.value_and_error = (
                    None,
                    None,
                )  # the error is never read, and its traceback would create a reference cycle
            self.listener = None
            tasks.raised_in = ()
        if tasks.timer is not None:
            tasks.stop_timer()
        parent = self.parent
        if parent is not None:
            parent.remove_inner(self)
            if self.waits is not None:
                self.waits.leave()
        waiters = self._waiters
        if waiters is not None:
            self._waiters = None
            for waiter in waiters:
                if not waiter.done() and not waiter.get_loop().is_closed():
                    waiter.set_result(None)

    @property
    def caller(self) -> asyncio.Task[Any] | None:
        """The task that started this run, if it has a parent run and the task still exists."""
        return None if self._caller is None else self._caller()

    def add_inner(self, scope: RunScope) -> None:
        """Register a child run. Late cleanup of this run is not abandoned before the child run has ended."""
        if self._inner is None:
            self._inner = []
        self._inner.append(scope)

    def remove_inner(self, scope: RunScope) -> None:
        """Remove a child run that has ended. No effect if `add_inner` was not called."""
        if self._inner is not None and scope in self._inner:
            self._inner.remove(scope)

    def _driver_ended(self, task: asyncio.Task[Any]) -> None:
        """Finish the run if its task was cancelled before its first step, as in a shutdown of the event loop."""
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved
        if task is self.tasks.driver and self._abandon is not None:
            self._abandon()

    async def result(self, kind: CauseKind = "cancelled", reason: str = "its caller was cancelled") -> Any:
        """Wait until the run is finished; return its reply or raise its error.

        If the waiting task is cancelled, the run is cancelled too. The wait continues until cleanup has finished, even
        if the task is cancelled again, and then raises the cancellation.

        Args:
            kind: The cause with which to cancel the run. If `closed`, the run's reply and error are discarded.
            reason: See `cancel`.

        Raises:
            asyncio.CancelledError: This task was cancelled.
            KeyboardInterrupt: It, or `SystemExit`, was raised in the run.
        """
        cancellation: asyncio.CancelledError | None = None
        while self.state != "done":
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._waiters is None:
                self._waiters = [waiter]
            else:
                self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError as error:
                cancellation = error
                self.cancel(kind, reason)
            except GeneratorExit:  # the event loop was closed
                self.drop_orphaned()
                raise
        value, error = self.value_and_error
        if cancellation is not None or kind == "closed":
            value, error = None, error if isinstance(error, KeyboardInterrupt | SystemExit) else cancellation
        elif self.parent is not None and self.parent.stopped and isinstance(error, asyncio.CancelledError):
            self.parent.tasks.mark_raised()  # this error stops the task, so the task needs no cancellation of its own
        self.value_and_error = (value, None)  # the error is raised once; its traceback would keep frames alive
        if error is not None:
            try:
                raise error
            finally:
                del cancellation, error  # their tracebacks hold this frame
        return value

    @property
    def orphaned(self) -> bool:
        """Whether its event loop was closed while it was running."""
        driver = self.tasks.driver
        return driver is not None and driver.get_loop().is_closed()

    def drop_orphaned(self) -> None:
        """Close the driver after its event loop was closed. Its `finally` blocks run, but must not await."""
        if (driver := self.tasks.driver) is not None and self.orphaned:
            cast("Coroutine[Any, Any, Any]", driver.get_coro()).close()

    # ---- cancelling

    def cancel(self, kind: CauseKind, reason: str) -> None:
        """Cancel the run, from any task or thread. The first cause counts. No effect after the run is finished."""
        driver = self.tasks.driver
        # `get_running_loop` would raise in a thread without an event loop.
        if (
            driver is not None
            and not (loop := driver.get_loop()).is_closed()
            and asyncio._get_running_loop() is not loop
        ):
            if self.cause is None and self.requested is None and self.state == "running":
                self.requested = kind, reason
                self.stopped = True  # its next checkpoint raises, even if nothing is awaited until then
            loop.call_soon_threadsafe(self.cancel, kind, reason)  # its own thread decides where the run stops
            return
        requester = self.tasks.owner_of(running_task())
        by_caller = requester is None and self.parent is not None and self.parent.includes(running_task())
        cancel = partial(self._cancel, kind, reason, requester, by_caller)
        if self.replay is not None and (requester is not None or by_caller):
            self.replay.delay(cancel, "caller" if by_caller else "interrupt")
        else:
            cancel()

    def _cancel(
        self, kind: CauseKind, reason: str, requester: asyncio.Task[Any] | None = None, by_caller: bool = False
    ) -> None:
        if self.state == "done":
            return
        tasks, inside = self.tasks, requester is not None
        if self.cause is None and self.state != "ending":
            at: tuple[str, ...] = ()
            if not inside and not by_caller and not tasks.includes(running_task()):  # a running task has no position
                at = self.positions()
            own = [
                getattr(task, "_must_cancel", False) for task in tasks.running
            ]  # asyncio has no public attribute for this
            if not self.stopped and (any(own) or (inside and cancel_requests())):
                self.notify("pending")
            self._stop(Cause(kind, reason, inside, by_caller, at))
        driver = tasks.driver
        if driver is None or (loop := driver.get_loop()).is_closed():
            return
        if running_task() is None:  # a signal handler may call this while the loop waits: wake it
            loop.call_soon_threadsafe(lambda: None)
        if self.state == "new":
            loop.call_soon(self._deliver)  # as in `start`
        else:
            self._deliver(requester)

    def cancel_at_checkpoint(self, kind: CauseKind, reason: str) -> None:
        """Let the run raise at its next checkpoint, as if its caller had cancelled it; the current await is not
        interrupted."""
        if self.cause is None and self.state == "running":
            self._stop(Cause(kind, reason, by_caller=True))

    def fail(self, stop: Callable[[], None]) -> None:
        """Call `stop`, which cancels the other parallel tool calls after one has failed; a replay may delay this."""
        if self.replay is None or self.stopped:
            stop()
        else:
            self.replay.delay(stop, "failure")

    def stop(self) -> None:
        """Let the parallel tool calls raise at their next checkpoints."""
        if not self.stopped:
            self.stopped = True
            self.notify("failed")

    def notify(self, what: Notice) -> None:
        """Call the listener, if there is one."""
        if self.listener is not None:
            self.listener(what)

    def _stop(self, cause: Cause) -> None:
        """Set the cause, and stop the child runs for which a task of this run waits, before that task is cancelled."""
        self.cause = cause
        self.stopped = True
        self.notify("cancelled")
        for child in self.inner:
            if self.tasks.includes(child.caller):
                child.cancel_at_checkpoint("cancelled", "its caller was cancelled")

    @property
    def inner(self) -> tuple[RunScope, ...]:
        """The scopes of its child runs."""
        return tuple(self._inner or ())

    def positions(self, requester: asyncio.Task[Any] | None = None) -> tuple[str, ...]:
        """Return where it is suspended: first the driver, then tool calls and child runs, sorted; see `suspended.positions`."""
        tasks = self.tasks
        if tasks.driver is None or self.state == "new":
            return ("new",)
        inner = [scope.positions() for scope in self.inner]
        return positions(tasks.driver, [group.running for group in tasks.groups], inner, requester)

    def _deliver(self, requester: asyncio.Task[Any] | None = None) -> None:
        """Cancel its tasks once, unless a checkpoint has raised in them, and start the time limit for cleanup.

        Args:
            requester: The task of the run that requests it. It is cancelled in the next iteration of the event loop: a task
                that cancels itself would raise at its next await, possibly during its cleanup.
        """
        tasks = self.tasks
        driver = tasks.driver
        if driver is None or tasks.cancellations:  # once; `_cancel_again` repeats it if cleanup is late
            return
        loop = driver.get_loop()
        tasks.start_cleanup_timer(loop, self._cancel_again)
        if requester is not None:
            loop.call_soon(tasks.cancel, (requester,))
        tasks.cancel([] if driver is requester else [driver])
        # cancelled now, since wrappers between the driver and these tasks would pass the cancellation on later
        for group in tasks.groups:
            group.cancel(requester)

    def limit_time(self, limited: bool) -> None:
        """Stop or restart the time limit of the run. A replay stops it, and ends the run at the recorded position
        instead."""
        if self.tasks.cancellations:
            return  # the timer is that of the cleanup
        self.tasks.stop_timer()
        if limited and (driver := self.tasks.driver) is not None:
            self.tasks.start_timer(driver.get_loop(), self._expire)

    def _expire(self) -> None:
        self.cancel("timeout", f"timeout of {self.tasks.timeout:g} s")

    def _cancel_again(self) -> None:
        """Cancel late cleanup repeatedly, then abandon it."""
        tasks = self.tasks
        if (driver := tasks.driver) is None:
            return
        loop = driver.get_loop()
        inner = [child for child in self.inner if not child.orphaned]
        if inner:  # a cancelled child run always ends, since it has its own limit
            tasks.cancellations = 2
            for child in inner:
                child.cancel("cancelled", "the cleanup of its caller took too long")
            tasks.call_after(loop, self._cancel_again, 1 / 20)  # checks the child runs again
            return
        tasks.cancellations += 1
        if tasks.cancellations <= _INSISTENCE:
            driver.cancel()
            loop.call_soon(self._cancel_again)  # in each iteration of the event loop, until the task ends
        elif self._abandon is not None:
            self._abandon()

    def hand_to(self, driver: Coroutine[Any, Any, object], abandon: Callable[[], object]) -> None:
        """Continue the run with another driver in a new task. If this driver's cleanup is late too, it is abandoned."""
        loop = asyncio.get_running_loop()
        old = self.tasks
        old.stop_timer()
        tasks = self.tasks = RunTasks(
            old.timeout, old.cleanup_timeout
        )  # without marks, which belong to the abandoned tasks
        self._abandon = abandon
        tasks.start_cleanup_timer(loop, self._cancel_again, 1 / 5)
        task = loop.create_task(driver)
        if self.state != "done":  # an eager task
            count_exactly(task)
            tasks.driver = task
            task.add_done_callback(self._driver_ended)

    def check(self) -> None:
        """Raise `CancelledError` if the run should stop."""
        if self.stopped:
            self.tasks.mark_raised()
            if self.cause is None and self.requested is not None:
                self._cancel(*self.requested)
            raise asyncio.CancelledError("" if self.cause is None else self.cause.reason)

    def is_cancelled(self) -> bool:
        """Whether a caught `CancelledError` is a cancellation of the run. If not, a hook, model or tool raised it."""
        if self.stopped and not self.tasks.is_cleaning():
            return True
        return cancel_requests() > 0  # the cause is a time limit of a hook or tool, or a shutdown

    def adopt(self) -> None:
        """Treat a cancellation of the task from outside (a shutdown of the event loop) as a cancellation of the run."""
        if (
            self.cause is None and (driver := self.tasks.driver) is not None and driver.cancelling()
        ):  # all others set a cause
            self.cause = Cause("cancelled", "its task was cancelled")
            self.stopped = True

    @contextmanager
    def cleanup(self, error: BaseException | None = None) -> Generator[None]:
        """Mark a section of library code that cleans up in this task. Hooks run in it although the run is stopped.

        Args:
            error: The exception after which it cleans up. `GeneratorExit` is raised again instead, since a coroutine that
                is being closed must not await.
        """
        if isinstance(error, GeneratorExit):
            raise error
        task = self.tasks.begin_cleaning()
        if self.stopped:
            forget_cancellations()  # otherwise a hook's time limit would take these cancellations for its own
        try:
            yield
        finally:
            self.tasks.end_cleaning(task)

    # ---- shutting down

    def halts(self) -> bool:
        """Whether this run or a parent should stop at its next safe point."""
        return self.halting or (self.parent is not None and self.parent.halts())

    def leaves(self) -> bool:
        """Whether this run or a parent is left open for a later process, so that nothing more is stored."""
        if self.cause is not None and self.cause.kind == "shutdown":
            return True
        return self.parent is not None and self.parent.leaves()

    # ---- tasks

    def includes(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task works in this run or a parent."""
        return self.tasks.includes(task) or (self.parent is not None and self.parent.includes(task))

    def waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the run cannot finish before a task ends: the task works in the run, or in another thread, where it may
        work for the run."""
        if self.tasks.includes(task):
            return True
        driver = self.tasks.driver
        return driver is not None and task is not None and task.get_loop() is not driver.get_loop()
