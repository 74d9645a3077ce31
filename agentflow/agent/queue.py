"""`TurnQueue`: the turns of an agent, put there by hand, by its tools or by other agents, and run one after the other.

Rules:

1. A turn is in one queue at a time, runs once for each time it was put, and is never lost: what has not begun stays.
2. `run()` ends when the queue is empty, when a completion check returned True, or with the error of a turn, after that
   turn's events; the rest stays for the next `run()`.
3. `pause` and `resume` act between turns. A turn that has begun goes on.
4. A full queue makes `put` wait. What a running turn puts into its own queue never waits: it would wait for itself.
5. One runs it at a time: whoever iterates `run()`, or else the task that a sent turn wakes up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import copy_context
from typing import Any, Literal, Protocol, TypeVar, cast

from loguru import logger
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from agentflow.agent.receipt import Receipt, check_ends, inside, waits_for
from agentflow.bell import Bell
from agentflow.errors import NeverEndsError, QueueFullError, SafeExecutionError, TurnDeniedError, UsageError
from agentflow.events import HookEvent, Paused, PostPut, PrePut, Resumed, TurnValue
from agentflow.fair_lock import FairLock
from agentflow.hooks.chain import HookSet
from agentflow.hooks.hook import Hook
from agentflow.loop.attempts import held_locks
from agentflow.loop.bound import BoundTool
from agentflow.loop.run import LoopConfig, current_turn
from agentflow.loop.saved import FORMAT_VERSION, Finder, check_form
from agentflow.loop.stream import EventStream, Port
from agentflow.loop.turn import Turn, turn_from_dict
from agentflow.loop.turn_run import TurnRun, make_host, make_run, run_turn
from agentflow.reactive import Flux
from agentflow.tools.checks import ToolType
from agentflow.tools.tool import Tool
from agentflow.verdicts import Deny

__all__ = ["TurnQueue"]

T = TypeVar("T")


class Owner(Protocol):
    """The agent, as far as its queue knows it."""

    config: LoopConfig

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def hooks(self) -> HookSet:
        """Its hooks, the process-wide ones that match included."""
        ...

    @property
    def asking(self) -> Tool[..., Any]:
        """The tool whose turns are questions to it."""
        ...


@with_config(ConfigDict(extra="forbid"))
class _EntryData(TypedDict):
    turn: dict[str, Any]
    sent: bool
    question: bool


@with_config(ConfigDict(extra="forbid"))
class _QueueData(TypedDict):
    format: Literal["agentflow.queue"]
    version: int
    paused: bool
    turns: list[_EntryData]


class _Entry:
    """A turn in the queue: its receipt, where it was put from, and whether it was sent (so that it wakes the queue)."""

    __slots__ = ("over", "place", "queue", "receipt", "sent", "turn")

    def __init__(self, queue: TurnQueue, turn: Turn[Any], receipt: Receipt[Any], sent: bool) -> None:
        self.queue = queue
        self.turn = turn
        self.receipt = receipt
        self.sent = sent
        self.place = current_turn.get()
        self.over = False


def check_limit(agent: str, limit: int | None) -> None:
    """Refuse a limit that is none.

    Raises:
        UsageError: It is no number of turns.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise UsageError(f"Agent {agent!r}: queue_limit={limit!r}; a queue holds at least one turn, or None for any.")


