"""A run's event buffer during a replay: it repeats the waits for a slow reader that decided the order of parallel tools.

A reader that is slow holds up the task that hands an event over, and other tool calls of the round go on meanwhile. A replay's
reader is never slow, so the task that handed the event over waits here until the others have started what the recording has
before its next event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from agentflow.loop.stream import EventBuffer
from agentflow.vocabulary.events import Event

__all__ = ["OrderedBuffer"]


class OrderedBuffer(EventBuffer):
    """Another buffer, whose `put` may wait longer.

    Args:
        inner: The buffer that the reader reads.
        hold: Returns a future to wait for after an event, or None.
    """

    __slots__ = ("_hold", "_inner")

    def __init__(self, inner: EventBuffer, hold: Callable[[Event], asyncio.Future[None] | None]) -> None:
        super().__init__(0)
        self._inner = inner
        self._hold = hold

    def put(self, event: Event) -> Awaitable[None] | None:
        full, held = self._inner.put(event), self._hold(event)
        if held is None or held.done():
            return full
        if not isinstance(full, asyncio.Future) or full.done():
            return held
        both: asyncio.Future[None] = held.get_loop().create_future()

        def check(_: object) -> None:
            if full.done() and held.done() and not both.done():
                both.set_result(None)

        full.add_done_callback(check)
        held.add_done_callback(check)
        return both

    @contextmanager
    def of_several_tasks(self) -> Generator[None]:
        with self._inner.of_several_tasks():
            yield

    def read_for(self, waiting: int) -> tuple[int, int]:
        return self._inner.read_for(waiting)

    def wake(self) -> None:
        self._inner.wake()

    def end(self) -> None:
        self._inner.end()
