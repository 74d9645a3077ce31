"""The turns that wait in a queue, and the places in it.

Rules:

1. A place is reserved before hooks look at the turn that is to have it, so that a queue never holds more than its limit.
2. Places are given by order of arrival; who was told to wait for one waits in no other order.
3. Whatever changes rings the bell, behind the change.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from agentflow.agent.receipt import Entry
from agentflow.errors import TurnDeniedError
from agentflow.ground.bell import Bell
from agentflow.ground.locks import FairLock
from agentflow.loop.turns.turn import Turn

__all__ = ["Entries"]


class Entries:
    """What waits in a queue.

    Args:
        limit: Most turns that wait at a time; None: any number.

    Attributes:
        guard: Held while it changes.
        bell: Rung when it has changed.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.guard = threading.RLock()
        self.bell = Bell()
        self._waiting: deque[Entry] = deque()
        self._coming = 0  # places that are given to turns which hooks look at
        self._asking = FairLock()  # held while somebody waits for a place
        self._senders: Counter[asyncio.AbstractEventLoop] = Counter()  # those of them who send, by their loop

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._waiting))

    def find(self, turn: Turn[Any]) -> Entry | None:
        """The entry of a turn that waits."""
        return next((entry for entry in self if entry.turn is turn), None)

    # ---- places

    def reserve(self) -> bool:
        """Take a place, if there is one and nobody waits for it."""
        return not self._asking.locked and self._take_place()

    def _take_place(self) -> bool:
        with self.guard:
            if self.limit is not None and len(self._waiting) + self._coming >= self.limit:
                return False
            self._coming += 1
            return True

    async def reserved(self) -> None:
        """Wait for a place, and take it."""
        await self._asking.acquire()
        try:
            await self.bell.wait_for(self._take_place)
        finally:
            self._asking.release()

    def give_back(self) -> None:
        """Let go of a place that was taken."""
        with self.guard:
            self._coming -= 1
        self.bell.ring()

    @contextmanager
    def sending_from(self, loop: asyncio.AbstractEventLoop) -> Generator[None]:
        """While somebody in an event loop waits for a place for what he sends."""
        with self.guard:
            self._senders[loop] += 1
        try:
            yield
        finally:
            with self.guard:
                self._senders[loop] -= 1
                self._senders += Counter()  # keeps what is above zero
            self.bell.ring()

    # ---- turns

    def add(self, entry: Entry, reserved: bool = False) -> None:
        """Put a turn at the end, on the place that was taken for it or on one beyond the limit."""
        with self.guard:
            self._coming -= reserved
            self._waiting.append(entry)
        self.bell.ring()

    def prefer(self, entry: Entry) -> bool:
        """Put a turn in front; returns whether it was there."""
        with self.guard:
            if entry not in self._waiting:
                return False
            self._waiting.remove(entry)
            self._waiting.appendleft(entry)
        self.bell.ring()
        return True

    def take_out(self, entry: Entry) -> bool:
        """Take a turn out; returns whether it was there."""
        with self.guard:
            try:
                self._waiting.remove(entry)
            except ValueError:
                return False
            entry.turn.leave()
        self.bell.ring()
        return True

    def drop(self, entry: Entry, why: str) -> bool:
        """Take a turn out that has not begun, and tell whoever awaits it; returns whether that was so."""
        if not self.take_out(entry):
            return False
        entry.settle(None, TurnDeniedError(entry.turn.tool.name, why), seen=True)  # whoever drops it knows
        return True

    # ---- by event loop

    def first(self) -> Entry | None:
        """The one in front."""
        return next(iter(self), None)

    def first_sent(self) -> Entry | None:
        """The first that somebody has sent."""
        return next((entry for entry in self if entry.sent), None)

    def needs(self, home: asyncio.AbstractEventLoop) -> bool:
        """Whether somebody in an event loop has a turn here, or waits for a place."""
        return home in self._senders or any(entry.home is home for entry in self)

    def adopt(self, entry: Entry, home: asyncio.AbstractEventLoop) -> None:
        """Let an event loop run what another one has left behind."""
        with self.guard:
            if entry.home is None or not entry.home.is_running():
                entry.home = home

    def orphan(self, home: asyncio.AbstractEventLoop) -> None:
        """The worker of an event loop has gone: what was sent from there is left to others."""
        with self.guard:
            for entry in self._waiting:
                if entry.home is home:
                    entry.home = None
            if home.is_closed():
                self._senders.pop(home, None)