class TurnQueue:
    """An agent's turns.

    Args:
        owner: The agent.
        limit: Most turns that wait at a time; None: any number.

    Example:
        >>> agent = Agent("worker", "openai/gpt-5", tools=[add])
        >>> await agent.queue.put(Turn(add, {"a": 1, "b": 2}))
        Receipt(Turn('add', {'a': 1, 'b': 2}, not run), to='worker', done=False)
        >>> [value async for turn, value in agent.run()]
        [3]
    """

    def __init__(self, owner: Owner, limit: int | None) -> None:
        check_limit(owner.name, limit)
        self._owner = owner
        self.limit = limit
        self._entries: deque[_Entry] = deque()
        self._current: _Entry | None = None
        self._paused = False
        self._bell = Bell()
        self._guard = threading.RLock()
        self._putting = FairLock()  # held while somebody waits for a place
        self._coming = 0  # places that are given to turns which hooks look at
        self._running = FairLock()
        self._reading = False
        self._wanted = False
        self._worker: asyncio.Task[None] | None = None

    # ---- looking

    @property
    def turns(self) -> tuple[Turn[Any], ...]:
        """The turns that wait, in order."""
        return tuple(entry.turn for entry in tuple(self._entries))

    @property
    def current(self) -> Turn[Any] | None:
        """The turn that runs."""
        return None if self._current is None else self._current.turn

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self._paused

    @property
    def running(self) -> bool:
        """Whether somebody runs it."""
        return self._running.locked

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Turn[Any]]:
        return iter(self.turns)

    # ---- putting

    async def put(self, turn: Turn[T], *, wait: bool = True) -> Receipt[T]:
        """Put a turn at the end, past the `PrePut` hooks.

        Args:
            turn: A turn of one of the agent's tools.
            wait: Where the queue is full, wait for a place; False: raise.

        Returns:
            Its receipt: await that for the value, if you need it.

        Raises:
            TurnDeniedError: A hook denied it; it is not in the queue.
            QueueFullError: There is no place and `wait` is False, or it would wait for itself.
            SafeExecutionError: The turn is running, or is in a queue already.
            UsageError: The agent has no such tool.
        """
        return await self._put(turn, wait=wait, sent=False)

    async def take(self, turn: Turn[T], *, wait: bool) -> Receipt[T]:
        """Take in a turn that somebody sent, and see to it that it is run; as `put`."""
        receipt = await self._put(turn, wait=wait, sent=True)
        self.wake()
        return receipt

    async def _put(self, turn: Turn[T], *, wait: bool, sent: bool) -> Receipt[T]:
        self.check(turn)
        if self._putting.locked or not self._reserve():
            if not wait:
                raise QueueFullError(self._owner.name, len(self._entries), "wait=False was said")
            try:
                with waits_for(self):
                    await self._putting.acquire()
                    try:
                        await self._bell.wait_for(self._reserve)
                    finally:
                        self._putting.release()
            except NeverEndsError as error:
                raise QueueFullError(
                    self._owner.name,
                    len(self._entries),
                    f"the turn that puts it there keeps the queue from going on ({error.way}): it would wait for itself",
                ) from None
        try:
            run = await self._vetted(turn)
        except BaseException:
            self._give_back()
            raise
        return await self._enter(turn, run, sent, reserved=True)

    def _full_for_ever(self, way: str) -> QueueFullError:
        why = f"the turn that puts it there keeps the queue from going on ({way}): it would wait for itself"
        return QueueFullError(self._owner.name, len(self._entries), why)

    def _reserve(self) -> bool:
        """Take a place, if there is one."""
        with self._guard:
            if self.limit is not None and len(self._entries) + self._coming >= self.limit:
                return False
            self._coming += 1
            return True

    def _give_back(self) -> None:
        with self._guard:
            self._coming -= 1
        self._bell.ring()

    def check(self, turn: Turn[Any]) -> None:
        """Refuse what cannot be put.

        Raises:
            SafeExecutionError: The turn is running, or is in a queue already.
            UsageError: It is no turn, or the agent has no such tool.
        """
        if not isinstance(turn, Turn):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            raise UsageError(f"A queue takes turns, not {type(turn).__name__}: put(Turn(tool, {{...}})).")
        known = self._owner.config.tools
        name = turn.tool.name
        if known.get(name) is not turn.tool and turn.tool is not self._owner.asking:
            if name in known:
                raise UsageError(
                    f"Agent {self._owner.name!r} has another tool named {name!r} than the turn {turn.id!r}; make the turn with "
                    "the agent's own tool object."
                )
            raise UsageError(
                f"Agent {self._owner.name!r} has no tool {name!r}, so it takes no turn of it. Its tools: "
                f"{', '.join(known) or 'none'}."
            )
        if turn.running:
            raise SafeExecutionError(f"Turn {turn.id!r} of tool {name!r} is running and cannot be queued meanwhile.")
        if turn.queued:
            raise SafeExecutionError(
                f"Turn {turn.id!r} of tool {name!r} is in the queue of agent {turn.queued!r} already; put turn.copy() to "
                "run it twice."
            )

    async def _vetted(self, turn: Turn[Any]) -> TurnRun:
        """Pass a turn by the `PrePut` hooks; no other queue takes it meanwhile."""
        self.check(turn)  # again: it may have waited
        owner = self._owner
        turn.enter(owner.name)
        try:
            run = make_run(turn, owner.config, owner.hooks, None, owner.name, current_turn.get(), None)
            event = cast("PrePut | None", await run.fire(PrePut, None, turn.view))
            if event is not None and event.decision is not None and isinstance(event.decision.verdict, Deny):
                raise TurnDeniedError(turn.tool.name, event.decision.verdict.reason)
        except BaseException:
            turn.leave()
            raise
        return run

    async def _enter(self, turn: Turn[T], run: TurnRun, sent: bool, reserved: bool) -> Receipt[T]:
        receipt = Receipt(turn, self)
        with self._guard:
            self._coming -= reserved
            self._hold(_Entry(self, turn, receipt, sent))
        await run.fire(PostPut, None, turn.view)
        return receipt

    def _hold(self, entry: _Entry) -> None:
        entry.receipt.cancel(lambda: self._take_back(entry))
        self._entries.append(entry)
        self._bell.ring()

    async def _follow(self, turn: BoundTool) -> None:
        """A tool has given a turn: it is put at the end, also where the queue is full."""
        followed = cast("Turn[Any]", turn)
        await self._enter(followed, await self._vetted(followed), sent=False, reserved=False)

    def check_not_inside(self) -> None:
        """Refuse a question from within a turn that this queue waits for.

        Raises:
            UsageError: It comes from there; the text shows the way.
        """
        check_ends(self)

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._owner.name

    def remove(self, turn: Turn[Any]) -> bool:
        """Take a waiting turn out; whoever awaits its receipt is told. Returns whether it was there."""
        for entry in tuple(self._entries):
            if entry.turn is turn:
                return self._drop(entry, "it was taken out of the queue")
        return False

    def clear(self) -> tuple[Turn[Any], ...]:
        """Take all waiting turns out, and return them."""
        dropped = tuple(entry for entry in tuple(self._entries) if self._drop(entry, "the queue was cleared"))
        return tuple(entry.turn for entry in dropped)

    def _drop(self, entry: _Entry, why: str) -> bool:
        if not self._taken_out(entry):
            return False  # it has begun meanwhile
        entry.receipt.seen = True  # whoever drops it knows
        entry.receipt.settle(None, TurnDeniedError(entry.turn.tool.name, why))
        return True

    def _taken_out(self, entry: _Entry) -> bool:
        try:
            self._entries.remove(entry)
        except ValueError:
            return False
        entry.turn.leave()
        self._bell.ring()
        return True

    def _take_back(self, entry: _Entry) -> None:
        self._drop(entry, "its sender took it back")

    # ---- running

    def run(self, *, deps: object = None) -> Flux[tuple[Turn[Any], Any]]:
        """Run the turns, one after the other.

        Args:
            deps: What tools may ask for by type, where a turn brings nothing itself.

        Returns:
            A Flux of the turns and their values as they are made: one for a tool that returns, each for a generator. A
            turn that a tool returns or yields is put into the queue and not handed out.

        Raises:
            SafeExecutionError: Somebody is iterating another `run()` of this agent.
            Exception: What a turn failed with; the rest stays in the queue.
        """

        async def start(port: Port) -> None:
            if self._reading:
                raise SafeExecutionError(
                    f"agent.run() of {self._owner.name!r} is being iterated already; a queue is run by one at a time."
                )
            self._reading = self._wanted = True
            self._bell.ring()
            try:
                await self._running.acquire()  # the task that a sent turn woke up stops behind its current turn
                try:
                    await self._drain(port, deps, worker=False)
                finally:
                    self._running.release()
            finally:
                self._reading = self._wanted = False
                if self._next(worker=True) is not None:  # what others have sent is run all the same
                    self.wake()

        return Flux[HookEvent](lambda: EventStream(start)).map(self._handed)

    def _handed(self, event: HookEvent) -> tuple[Turn[Any], Any]:
        assert isinstance(event, TurnValue)
        assert self._current is not None
        return self._current.turn, event.value

    async def _drain(self, port: Port | None, deps: object, worker: bool) -> None:
        while True:
            await self._gate(worker)
            entry = self._next(worker)
            if entry is None:
                return
            if self._paused:  # just now
                continue
            if not self._taken_out(entry):  # somebody dropped it just now
                continue
            if await self._run_one(entry, port, deps) and not worker:
                return
            if port is not None and port.closed:
                return

    def _next(self, worker: bool) -> _Entry | None:
        """The next turn; the task that sent turns wake up runs those alone, and stops where somebody else takes over."""
        if not worker:
            return self._entries[0] if self._entries else None
        return None if self._wanted else next((entry for entry in tuple(self._entries) if entry.sent), None)

    async def _run_one(self, entry: _Entry, port: Port | None, deps: object) -> bool:
        """Run a turn; returns whether the run ends with it."""
        turn, owner = entry.turn, self._owner
        self._current = entry
        try:
            given = turn.deps if turn.deps is not None else deps
            name = "" if turn.tool is owner.asking else owner.name  # a question's call names the agent itself
            run = make_run(turn, owner.config, owner.hooks, given, name, entry.place, port)
            run.route = self._follow
            run.inherits = ((inside, (*inside.get(), entry)),)
            entry.receipt.cancel(lambda: run.interrupt("its sender took it back"))
            if port is not None:
                port.run = run
            value = await run_turn(turn, run, port)
        except BaseException as error:
            entry.receipt.seen = entry.receipt.seen or port is not None
            entry.receipt.settle(None, _lasting(error, turn))
            raise
        finally:
            self._current = None
            entry.over = True
            if port is not None:
                port.run = None
        entry.receipt.settle(value, None)
        done = turn.tool.type is ToolType.COMPLETION_CHECK and value is True
        return done or run.stop is not None

    # ---- as data

    def to_dict(self) -> dict[str, Any]:
        """The queue as JSON-compatible data: the turn that runs, then those that wait, and whether it is paused.

        Raises:
            UsageError: A turn holds what a name does not carry, or what is no data.
        """
        current = () if self._current is None else (self._current,)
        asking = self._owner.asking
        turns = [
            {"turn": entry.turn.to_dict(), "sent": entry.sent, "question": entry.turn.tool is asking}
            for entry in (*current, *tuple(self._entries))
        ]
        return {"format": "agentflow.queue", "version": FORMAT_VERSION, "paused": self._paused, "turns": turns}

    def restore(self, data: Mapping[str, Any], hooks: Iterable[Hook] = ()) -> None:
        """Put the turns that `to_dict` has saved at the end; no `PrePut` fires, they were put before.

        Args:
            data: The data.
            hooks: The hooks that turns name.

        Raises:
            StoreError: The data is no queue, or newer than this code.
            NotRegisteredError: The agent lacks a tool, or a hook was not given. Nothing was restored.
            UsageError: One of the turns is in the queue already. Nothing was restored.
        """
        saved = check_form(_QueueData, data, "queue")
        kept = tuple(hooks)
        find = Finder(self._owner.config.tools.values(), kept)
        asked = Finder((self._owner.asking,), kept)
        turns = [
            (turn_from_dict(item["turn"], asked if item["question"] else find), item["sent"]) for item in saved["turns"]
        ]
        self._check_new([turn.id for turn, _ in turns])
        for turn, sent in turns:
            turn.enter(self._owner.name)
            entry = _Entry(self, turn, Receipt(turn, self), sent)
            entry.place = None
            self._hold(entry)
        if saved["paused"]:
            self.pause()

    def _check_new(self, ids: list[str]) -> None:
        here = {entry.turn.id for entry in tuple(self._entries)}
        if self._current is not None:
            here.add(self._current.turn.id)
        twice = sorted({turn_id for turn_id in ids if turn_id in here or ids.count(turn_id) > 1})
        if twice:
            raise UsageError(
                f"The queue of agent {self._owner.name!r} would hold two turns of one id ({', '.join(twice)}), so nothing was "
                "restored. A saved queue is restored once; clear() this one first, if it shall be replaced."
            )

    def copy_to(self, other: TurnQueue) -> None:
        """Put copies of the waiting turns into another queue, which is paused if this one is."""
        for entry in tuple(self._entries):
            if entry.turn.tool is self._owner.asking:
                continue  # a question to this agent
            turn = entry.turn.copy()
            turn.enter(other.name)
            other._hold(_Entry(other, turn, Receipt(turn, other), sent=False))
        other._paused = self._paused

    # ---- pausing

    def pause(self) -> None:
        """Begin no further turn until `resume()`; the current one goes on."""
        self._paused = True
        self._bell.ring()

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._bell.ring()

    async def _gate(self, worker: bool) -> None:
        """Wait while it is paused, unless there is nothing that could be run."""
        owner = self._owner
        while self._paused and self._next(worker) is not None:
            host = make_host(owner.config, owner.hooks, None, owner.name, None, None)
            await host.fire(Paused, None)
            await self._bell.wait_for(lambda: not self._paused or self._next(worker) is None)
            if self._paused:
                return
            await host.fire(Resumed, None)

    # ---- being sent to

    def wake(self) -> None:
        """See to it that sent turns are run: by a task of this event loop, if nobody runs the queue."""
        with self._guard:  # the task ends itself under it: no turn comes in between
            worker = self._worker
            if self._reading or (worker is not None and not worker.done() and worker.get_loop().is_running()):
                return
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # a run that is torn down with its event loop: nobody can run anything here
                return
            context = copy_context()  # whoever sent the turn is noted with it; the task is nobody's
            context.run(current_turn.set, None)
            context.run(inside.set, ())
            context.run(held_locks.set, ())
            name = f"agentflow: the queue of {self._owner.name}"
            self._worker = loop.create_task(self._work(), name=name, context=context)

    def _has_work(self) -> bool:
        with self._guard:
            if self._next(worker=True) is not None:
                return True
            self._worker = None
            return False

    async def _work(self) -> None:
        while self._has_work():
            await self._running.acquire()
            try:
                await self._drain(None, None, worker=True)
            except Exception as error:
                logger.opt(exception=error).trace("a turn of agent {} failed; its sender is told", self._owner.name)
            finally:
                self._running.release()


def _lasting(error: BaseException, turn: Turn[Any]) -> BaseException:
    """What the receipt keeps: a cancellation of whoever ran the queue is none of whoever sent the turn."""
    if isinstance(error, Exception):
        return error
    failure = TurnDeniedError(turn.tool.name, f"it was cut while it ran ({type(error).__name__})")
    failure.__cause__ = error
    return failure
