"""Pass events from a run to its reader through a bounded buffer.

Rules:

1. The run is ahead of its reader by at most `capacity` events; then it waits. So a slow reader slows the model. With
   capacity 0 run and reader alternate: the run continues when the reader requests the next event.
2. Events are delivered in order, unless the reader closes the stream.
3. With `hold`, events are kept from the reader until `show` follows, while the run does not wait. So the reader sees no
   decision before its write has ended, and after `show` the run can be further ahead than rule 1 says, by these few events.
4. A run does not wait for its reader during cleanup: an interrupt or a time limit ends the run even if nothing reads.
5. There is one reader at a time; a second one gets a `UsageError`.
6. `aclose()` cancels the run and returns after its cleanup. If a stream is abandoned without `aclose()`, its run is
   cancelled too, and the session's next call waits for the cleanup.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, Generic, Protocol

from agentflow._support.cancellation import task_label
from agentflow.errors import UsageError
from agentflow.loop.scope import RunScope
from agentflow.reactive import StreamIterator
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import Event, HookEvent, PostCall, PostReasoning, ReasoningChunk
from agentflow.vocabulary.messages import Reply, T_co, TextBlock

__all__ = ["BUFFER", "EventBuffer", "EventStream", "StreamedRun", "text_chunks"]

BUFFER: Final = 8
"""The default number of events that a run may be ahead of its reader."""


_NOWHERE: Final = deque[Event](maxlen=0)
"""Keeps no event."""


class EventBuffer:
    """Passes events from the tasks of a run to its reader.

    Args:
        capacity: The number of events that may be ahead of the reader.

    Attributes:
        events: The events that wait for the reader, which takes one at a time and then calls `release`.
        putters: The events after which the run waits for the reader, each with the future that ends the wait.
        closed: Whether further events are discarded, because the reader has closed the stream or the run is finished.
        on_wait: Returns an object that the run awaits after an event until the reader is ready, instead of a future.
    """

    __slots__ = (
        "_capacity",
        "_getter",
        "_held",
        "_limit",
        "_room",
        "_rounds",
        "_sink",
        "closed",
        "events",
        "on_wait",
        "putters",
    )

    def __init__(self, capacity: int) -> None:
        self._capacity = self._limit = capacity
        self._room = capacity  # one more while the reader waits for an event that it has requested
        self._rounds = 0  # running parallel rounds, including those of sub-agents
        self.events: deque[Event] = deque()
        self._held: deque[Event] = deque()
        self._sink = self.events  # between `hold` and `show`, `_held`; after the end of the run, `_NOWHERE`
        # One future is enough, since there is one reader.
        self._getter: asyncio.Future[None] | None = None
        self.putters: Final[deque[tuple[Event, asyncio.Future[None]]]] = deque()
        self.closed = False
        self.on_wait: Callable[[Event, Awaitable[None]], Awaitable[None]] | None = None

    def put(self, event: Event) -> Awaitable[None] | None:
        """Add an event. If an awaitable is returned, the run must await it before it continues, unless it is cancelled."""
        events = self._sink
        events.append(event)
        if self._getter is not None:
            self.wake()
        # The event is delivered in any case; only the run's next step waits, so a cancellation here loses nothing.
        if len(events) < self._room:
            return None
        putter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.putters.append((event, putter))
        return putter if self.on_wait is None else self.on_wait(event, putter)

    @property
    def holds(self) -> bool:
        """Whether it can hold events. With capacity 0 it cannot, since run and reader alternate."""
        return self._capacity > 0

    def hold(self) -> None:
        """Keep the following events from the reader until `show` is called. No effect after the end of the run."""
        if self._sink is self.events:
            self._sink = self._held
            self._room += sys.maxsize  # the reader does not see these events, so the run does not wait for it

    def show(self) -> None:
        """Pass the held events to the reader. No effect if none are held."""
        if self._sink is self._held:
            self._sink = self.events
            self._room -= sys.maxsize
            self.events.extend(self._held)
            self._held.clear()
            self.wake()

    @contextmanager
    def of_several_tasks(self) -> Generator[None]:
        """Raise the capacity to at least `BUFFER` while several tasks put events.

        So a reader that alternates with the run does not change the order in which tools that never wait finish.
        """
        self._rounds += 1
        # Counted by `_rounds`: rounds of sub-agents overlap, and the last one restores the capacity.
        self._change_limit(max(self._capacity, BUFFER))
        try:
            yield
        finally:
            self._rounds -= 1
            if not self._rounds:
                self._change_limit(self._capacity)

    def _change_limit(self, limit: int) -> None:
        self._room += limit - self._limit
        self._limit = limit

    def release(self) -> None:
        """Release the tasks that were too far ahead of the reader, after it took or requested an event."""
        putters, events = self.putters, self.events
        requested = self._room - self._limit  # 1 while the reader waits, otherwise 0
        while putters:
            event, putter = putters[0]
            # The deque has only a few events, so the search is cheaper than a counter in each event.
            ahead = events.index(event) + 1 if event in events else 0
            if ahead - requested >= self._limit:
                break
            putters.popleft()
            if not putter.done():
                putter.set_result(None)

    def request(self) -> None:
        """Request the next event when none is available. Wait for it with `changed`, and then call `withdraw`."""
        self._room += 1
        if self.putters:
            self.release()

    def withdraw(self) -> None:
        """End a request: its event was taken, or the read was cancelled or has ended."""
        self._room -= 1

    def changed(self) -> Awaitable[None]:
        """Return an awaitable that completes when an event may be available or the run is finished."""
        self._getter = getter = asyncio.get_running_loop().create_future()
        return getter

    def wake(self) -> None:
        """Wake the reader: there is an event, or the run is finished."""
        # Cleared first: a future is completed once, and several tasks may wake the reader.
        getter, self._getter = self._getter, None
        if getter is not None and not getter.done():
            getter.set_result(None)

    def close(self) -> None:
        """Discard all events, since the reader has closed the stream. Waiting tasks are cancelled together with the run."""
        self._drop_later()
        self._held.clear()
        self.events.clear()  # the reader does not receive the events that it has not read

    def end(self) -> None:
        """Discard later events because the run is finished, and release background tasks that wait."""
        self.show()
        self._drop_later()
        putters = tuple(self.putters)
        self.putters.clear()
        for _, putter in putters:
            if not putter.done() and not putter.get_loop().is_closed():
                putter.set_result(None)

    def _drop_later(self) -> None:
        self.closed = True
        self._sink = _NOWHERE
        self._room = self._limit + sys.maxsize  # the run never waits again


class StreamedRun(Protocol):
    """A run, as its stream uses it."""

    scope: RunScope

    def abandoned_by_reader(self) -> None:
        """Make the session's next call wait for this run's cleanup, since the stream was abandoned."""
        ...


class EventStream(StreamIterator[HookEvent], Generic[T_co]):
    """The events of one run, for its reader.

    Args:
        start: Starts a run that puts its events into the buffer; called when the first event is requested.
        capacity: The number of events that the run may be ahead of the reader.

    Example:
        >>> async with agent.stream("Hello") as events:
        ...     async for event in events:
        ...         print(event)
    """

    __slots__ = ("_buffer", "_closed", "_current", "_putters", "_read_done", "_ready", "_reply", "_run", "_start")

    def __init__(self, start: Callable[[EventBuffer], Awaitable[StreamedRun]], capacity: int = BUFFER) -> None:
        # Does not call `super().__init__`: this object is both a source and its iterator.
        self._start = start
        self._buffer = EventBuffer(capacity)
        self._putters = self._buffer.putters
        self._run: StreamedRun | None = None
        self._closed = False
        self._ready = _NOWHERE  # the buffer's events while the run has begun and no task waits for the next one
        self._current: asyncio.Task[Any] | bool = False
        self._read_done: asyncio.Future[None] | None = None
        self._reply: Reply[T_co] | None = None

    async def __anext__(self) -> HookEvent:
        """Return the next event.

        Raises:
            StopAsyncIteration: The run is finished, or the stream was closed.
            UsageError: Another task is waiting for the next event.
            Exception: The error of the run.
        """
        # The fast path, without a future: `_ready` is empty unless the run has begun and no other task is reading.
        events = self._ready
        if events:
            event = events.popleft()
            if self._putters:
                self._buffer.release()
            return event  # pyright: ignore[reportReturnType] - every Event is a HookEvent
        buffer = self._buffer
        events = buffer.events
        if self._ready is not events:
            await self._begin()  # the first read starts the run
        run = self._run
        assert run is not None
        # True if no task drives this coroutine: there is a reader, but it has no task.
        self._current = asyncio.current_task() or True
        # Until this read ends, a second reader takes the slow path, in which `_begin` refuses it.
        self._ready = _NOWHERE
        # With capacity 0 this lets the run continue to its next event.
        buffer.request()
        try:
            while not events:
                if self._closed:
                    raise StopAsyncIteration
                if run.scope.state == "done":
                    break
                await buffer.changed()
            else:
                return events.popleft()  # pyright: ignore[reportReturnType] - the same
        finally:
            buffer.withdraw()
            self._read_ended()
        self._closed = True
        self._ready = _NOWHERE
        self._run = None  # finished, so `aclose` and `__del__` have nothing to cancel
        try:
            self._reply = await run.scope.result()
        except StopAsyncIteration as error:  # the run has raised this error, which would look like a normal end
            raise RuntimeError("the call failed with StopAsyncIteration") from error
        raise StopAsyncIteration

    async def _begin(self) -> None:
        """Start the run at the first read. Refuse a read while another one waits, and a read after the end."""
        if self._current:
            raise self._second_reader()
        if self._closed:
            raise StopAsyncIteration
        task = asyncio.current_task()
        self._current = task or True
        requests = 0 if task is None else task.cancelling()  # it may have survived earlier cancellations
        try:
            run = await self._start(self._buffer)
        except BaseException as error:  # the run has not begun
            was_closed, self._closed = self._closed, True
            # `aclose` in another task cancelled this one to end its wait: undo that, and end the read normally.
            if was_closed and isinstance(error, asyncio.CancelledError) and task and task.uncancel() <= requests:
                raise StopAsyncIteration from None
            raise
        finally:
            self._read_ended()
        if self._closed:  # another task has closed the stream meanwhile
            run.scope.cancel("closed", "its stream was closed")
            await run.scope.result("closed", "its stream was closed")
            raise StopAsyncIteration
        self._run = run

    def _read_ended(self) -> None:
        self._current = False
        if self._run is not None and not self._closed:
            self._ready = self._buffer.events
        if self._read_done is not None and not self._read_done.done():
            self._read_done.set_result(None)

    def text(self) -> AsyncIterator[str]:
        """Return the text of the remaining events, for display to people; see `text_chunks`."""
        return text_chunks(self)

    async def reply(self) -> Reply[T_co]:
        """Read to the end and return the call's reply.

        Returns:
            The call's reply.

        Raises:
            UsageError: The stream was closed, or its call failed, before there was a reply.
            Exception: The error of the call.

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
        task = task_label(self._current) if isinstance(self._current, asyncio.Task) else "?"
        return UsageError(
            f"anext() on an agent's stream while task {task!r} already waits for its next event. A stream has one reader "
            "at a time: await that read first, or make a call for each reader."
        )

    async def aclose(self) -> None:
        """Cancel the run and wait for its cleanup. A read that is waiting in another task ends as at the end of the run."""
        # First, so that a reader that wakes up finds the stream closed.
        self._closed = True
        self._ready = _NOWHERE
        self._buffer.close()
        reader = self._current
        if isinstance(reader, asyncio.Task) and reader is not asyncio.current_task():
            if self._read_done is None or self._read_done.done():
                self._read_done = asyncio.get_running_loop().create_future()
                if self._run is None:
                    reader.cancel()  # it waits for its session, which only a cancellation ends
                else:
                    self._buffer.wake()
            await asyncio.shield(self._read_done)  # several tasks may close it, and one may be cancelled
        run = self._run
        if run is not None:
            run.scope.cancel("closed", "its stream was closed")
            await run.scope.result("closed", "its stream was closed")
            self._run = None

    def __del__(self) -> None:
        # The garbage collector may call this in any thread, after the loop has closed, or after `__init__` has failed.
        run = getattr(self, "_run", None)
        if run is not None and run.scope.state != "done":
            self._buffer.close()
            run.abandoned_by_reader()
            run.scope.cancel("closed", "its stream was abandoned")
            run.scope.drop_orphaned()


