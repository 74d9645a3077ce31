"""Who runs the turns of a queue: whoever reads `run()`, or else a worker for each event loop that something was sent from.

Rules:

1. One runs it at a time. Who begins to read it comes next: a worker stops behind its current turn.
2. What was sent from an event loop is run in that loop, one at a time over all of them, in the order of sending. So a turn
   never hangs on an event loop that is none of its sender's, and what its tool holds may belong to the sender's loop.
3. A worker ends when nobody in its event loop waits for anything any more.
4. What an event loop that has ended has left is an orphan. A worker runs it where it is in front of what it has to run; so a
   loop that ends with its answer does not end in the middle of somebody else's turn.
5. A turn of a single value is over, and its receipt settled, before the value is handed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, cast

from agentflow.agent.as_tool import FullToolAgent
from agentflow.agent.entries import Entries
from agentflow.agent.receipt import TAKEN_BACK, Entry, inside
from agentflow.errors import SafeExecutionError, ScriptError, TurnDeniedError, UsageError
from agentflow.events import HookEvent, Paused, Resumed, TurnValue
from agentflow.ground.locks import FairLock
from agentflow.ground.logs import logger
from agentflow.hooks.hook_set import full_hooks
from agentflow.loop.run import current_turn
from agentflow.loop.scope import RunScope
from agentflow.loop.stream import EventBuffer
from agentflow.loop.tool_call.attempts import held_locks
from agentflow.loop.turns.bound import FullBoundTool
from agentflow.loop.turns.turn import Turn
from agentflow.loop.turns.turn_run import make_host, make_run, run_turn

__all__ = ["Runner"]

_LOOK_AGAIN: Final = 1.0
"""Seconds until a worker that waits for another one looks whether that one's event loop was closed under it."""

_loops: ContextVar[tuple[object, ...]] = ContextVar("agentflow_run_loops", default=())
"""The loops over `run()` in whose body the code running here was begun."""


