"""`TurnQueue`: the turns of an agent, put there by hand, by its tools or by other agents, and run one after the other.

Rules:

1. A turn is in one queue at a time, runs once for each time it was put, and is never lost: what has not begun stays.
2. `run()` ends when the queue is empty, when a completion check returned True, or with the error of a turn, after that
   turn's events; the rest stays for the next `run()`.
3. `pause` and `resume` act between turns. A turn that has begun goes on.
4. A full queue makes `put` wait. Where the wait would never end (a running turn, the task that iterates `run()`) it raises.
5. One runs it at a time: whoever iterates `run()`, or else the worker of an event loop that a turn was sent from.
6. A turn of a single value is over, and its receipt settled, before the value is handed out.
7. A sender who takes a turn back ends that turn, and nothing else.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, Literal, TypeVar, cast

from loguru import logger
from typing_extensions import TypedDict

from agentflow.agent.as_tool import ToolAgent
from agentflow.agent.receipt import Receipt, inside, waits_for
from agentflow.agent.workers import Workers
from agentflow.errors import (
    NeverEndsError,
    QueueFullError,
    SafeExecutionError,
    ScriptError,
    TurnDeniedError,
    UsageError,
)
from agentflow.events import HookEvent, Paused, PostPut, PrePut, Resumed, TurnValue
from agentflow.ground.bell import Bell
from agentflow.ground.locks import FairLock
from agentflow.ground.validation import closed
from agentflow.hooks.hook import Hook
from agentflow.loop.run import current_turn
from agentflow.loop.stream import EventStream, Port
from agentflow.loop.tool_call.attempts import held_locks
from agentflow.loop.turns.bound import BoundTool
from agentflow.loop.turns.saved import FORMAT_VERSION, Finder, check_form
from agentflow.loop.turns.turn import Turn, turn_from_dict
from agentflow.loop.turns.turn_run import TurnRun, make_host, make_run, run_turn
from agentflow.reactive import Flux
from agentflow.tools.tool_checks import ToolType
from agentflow.verdicts import Deny

__all__ = ["TurnQueue", "check_limit", "copy_turns", "send_to"]

T = TypeVar("T")
TAKEN_BACK: Final = "its sender took it back"
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


@closed
class _EntryData(TypedDict):
    turn: dict[str, Any]
    sent: bool
    question: bool


@closed
class _QueueData(TypedDict):
    format: Literal["agentflow.queue"]
    version: int
    paused: bool
    turns: list[_EntryData]


class _Entry:
    """A turn in the queue.

    Attributes:
        queue: The queue.
        turn: The turn.
        sent: Whether somebody sent it, so that the queue runs it by itself.
        home: The event loop that it was sent from; None: not known (it was saved), or its worker is gone.
        place: Where in a run it was put.
        run: What runs it.
        taken_back: Whether its sender does not want it any more.
        over: Whether it has run.
    """

    __slots__ = ("_receipt", "home", "over", "place", "queue", "run", "sent", "taken_back", "turn")

    def __init__(self, queue: TurnQueue, turn: Turn[Any], receipt: Receipt[Any], sent: bool) -> None:
        self.queue = queue
        self.turn = turn
        self._receipt: Receipt[Any] | None = receipt
        self.sent = sent
        self.home: asyncio.AbstractEventLoop | None = None
        self.place = current_turn.get()
        self.run: TurnRun | None = None
        self.taken_back = False
        self.over = False
        receipt.follow(self)

    def settle(self, value: object, error: BaseException | None, seen: bool = False) -> None:
        """What became of it, for its receipt; the two let go of each other."""
        receipt, self._receipt = self._receipt, None
        if receipt is not None:
            receipt.seen = receipt.seen or seen
            receipt.settle(value, error)

    def take_back(self) -> None:
        """Take it out of the queue, or, if it runs, interrupt it."""
        self.taken_back = True
        if not self.queue.drop(self, TAKEN_BACK) and self.run is not None:
            self.run.interrupt(TAKEN_BACK)

    def awaited(self) -> None:
        """Somebody waits for it here; see `TurnQueue.awaited`."""
        self.queue.awaited(self)


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

    def __init__(self, owner: ToolAgent, limit: int | None) -> None:
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
        self._shown: Turn[Any] | None = None  # whose value the reader gets
        self._driver: asyncio.Task[Any] | None = None  # the task that runs it: while that one waits, nothing goes on
        self._loop: object = None  # the loop over `run()` that reads it
        self._workers = Workers(self, self._bell, self._guard)
        self._senders: Counter[asyncio.AbstractEventLoop] = Counter()  # those who wait for a place, by their loop
        self._warned = False

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

    async def _put(self, turn: Turn[T], *, wait: bool, sent: bool) -> Receipt[T]:
        self.check(turn)
        if self._putting.locked or not self._reserve():
            if not wait:
                raise QueueFullError(self._owner.name, len(self._entries), "wait=False was said")
            await self._wait_for_place(sent)
        try:
            run = await self._vetted(turn)
        except BaseException:
            self._give_back()
            raise
        return await self._enter(turn, run, sent, reserved=True)

    async def _wait_for_place(self, sent: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            with waits_for(self):
                self._check_goes_on(sent)
                if not sent:
                    await self._reserved()
                    return
                with self._guard:
                    self._senders[loop] += 1
                try:
                    self._workers.wake(_nobodys)  # for orphans that are in the way
                    await self._reserved()
                finally:
                    with self._guard:
                        self._senders[loop] -= 1
                        self._senders += Counter()  # keeps what is above zero
                    self._bell.ring()
        except NeverEndsError as error:
            why = f"the turn that puts it there keeps the queue from going on ({' → '.join(error.way)})"
            raise QueueFullError(self._owner.name, len(self._entries), f"{why}: it would wait for itself") from None

    async def _reserved(self) -> None:
        await self._putting.acquire()
        try:
            await self._bell.wait_for(self._reserve)
        finally:
            self._putting.release()

    def _check_goes_on(self, sent: bool) -> None:
        """Refuse to wait for a place in the task that would have to make it; warn where nobody makes any."""
        name, size = self._owner.name, len(self._entries)
        if self._driven_here():
            why = "the task that puts it there is the one that runs the queue: it would wait for itself"
            raise QueueFullError(name, size, why)
        if self._warned:
            return
        if self._loop is not None and self._loop in _loops.get():
            why = "this was begun in the body of the loop over agent.run(): if that awaits it, neither ever goes on"
        elif not (self._workers or self._reading or (sent and any(entry.sent for entry in tuple(self._entries)))):
            why = "nobody runs it: it waits until somebody iterates agent.run()"
        else:
            return
        self._warned = True
        logger.warning(
            "put() waits for a place in the queue of agent {}, which is full ({} turns), and {}. With wait=False it raises; "
            "queue_limit=None takes any number",
            name,
            size,
            why,
        )

    def _driven_here(self) -> bool:
        """Whether the running task is the one that runs this queue, its hooks and its reader's loop included."""
        driver = self._driver
        return driver is not None and driver is asyncio.current_task()

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
        turn.check_unqueued()

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
        entry = _Entry(self, turn, receipt, sent)
        if sent:
            entry.home = asyncio.get_running_loop()
        with self._guard:
            self._coming -= reserved
            self._hold(entry)
        try:
            await run.fire(PostPut, None, turn.view)
        finally:
            run.end()
            if sent:
                self._workers.wake(_nobodys)
        return receipt

    def _hold(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._bell.ring()

    async def _follow(self, turn: BoundTool) -> None:
        """A tool has given a turn: it is put at the end, also where the queue is full."""
        followed = cast("Turn[Any]", turn)
        await self._enter(followed, await self._vetted(followed), sent=False, reserved=False)

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._owner.name

    def remove(self, turn: Turn[Any]) -> bool:
        """Take a waiting turn out; whoever awaits its receipt is told. Returns whether it was there."""
        for entry in tuple(self._entries):
            if entry.turn is turn:
                return self.drop(entry, "it was taken out of the queue")
        return False

    def clear(self) -> tuple[Turn[Any], ...]:
        """Take all waiting turns out, and return them."""
        dropped = tuple(entry for entry in tuple(self._entries) if self.drop(entry, "the queue was cleared"))
        return tuple(entry.turn for entry in dropped)

    def prefer(self, turn: Turn[Any]) -> bool:
        """Let a waiting turn come next, before all others that wait. Returns whether it was there.

        Example:
            >>> @agent.on(PostTurn)
            ... def urgent_first(event: PostTurn) -> None:
            ...     for turn in agent.queue.turns:
            ...         if "urgent" in turn.tags:
            ...             agent.queue.prefer(turn)
        """
        with self._guard:
            entry = next((entry for entry in self._entries if entry.turn is turn), None)
            if entry is None:
                return False
            self._entries.remove(entry)
            self._entries.appendleft(entry)
        self._bell.ring()
        return True

    def drop(self, entry: _Entry, why: str) -> bool:
        """Take a turn out that has not begun; returns whether that was so."""
        if not self._taken_out(entry):
            return False
        entry.settle(None, TurnDeniedError(entry.turn.tool.name, why), seen=True)  # whoever drops it knows
        return True

    def _taken_out(self, entry: _Entry) -> bool:
        with self._guard:
            try:
                self._entries.remove(entry)
            except ValueError:
                return False
            entry.turn.leave()
        self._bell.ring()
        return True

    # ---- running

    def run(self, *, deps: object = None, wait: bool = False) -> Flux[tuple[Turn[Any], Any]]:
        """Run the turns, one after the other.

        Args:
            deps: What tools may ask for by type or by name, where a turn brings nothing itself.
            wait: Where the queue is empty, wait for more, until a completion check, an error or the reader ends it.

        Returns:
            A Flux of the turns and their values as they are made: one for a tool that returns, each for a generator. A
            turn that a tool returns or yields is put into the queue and not handed out. A turn of a single value is over when
            it is handed out, and may be put again.

        Raises:
            SafeExecutionError: Somebody is iterating another `run()` of this agent.
            Exception: What a turn failed with; the rest stays in the queue.
        """

        async def start(port: Port) -> None:
            with self._guard:
                if self._reading:
                    raise SafeExecutionError(
                        f"agent.run() of {self._owner.name!r} is being iterated already; a queue is run by one at a time."
                    )
                self._reading = True
                self._loop = object()
            self._workers.bury()
            self._bell.ring()
            try:
                await self._running.acquire()  # a worker stops behind its current turn
                self._driver = asyncio.current_task()
                try:
                    while not await self._drain(port, deps, None) and wait and not port.closed:
                        await self._bell.wait_for(lambda: bool(self._entries))
                finally:
                    self._driver = None
                    self._running.release()
            finally:
                self._reading = False
                self._shown = self._loop = None
                self._bell.ring()  # what others have sent is run all the same, by their workers

        return Flux[HookEvent](lambda: EventStream(start)).map(self._handed)

    def _handed(self, event: HookEvent) -> tuple[Turn[Any], Any]:
        assert isinstance(event, TurnValue)
        assert self._shown is not None
        self._driver = asyncio.current_task()  # a stream may change its reader
        if self._loop not in (loops := _loops.get()):
            _loops.set((*loops, self._loop))
        return self._shown, event.value

    async def _drain(self, port: Port | None, deps: object, worker: asyncio.AbstractEventLoop | None) -> bool:
        """Run what there is; returns whether a turn has ended the run."""
        while True:
            await self._gate(worker)
            entry = self._next(worker)
            if entry is None:
                return False
            if self._paused:  # just now
                continue
            if not self._taken_out(entry):  # somebody dropped it just now
                continue
            if await self._run_one(entry, port, deps) and worker is None:
                return True
            if port is not None and port.closed:
                return True

    def _next(self, worker: asyncio.AbstractEventLoop | None) -> _Entry | None:
        """The next turn for the reader, or for a worker: that one stops where a reader takes over, or another worker."""
        if worker is None:
            return self._entries[0] if self._entries else None
        if self._reading or not self.needs(worker):
            return None
        first = next((entry for entry in tuple(self._entries) if entry.sent), None)
        if first is None or (first.home is not worker and first.home is not None and first.home.is_running()):
            return None
        return first

    async def _run_one(self, entry: _Entry, port: Port | None, deps: object) -> bool:
        """Run a turn; returns whether the run ends with it."""
        turn, owner = entry.turn, self._owner
        self._current = entry
        self._shown = turn
        try:
            given = turn.deps if turn.deps is not None else deps
            name = "" if turn.tool is owner.asking else owner.name  # a question's call names the agent itself
            run = make_run(turn, owner.config, owner.hooks, given, name, entry.place, port)
            run.route = self._follow
            run.inherits = ((inside, (*inside.get(), entry)),)
            entry.run = run
            if entry.taken_back:  # just now
                raise TurnDeniedError(turn.tool.name, TAKEN_BACK)
            if port is not None:
                port.run = run
            value = await run_turn(turn, run, port)
        except BaseException as error:
            entry.settle(None, _lasting(error, turn), seen=port is not None or entry.taken_back)
            if entry.taken_back and isinstance(error, Exception):
                # It concerns nobody but its sender, who knows whence it comes; a traceback would keep whoever runs the queue.
                error.__traceback__ = error.__cause__ = error.__context__ = None
                return False
            raise
        finally:
            self._current = None
            entry.over = True
            entry.run = None
            if port is not None:
                port.run = None
        entry.settle(value, None)
        await run.hand_out(port)
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

    def _copy_to(self, other: TurnQueue) -> None:
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

    async def _gate(self, worker: asyncio.AbstractEventLoop | None) -> None:
        """Wait while it is paused, unless there is nothing that could be run."""
        owner = self._owner
        while self._paused and self._next(worker) is not None:
            host = make_host(owner.config, owner.hooks, None, owner.name, None, None)
            try:
                await host.fire(Paused, None)
                await self._bell.wait_for(lambda: not self._paused or self._next(worker) is None)
                if self._paused:
                    return
                await host.fire(Resumed, None)
            finally:
                host.end()

    # ---- being sent to

    def awaited(self, entry: _Entry) -> None:
        """Somebody waits for a turn, here: see to it that it is run, if it was sent from an event loop that is gone.

        Raises:
            UsageError: The task that waits is the one that runs the queue.
        """
        if self._driven_here():
            raise UsageError(
                f"The receipt of a turn of tool {entry.turn.tool.name!r} is awaited by the very task that runs the queue of "
                f"agent {self._owner.name!r}, so neither would ever go on. Await it behind the loop over agent.run(), or in "
                "another task."
            )
        if not entry.sent or entry.over or entry is self._current:
            return
        loop = asyncio.get_running_loop()
        with self._guard:
            if entry.home is None or not entry.home.is_running():
                entry.home = loop
        self._workers.wake(_nobodys)

    async def work_off(self, home: asyncio.AbstractEventLoop) -> None:
        """What a worker does when it may: run what it finds, if nobody else runs the queue."""
        if not self._running.try_acquire():
            return
        self._driver = asyncio.current_task()
        try:
            await self._drain(None, None, home)
        except (Exception, ScriptError) as error:
            logger.opt(exception=error).trace("a turn of agent {} failed; its sender is told", self._owner.name)
        finally:
            self._driver = None
            self._running.release()
            self._bell.ring()

    def needs(self, home: asyncio.AbstractEventLoop) -> bool:
        """Whether somebody in an event loop has a turn in the queue, or waits for a place in it."""
        return home in self._senders or any(entry.home is home for entry in tuple(self._entries))

    def ready(self, home: asyncio.AbstractEventLoop) -> bool:
        """Whether the worker of an event loop may go on now."""
        return not self._running.locked and self._next(home) is not None

    def orphan(self, home: asyncio.AbstractEventLoop) -> None:
        """The worker of an event loop has gone: what was sent from there is left to others."""
        for entry in self._entries:
            if entry.home is home:
                entry.home = None
        if home.is_closed():
            self._senders.pop(home, None)


async def send_to(queue: TurnQueue, turn: Turn[T], wait: bool) -> Receipt[T]:
    """Put a turn that somebody sends into a queue, as `TurnQueue.put`, and see to it that it is run."""
    return await queue._put(turn, wait=wait, sent=True)  # pyright: ignore[reportPrivateUsage] - users have `put`


def copy_turns(queue: TurnQueue, other: TurnQueue) -> None:
    """Put copies of the waiting turns into another queue, which is paused if the first one is."""
    queue._copy_to(other)  # pyright: ignore[reportPrivateUsage] - users have `to_dict` and `restore`


def _lasting(error: BaseException, turn: Turn[Any]) -> BaseException:
    """What the receipt keeps: a cancellation of whoever ran the queue is none of whoever sent the turn."""
    if isinstance(error, Exception | ScriptError):
        return error
    failure = TurnDeniedError(turn.tool.name, f"it was cut while it ran ({type(error).__name__})")
    failure.__cause__ = error
    return failure
