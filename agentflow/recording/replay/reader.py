"""A run's event buffer during a replay: the run waits for its reader as recorded, however fast the replay's is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

from agentflow.loop.stream import EventBuffer
from agentflow.vocabulary.events import Event

__all__ = ["RecordedWait", "ReplayBuffer"]


class RecordedWait:
    """Awaits a function's coroutine, if it is awaited at all.

    Args:
        wait: The function.
    """

    __slots__ = ("_wait",)

    def __init__(self, wait: Callable[[], Awaitable[None]]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, None]:
        return self._wait().__await__()


class ReplayBuffer(EventBuffer):
    """Another buffer, after whose `put` the run waits as recorded.

    Args:
        inner: The buffer that the reader reads.
        waits: Returns what to wait for after an event, or None.
    """

    __slots__ = ("_inner", "_waits")

    def __init__(self, inner: EventBuffer, waits: Callable[[Event], Awaitable[None] | None]) -> None:
        super().__init__(0)
        self._inner = inner
        self._waits = waits

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
