"""How a call ends before it is done: interrupts, deadlines, cancelled tasks, readers that leave, processes that stop.

Rules:

1. All of them but a halt arrive as `CancelledError`; `absorb` says which it was, and takes our own cancellation back.
2. A cancellation that nobody asked for is somebody's own, and no end of the call.
3. A halt waits for the next safe point: behind a model's reply or a tool's result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import Any

from agentflow.errors import CallTimeoutError
from agentflow.loop.stream import READING, Port

__all__ = ["Stopping"]


class Stopping:
    """What may end one call, and who has said so.

    Args:
        agent: The agent's name, for errors.
        timeout: Seconds for the whole call; None: any time.
        reader: The port of the stream's reader; None: nobody reads.
        parent: That of the call which this one belongs to.

    Attributes:
        halting: Whether the call itself was asked to stop at its next safe point.
        leaving: Whether the call itself is being left as it is.
        interrupting: Why the call was interrupted; None: it was not.
        by_itself: Whether its own hooks or tools have interrupted it; `by_caller`: those of a call that it belongs to.
        over: Whether the call is over: nothing ends it any more.
        task: The task that runs it.
        tasks: Those of its parallel rounds, and those in which operators run what hooks have wrapped.
    """

    __slots__ = (
        "_absorbed",
        "_agent",
        "_base",
        "_cancelled",
        "_closing",
        "_cut_why",
        "_cuts",
        "_deadline",
        "_ending",
        "_parent",
        "_reader",
        "_timer",
        "by_caller",
        "by_itself",
        "halting",
        "interrupting",
        "leaving",
        "over",
        "task",
        "tasks",
        "timeout",
    )

    def __init__(self, agent: str, timeout: float | None, reader: Port | None, parent: Stopping | None) -> None:
        self._agent = agent
        self.timeout = timeout
        self._reader = reader
        self._parent = parent
        self.task: asyncio.Task[Any] | None = None
        self.tasks: tuple[Set[asyncio.Task[Any]], ...] = ()
        self.interrupting: str | None = None
        self.by_itself = self.by_caller = False
        self.over = False
        self.halting = False
        self.leaving = False
        self._base = 0  # how often the task had been cancelled before it ran this call
        self._absorbed = False
        self._cancelled: asyncio.Task[Any] | None = None
        self._closing = False
        self._deadline = False
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False  # whether hooks of `CallEnded` run: they alone can be cut off, since the call is over
        self._cuts = 0
        self._cut_why = ""

    # ---- the task

    def take_task(self) -> bool:
        """Note the task that runs this.

        Returns:
            Whether a cancellation that came before is on its way to it: then `await_earlier` raises it.
        """
        self.task = task = asyncio.current_task()
        return self._reader is None and task is not None and task.cancelling() > 0

    async def await_earlier(self) -> None:
        """Let a cancellation that came before the call be raised here; one that the task has taken in is no concern of it."""
        await asyncio.sleep(0)
        if self.task is not None:
            self._base = self.task.cancelling()

    def let_go(self) -> None:
        """The call is over: nothing counts any more, and the task is kept by nobody."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.task = self._cancelled = None

    @property
    def _driving(self) -> Any:
        """The task that runs the call just now, or reads it."""
        return self.task if self._reader is None else self._reader.reader

    def driven_by(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is the one that drives the run, and is inside it now (not in the loop that reads its stream)."""
        if task is None or (self.over and not self._ending):
            return False
        driving = self._driving
        return (
            driving is task
            or (driving is READING and self.task is task)
            or (driving is None and self._reader is not None and self._reader.closer is task)
        )

    def works_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task drives the run, or is one of its round or of an operator around its work."""
        return self.driven_by(task) or any(task in tasks for tasks in self.tasks)

    def waits_with(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task works in the run, or in one that it belongs to."""
        return self.works_in(task) or (self._parent is not None and self._parent.waits_with(task))

    def waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the run waits for whatever a task does: it works in it, or in another thread."""
        if self.works_in(task):
            return True
        return self.task is not None and task is not None and task.get_loop() is not self.task.get_loop()

    # ---- interrupts and deadlines

    def interrupt(self, reason: str = "interrupted") -> None:
        """End the call from wherever: another task, another thread, a hook or a tool of this call."""
        loop = None if self.task is None else self.task.get_loop()
        if self._ending and loop is not None:
            loop.call_soon_threadsafe(self._cut_off, f"the call was interrupted ({reason})")
            return
        if self.over or self.interrupting is not None:
            return
        self.interrupting = reason
        task = _running_task()
        self.by_itself = self.works_in(task)
        self.by_caller = not self.by_itself and self._parent is not None and self._parent.waits_with(task)
        if loop is not None:
            # Later, and not here: a task that cancels itself would be hit at an await behind the run's end.
            loop.call_soon_threadsafe(self._cancel_driver)

    def noticed(self) -> asyncio.CancelledError | None:
        """What to raise where the call was interrupted, and has not taken that in."""
        if self.interrupting is None or self._absorbed or self.over:
            return None
        return asyncio.CancelledError(self.interrupting)

    def notice(self) -> None:
        """Raise if the call was interrupted and has not taken that in."""
        error = self.noticed()
        if error is not None:
            raise error

    def watch_the_clock(self) -> None:
        """Count the call's `timeout` from now."""
        if self._timer is not None:
            self._timer.cancel()
        if self.timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(self.timeout, self.expire)

    def expire(self) -> None:
        """The call's `timeout` has passed."""
        if self._ending:
            self._cut_off(f"the call's timeout of {self.timeout:g} s passed once more")
            self.watch_the_clock()
        elif not self.over and self.interrupting is None:
            self._deadline = True
            self.interrupting = f"timeout of {self.timeout:g} s"
            self._cancel_driver()

    def _cancel_driver(self) -> None:
        task = self._driving
        if not self.over and not self._absorbed and isinstance(task, asyncio.Task) and not task.done():
            self._cancelled = task
            task.cancel()

    # ---- hooks of `CallEnded`

    def begin_end(self) -> None:
        """The call is over, and its last hooks run: they have its `timeout` once more."""
        if self._timer is not None:
            self.watch_the_clock()
        self._ending = True

    def finish_end(self) -> None:
        """The last hooks have run."""
        self._ending = False
        if self._cuts:
            self._take_back_cuts()

    def _cut_off(self, why: str) -> None:
        """End the wait for a hook of `CallEnded`."""
        task = self._driving or (self._reader and self._reader.closer)
        if self._ending and isinstance(task, asyncio.Task) and not task.done():
            self._cuts += 1
            self._cut_why = why
            task.cancel()

    def cut_off(self) -> str:
        """Why the run, which goes on, has cancelled the wait for a hook (that is taken back); empty: it has not."""
        if not self._cuts:
            return ""
        self._take_back_cuts()
        task = asyncio.current_task()
        return "" if task is not None and task.cancelling() > self._base_of(task) else self._cut_why

    def _take_back_cuts(self) -> None:
        """Take back what a hook was cut off by, whether or not it heeded that."""
        task = asyncio.current_task()
        while self._cuts:
            self._cuts -= 1
            if task is not None:
                task.uncancel()

    # ---- whose cancellation it is

    def is_cancelled(self) -> bool:
        """Whether a `CancelledError` is a cancellation of this run, or of one that it belongs to, and not somebody's own."""
        if self.interrupting is not None or self.is_cancelled_from_outside():
            return True
        return self._parent is not None and self._parent.is_cancelled()

    def is_cancelled_from_outside(self) -> bool:
        """Whether the task was cancelled by somebody else than the run, or its reader is gone."""
        if self._closing:
            return True
        task = asyncio.current_task()
        return task is not None and task.cancelling() > self._base_of(task)

    def _base_of(self, task: asyncio.Task[Any]) -> int:
        """How often the running task had been cancelled before it ran, or read, this call."""
        reader = self._reader
        if reader is None:
            return self._base if task is self.task else 0
        if reader.reader is READING:  # it has not waited yet, so nothing has been thrown into it
            return task.cancelling()
        return reader.base if task is reader.reader else 0

    def absorb(self, error: BaseException) -> None:
        """Take in what ends the run: our own cancellation is taken back, a real one means that the reader is gone.

        A signal (`KeyboardInterrupt`) on top of an interrupt takes its place: nothing raises for the interrupt any more.

        Only the task that drives the run tells which it is; tasks of a parallel round are cancelled by their round.
        """
        if isinstance(error, Exception) or self._closing:
            return
        task = asyncio.current_task()
        driving = self._driving
        if task is None or (driving is not task and driving is not READING):
            return
        if self.interrupting is not None and not self._absorbed:
            self._absorbed = True
            if self._cancelled is task:
                task.uncancel()
        if isinstance(error, asyncio.CancelledError) and task.cancelling() > self._base_of(task):
            self.close_reader()

    def interrupted(self) -> str | None:
        """The reason, if the run was interrupted and nobody else cancelled it."""
        return self.interrupting if self._absorbed and not self._closing else None

    def timed_out(self) -> CallTimeoutError | None:
        """The error of a passed deadline."""
        if self._deadline and self.timeout is not None:
            return CallTimeoutError(self.timeout, self._agent)
        return None

    def reader_has_gone(self) -> bool:
        """Whether the reader has closed the stream, or the task that drives the run was cancelled by somebody else."""
        return self._closing

    def close_reader(self) -> None:
        """The reader has closed the stream: events are dropped, and the cancellation that follows is real."""
        self._closing = True
        if self._reader is not None:
            self._reader.closed = True

    def take_back(self) -> None:
        """A time limit of a layer around the call has cancelled the task, and has taken that back: nobody is gone."""
        task = asyncio.current_task()
        if self._reader is not None or task is None:
            return
        ours = self._cancelled is task and not self._absorbed  # the call's own limit may have passed meanwhile
        if task.cancelling() - ours <= self._base_of(task):
            self._closing = False

    # ---- the process ends

    def halt(self) -> None:
        """Stop at the next safe point, and leave the call open; see `agentflow.agent.shutdown`."""
        self.halting = True

    def leave(self, reason: str) -> None:
        """End the call at once, and leave it open as a crash would."""
        self.halting = self.leaving = True
        self.interrupt(reason)

    def halts(self) -> bool:
        """Whether this call, or one that it belongs to, is to stop at its next safe point."""
        return self.halting or (self._parent is not None and self._parent.halts())

    def leaves(self) -> bool:
        """Whether this call, or one that it belongs to, is being left as it is: nothing more is stored."""
        return self.leaving or (self._parent is not None and self._parent.leaves())


def _running_task() -> asyncio.Task[Any] | None:
    """The task that is running here; None: there is none, or no event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