def _nobodys() -> Context:
    """The context of a worker: whoever sent a turn is noted with it; the task itself is nobody's."""
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
        entries: The turns that wait.
        follow: Puts a turn that a tool gives at the end.

    Attributes:
        current: The turn that runs.
        paused: Whether it begins none.
        reading: Whether somebody reads `run()`.
    """

    def __init__(
        self, owner: FullToolAgent[Any], entries: Entries, follow: Callable[[FullBoundTool], Awaitable[object]]
    ) -> None:
        self._owner = owner
        self._entries = entries
        self._follow = follow
        self._workers = _Workers(self, entries)
        self._running = FairLock()
        self._driver: asyncio.Task[Any] | None = None  # the task that runs it: while that one waits, nothing goes on
        self._scope: RunScope | None = None  # of the run for a reader
        self._reader: asyncio.Task[Any] | None = None  # the task that handles its values
        self._loop: object = None  # the loop over `run()` that reads it
        self._shown: Turn[Any] | None = None  # whose value the reader gets
        self.current: Entry | None = None
        self.paused = False
        self.reading = False

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._owner.name

    @property
    def busy(self) -> bool:
        """Whether somebody runs it."""
        return self._running.locked

    def pause(self, paused: bool) -> None:
        """Begin no further turn, or go on."""
        self.paused = paused
        self._entries.bell.ring()

    # ---- by a reader

    async def start(self, values: EventBuffer, deps: object, wait: bool) -> _QueueRun:
        """Run what there is for a reader, in a task of its own; with `wait`, what comes too."""
        with self._entries.guard:
            if self.reading:
                raise SafeExecutionError(
                    f"agent.run() of {self.name!r} is being iterated already; a queue is run by one at a time."
                )
            self.reading = True
            self._loop = object()
        run = _QueueRun(self._owner.config.cleanup_timeout)

        def abandon() -> None:
            run.scope.finish(None, None)
            values.wake()

        run.scope.start(self._read(run.scope, values, deps, wait), abandon)
        return run

    async def _read(self, scope: RunScope, values: EventBuffer, deps: object, wait: bool) -> None:
        scope.begin()
        self._scope = scope
        failure: BaseException | None = None
        try:
            await self._run_for(values, deps, wait)
        except GeneratorExit:
            scope.finish(None, None)
            raise
        except BaseException as error:
            failure = error
        scope.finish(None, failure)
        failure = None  # its traceback holds this frame
        values.wake()

    async def _run_for(self, values: EventBuffer, deps: object, wait: bool) -> None:
        self._workers.bury()
        self._entries.bell.ring()
        try:
            await self._running.acquire()  # a worker stops behind its current turn
            self._driver = asyncio.current_task()
            try:
                while not await self._drain(values, deps, None) and wait and not values.closed:
                    await self._entries.bell.wait_for(lambda: len(self._entries) > 0)
            finally:
                self._driver = None
                self._running.release()
        finally:
            self.reading = False
            self._shown = self._loop = self._reader = self._scope = None
            self._entries.bell.ring()  # what others have sent is run all the same, by their workers

    def shown(self, event: HookEvent) -> tuple[Turn[Any], Any]:
        """What the reader gets of an event: the turn and its value."""
        assert isinstance(event, TurnValue)
        assert self._shown is not None
        self._reader = asyncio.current_task()
        if self._loop not in (loops := _loops.get()):
            _loops.set((*loops, self._loop))
        return self._shown, event.value

    def driven_here(self) -> bool:
        """Whether the running task is the one that runs this queue, its hooks and its reader's loop included."""
        task = asyncio.current_task()
        return task is not None and task in (self._driver, self._reader)

    def stuck(self, sent: bool) -> str:
        """Why nothing may ever be taken out while the running code waits; empty where all is well.

        Args:
            sent: Whether what it waits for is a place for a turn that it sends.
        """
        if self._loop is not None and self._loop in _loops.get():
            return "this was begun in the body of the loop over agent.run(): if that awaits it, neither ever goes on"
        if self._workers or self.reading or (sent and self._entries.first_sent() is not None):
            return ""
        return "nobody runs it: it waits until somebody iterates agent.run()"

    # ---- by workers

    def wake(self) -> None:
        """See to it that what was sent from the running event loop is run."""
        self._workers.wake()

    def drop(self, entry: Entry, why: str) -> bool:
        """Take a turn out that has not begun; returns whether that was so."""
        return self._entries.drop(entry, why)

    def awaited(self, entry: Entry) -> None:
        """Somebody waits for a turn, here: see to it that it is run, if it was sent from an event loop that is gone.

        Raises:
            UsageError: The task that waits is the one that runs the queue.
        """
        if self.driven_here():
            raise UsageError(
                f"The receipt of a turn of tool {entry.turn.tool.name!r} is awaited by the very task that runs the queue of "
                f"agent {self.name!r}, so neither would ever go on. Await it behind the loop over agent.run(), or in "
                "another task."
            )
        if not entry.sent or entry.over or entry is self.current:
            return
        self._entries.adopt(entry, asyncio.get_running_loop())
        self._workers.wake()

    def ready(self, home: asyncio.AbstractEventLoop) -> bool:
        """Whether the worker of an event loop may go on now."""
        return not self._running.locked and self._next(home) is not None

    async def work_off(self, home: asyncio.AbstractEventLoop) -> None:
        """What a worker does when it may: run what it finds, if nobody else runs the queue."""
        if not self._running.try_acquire():
            return
        self._driver = asyncio.current_task()
        try:
            await self._drain(None, None, home)
        except (Exception, ScriptError) as error:
            logger.opt(exception=error).trace("a turn of agent {} failed; its sender is told", self.name)
        finally:
            self._driver = None
            self._running.release()
            self._entries.bell.ring()

    # ---- by either

    async def _drain(self, values: EventBuffer | None, deps: object, worker: asyncio.AbstractEventLoop | None) -> bool:
        """Run what there is; returns whether a turn has ended the run."""
        while True:
            await self._gate(worker)
            entry = self._next(worker)
            if entry is None:
                return False
            if self.paused:  # just now
                continue
            if not self._entries.take_out(entry):  # somebody dropped it just now
                continue
            if await self._run_one(entry, values, deps) and worker is None:
                return True
            if values is not None and values.closed:
                return True

    async def _gate(self, worker: asyncio.AbstractEventLoop | None) -> None:
        """Wait while it is paused, unless there is nothing that could be run."""
        owner = self._owner
        while self.paused and self._next(worker) is not None:
            host = make_host(owner.config, full_hooks(owner.hooks), None, owner.name, None)
            try:
                await host.events.emit(Paused)
                await self._entries.bell.wait_for(lambda: not self.paused or self._next(worker) is None)
                if self.paused:
                    return
                await host.events.emit(Resumed)
            finally:
                host.end()

    def _next(self, worker: asyncio.AbstractEventLoop | None) -> Entry | None:
        """The next turn for the reader, or for a worker: that one stops where a reader takes over, or another worker."""
        if worker is None:
            return self._entries.first()
        if self.reading or not self._entries.needs(worker):
            return None
        first = self._entries.first_sent()
        if first is None or (first.home is not worker and first.home is not None and first.home.is_running()):
            return None
        return first

    async def _run_one(self, entry: Entry, values: EventBuffer | None, deps: object) -> bool:
        """Run a turn; returns whether the run ends with it."""
        turn, owner = entry.turn, self._owner
        outer = None if values is None else self._scope
        self.current = entry
        self._shown = turn
        try:
            given = turn.deps if turn.deps is not None else deps
            name = "" if turn.tool is owner.asking else owner.name  # a question's call names the agent itself
            run = make_run(turn, owner.config, full_hooks(owner.hooks), given, name, entry.place)
            run.route = self._follow
            run.inherits = ((inside, (*inside.get(), entry)),)
            entry.run = run
            if entry.taken_back:  # just now
                raise TurnDeniedError(turn.tool.name, TAKEN_BACK)
            run.start(run_turn(turn, run, values))
            self._driver = run.scope.task
            if outer is not None:
                outer.add_inner(run.scope)
            try:
                value = await run.scope.result()
            finally:
                if outer is not None:
                    outer.remove_inner(run.scope)
        except BaseException as error:
            entry.settle(None, _lasting(error, turn), seen=values is not None or entry.taken_back)
            if entry.taken_back and isinstance(error, Exception):
                # It concerns nobody but its sender, who knows whence it comes; a traceback would keep whoever runs the queue.
                error.__traceback__ = error.__cause__ = error.__context__ = None
                return False
            raise
        finally:
            self.current = None
            entry.over = True
            entry.run = None
        entry.settle(value, None)
        await run.hand_out(values)
        done = turn.tool.type == "completion_check" and value is True
        return done or run.stop is not None


