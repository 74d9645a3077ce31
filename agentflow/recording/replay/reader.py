"""A run's event buffer during a replay: it repeats the waits for a slow reader that decided the order of parallel tools.

A reader that is slow holds up the task that hands an event over, and other tool calls of the round go on meanwhile. A replay's
reader is never slow, so the task that handed the event over waits here until the others have started what the recording has
before its next event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from agentflow.loop.emitting import Events
from agentflow.loop.stream import EventBuffer
from agentflow.recording.replay.clock import ReplayClock
from agentflow.vocabulary.events import Event

__all__ = ["OrderedBuffer", "ReaderWaits"]

_MOMENT = 1e-6
"""Seconds by which a time limit that ended a tool call while it waited for the reader precedes the call's next event."""
_PATIENCE = 1.0
"""Seconds, after the recorded time, for which an event waits for earlier ones."""


class ReaderWaits:
    """The waits for a slow reader, repeated without one.

    Args:
        clock: The replay's clock.
        free: Whether nothing needs to wait: the replay has diverged.
    """

    def __init__(self, clock: ReplayClock, free: Callable[[], bool]) -> None:
        self._clock = clock
        self._free = free
        self._held: dict[asyncio.Future[None], None] = {}
        self._started: asyncio.Future[None] | None = None

    def hold(self, events: Events, seq: int, time: float) -> asyncio.Future[None] | None:
        """Return a future that completes at a time, when all events of a run before `seq` have started; None if they have."""
        if events.seq >= seq - 1 and self._clock.now() >= time:
            return None
        held = asyncio.get_running_loop().create_task(self._until_started(events, seq - 1, time))
        self._held[held] = None
        held.add_done_callback(lambda done: self._held.pop(done, None))
        return held

    async def _until_started(self, events: Events, seq: int, time: float) -> None:
        await self._clock.reach(time)
        await asyncio.sleep(_MOMENT)
        while (
            events.seq < seq and not self._free() and self._clock.now() <= time + _PATIENCE
        ):  # the run may have changed
            self._started = self._started or asyncio.get_running_loop().create_future()
            await asyncio.wait([self._started], timeout=_PATIENCE)

    def note_start(self) -> None:
        """Wake what waits for the start of an event, or for the divergence."""
        started, self._started = self._started, None
        if started is not None and not started.done():
            started.set_result(None)

    def close(self) -> None:
        """Cancel all waits."""
        for held in self._held:
            held.cancel()


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
