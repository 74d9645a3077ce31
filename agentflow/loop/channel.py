"""How events get from work in tasks of its own to the driver: over a bounded channel."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from agentflow.events import Event
from agentflow.loop.stream import Port

__all__ = ["Channel", "ChannelPort"]


class Channel:
    """A bounded hand-over from parallel tools to the driver: with `capacity` events waiting, whoever emits waits its turn."""

    __slots__ = ("_capacity", "_closed", "_events", "_getter", "_putters")

    def __init__(self, capacity: int = 8) -> None:
        self._events: deque[Event] = deque()
        self._capacity = capacity
        self._getter: asyncio.Future[None] | None = None
        self._putters: deque[tuple[asyncio.Future[None], Event]] = deque()
        self._closed = False

    def wake(self) -> None:
        """Let the reader look again."""
        getter = self._getter
        if getter is not None and not getter.done():
            getter.set_result(None)

    def close(self) -> None:
        """Nobody reads any more: events are dropped, and nobody waits."""
        self._closed = True
        self._events.clear()
        for putter, _ in self._putters:
            if not putter.done():
                putter.set_result(None)
        self._putters.clear()

    async def put(self, event: Event) -> None:
        """Hand over an event; in the order in which they came, those that have to wait included."""
        if self._closed:
            return
        if len(self._events) >= self._capacity:
            putter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._putters.append((putter, event))
            await putter
        else:
            self._events.append(event)
            self.wake()

    async def get(self, done: Callable[[], bool]) -> Event | None:
        """Return the next event, or None when nothing waits and `done()`."""
        while not self._events:
            if done():
                return None
            self._getter = asyncio.get_running_loop().create_future()
            try:
                await self._getter
            finally:
                self._getter = None
        event = self._events.popleft()
        while self._putters:
            putter, waiting = self._putters.popleft()
            self._events.append(waiting)
            if not putter.done():  # the free place is its own, nobody comes in between; who was cancelled takes none
                putter.set_result(None)
                break
        return event


class ChannelPort(Port):
    """The port of work that runs in a task of its own."""

    __slots__ = ("channel",)

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.channel = channel

    def __await__(self) -> Generator[Any, Any, None]:
        assert self.event is not None
        return self.channel.put(self.event).__await__()
