"""A turn in a queue (`Entry`), what became of it (`Receipt`), and what nobody may wait for, since it would never end.

Rules:

1. Code that runs within a turn of a queue keeps that queue from going on. If it waits for another queue, and that one (over
   any number of queues) for the first, neither would ever go on: the last to wait is refused, with the way.
2. A turn that failed is told to whoever awaits its receipt; if nobody ever did, it is logged, once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from agentflow.errors import NeverEndsError
from agentflow.ground.bell import Bell
from agentflow.ground.facade import objects_of
from agentflow.ground.logs import log_failure
from agentflow.loop.run import current_turn
from agentflow.loop.turns.turn import FullTurn, Turn
from agentflow.loop.turns.turn_run import TurnRun

__all__ = ["TAKEN_BACK", "Entry", "FullReceipt", "Receipt", "check_ends", "inside", "waits_for"]

T = TypeVar("T")


TAKEN_BACK: Final = "its sender took it back"


class Line(Protocol):
    """A queue, as its entries and whoever waits for it know it."""

    @property
    def name(self) -> str:
        """Its agent's name."""
        ...

    def drop(self, entry: Entry, why: str) -> bool:
        """Take a turn out that has not begun; returns whether that was so."""
        ...

    def awaited(self, entry: Entry) -> None:
        """Somebody waits for a turn, here: see to it that it is run."""
        ...


class Entry:
    """A turn in a queue.

    Attributes:
        line: The queue.
        turn: The turn.
        sent: Whether somebody sent it, so that the queue runs it by itself.
        home: The event loop that it was sent from; None: not known (it was saved), or its worker is gone.
        place: Where in a run it was put.
        run: What runs it.
        taken_back: Whether its sender does not want it any more.
        over: Whether it has run; a task that it has left behind may still see it.
    """

    __slots__ = ("_receipt", "home", "line", "over", "place", "run", "sent", "taken_back", "turn")

    def __init__(self, line: Line, turn: FullTurn[Any], receipt: FullReceipt[Any], sent: bool) -> None:
        self.line = line
        self.turn = turn
        self._receipt: FullReceipt[Any] | None = receipt
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
        if not self.line.drop(self, TAKEN_BACK) and self.run is not None:
            self.run.interrupt(TAKEN_BACK)


inside: ContextVar[tuple[Entry, ...]] = ContextVar("agentflow_queues", default=())
"""The turns of queues that the code running here is a part of."""

_graph = threading.Lock()
_waiting: dict[Line, list[Line]] = {}
"""Which queues have a turn that waits for a turn of another queue, or for a place in it."""


def _here() -> tuple[Line, ...]:
    return tuple([entry.line for entry in inside.get() if not entry.over])


def _way_back(target: Line, here: tuple[Line, ...]) -> tuple[str, ...]:
    """How a queue comes to wait for what runs here; empty where it does not."""
    ways: list[tuple[Line, ...]] = [(target,)]
    seen = {target}
    while ways:
        way = ways.pop()
        if way[-1] in here:
            return tuple(queue.name for queue in (way[-1], *way))
        for further in _waiting.get(way[-1], ()):
            if further not in seen:
                seen.add(further)
                ways.append((*way, further))
    return ()


def check_ends(target: Line) -> None:
    """Refuse to wait for a queue where that would never end.

    Raises:
        NeverEndsError: What runs here would have to end first.
    """
    with _graph:
        way = _way_back(target, _here())
    if way:
        raise NeverEndsError(way)


@contextmanager
def waits_for(target: Line) -> Generator[None]:
    """While it is waited for a queue: refuse it where that would never end.

    Raises:
        NeverEndsError: It would wait for itself.
    """
    here = _here()
    if not here:
        yield
        return
    with _graph:
        way = _way_back(target, here)
        if not way:
            for queue in here:
                _waiting.setdefault(queue, []).append(target)
    if way:
        raise NeverEndsError(way)
    try:
        yield
    finally:
        with _graph:
            for queue in here:
                _waiting[queue].remove(target)
                if not _waiting[queue]:
                    del _waiting[queue]


class Receipt(Awaitable[T], Generic[T]):
    """What became of a turn that was put into a queue: await it for the turn's value.

    Attributes:
        turn: The turn.
        to: The name of the agent whose queue it is in.
        done: Whether it is over.
        seen: Whether somebody has asked for its value, or been told of its error.
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
        self._bell = Bell()
        self._entry: Entry | None = None

    def cancel(self) -> None:
        """Take the turn back: out of the queue, or, if it runs, interrupt it. Whoever runs the queue goes on."""
        entry = self._entry
        if entry is not None:
            entry.take_back()

    async def _wait(self) -> T:
        self.seen = True
        entry = self._entry
        if entry is not None:
            with waits_for(self._line):
                self._line.awaited(entry)
                await self._bell.wait_for(lambda: self.done)
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def __await__(self) -> Generator[Any, Any, T]:
        return self._wait().__await__()

    def __del__(self) -> None:
        error = getattr(self, "_error", None)
        if error is not None and not self.seen:
            log_failure("ERROR", error, "a turn that was sent to {} failed, and nobody asked", self.to)

    def __repr__(self) -> str:
        return f"Receipt({self.turn!r}, to={self.to!r}, done={self.done})"


@objects_of(Receipt)
class FullReceipt(Receipt[T]):
    """A receipt as its queue knows it."""

    def follow(self, entry: Entry) -> None:
        """The turn is in the queue, as this entry."""
        self._entry = entry

    def settle(self, value: object, error: BaseException | None) -> None:
        """The turn is over."""
        if not self.done:
            self._value, self._error = value, error
            self.done = True  # last: another thread may be looking
            self._entry = None
            self._bell.ring()
