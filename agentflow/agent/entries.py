"""The turns that wait in a queue, and its slots.

Rules:

1. A slot is reserved before hooks evaluate the turn, so that a queue never exceeds its limit.
2. Slots are assigned in order of arrival.
3. Every change notifies `changed`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from agentflow._support.locks import Condition, FairLock
from agentflow.agent.receipt import QueueEntry
from agentflow.errors import TurnDeniedError
from agentflow.loop.turn import Turn


class Entries:
    """The waiting turns of a queue.

    Args:
        limit: The maximum number of waiting turns; None means no limit.

    Attributes:
        guard: Held while the entries change.
        changed: Notified after each change.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        # Reentrant: `_Workers` calls `orphan` while it holds the guard. Notifications are sent after its release.
        self.guard = threading.RLock()
        self.changed = Condition()
        self._waiting: deque[QueueEntry] = deque()
        self._coming = 0  # slots reserved for turns that hooks are evaluating
        self._asking = FairLock()  # held while a caller waits for a slot
        self._senders: Counter[asyncio.AbstractEventLoop] = Counter()  # senders that wait for a slot, by event loop

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[QueueEntry]:
        # A copy, because other threads change the deque.
        return iter(tuple(self._waiting))

    def find(self, turn: Turn[Any]) -> QueueEntry | None:
        """Return the entry of a waiting turn."""
        return next((entry for entry in self if entry.turn is turn), None)

    # ---- slots

    def reserve(self) -> bool:
        """Reserve a slot if one is free and no other caller waits for a slot. Return whether it was reserved."""
        # A caller that waits comes first (rule 2).
        return not self._asking.locked and self._take_place()

    def _take_place(self) -> bool:
        with self.guard:
            if self.limit is not None and len(self._waiting) + self._coming >= self.limit:
                return False
            self._coming += 1
            return True

    async def reserved(self) -> None:
        """Wait for a slot, and reserve it."""
        await self._asking.acquire()
        try:
            # Only the first caller in line waits here; later callers wait for `_asking`, in order.
            await self.changed.wait_for(self._take_place)
        finally:
            self._asking.release()

    def release(self) -> None:
        """Release a reserved slot."""
        with self.guard:
            self._coming -= 1
        self.changed.notify_all()

    @contextmanager
    def sending_from(self, loop: asyncio.AbstractEventLoop) -> Generator[None]:
        """Count a sender in an event loop as waiting for a slot, while the context is open."""
        with self.guard:
            self._senders[loop] += 1
        try:
            yield
        finally:
            with self.guard:
                self._senders[loop] -= 1
                self._senders += Counter()  # removes counters that have reached zero
            self.changed.notify_all()

    # ---- turns

    def add(self, entry: QueueEntry, reserved: bool = False) -> None:
        """Append a turn, in its reserved slot or in a slot beyond the limit."""
        with self.guard:
            self._coming -= reserved
            self._waiting.append(entry)
        self.changed.notify_all()

    def prefer(self, entry: QueueEntry) -> bool:
        """Move a turn to the front; return whether it was waiting."""
        with self.guard:
            if entry not in self._waiting:
                return False
            self._waiting.remove(entry)
            self._waiting.appendleft(entry)
        self.changed.notify_all()
        return True

    def take_out(self, entry: QueueEntry) -> bool:
        """Remove a turn; return whether it was waiting."""
        with self.guard:
            try:
                self._waiting.remove(entry)
            except ValueError:
                return False
            # Under the guard, because the turn can be put into another queue from now on.
            entry.turn.leave()
        self.changed.notify_all()
        return True

    def drop(self, entry: QueueEntry, reason: str) -> bool:
        """Remove a waiting turn, and settle its receipt with an error; return whether it was waiting."""
        if not self.take_out(entry):
            return False
        # the caller handles the error, so it need not be logged
        entry.settle(None, TurnDeniedError(entry.turn.tool.name, reason), was_read=True)
        return True

    # ---- by event loop

    def first(self) -> QueueEntry | None:
        """Return the first entry."""
        return next(iter(self), None)

    def first_sent(self) -> QueueEntry | None:
        """Return the first entry that was sent by another agent or task."""
        return next((entry for entry in self if entry.sent), None)

    def needs(self, home: asyncio.AbstractEventLoop) -> bool:
        """Whether a task in an event loop has a turn in this queue, or waits for a slot."""
        return home in self._senders or any(entry.home is home for entry in self)

    def adopt(self, entry: QueueEntry, home: asyncio.AbstractEventLoop) -> None:
        """Move an entry of a closed event loop to another event loop."""
        with self.guard:
            if entry.home is None or not entry.home.is_running():
                entry.home = home

    def orphan(self, home: asyncio.AbstractEventLoop) -> None:
        """Mark the entries of an event loop whose worker has ended, so that other loops can run them."""
        with self.guard:
            for entry in self._waiting:
                if entry.home is home:
                    entry.home = None
            if home.is_closed():
                self._senders.pop(home, None)
