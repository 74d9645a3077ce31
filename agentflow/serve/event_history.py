"""The events of a served run, for its readers.

Rules:

1. An event is serialised once, and numbered from 1. An event's id also names the history, so that an id from another
   process is not mistaken for one of this history.
2. A bounded buffer keeps the last events; a reader that requests earlier ones gets a `gap`.
3. A reader ends after the last event of a call. The next call continues the numbers.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from agentflow.serve.limits import Limits
from agentflow.serve.refusals import Refusal
from agentflow.serve.view import GapEvent, Public

_POSITION: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,12})")


class NumberedEvent(NamedTuple):
    """A serialised event.

    Attributes:
        id: Its position, for `Last-Event-ID`; empty if it has none.
        event: The event.
        data: The event as JSON on one line.
        last: Whether no event follows for now.
    """

    id: str
    event: Public
    data: bytes
    last: bool


class EventHistory:
    """Numbers the events of a run, keeps the last ones, and hands them to readers, which wait for new ones.

    Args:
        limits: The limits of the buffer, and the time between heartbeats.

    Attributes:
        next: The number of the next event.
    """

    def __init__(self, limits: Limits) -> None:
        self.next = 1
        self._limits = limits
        self._epoch = secrets.token_hex(4)
        self._events: deque[NumberedEvent] = deque()
        self._bytes = 0
        self._waiting: set[asyncio.Future[bool]] = set()
        self._changed_at = 0.0  # the time of the last event or heartbeat, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None  # one for all readers and events; a timer for each event is slow

    def add(self, event: Public, *, last: bool = False) -> None:
        """Append an event, and wake the readers."""
        data = event.line()
        self._events.append(NumberedEvent(f"{self._epoch}-{self.next}", event, data, last))
        self.next += 1
        self._bytes += len(data)
        # At least the last event is kept, however large it is: readers must see the end.
        while len(self._events) > 1 and (
            len(self._events) > self._limits.buffer or self._bytes > self._limits.buffer_bytes
        ):
            self._bytes -= len(self._events.popleft().data)
        self._wake(True)

    def _wake(self, changed: bool) -> None:
        self._changed_at = asyncio.get_running_loop().time()
        for waiting in self._waiting:
            if not waiting.done():  # its reader was cancelled
                waiting.set_result(changed)
        self._waiting.clear()

    async def _change(self) -> bool:
        """Wait for an event; return False after a `heartbeat` without one."""
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[bool] = loop.create_future()
        self._waiting.add(changed)
        self._timer = self._timer or loop.call_later(self._limits.heartbeat, self._tick)
        try:
            return await changed
        finally:
            self._waiting.discard(changed)

    def _tick(self) -> None:
        loop, reading = asyncio.get_running_loop(), bool(self._waiting)
        if loop.time() >= self._changed_at + self._limits.heartbeat:
            self._wake(False)
        self._timer = loop.call_at(self._changed_at + self._limits.heartbeat, self._tick) if reading else None

    @property
    def ended(self) -> bool:
        """Whether the last event was the last of its call."""
        return bool(self._events) and self._events[-1].last

    def after(self, last_id: str | None) -> AsyncGenerator[NumberedEvent | None] | None:
        """Return the events after a position, for `Last-Event-ID`; None if the call has ended and no event follows.

        Raises:
            Refusal: The id is not a position.
        """
        number = self._number_after(last_id)
        return None if self._ended_before(number) else self.read(number)

    def _number_after(self, last_id: str | None) -> int:
        """Return the number of the first event after a position; 0 if the position is not one of this history.

        Raises:
            Refusal: The id is not a position.
        """
        if last_id is None:
            return 1
        found = _POSITION.fullmatch(last_id)
        if found is None:
            raise Refusal(400, "wrong_event_id", "Last-Event-ID is not the id of an event of this server.")
        number = int(found[2]) + 1
        return number if found[1] == self._epoch and number <= self.next else 0

    def _ended_before(self, number: int) -> bool:
        return self.ended and number >= self.next

    async def read(self, number: int = 1) -> AsyncGenerator[NumberedEvent | None]:
        """Yield events, waiting for new ones, until the call has ended; None after each `heartbeat` without an event.

        Args:
            number: The first event's number; if it is no longer available, a `gap` is first.
        """
        while True:
            first = self.next - len(self._events)
            if number < first:
                if not (number == 1 and first == 1):
                    gap = GapEvent()
                    yield NumberedEvent("", gap, gap.line(), last=False)
                number = first
            if number < self.next:
                event = self._events[number - first]
                number += 1
                yield event
                if event.last and self._ended_before(number):
                    return
                continue
            if self.ended:
                return
            if not await self._change():
                yield None