class _QueueRun:
    """The run of a queue, as its stream knows it."""

    def __init__(self, cleanup_timeout: float) -> None:
        self.scope = RunScope(None, None, cleanup_timeout)

    def abandoned_by_reader(self) -> None:
        """Its stream was dropped; nobody waits for its cleanup."""


def _lasting(error: BaseException, turn: Turn[Any]) -> BaseException:
    """What the receipt keeps: a cancellation of whoever ran the queue is none of whoever sent the turn."""
    if isinstance(error, Exception | ScriptError):
        return error
    failure = TurnDeniedError(turn.tool.name, f"it was cut while it ran ({type(error).__name__})")
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
        """See to it that the running event loop has a worker, if anybody there waits for a turn."""
        self.bury()
        home = asyncio.get_running_loop()
        with self._entries.guard:  # a worker ends itself under it: no turn comes in between
            if home not in self._tasks and self._entries.needs(home):
                name = f"agentflow: the queue of {self._runner.name}"
                self._tasks[home] = home.create_task(self._work(home), name=name, context=_nobodys())
        self._entries.bell.ring()

    async def _work(self, home: asyncio.AbstractEventLoop) -> None:
        try:
            while self._has_work(home):
                await self._may_go_on(home)
                await self._runner.work_off(home)
        finally:
            self._end(home)

    def _has_work(self, home: asyncio.AbstractEventLoop) -> bool:
        with self._entries.guard:
            if self._entries.needs(home):
                return True
            self._tasks.pop(home, None)
            return False

    async def _may_go_on(self, home: asyncio.AbstractEventLoop) -> None:
        def ready() -> bool:
            return self._runner.ready(home) or not self._entries.needs(home)

        while not ready():
            self.bury()
            try:
                async with asyncio.timeout(_LOOK_AGAIN):  # nobody rings for an event loop that is closed
                    await self._entries.bell.wait_for(ready)
            except TimeoutError:
                continue

    def _end(self, home: asyncio.AbstractEventLoop) -> None:
        """It has nothing more to do, or was cancelled with its event loop."""
        with self._entries.guard:
            if self._tasks.pop(home, None) is not None:
                self._entries.orphan(home)
        self._entries.bell.ring()

    def bury(self) -> None:
        """End the workers whose event loop was closed under them, so that they hold nothing any more."""
        with self._entries.guard:
            dead = [(home, self._tasks[home]) for home in self._tasks if home.is_closed()]
            for home, _ in dead:
                del self._tasks[home]
                self._entries.orphan(home)
        for _, task in dead:
            try:
                cast("Coroutine[Any, Any, None]", task.get_coro()).close()
            except Exception as error:  # any: a tool that awaits something in its cleanup cannot be closed
                logger.warning("a worker of agent {} could not be closed: {!r}", self._runner.name, error)
