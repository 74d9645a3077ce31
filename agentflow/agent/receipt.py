"""A turn in a queue (`QueueEntry`), its result (`Receipt`), and the detection of deadlocks between queues.

Rules:

1. Code that runs within a turn of a queue blocks that queue. If this code waits for another queue, which waits for the
   first one (directly or through more queues), neither would ever continue. So the last wait of such a chain is refused,
   and the error shows the chain.
2. Awaiting the receipt of a failed turn raises the turn's error. If the receipt is never awaited, the error is logged once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from agentflow._support.facade import objects_of
from agentflow._support.locks import Condition
from agentflow._support.logs import log_failure
from agentflow.errors import NeverEndsError
from agentflow.loop.run import current_turn
from agentflow.loop.turn import FullTurn, Turn
from agentflow.loop.turn_run import TurnRun

T = TypeVar("T")


CANCELLED: Final = "its sender cancelled it"


class Line(Protocol):
    """The interface of a queue for its entries and their receipts."""

    @property
    def name(self) -> str:
        """Its agent's name."""
        ...

    def drop(self, entry: QueueEntry, reason: str) -> bool:
        """Remove a turn unless it has begun. Return whether it was removed."""
        ...

    def awaited(self, entry: QueueEntry) -> None:
        """Make sure that a runner runs an awaited turn."""
        ...


class QueueEntry:
    """A turn in a queue.

    Attributes:
        line: The queue.
        turn: The turn.
        sent: Whether it was sent, so that the queue runs it without a reader.
        home: The event loop that sent the turn; None if unknown (after loading saved data), or if its worker has ended.
        place: The point in a run at which the turn was put into the queue.
        run: Its current run.
        cancelled: Whether its sender cancelled it.
        finished: Whether the turn has finished. Tasks that the turn started can read this after it has finished.
    """

    __slots__ = ("_receipt", "cancelled", "finished", "home", "line", "place", "run", "sent", "turn")

    def __init__(self, line: Line, turn: FullTurn[Any], receipt: FullReceipt[Any], sent: bool) -> None:
        self.line = line
        self.turn = turn
        self._receipt: FullReceipt[Any] | None = receipt
        self.sent = sent
        self.home: asyncio.AbstractEventLoop | None = None
        self.place = current_turn.get()  # for the bill of the sender's run
        self.run: TurnRun | None = None
        self.cancelled = False
        self.finished = False
        receipt.follow(self)

    def settle(self, value: object, error: BaseException | None, was_read: bool = False) -> None:
        """Settle the receipt, and release the turn."""
        # Receipt and entry refer to each other while the turn is open; this and `settle` remove both references.
        receipt, self._receipt = self._receipt, None
        if receipt is not None:
            receipt.seen = receipt.seen or was_read
            receipt.settle(value, error)

    def cancel(self) -> None:
        """Remove the turn from the queue, or interrupt the turn if it is running."""
        self.cancelled = True
        if not self.line.drop(self, CANCELLED) and self.run is not None:
            self.run.interrupt(CANCELLED)


inside: ContextVar[tuple[QueueEntry, ...]] = ContextVar("agentflow_queues", default=())
"""The queued turns within which the current code runs."""

_graph = threading.Lock()
_waiting: dict[Line, list[Line]] = {}
"""Maps each queue with a turn that waits for a turn or slot of other queues to those queues."""


def _enclosing_lines() -> tuple[Line, ...]:
    return tuple([entry.line for entry in inside.get() if not entry.finished])


def _path_back(target: Line, enclosing: tuple[Line, ...]) -> tuple[str, ...]:
    """Return the chain of queues by which a queue waits for the current code; empty if the queue does not wait for it."""
    # A search from `target` along the waits, with the path for the error.
    paths: list[tuple[Line, ...]] = [(target,)]
    visited = {target}
    while paths:
        path = paths.pop()
        if path[-1] in enclosing:
            return tuple(queue.name for queue in (path[-1], *path))
        for further in _waiting.get(path[-1], ()):
            if further not in visited:
                visited.add(further)
                paths.append((*path, further))
    return ()


def check_ends(target: Line) -> None:
    """Refuse to wait for a queue if that would be a deadlock.

    Raises:
        NeverEndsError: The current code would have to end first.
    """
    with _graph:
        path = _path_back(target, _enclosing_lines())
    if path:
        raise NeverEndsError(path)


@contextmanager
def waits_for(target: Line) -> Generator[None]:
    """Register a wait for a queue; refuse it if it would be a deadlock.

    Raises:
        NeverEndsError: The current code would wait for itself.
    """
    enclosing = _enclosing_lines()
    if not enclosing:
        yield
        return
    with _graph:
        # Checked and registered under one lock: of two waits that close a circle, the second is refused.
        path = _path_back(target, enclosing)
        if not path:
            for queue in enclosing:
                # A list, since several tasks of one queue may wait for the same target.
                _waiting.setdefault(queue, []).append(target)
    if path:
        raise NeverEndsError(path)
    try:
        yield
    finally:
        with _graph:
            for queue in enclosing:
                _waiting[queue].remove(target)
                if not _waiting[queue]:
                    del _waiting[queue]


class Receipt(Awaitable[T], Generic[T]):
    """The future result of a turn in a queue: await it for the turn's value.

    Attributes:
        turn: The turn.
        to: The name of the agent that owns the queue.
        done: Whether the turn has ended.
        seen: Whether its value was requested, or its error reported.
    """

    turn: Turn[T]
    to: str
    done: bool
    seen: bool

    def __init__(self, turn: Turn[T], line: Line) -> None:
        self.turn = turn
        self.to = line.name
        self._line = line
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self.seen = False
        self._condition = Condition()
        self._entry: QueueEntry | None = None

    def cancel(self) -> None:
        """Cancel the turn: remove it from the queue, or interrupt it if it is running. The queue's runner continues."""
        entry = self._entry
        if entry is not None:
            entry.cancel()

    async def _wait(self) -> T:
        # Set before the wait, which raises the error, so that the error is not logged as well.
        self.seen = True
        entry = self._entry
        if entry is not None:
            with waits_for(self._line):
                self._line.awaited(entry)
                await self._condition.wait_for(lambda: self.done)
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def __await__(self) -> Generator[Any, Any, T]:
        return self._wait().__await__()

    def __del__(self) -> None:
        # `getattr`, because `__init__` may have failed.
        error = getattr(self, "_error", None)
        if error is not None and not self.seen:
            log_failure("ERROR", error, "a turn that was sent to {} failed, and its receipt was not awaited", self.to)

    def __repr__(self) -> str:
        return f"Receipt({self.turn!r}, to={self.to!r}, done={self.done})"


@objects_of(Receipt)
class FullReceipt(Receipt[T]):
    """A receipt, with the members that its queue uses."""

    def follow(self, entry: QueueEntry) -> None:
        """Set the turn's entry in the queue."""
        self._entry = entry

    def settle(self, value: object, error: BaseException | None) -> None:
        """Set the result of the turn."""
        if not self.done:
            self._value, self._error = value, error
            self.done = True  # set last: another thread can read it
            self._entry = None
            self._condition.notify_all()