async def text_chunks(events: AsyncIterator[HookEvent]) -> AsyncGenerator[str]:
    """Yield the text of a call as the model streams it.

    Text that was not streamed is yielded as a whole: the answer of a verdict, the reason of `Deny` or `Stop`, a reply
    that hooks changed in `PostCall`. An empty line separates the replies of several rounds, and precedes a reply that restarts.
    Thinking, tools and sub-agents yield no text.

    Args:
        events: The events of the call.
    """
    streamed = False  # whether text of this reply was yielded
    earlier = False  # whether text of an earlier reply was yielded
    known = ""  # the text of the last reply
    async for event in events:
        if event.source:
            continue
        text = ""
        match event:
            case ReasoningChunk(incremental_chunk=chunk, restart=restart):
                streamed = streamed and not restart
                text = _text(chunk)
            case PostReasoning(reasoning_result=reply):
                text = "" if streamed else reply.text
                known, streamed = reply.text, False
            case PostCall(final_message=final):
                text = "" if final.text == known else final.text
            case _:
                pass
        if text:
            if earlier and not streamed:
                yield "\n\n"
            yield text
            earlier = True
            streamed = isinstance(event, ReasoningChunk)


def _text(chunk: ModelChunk) -> str:
    if not chunk.blocks:
        return chunk.text
    return chunk.text + "".join([block.text for block in chunk.blocks if isinstance(block, TextBlock)])
