"""The runners of a queue: the reader of `run()`, or else a worker for each event loop that sent a turn.

Rules:

1. A queue has one runner at a time. A new reader has precedence: a worker stops for it after the current turn.
2. A sent turn runs in its sender's event loop. Over all loops, turns run one at a time, in the order of sending. So a
   turn depends on no other event loop than its sender's, and its tool can hold resources of that loop.
3. A worker ends when no task in its event loop waits for a turn.
4. If an event loop is closed, the worker of another loop runs its turns, but only those that precede that worker's own
   turns. So a loop that is closed as soon as its own turns have ended interrupts no other sender's turn.
5. A turn that returns a single value has ended, and its receipt is settled, before the value is yielded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, cast

from agentflow._support.locks import FairLock
from agentflow._support.logs import logger
from agentflow.agent.as_tool import FullToolAgent
from agentflow.agent.entries import Entries
from agentflow.agent.receipt import CANCELLED, QueueEntry, inside
from agentflow.errors import SafeExecutionError, ScriptError, TurnDeniedError, UsageError
from agentflow.hooks.hook_set import full_hooks
from agentflow.loop.bound_tool import FullBoundTool
from agentflow.loop.run import current_turn
from agentflow.loop.scope import RunScope
from agentflow.loop.stream import EventBuffer
from agentflow.loop.tool_attempt import held_locks
from agentflow.loop.turn import Turn
from agentflow.loop.turn_run import make_host, make_run, run_turn
from agentflow.vocabulary.events import HookEvent, Paused, Resumed, TurnValue

_LOOK_AGAIN: Final = 1.0
"""Seconds after which a waiting worker checks whether another worker's event loop was closed."""

_loops: ContextVar[tuple[object, ...]] = ContextVar("agentflow_run_loops", default=())
"""The loops over `run()` in whose body the current code was started."""


def _worker_context() -> Context:
    """Return the context of a worker task. The context belongs to no sender, since each turn records its own sender."""
    context = copy_context()
    context.run(current_turn.set, None)
    context.run(inside.set, ())
    context.run(held_locks.set, ())
    context.run(_loops.set, ())
    return context


