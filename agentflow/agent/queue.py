"""`TurnQueue`: the turns of an agent, put there by hand, by its tools or by other agents, and run one after the other.

Rules:

1. A turn is in one queue at a time and runs once for each `put`. No turn is lost: turns that have not begun stay in the
   queue.
2. `run()` ends when the queue is empty, when a completion check returned True, or with the error of a turn, after that
   turn's events. The remaining turns stay for the next `run()`.
3. `pause` and `resume` act between turns. A turn that has begun continues.
4. `put` waits while the queue is full. If the wait would never end (in a running turn, or in the task that iterates
   `run()`), `put` raises an error.
5. A queue has one runner at a time: the reader of `run()`, or else the worker of an event loop that sent a turn.
6. A turn that returns a single value has ended, and its receipt is settled, before the value is yielded.
7. Cancelling a receipt ends that turn, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar, cast

from typing_extensions import TypedDict

from agentflow._support.logs import logger
from agentflow._support.undo import UndoOnFailure
from agentflow._support.validation import closed
from agentflow.agent.arguments import check_limit
from agentflow.agent.as_tool import FullToolAgent
from agentflow.agent.entries import Entries
from agentflow.agent.receipt import FullReceipt, QueueEntry, Receipt, check_ends, waits_for
from agentflow.agent.runner import Runner
from agentflow.errors import NeverEndsError, QueueFullError, TurnDeniedError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import full_hooks
from agentflow.loop.bound_tool import FullBoundTool
from agentflow.loop.run import current_turn
from agentflow.loop.stream import EventStream
from agentflow.loop.turn import FullTurn, Turn, full_turn, turn_from_dict
from agentflow.loop.turn_run import TurnRun, make_run
from agentflow.reactive import Flux
from agentflow.tools.code_names import Finder
from agentflow.vocabulary.events import HookEvent, PostPut, PrePut
from agentflow.vocabulary.saving.forms import CODEC_VERSION, check_form, not_saved

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


class TurnQueue:
    """An agent's turns.

    Args:
        owner: The agent.
        limit: The maximum number of waiting turns; None means no limit.

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

    # ---- properties

    @property
    def limit(self) -> int | None:
        """The maximum number of waiting turns."""
        return self._entries.limit

    @limit.setter
    def limit(self, limit: int | None) -> None:
        check_limit(self._owner.name, limit)
        self._entries.limit = limit
        self._entries.changed.notify_all()  # there can be free slots now

    @property
    def turns(self) -> tuple[Turn[Any], ...]:
        """The waiting turns, in order."""
        return tuple(entry.turn for entry in self._entries)

    @property
    def current(self) -> Turn[Any] | None:
        """The running turn."""
        entry = self._runner.current
        return None if entry is None else entry.turn

    @property
    def paused(self) -> bool:
        """Whether the queue is paused."""
        return self._runner.paused

    @property
    def running(self) -> bool:
        """Whether a reader or a worker runs the queue."""
        return self._runner.busy

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Turn[Any]]:
        return iter(self.turns)

    # ---- putting

    async def put(self, turn: Turn[T], *, wait: bool = True) -> Receipt[T]:
        """Append a turn, after the `PrePut` hooks.

        Args:
            turn: A turn of one of the agent's tools.
            wait: Whether to wait for a slot if the queue is full. If False, `QueueFullError` is raised.

        Returns:
            Its receipt: await it for the value.

        Raises:
            TurnDeniedError: A hook denied the turn, which is then not in the queue.
            QueueFullError: There is no slot and `wait` is False, or waiting would deadlock.
            SafeExecutionError: The turn is running, or is in a queue already.
            UsageError: The agent has no such tool.
        """
        return await self._put(turn, wait=wait, sent=False)

    async def _put(self, turn: Turn[T], *, wait: bool, sent: bool) -> Receipt[T]:
        own = self._check(turn)
        if not self._entries.reserve():
            if not wait:
                raise QueueFullError(self._owner.name, len(self._entries), "wait=False was passed")
            await self._wait_for_place(sent)
        # The slot is reserved while hooks evaluate the turn (rule 1 of `entries.py`).
        with UndoOnFailure(self._entries.release):
            run = await self._evaluate(own)
        return await self._enter(own, run, sent, reserved=True)

    async def _wait_for_place(self, sent: bool) -> None:
        try:
            with waits_for(self._runner):
                self._check_goes_on(sent)
                if not sent:
                    await self._entries.reserved()
                    return
                # A waiting sender keeps the worker of its loop alive, which frees the slot.
                with self._entries.sending_from(asyncio.get_running_loop()):
                    self._runner.wake()  # for turns of closed event loops at the front
                    await self._entries.reserved()
        except NeverEndsError as error:
            reason = f"the turn that calls put() also blocks the queue ({' → '.join(error.way)})"
            raise QueueFullError(self._owner.name, len(self._entries), f"{reason}: waiting would deadlock") from None

    def _check_goes_on(self, sent: bool) -> None:
        """Refuse to wait for a slot that only the waiting task could free; warn if no task would free one."""
        name, size = self._owner.name, len(self._entries)
        if self._runner.driven_here():
            reason = "the task that calls put() also runs the queue: waiting would deadlock"
            raise QueueFullError(name, size, reason)
        reason = "" if self._warned else self._runner.stuck(sent)
        if not reason:
            return
        self._warned = True
        logger.warning(
            "put() waits for a free slot in the queue of agent {}, which is full ({} turns), and {}. With "
            "wait=False, put() raises an error instead; with queue_limit=None the queue has no limit",
            name,
            size,
            reason,
        )

    def _check(self, turn: Turn[T]) -> FullTurn[T]:
        """Check that a turn can be put into the queue, and return it.

        Raises:
            SafeExecutionError: The turn is running, or is in a queue already.
            UsageError: It is not a turn, or the agent has no such tool.
        """
        if not isinstance(turn, FullTurn):  # every `Turn` is a `FullTurn`
            raise UsageError(f"A queue takes turns, not {type(turn).__name__}: put(Turn(tool, {{...}})).")
        known = self._owner.config.tools
        name = turn.tool.name
        if known.get(name) is not turn.tool and turn.tool is not self._owner.asking:
            if name in known:
                raise UsageError(
                    f"Agent {self._owner.name!r} has a tool named {name!r}, but the turn {turn.id!r} has a different tool "
                    "of that name. Create the turn with the agent's own tool object."
                )
            raise UsageError(
                f"Agent {self._owner.name!r} has no tool {name!r}, so it takes no turn of it. Its tools: "
                f"{', '.join(known) or 'none'}."
            )
        turn.check_unqueued()
        return turn

    async def _evaluate(self, turn: FullTurn[Any]) -> TurnRun:
        """Run the `PrePut` hooks on a turn. While they run, no other queue accepts the turn."""
        self._check(turn)  # checked again, since `put` may have waited for a slot
        owner = self._owner
        turn.enter(owner.name)
        with UndoOnFailure(turn.leave):
            run = make_run(turn, owner.config, full_hooks(owner.hooks), None, owner.name, current_turn.get())
            event = await run.events.emit(PrePut, (turn.view,))
            verdict = None if event is None else event.verdict
            if verdict is not None:
                raise TurnDeniedError(turn.tool.name, verdict.reason)
        return run

    async def _enter(self, turn: FullTurn[T], run: TurnRun, sent: bool, reserved: bool) -> Receipt[T]:
        receipt = FullReceipt(turn, self._runner)
        entry = QueueEntry(self._runner, turn, receipt, sent)
        if sent:
            entry.home = asyncio.get_running_loop()
        self._entries.add(entry, reserved)
        try:
            await run.events.emit(PostPut, (turn.view,))
        finally:
            # Even if a hook of `PostPut` has failed: the turn is in the queue.
            run.end()
            if sent:
                self._runner.wake()
        return receipt

    async def _follow(self, turn: FullBoundTool) -> None:
        """Append a turn that a tool returned, even if the queue is full."""
        followed = cast("FullTurn[Any]", turn)
        await self._enter(followed, await self._evaluate(followed), sent=False, reserved=False)

    def remove(self, turn: Turn[Any]) -> bool:
        """Remove a waiting turn; awaiting its receipt raises. Return whether it was waiting."""
        entry = self._entries.find(turn)
        return entry is not None and self._entries.drop(entry, "it was removed from the queue")

    def clear(self) -> tuple[Turn[Any], ...]:
        """Remove all waiting turns, and return them."""
        return tuple(entry.turn for entry in self._entries if self._entries.drop(entry, "the queue was cleared"))

    def prefer(self, turn: Turn[Any]) -> bool:
        """Move a waiting turn to the front. Return whether it was waiting.

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
            deps: Objects that tools can request by type or by name, for turns without their own `deps`.
            wait: Whether to wait for more turns while the queue is empty, until a completion check, an error or the
                reader ends the run.

        Returns:
            A Flux of pairs of turn and value: one pair for a tool that returns, one for each value of a generator. A
                turn that a tool returns or yields is put into the queue and not yielded here. A turn that returns a
                single value has ended when the value is yielded, so it can be put again.

        Raises:
            SafeExecutionError: Another `run()` of this agent is being iterated.
            Exception: The error of a turn; the remaining turns stay in the queue.
        """

        def start() -> EventStream:
            # A buffer of 0: the next turn begins after the body of the reader's loop has ended.
            return EventStream(lambda values: self._runner.start(values, deps, wait), 0)

        return Flux[HookEvent](start).map(self._runner.shown)

    # ---- saving

    def to_dict(self) -> dict[str, Any]:
        """Return the queue as JSON-compatible data: the running turn, the waiting ones, and whether it is paused.

        Raises:
            UsageError: A turn contains code that a name cannot identify, or a value that is not data.
        """
        current = self._runner.current
        asking = self._owner.asking
        turns = [
            {"turn": entry.turn.to_dict(), "sent": entry.sent, "question": entry.turn.tool is asking}
            for entry in (*(() if current is None else (current,)), *self._entries)
        ]
        return {"format": "agentflow.queue", "version": CODEC_VERSION, "paused": self.paused, "turns": turns}

    def restore(self, data: Mapping[str, Any], hooks: Iterable[Hook] = ()) -> None:
        """Append the turns from the data of `to_dict`. No `PrePut` fires, because they were put before.

        Args:
            data: The data.
            hooks: The hooks that the saved turns name.

        Raises:
            StoreError: The data is not a queue, or was saved by a newer agentflow.
            NotRegisteredError: The agent lacks a tool, or a hook was not passed. Nothing was restored.
            UsageError: One of the turns is in the queue already. Nothing was restored.
        """
        saved = check_form(_QueueData, data, "The saved queue", not_saved("queue"))
        kept = tuple(hooks)
        find = Finder(self._owner.config.tools.values(), kept)
        question_finder = Finder((self._owner.asking,), kept)
        turns = [
            (turn_from_dict(item["turn"], question_finder if item["question"] else find), item["sent"])
            for item in saved["turns"]
        ]
        # All turns are built and checked before the first one is added, so nothing is half restored.
        self._check_new([turn.id for turn, _ in turns])
        for turn, sent in turns:
            self._add(turn, sent, placed=False)
        if saved["paused"]:
            self.pause()

    def _check_new(self, ids: list[str]) -> None:
        turn_ids = {turn.id for turn in (*self.turns, *filter(None, [self.current]))}
        twice = sorted({turn_id for turn_id in ids if turn_id in turn_ids or ids.count(turn_id) > 1})
        if twice:
            raise UsageError(
                f"The queue of agent {self._owner.name!r} would hold two turns of one id ({', '.join(twice)}), so "
                "nothing was restored. Restore a saved queue only once; to replace this queue, call clear() first."
            )

    def _add(self, turn: FullTurn[Any], sent: bool, placed: bool) -> None:
        """Append a turn that hooks have evaluated already and that has no receipt. If `placed`, the turn belongs to the
        current run.
        """
        turn.enter(self._owner.name)
        entry = QueueEntry(self._runner, turn, FullReceipt(turn, self._runner), sent)
        if not placed:
            entry.place = None
        self._entries.add(entry)

    def _copy_to(self, other: TurnQueue) -> None:
        """Put copies of the waiting turns into another queue, and pause that queue if this queue is paused."""
        for turn in self.turns:
            if turn.tool is not self._owner.asking:  # a question is only for the agent that was asked
                other._add(full_turn(turn.copy()), sent=False, placed=True)
        if self.paused:
            other.pause()

    # ---- pausing

    def pause(self) -> None:
        """Stop starting turns until `resume()`; the current turn continues."""
        self._runner.pause(True)

    def resume(self) -> None:
        """Start turns again after `pause()`."""
        self._runner.pause(False)


async def send_to(queue: TurnQueue, turn: Turn[T], wait: bool, asks: bool = False) -> Receipt[T]:
    """Put a turn into another agent's queue, like `TurnQueue.put`, and make sure that the queue is running.

    Args:
        queue: The queue.
        turn: The turn.
        wait: As in `put`.
        asks: Whether the sender waits for the turn's value.

    Raises:
        UsageError: The sender would wait for itself; the error shows the chain.
    """
    if asks:
        check_ends(queue._runner)  # pyright: ignore[reportPrivateUsage] - like `_put`
    return await queue._put(turn, wait=wait, sent=True)  # pyright: ignore[reportPrivateUsage] - users have `put`
