"""The event buffer of a replayed run: the run waits for its reader as recorded, whatever the speed of the replay's reader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

from agentflow.loop.stream import EventBuffer
from agentflow.recording.replay.clock import PATIENCE, ReplayClock
from agentflow.recording.replay.order import Key, Progress
from agentflow.recording.replay.script import ReaderPause
from agentflow.vocabulary.events import Event

__all__ = ["RecordedWait", "ReplayBuffer"]


class RecordedWait:
    """A recorded wait for the reader. It ends in its turn, or if the recorded wait was cancelled, when it is cancelled.

    Args:
        key: The key of the wait in the order.
        wait: The recorded wait.
        progress: The progress of the replay.
        clock: The clock of the replay.
    """

    __slots__ = ("_clock", "_key", "_progress", "_wait")

    def __init__(self, key: Key, wait: ReaderPause, progress: Progress, clock: ReplayClock) -> None:
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
                await asyncio.sleep(PATIENCE)
        finally:
            progress.mark_done(self._key)


class ReplayBuffer(EventBuffer):
    """Wraps a buffer, so that the run waits after `put` as recorded.

    Args:
        inner: The buffer that the reader reads.
        wait_after: Returns the awaitable that the run awaits after an event, or None.
    """

    __slots__ = ("_inner", "_wait_after")

    def __init__(self, inner: EventBuffer, wait_after: Callable[[Event], Awaitable[None] | None]) -> None:
        # Its own queue stays empty: events go to the inner buffer, and `wait_after` decides whether the run waits.
        super().__init__(0)
        self._inner = inner
        self._wait_after = wait_after

    def put(self, event: Event) -> Awaitable[None] | None:
        self._inner.put(event)  # its awaitable is ignored: it depends on the speed of the replay's reader
        return self._wait_after(event)

    @contextmanager
    def of_several_tasks(self) -> Generator[None]:
        yield  # no larger capacity is needed, since the capacity does not matter

    def wake(self) -> None:
        self._inner.wake()

    def end(self) -> None:
        self._inner.end()
