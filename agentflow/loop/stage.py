"""A stage: what the sources behind one Pre event belong to, and how it ends.

Rules:

1. A source belongs to its stage: subscribed when that is over it raises, and what still runs of it then is cancelled, and
   waited for, before the stage ends. So nothing happens in a call, or to its session, behind its stage.
2. Where work cannot be done twice, or not twice at the same time, the second subscription raises.
3. A `CancelledError` that nobody asked for is a failing hook; a cancellation that a hook has swallowed is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

from agentflow.chunks import ModelChunk
from agentflow.errors import HookError, UsageError
from agentflow.events import Event, PreCall, PreToolRound
from agentflow.ground.logs import log_failure
from agentflow.hooks.answers import cancellations, raise_swallowed
from agentflow.loop.run import RunBase
from agentflow.reactive import Mono
from agentflow.reactive.iterators import Runs

__all__ = ["Reading", "Stage", "gone"]

T = TypeVar("T")


class Reading:
    """An attempt that is open.

    Attributes:
        task: Who reads it, or has read it last.
        stream: Gives its chunks; nothing where whoever read it has dropped or closed it.
    """

    __slots__ = ("stream", "task")

    task: asyncio.Task[Any] | None
    stream: Callable[[], AsyncIterator[ModelChunk] | None]


def gone() -> None:
    """What a reference to a stream that is about to be closed gives."""


class Stage:
    """What the sources behind one Pre event belong to: who runs them, and until when they may be run.

    Args:
        run: The call.
        kind: The event's class.

    Attributes:
        over: Whether nothing of it may be run any more.
        begun: How often it was run.
        runs: The streams that were opened of it and are not dropped, the outermost first.
        readings: The attempts at a model's reply that are open.
    """

    __slots__ = ("_before", "_gone", "_kind", "_loop", "_mine", "_run", "_tasks", "begun", "over", "readings", "runs")

    def __init__(self, run: RunBase, kind: type[Event]) -> None:
        self._run = run
        self._kind = kind
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[Any] | None] = []
        self._gone: asyncio.Future[None] | None = None
        self._mine: asyncio.Task[Any] | None = None
        self._before = 0
        self.begun = 0
        self.over = False
        self.runs = Runs()
        self.readings: list[Reading] = []

    def check(self) -> None:
        """Refuse a subscription that the stage does not allow.

        Raises:
            UsageError: It comes late, once too often, or from another thread's loop.
        """
        name = self._kind.__name__
        if self.over:
            raise UsageError(
                f"The source behind {name} was used when its stage was over. It is work of that one stage: use it in "
                "what `around` returns, and nowhere else; it cannot be kept for later, or be left to a task that goes on "
                "behind the stage."
            )
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                f"The source behind {name} was subscribed on another event loop than its call runs on. Only blocking work "
                "of your own belongs on subscribe_on(threads())."
            )
        if self._kind is PreCall and self.begun:
            raise UsageError(
                "The source behind PreCall is the rest of the call; it can be subscribed once. To try a model again, "
                "wrap PreReasoning; to send the agent back to work, return Again from PostReasoning."
            )
        if self._kind is PreToolRound and self._tasks:
            raise UsageError(
                "The source behind PreToolRound was subscribed while it runs; a round runs once at a time. To run one tool "
                "twice at once, wrap PreActing."
            )

    async def enter(self) -> asyncio.Task[Any] | None:
        """Refuse a subscription that the stage does not allow, or that a hook makes after it has swallowed a cancellation.

        Returns:
            The task that subscribes.
        """
        if self.over or self.begun or self._tasks or asyncio.get_running_loop() is not self._loop:
            self.check()
        task = asyncio.current_task()
        if self._mine is task and cancellations() > self._before and self._run.stopping.is_cancelled():
            await raise_swallowed(self._kind.__name__)
        return task

    async def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the stage's work for somebody who has subscribed to it."""
        task = await self.enter()
        self.begun += 1
        self._tasks.append(task)
        stopping = self._run.stopping
        strays = {task} if task is not None and not stopping.waits_for(task) else None
        if strays is not None:  # an operator's own task: no call that is made in it outlives this one
            stopping.tasks = (*stopping.tasks, strays)
        try:
            return await work()
        finally:
            if strays is not None:
                stopping.tasks = tuple([tasks for tasks in stopping.tasks if tasks is not strays])
            self._tasks.remove(task)
            if self._gone is not None:
                self._tell()

    def left(self, reading: Reading) -> None:
        """Say that an attempt is over."""
        self.readings.remove(reading)
        if self._gone is not None:
            self._tell()

    def _tell(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def outcome(self, wrapped: Any) -> Any:
        """Run what the hooks have made of the work, to its value (or `EMPTY`), and end the stage."""
        mono = cast("Mono[Any]", wrapped if isinstance(wrapped, Mono) else Mono.from_observable(wrapped))
        return await self.ended(mono.resolve())

    async def ended(self, wrapped: Awaitable[T], keep: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Run what the hooks have made of the work, to its end, and end the stage.

        Args:
            wrapped: What they have made.
            keep: Gets what came of it, where the run is cancelled while the stage ends.

        Raises:
            HookError: A hook has raised `CancelledError` itself, although nobody cancelled the run.
            asyncio.CancelledError: The run was cancelled, also where a hook has swallowed that.
        """
        self._mine, self._before = asyncio.current_task(), cancellations()
        try:
            value = await wrapped
        except GeneratorExit:  # the run itself is dropped: nothing can be awaited any more
            self.over = True
            raise
        except BaseException as error:
            by_hook = isinstance(error, asyncio.CancelledError) and not self._run.stopping.is_cancelled()
            await self.close()
            if not by_hook:
                raise
            raise HookError(
                f"What hooks made of the source behind {self._kind.__name__} raised CancelledError itself, although nobody "
                "cancelled the run."
            ) from error
        try:
            await self.close()
            if cancellations() > self._before and self._run.stopping.is_cancelled():
                await raise_swallowed(self._kind.__name__)
        except asyncio.CancelledError as error:
            if keep is not None:
                self._run.stopping.absorb(error)
                await keep(value)
            raise
        return value

    async def close(self) -> None:
        """End the stage: nothing of it runs any more when this returns, and nothing of it can be run."""
        self.over = True
        cut = await self._close_runs() if self.runs else None
        mine = asyncio.current_task()
        while self._tasks or self.readings:
            reading = [each.task for each in self.readings if each.stream() is not None]
            working = [t for t in (*self._tasks, *reading) if t is not None and t is not mine and not t.done()]
            if not working and (
                cut is not None or len(reading) == len(self.readings) or self._run.stopping.is_cancelled()
            ):
                break  # (what was dropped is being closed: that is waited for, unless somebody cancels)
            for task in working:
                task.cancel()
            self._gone = self._loop.create_future()
            try:
                await self._gone
            except asyncio.CancelledError as error:  # the work is told once more
                cut = error
        if cut is not None:
            raise cut

    async def _close_runs(self) -> asyncio.CancelledError | None:
        """Close the streams that hooks have left open, the outermost first; one that is being read ends with its reader.

        Closing a generator does not close what that was reading: so all are held before the first is closed.
        """
        cut: asyncio.CancelledError | None = None
        for run in [run() for run in self.runs]:
            if run is None:
                continue
            try:
                await run.end(self.check)
            except asyncio.CancelledError as error:
                if self._run.stopping.is_cancelled():
                    cut = error
                else:
                    self._cleanup_failed(error)
            except BaseExceptionGroup as group:  # what a generator that is closed in a task group makes of that
                if group.subgroup((KeyboardInterrupt, SystemExit)) is not None:
                    raise
                self._cleanup_failed(group)
            except Exception as error:
                self._cleanup_failed(error)
        return cut

    def _cleanup_failed(self, error: BaseException) -> None:
        """What a hook has left open has failed while it was closed; what came of the stage stands."""
        log_failure("DEBUG", error, f"closing what a hook has left open behind {self._kind.__name__} failed")
