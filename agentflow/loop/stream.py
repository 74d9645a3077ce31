"""How events get from a run to its reader: over a bounded buffer.

Rules:

1. The run works ahead of its reader by at most `capacity` events; then it waits. So a slow reader slows the model. With
   capacity 0 they take turns: the run continues when the reader asks for more.
2. An event that was put is delivered, in the order of putting, unless the reader closes the stream.
3. While a run cleans up nothing waits for its reader: an interrupt or a time limit ends it, whether or not anybody reads.
4. One reader at a time; a second one gets a `UsageError`.
5. `aclose()` cancels the run and returns when its cleanup is done. A stream that is dropped without being closed is cancelled
   too; the session waits for the cleanup.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, Generic, Protocol

from agentflow.errors import UsageError
from agentflow.events import Event, HookEvent
from agentflow.loop.scope import RunScope
from agentflow.loop.words import words
from agentflow.messages import Reply, T_co
from agentflow.reactive import StreamIterator

__all__ = ["BUFFER", "EventBuffer", "EventStream", "StreamedRun"]

BUFFER: Final = 8
"""How many events a run is ahead of its reader, unless the caller says otherwise."""


class EventBuffer:
    """The hand-over from the tasks of a run to its reader.

    Args:
        capacity: How many events may be ahead of the reader.

    Attributes:
        closed: Whether the reader has closed the stream, or the run is finished: events are dropped.
    """

    __slots__ = ("_asked", "_capacity", "_events", "_getter", "_limit", "_put", "_putters", "_rounds", "closed")

    def __init__(self, capacity: int) -> None:
        self._capacity = self._limit = capacity
        self._rounds = 0  # parallel rounds that are running, those of sub-agents included
        self._events: deque[Event] = deque()
        self._put = 0  # how many events were put, and how many the reader has asked for
        self._asked = 0
        self._getter: asyncio.Future[None] | None = None
        self._putters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.closed = False

    def put(self, event: Event) -> Awaitable[None] | None:
        """Hand over an event; what is returned, if anything, is awaited before the run continues, unless it is cancelled."""
        if self.closed:
            return None
        self._events.append(event)
        self._put = number = self._put + 1
        if self._getter is not None:
            self.wake()
        if number - self._asked < self._limit:
            return None
        putter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._putters.append((number, putter))
        return putter

    @contextmanager
    def of_several_tasks(self) -> Generator[None]:
        """While several tasks put events, they may be `BUFFER` events ahead at least.

        So a reader that takes turns with the run does not change the order in which tools that never wait come and go.
        """
        self._rounds += 1
        self._limit = max(self._capacity, BUFFER)
        try:
            yield
        finally:
            self._rounds -= 1
            if not self._rounds:
                self._limit = self._capacity

    def ask(self) -> Event | None:
        """Ask for the next event; None if it has to be waited for, with `changed`."""
        self._asked = asked = self._asked + 1
        putters = self._putters
        while putters and putters[0][0] - asked < self._limit:
            _, putter = putters.popleft()
            if not putter.done():
                putter.set_result(None)
        return self._events.popleft() if self._events else None

    def take(self) -> Event | None:
        """The event that was asked for, if it is there."""
        return self._events.popleft() if self._events else None

    def take_back(self) -> None:
        """What was asked for is not wanted after all: the read was cancelled."""
        self._asked -= 1

    def changed(self) -> Awaitable[None]:
        """Wait until there may be an event, or the run is finished."""
        self._getter = getter = asyncio.get_running_loop().create_future()
        return getter

    def read_for(self, waiting: int) -> tuple[int, int]:
        """How many events a reader has to ask for so that so many events wait for it; and how many may be ahead of it.

        It may have asked for more since, in which case those who waited do not know it yet.
        """
        asked = self._asked
        return (min(asked, self._put - self._capacity - waiting + 1) if waiting else asked), self._capacity

    def wake(self) -> None:
        """Let the reader look again: there is an event, or the run is finished."""
        getter, self._getter = self._getter, None
        if getter is not None and not getter.done():
            getter.set_result(None)

    def close(self) -> None:
        """The reader does not want any more events: drop them. Those who wait for it are cancelled with their run."""
        self.closed = True
        self._events.clear()

    def end(self) -> None:
        """The run is finished: what its background work would still put is dropped, and that waits for nobody any more."""
        self.closed = True
        putters, self._putters = self._putters, deque()
        for _, putter in putters:
            if not putter.done() and not putter.get_loop().is_closed():
                putter.set_result(None)


class StreamedRun(Protocol):
    """A run as its stream knows it."""

    scope: RunScope

    def abandoned_by_reader(self) -> None:
        """Its stream was dropped: calls on the session wait for its cleanup."""
        ...


class EventStream(StreamIterator[HookEvent], Generic[T_co]):
    """The events of one run, as its reader holds them.

    Args:
        start: Starts a run that puts its events into the buffer; called when the first event is asked for.
        capacity: How many events the run may be ahead of the reader.

    Example:
        >>> async with agent.stream("Hello") as events:
        ...     async for event in events:
        ...         print(event)
    """

    __slots__ = ("_buffer", "_closed", "_current", "_read_over", "_reply", "_run", "_start")

    def __init__(self, start: Callable[[EventBuffer], Awaitable[StreamedRun]], capacity: int = BUFFER) -> None:
        # Not the base's: this is a source and its iterator in one.
        self._start = start
        self._buffer = EventBuffer(capacity)
        self._run: StreamedRun | None = None
        self._closed = False
        self._current: asyncio.Task[Any] | bool = False
        self._read_over: asyncio.Future[None] | None = None
        self._reply: Reply[T_co] | None = None

    async def __anext__(self) -> HookEvent:
        """The next event.

        Raises:
            StopAsyncIteration: The run is finished, or the stream was closed.
            UsageError: Another task is waiting for the next event.
            Exception: What the run failed with.
        """
        if self._current:
            raise self._second_reader()
        if self._closed:
            raise StopAsyncIteration
        if self._run is None:
            await self._begin()
        event = self._buffer.ask()
        return await self._wait() if event is None else event  # pyright: ignore[reportReturnType] - runs put HookEvents only

    async def _begin(self) -> None:
        self._current = asyncio.current_task() or True
        try:
            run = await self._start(self._buffer)
        except BaseException:
            self._closed = True
            raise
        finally:
            self._read_ended()
        if self._closed:  # by another task, meanwhile
            run.scope.cancel("closed", "its stream was closed")
            await run.scope.wait("closed", "its stream was closed")
            raise StopAsyncIteration
        self._run = run

    async def _wait(self) -> Event:
        """Wait for the event that was asked for."""
        buffer, run = self._buffer, self._run
        assert run is not None
        self._current = asyncio.current_task() or True
        try:
            while True:
                event = buffer.take()
                if event is not None:
                    return event
                if self._closed:
                    raise StopAsyncIteration
                if run.scope.state == "done":
                    break
                await buffer.changed()
        except BaseException:
            buffer.take_back()
            raise
        finally:
            self._read_ended()
        self._closed = True
        self._run = None
        try:
            self._reply = await run.scope.result()
        except StopAsyncIteration as error:  # the run's own: it would read as a good end
            raise RuntimeError("the call failed with StopAsyncIteration") from error
        raise StopAsyncIteration

    def _read_ended(self) -> None:
        self._current = False
        if self._read_over is not None and not self._read_over.done():
            self._read_over.set_result(None)

    def text(self) -> AsyncIterator[str]:
        """The words that a person should see of what is still to come; see `agentflow.loop.words`."""
        return words(self)

    async def reply(self) -> Reply[T_co]:
        """Read to the end.

        Returns:
            The call's reply.

        Raises:
            UsageError: The stream was closed, or its call failed, before there was one.
            Exception: What the call fails with.

        Example:
            >>> async with agent.stream("Hello") as events:
            ...     async for event in events:
            ...         print(event)
            ...     reply = await events.reply()
        """
        async for _ in self:
            pass
        if self._reply is None:
            raise UsageError("This stream ended before its call had a reply: it was closed, or the call failed.")
        return self._reply

    def _second_reader(self) -> UsageError:
        task = self._current.get_name() if isinstance(self._current, asyncio.Task) else "?"
        return UsageError(
            f"anext() on an agent's stream while task {task!r} already waits for its next event; a stream has one reader "
            "at a time. Await that read first, or make two calls for two runs."
        )

    async def aclose(self) -> None:
        """Cancel the run and wait for its cleanup; a read that is waiting in another task is cancelled first."""
        self._closed = True
        self._buffer.close()
        reader = self._current
        if isinstance(reader, asyncio.Task) and reader is not asyncio.current_task():
            if self._read_over is None or self._read_over.done():
                self._read_over = asyncio.get_running_loop().create_future()
                reader.cancel()
            await asyncio.shield(self._read_over)  # two may close at once, and one of them may be cancelled
        run = self._run
        if run is not None:
            run.scope.cancel("closed", "its stream was closed")
            await run.scope.wait("closed", "its stream was closed")
            self._run = None

    def __del__(self) -> None:
        run = getattr(self, "_run", None)
        if run is not None and run.scope.state != "done":
            self._buffer.close()
            run.abandoned_by_reader()
            run.scope.cancel("closed", "its stream was dropped")
            run.scope.drop_lost()