class Runner:
    """Runs the turns of an agent's queue.

    Args:
        owner: The agent.
        entries: The waiting turns.
        follow: Appends a turn that a tool returned.

    Attributes:
        current: The running turn.
        paused: Whether the queue is paused, so that no turn begins.
        reading: Whether a reader iterates `run()`.
    """

    def __init__(
        self, owner: FullToolAgent[Any], entries: Entries, follow: Callable[[FullBoundTool], Awaitable[object]]
    ) -> None:
        self._owner = owner
        self._entries = entries
        self._follow = follow
        self._workers = _Workers(self, entries)
        # Held while the queue is run: by the reader for its whole loop, by a worker until no turn is left for it (rule
        # 1).
        self._running = FairLock()
        # The task that runs the queue: while it waits, the queue is blocked.
        self._driver: asyncio.Task[Any] | None = None
        self._scope: RunScope | None = None  # the task of the reader's run
        self._reader: asyncio.Task[Any] | None = None  # the task that handles its values
        self._loop: object = None  # the reader's loop over `run()`
        self._shown: Turn[Any] | None = None  # the turn of the reader's current value
        self.current: QueueEntry | None = None
        self.paused = False
        self.reading = False

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._owner.name

    @property
    def busy(self) -> bool:
        """Whether a reader or a worker runs the queue."""
        return self._running.locked

    def pause(self, paused: bool) -> None:
        """Pause the queue, so that no further turn begins, or continue."""
        self.paused = paused
        self._entries.changed.notify_all()

    # ---- by a reader

    async def start(self, values: EventBuffer, deps: object, wait: bool) -> _QueueRun:
        """Run the waiting turns for a reader, in a separate task; with `wait`, also later ones."""
        with self._entries.guard:
            if self.reading:
                raise SafeExecutionError(
                    f"agent.run() of {self.name!r} is being iterated already; a queue can have only one reader at a time. "
                    "End the other loop first."
                )
            self.reading = True
            self._loop = object()  # a mark that no other loop has
        run = _QueueRun(self._owner.config.cleanup_timeout)

        def abandon() -> None:
            run.scope.finish(None, None)
            values.wake()

        # In a task of its own, as calls are: the reader never executes the code of a turn.
        run.scope.start(self._read(run.scope, values, deps, wait), abandon)
        return run

    async def _read(self, scope: RunScope, values: EventBuffer, deps: object, wait: bool) -> None:
        scope.state = "running"
        if scope.tasks.driver is None:  # an eager task
            scope.tasks.driver = asyncio.current_task()
        self._scope = scope
        failure: BaseException | None = None
        try:
            await self._run_for(values, deps, wait)
        except GeneratorExit:  # the event loop is closed
            scope.finish(None, None)
            raise
        except BaseException as error:  # raised to the reader
            failure = error
        scope.finish(None, failure)
        failure = None  # its traceback holds this frame
        values.wake()

    async def _run_for(self, values: EventBuffer, deps: object, wait: bool) -> None:
        # A worker of a closed loop would hold `_running` indefinitely.
        self._workers.discard_closed()
        self._entries.changed.notify_all()
        try:
            await self._running.acquire()  # a worker stops after its current turn
            self._driver = asyncio.current_task()
            try:
                # `_drain` returns True if a turn has ended the run (rule 2 of `queue.py`).
                while not await self._drain(values, deps, None) and wait and not values.closed:
                    await self._entries.changed.wait_for(lambda: len(self._entries) > 0)
            finally:
                self._driver = None
                self._running.release()
        finally:
            self.reading = False
            self._shown = self._loop = self._reader = self._scope = None
            self._entries.changed.notify_all()  # sent turns are now run by workers

    def shown(self, event: HookEvent) -> tuple[Turn[Any], Any]:
        """Return the reader's value for an event: the turn and its value."""
        assert isinstance(event, TurnValue)
        assert self._shown is not None
        self._reader = asyncio.current_task()
        # Set in the context of the reader's task, which is inherited by the tasks that the body of its loop starts.
        if self._loop not in (loops := _loops.get()):
            _loops.set((*loops, self._loop))
        return self._shown, event.value

    def driven_here(self) -> bool:
        """Whether the current task runs this queue, including the queue's hooks and its reader's loop."""
        task = asyncio.current_task()
        return task is not None and task in (self._driver, self._reader)

    def stuck(self, sent: bool) -> str:
        """Return why no slot would be freed while the current code waits; empty if a slot can be freed.

        Args:
            sent: Whether the current code sends the turn that needs the slot.
        """
        if self._loop is not None and self._loop in _loops.get():
            return (
                "the code that calls put() was started in the body of the loop over agent.run(): if the body awaits "
                "that code, they deadlock"
            )
        if self._workers or self.reading or (sent and self._entries.first_sent() is not None):
            return ""
        return "the queue is not running: put() waits until agent.run() is iterated"

    # ---- by workers

    def wake(self) -> None:
        """Make sure that a runner runs the turns sent from the current event loop."""
        self._workers.wake()

    def drop(self, entry: QueueEntry, reason: str) -> bool:
        """Remove a turn unless it has begun. Return whether it was removed."""
        return self._entries.drop(entry, reason)

    def awaited(self, entry: QueueEntry) -> None:
        """Make sure that a runner runs an awaited turn, if it was sent from a closed event loop.

        Raises:
            UsageError: The waiting task is the task that runs the queue.
        """
        if self.driven_here():
            raise UsageError(
                f"Deadlock: the task that runs the queue of agent {self.name!r} awaits the receipt of a turn of tool "
                f"{entry.turn.tool.name!r} from that queue. Await it after the loop over agent.run(), or in another "
                "task."
            )
        # Turns that were only put wait for a reader.
        if not entry.sent or entry.finished or entry is self.current:
            return
        self._entries.adopt(entry, asyncio.get_running_loop())
        self._workers.wake()

    def ready(self, home: asyncio.AbstractEventLoop) -> bool:
        """Whether the worker of an event loop can run a turn now."""
        return not self._running.locked and self._next(home) is not None

    async def work_off(self, home: asyncio.AbstractEventLoop) -> None:
        """Run the turns of a worker, unless the queue has another runner."""
        if not self._running.try_acquire():
            return
        self._driver = asyncio.current_task()
        try:
            await self._drain(None, None, home)
        # Not raised, since the next turns belong to other senders. Cancellations are raised, since they end the worker.
        except (Exception, ScriptError) as error:
            logger.opt(exception=error).trace("a turn of agent {} failed; its receipt has the error", self.name)
        finally:
            self._driver = None
            self._running.release()
            self._entries.changed.notify_all()

    # ---- by readers and workers

    async def _drain(self, values: EventBuffer | None, deps: object, worker: asyncio.AbstractEventLoop | None) -> bool:
        """Run the waiting turns; return whether a turn has ended the run."""
        while True:
            # Everything can change during an await, so it is checked again below.
            await self._gate(worker)
            entry = self._next(worker)
            if entry is None:
                return False
            if self.paused:  # the queue was paused in the meantime
                continue
            if not self._entries.take_out(entry):  # the turn was removed in the meantime
                continue
            if await self._run_one(entry, values, deps) and worker is None:
                return True
            if values is not None and values.closed:
                return True

    async def _gate(self, worker: asyncio.AbstractEventLoop | None) -> None:
        """Wait while the queue is paused, unless there is no turn to run."""
        owner = self._owner
        while self.paused and self._next(worker) is not None:
            # Events need a run; this one runs no task.
            host = make_host(owner.config, full_hooks(owner.hooks), None, owner.name, None)
            try:
                await host.events.emit(Paused)
                await self._entries.changed.wait_for(lambda: not self.paused or self._next(worker) is None)
                if self.paused:
                    return
                await host.events.emit(Resumed)
            finally:
                host.end()

    def _next(self, worker: asyncio.AbstractEventLoop | None) -> QueueEntry | None:
        """Return the next turn for the reader or a worker. A worker stops for a reader or another worker."""
        if worker is None:
            return self._entries.first()
        if self.reading or not self._entries.needs(worker):
            return None
        first = self._entries.first_sent()
        # A turn of another running loop is left to that loop's worker, and all turns after it have to wait (rule 2).
        if first is None or (first.home is not worker and first.home is not None and first.home.is_running()):
            return None
        return first

    async def _run_one(self, entry: QueueEntry, values: EventBuffer | None, deps: object) -> bool:
        """Run a turn. Return whether the run of the queue ends with this turn."""
        turn, owner = entry.turn, self._owner
        # If a reader runs the queue, cancelling it cancels the turn as well.
        outer = None if values is None else self._scope
        self.current = entry
        self._shown = turn
        try:
            turn_deps = turn.deps if turn.deps is not None else deps
            name = "" if turn.tool is owner.asking else owner.name  # a question's call adds the agent's name itself
            run = make_run(turn, owner.config, full_hooks(owner.hooks), turn_deps, name, entry.place)
            if turn.tool is not owner.asking:  # its sender, unlike that of a question, does not wait
                run.scope.waits = None
            run.route = self._follow
            run.settings.inherits = ((inside, (*inside.get(), entry)),)
            entry.run = run
            if entry.cancelled:  # the turn was cancelled in the meantime
                raise TurnDeniedError(turn.tool.name, CANCELLED)
            run.start(run_turn(turn, run, values))
            # While it runs, the turn's own task is the one that blocks the queue.
            self._driver = run.scope.tasks.driver
            if outer is not None:
                outer.add_inner(run.scope)
            try:
                value = await run.scope.result()
            finally:
                if outer is not None:
                    outer.remove_inner(run.scope)
        except BaseException as error:  # every entry is settled, even if it was cancelled
            entry.settle(None, _receipt_error(error, turn), was_read=values is not None or entry.cancelled)
            if entry.cancelled and isinstance(error, Exception):
                # Only the sender receives the error; a traceback would keep the runner's frames alive.
                error.__traceback__ = error.__cause__ = error.__context__ = None
                return False
            raise
        finally:
            self.current = None
            entry.finished = True
            entry.run = None
        # Settled before the value is handed out (rule 5).
        entry.settle(value, None)
        await run.hand_out(values)
        done = turn.tool.type == "completion_check" and value is True
        return done or run.stop is not None


