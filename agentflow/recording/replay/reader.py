"""A run's event buffer during a replay: the run waits for its reader as recorded, at any speed of the replay's reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from agentflow.loop.stream import EventBuffer
from agentflow.recording.replay.clock import ReplayClock
from agentflow.recording.replay.order import Key, Progress
from agentflow.recording.replay.script import ReaderWait
from agentflow.vocabulary.events import Event

__all__ = ["RecordedWait", "ReplayBuffer"]

_PATIENCE = 1.0
"""Seconds to wait for a recorded cancellation."""


class RecordedWait:
    """A wait for the reader: until its turn, or, if it was cancelled in the recording, until it is cancelled.

    Args:
        key: The key of the wait in the order.
        wait: The recorded wait.
        progress: The progress of the replay.
        clock: The clock of the replay.
    """

    __slots__ = ("_clock", "_key", "_progress", "_wait")

    def __init__(self, key: Key, wait: ReaderWait, progress: Progress, clock: ReplayClock) -> None:
        self._key = key
        self._wait = wait
        self._progress = progress
        self._clock = clock

    def __await__(self) -> Generator[Any, Any, None]:
        return self._until_read().__await__()

    async def _until_read(self) -> None:
        progress, time = self._progress, self._wait.time
        try:
            if not self._wait.cancelled:
                await progress.shielded(partial(self._clock.reach, time))
            await progress.shielded(partial(progress.wait, self._key))
            if self._wait.cancelled and not progress.free():
                await self._clock.reach(time)
                await asyncio.sleep(_PATIENCE)
        finally:
            progress.mark_done(self._key)


class ReplayBuffer(EventBuffer):
    """Wraps a buffer, so that the run waits after `put` as recorded.

    Args:
        inner: The buffer that the reader reads.
        hold: Returns an awaitable to wait for after an event, or None.
    """

    __slots__ = ("_inner", "_waits")

    def __init__(self, inner: EventBuffer, hold: Callable[[Event], Awaitable[None] | None]) -> None:
        # Its own queue stays empty: the inner buffer has the reader, and `hold` decides whether the run waits.
        super().__init__(0)
        self._inner = inner
        self._waits = hold

    def put(self, event: Event) -> Awaitable[None] | None:
        self._inner.put(event)
        return self._waits(event)

    @contextmanager
    def of_several_tasks(self) -> Generator[None]:
        yield

    def wake(self) -> None:
        self._inner.wake()

    def end(self) -> None:
        self._inner.end()
