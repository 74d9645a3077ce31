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
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, cast

from typing_extensions import TypedDict

from agentflow.agent.as_tool import FullToolAgent
from agentflow.agent.entries import Entries
from agentflow.agent.receipt import Entry, FullReceipt, Receipt, check_ends, waits_for
from agentflow.agent.runner import Runner
from agentflow.errors import NeverEndsError, QueueFullError, TurnDeniedError, UsageError
from agentflow.events import HookEvent, PostPut, PrePut
from agentflow.ground.logs import logger
from agentflow.ground.validation import closed
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import full_hooks
from agentflow.loop.run import current_turn
from agentflow.loop.stream import EventStream
from agentflow.loop.turns.bound import FullBoundTool
from agentflow.loop.turns.code_names import Finder
from agentflow.loop.turns.turn import FullTurn, Turn, full_turn, turn_from_dict
from agentflow.loop.turns.turn_run import TurnRun, make_run
from agentflow.reactive import Flux
from agentflow.saving.forms import CODEC_VERSION, check_form, not_saved

__all__ = ["TurnQueue", "check_limit", "copy_turns", "send_to"]

T = TypeVar("T")


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

    def __init__(self, owner: FullToolAgent[Any], limit: int | None) -> None:
        check_limit(owner.name, limit)
        self._owner = owner
        self._entries = Entries(limit)
        self._runner = Runner(owner, self._entries, self._follow)
        self._warned = False

    # ---- looking

    @property
    def limit(self) -> int | None:
        """Most turns that wait at a time."""
        return self._entries.limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        check_limit(self._owner.name, limit)
        self._entries.limit = limit
        self._entries.bell.ring()  # there may be places now

    @property
    def turns(self) -> tuple[Turn[Any], ...]:
        """The turns that wait, in order."""
        return tuple(entry.turn for entry in self._entries)

    @property
    def current(self) -> Turn[Any] | None:
        """The turn that runs."""
        entry = self._runner.current
        return None if entry is None else entry.turn

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self._runner.paused

    @property
    def running(self) -> bool:
        """Whether somebody runs it."""
        return self._runner.busy

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
        own = self._check(turn)
        if not self._entries.reserve():
            if not wait:
                raise QueueFullError(self._owner.name, len(self._entries), "wait=False was said")
            await self._wait_for_place(sent)
        try:
            run = await self._vetted(own)
        except BaseException:
            self._entries.give_back()
            raise
        return await self._enter(own, run, sent, reserved=True)

    async def _wait_for_place(self, sent: bool) -> None:
        try:
            with waits_for(self._runner):
                self._check_goes_on(sent)
                if not sent:
                    await self._entries.reserved()
                    return
                with self._entries.sending_from(asyncio.get_running_loop()):
                    self._runner.wake()  # for orphans that are in the way
                    await self._entries.reserved()
        except NeverEndsError as error:
            why = f"the turn that puts it there keeps the queue from going on ({' → '.join(error.way)})"
            raise QueueFullError(self._owner.name, len(self._entries), f"{why}: it would wait for itself") from None

    def _check_goes_on(self, sent: bool) -> None:
        """Refuse to wait for a place in the task that would have to make it; warn where nobody makes any."""
        name, size = self._owner.name, len(self._entries)
        if self._runner.driven_here():
            why = "the task that puts it there is the one that runs the queue: it would wait for itself"
            raise QueueFullError(name, size, why)
        why = "" if self._warned else self._runner.stuck(sent)
        if not why:
            return
        self._warned = True
        logger.warning(
            "put() waits for a place in the queue of agent {}, which is full ({} turns), and {}. With wait=False it raises; "
            "queue_limit=None takes any number",
            name,
            size,
            why,
        )

    def _check(self, turn: Turn[T]) -> FullTurn[T]:
        """Return a turn that can be put.

        Raises:
            SafeExecutionError: The turn is running, or is in a queue already.
            UsageError: It is no turn, or the agent has no such tool.
        """
        if not isinstance(turn, FullTurn):  # each `Turn` is one
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
        return turn

    async def _vetted(self, turn: FullTurn[Any]) -> TurnRun:
        """Pass a turn by the `PrePut` hooks; no other queue takes it meanwhile."""
        self._check(turn)  # again: it may have waited
        owner = self._owner
        turn.enter(owner.name)
        try:
            run = make_run(turn, owner.config, full_hooks(owner.hooks), None, owner.name, current_turn.get())
            event = await run.events.emit(PrePut, (turn.view,))
            verdict = None if event is None else event.verdict
            if verdict is not None:
                raise TurnDeniedError(turn.tool.name, verdict.reason)
        except BaseException:
            turn.leave()
            raise
        return run

    async def _enter(self, turn: FullTurn[T], run: TurnRun, sent: bool, reserved: bool) -> Receipt[T]:
        receipt = FullReceipt(turn, self._runner)
        entry = Entry(self._runner, turn, receipt, sent)
        if sent:
            entry.home = asyncio.get_running_loop()
        self._entries.add(entry, reserved)
        try:
            await run.events.emit(PostPut, (turn.view,))
        finally:
            run.end()
            if sent:
                self._runner.wake()
        return receipt

    async def _follow(self, turn: FullBoundTool) -> None:
        """A tool has given a turn: it is put at the end, also where the queue is full."""
        followed = cast("FullTurn[Any]", turn)
        await self._enter(followed, await self._vetted(followed), sent=False, reserved=False)

    def remove(self, turn: Turn[Any]) -> bool:
        """Take a waiting turn out; whoever awaits its receipt is told. Returns whether it was there."""
        entry = self._entries.find(turn)
        return entry is not None and self._entries.drop(entry, "it was taken out of the queue")

    def clear(self) -> tuple[Turn[Any], ...]:
        """Take all waiting turns out, and return them."""
        return tuple(entry.turn for entry in self._entries if self._entries.drop(entry, "the queue was cleared"))

    def prefer(self, turn: Turn[Any]) -> bool:
        """Let a waiting turn come next, before all others that wait. Returns whether it was there.

        Example:
            >>> @agent.on(PostTurn)
            ... def urgent_first(event: PostTurn) -> None:
            ...     for turn in agent.queue.turns:
            ...         if "urgent" in turn.tags:
            ...             agent.queue.prefer(turn)
        """
        entry = self._entries.find(turn)
        return entry is not None and self._entries.prefer(entry)

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

        def start() -> EventStream:
            return EventStream(lambda values: self._runner.start(values, deps, wait), 0)

        return Flux[HookEvent](start).map(self._runner.shown)

    # ---- as data

    def to_dict(self) -> dict[str, Any]:
        """The queue as JSON-compatible data: the turn that runs, then those that wait, and whether it is paused.

        Raises:
            UsageError: A turn holds what a name does not carry, or what is no data.
        """
        current = self._runner.current
        asking = self._owner.asking
        turns = [
            {"turn": entry.turn.to_dict(), "sent": entry.sent, "question": entry.turn.tool is asking}
            for entry in (*(() if current is None else (current,)), *self._entries)
        ]
        return {"format": "agentflow.queue", "version": CODEC_VERSION, "paused": self.paused, "turns": turns}

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
        saved = check_form(_QueueData, data, "The saved queue", not_saved("queue"))
        kept = tuple(hooks)
        find = Finder(self._owner.config.tools.values(), kept)
        asked = Finder((self._owner.asking,), kept)
        turns = [
            (turn_from_dict(item["turn"], asked if item["question"] else find), item["sent"]) for item in saved["turns"]
        ]
        self._check_new([turn.id for turn, _ in turns])
        for turn, sent in turns:
            self._add(turn, sent, placed=False)
        if saved["paused"]:
            self.pause()

    def _check_new(self, ids: list[str]) -> None:
        here = {turn.id for turn in (*self.turns, *filter(None, [self.current]))}
        twice = sorted({turn_id for turn_id in ids if turn_id in here or ids.count(turn_id) > 1})
        if twice:
            raise UsageError(
                f"The queue of agent {self._owner.name!r} would hold two turns of one id ({', '.join(twice)}), so nothing was "
                "restored. A saved queue is restored once; clear() this one first, if it shall be replaced."
            )

    def _add(self, turn: FullTurn[Any], sent: bool, placed: bool) -> None:
        """Put a turn that hooks have seen, in another queue, and that nobody waits for; `placed`: in the run that does so."""
        turn.enter(self._owner.name)
        entry = Entry(self._runner, turn, FullReceipt(turn, self._runner), sent)
        if not placed:
            entry.place = None
        self._entries.add(entry)

    def _copy_to(self, other: TurnQueue) -> None:
        for turn in self.turns:
            if turn.tool is not self._owner.asking:  # a question is to this agent
                other._add(full_turn(turn.copy()), sent=False, placed=True)
        if self.paused:
            other.pause()

    # ---- pausing

    def pause(self) -> None:
        """Begin no further turn until `resume()`; the current one goes on."""
        self._runner.pause(True)

    def resume(self) -> None:
        """Go on."""
        self._runner.pause(False)


async def send_to(queue: TurnQueue, turn: Turn[T], wait: bool, asks: bool = False) -> Receipt[T]:
    """Put a turn that somebody sends into a queue, as `TurnQueue.put`, and see to it that it is run.

    Args:
        queue: The queue.
        turn: The turn.
        wait: As in `put`.
        asks: Whether the sender waits for its value.

    Raises:
        UsageError: The sender would wait for itself; the text shows the way.
    """
    if asks:
        check_ends(queue._runner)  # pyright: ignore[reportPrivateUsage] - like `_put`
    return await queue._put(turn, wait=wait, sent=True)  # pyright: ignore[reportPrivateUsage] - users have `put`


def copy_turns(queue: TurnQueue, other: TurnQueue) -> None:
    """Put copies of the waiting turns into another queue, which is paused if the first one is."""
    queue._copy_to(other)  # pyright: ignore[reportPrivateUsage] - users have `to_dict` and `restore`