class _QueueRun:
    """The run of a queue, for its stream."""

    def __init__(self, cleanup_timeout: float) -> None:
        self.scope = RunScope(None, None, cleanup_timeout)

    def abandoned_by_reader(self) -> None:
        """Do nothing, since no task waits for the cleanup."""


def _receipt_error(error: BaseException, turn: Turn[Any]) -> BaseException:
    """Return the error for the receipt: cancelling the task that runs the queue must not cancel the task that sent the
    turn.
    """
    if isinstance(error, Exception | ScriptError):
        return error
    failure = TurnDeniedError(turn.tool.name, f"it was cancelled while it ran ({type(error).__name__})")
    failure.__cause__ = error
    return failure


class _Workers:
    """The workers of a queue.

    Args:
        runner: Runs the queue's turns.
        entries: The queue's turns.
    """

    def __init__(self, runner: Runner, entries: Entries) -> None:
        self._runner = runner
        self._entries = entries
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def wake(self) -> None:
        """Make sure that the current event loop has a worker, if a task there waits for a turn."""
        self.discard_closed()
        home = asyncio.get_running_loop()
        with self._entries.guard:  # workers end under the guard too, so no turn is missed
            if home not in self._tasks and self._entries.needs(home):
                name = f"agentflow: the queue of {self._runner.name}"
                self._tasks[home] = home.create_task(self._work(home), name=name, context=_worker_context())
        self._entries.changed.notify_all()

    async def _work(self, home: asyncio.AbstractEventLoop) -> None:
        try:
            while self._has_work(home):
                await self._wait_until_ready(home)
                await self._runner.work_off(home)
        finally:
            self._end(home)

    def _has_work(self, home: asyncio.AbstractEventLoop) -> bool:
        with self._entries.guard:
            if self._entries.needs(home):
                return True
            self._tasks.pop(home, None)
            return False

    async def _wait_until_ready(self, home: asyncio.AbstractEventLoop) -> None:
        def ready() -> bool:
            return self._runner.ready(home) or not self._entries.needs(home)

        while not ready():
            self.discard_closed()
            try:
                async with asyncio.timeout(_LOOK_AGAIN):  # a closed event loop sends no notification
                    await self._entries.changed.wait_for(ready)
            except TimeoutError:
                continue

    def _end(self, home: asyncio.AbstractEventLoop) -> None:
        """Remove a worker that is finished, or was cancelled with its event loop."""
        with self._entries.guard:
            # None: `_has_work` has removed it, because there was nothing to do.
            if self._tasks.pop(home, None) is not None:
                self._entries.orphan(home)
        self._entries.changed.notify_all()

    def discard_closed(self) -> None:
        """End the workers of closed event loops, so that they hold no resources."""
        with self._entries.guard:
            dead = [(home, self._tasks[home]) for home in self._tasks if home.is_closed()]
            for home, _ in dead:
                del self._tasks[home]
                self._entries.orphan(home)
        for _, task in dead:
            try:
                # Outside of the guard: `close` runs the `finally` blocks of the turn, here and now.
                cast("Coroutine[Any, Any, None]", task.get_coro()).close()
            except Exception as error:  # any exception: a tool that awaits in its cleanup cannot be closed
                logger.warning("a worker of agent {} could not be closed: {!r}", self._runner.name, error)
