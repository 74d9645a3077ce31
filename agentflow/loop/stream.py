"""How events get from the driver to a reader: one `await` that suspends up to the reader's `__anext__`.

The driver is a plain coroutine. To hand over an event it puts it on its port and awaits the port; that suspends every
coroutine frame up to `EventStream`, which returns the event to the reader and resumes the driver when the reader asks
for more. So the driver runs in the reader's task, a slow reader slows everything down to the model, and there is no
queue. (0.23 µs an event at any depth; nested async generators cost 0.5 and more, a queue between tasks 5.)

Rules:

1. One reader at a time; a second one gets a `UsageError`.
2. `aclose()` ends the run as a cancellation does, and returns when all cleanup is done.
3. A stream that is dropped without being closed is closed in a task of its loop; the session waits for that.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

from agentflow.errors import UsageError
from agentflow.events import Event, HookEvent
from agentflow.hooks.answers import cancellations
from agentflow.loop.words import words
from agentflow.messages import Reply, T_co
from agentflow.reactive import StreamIterator

__all__ = ["EventStream", "ForwardPort", "Port"]


class Stopper(Protocol):
    """What may end the run that a stream drives."""

    interrupting: str | None

    def noticed(self) -> asyncio.CancelledError | None:
        """What to raise in the run, if it was interrupted while its reader had an event."""
        ...

    def close_reader(self) -> None:
        """The reader has gone: drop events, and take the cancellation that follows as real."""
        ...


class Streamed(Protocol):
    """What a stream drives."""

    def abandon(self) -> None:
        """The stream was dropped; it is being closed in a task."""
        ...

    def cut(self) -> None:
        """Nothing can be awaited any more: leave the session legal, at once."""
        ...


class Reading(Enum):
    """Marks a stream whose reader is inside `__anext__` and has not had to wait yet."""

    READING = "reading"


READING = Reading.READING


class Port:
    """Where a driver leaves an event for its reader: set `event`, then await the port.

    It is also all that a run knows of its reader: were it the stream itself, a dropped stream would be kept alive by the
    run that it has to end.

    Attributes:
        event: The event on its way.
        closed: The reader has gone.
        reader: The task inside the stream's `__anext__`, if there is one.
        base: How often that task had been cancelled before, and has taken it in.
        closer: The task that drives the run to its end after the reader has gone, if one does.
        run: The run, once there is one.
        stopping: What may end it.
        handed: What the driver yields when it has an event for the reader.
    """

    __slots__ = ("_hand", "base", "closed", "closer", "event", "handed", "reader", "run", "stopping")

    def __init__(self) -> None:
        self.event: Event | None = None
        self.closed = False
        self.base = 0
        self.closer: asyncio.Task[Any] | None = None
        self.reader: asyncio.Task[Any] | Literal[Reading.READING] | None = None
        self.run: Streamed | None = None
        self.stopping: Stopper | None = None
        self.handed = handed = object()
        self._hand = (handed,).__iter__

    if TYPE_CHECKING:

        def __await__(self) -> Generator[Any, Any, None]:
            """Hand over the event, and wait until the reader asks for more."""
            ...


# Awaiting a port calls what its slot holds: a tuple's `__iter__`, which yields `handed`. So no frame of ours is entered, and
# none resumed, between the driver and its reader (0.1 µs an event).
type.__setattr__(Port, "__await__", Port._hand)  # pyright: ignore[reportPrivateUsage]


class ForwardPort(Port):
    """The port of a sub-agent whose events go to its caller's reader."""

    __slots__ = ("_target",)

    def __init__(self, target: Port) -> None:
        super().__init__()
        self._target = target

    def __await__(self) -> Generator[Any, Any, None]:
        self._target.event = self.event
        return self._target.__await__()


class _Rest:
    """The driver's way to its end after the reader has gone."""

    __slots__ = ("_driver", "_port")

    def __init__(self, driver: Coroutine[Any, Any, Any], port: Port) -> None:
        self._driver = driver
        self._port = port

    def __await__(self) -> Generator[Any, Any, None]:
        driver, port = self._driver, self._port
        before = cancellations()
        try:
            yielded = driver.throw(asyncio.CancelledError("the stream was closed"))
            while True:
                if yielded is port.handed:  # an event on its way out of somebody's cleanup: nobody reads it
                    yielded = driver.send(None)
                    continue
                try:
                    sent = yield yielded
                except BaseException as error:
                    yielded = driver.throw(error)
                else:
                    yielded = driver.send(sent)
        except StopIteration:
            return
        except asyncio.CancelledError:
            if cancellations() > before:  # the closer itself was cancelled
                raise


class EventStream(StreamIterator[HookEvent], Generic[T_co]):
    """The events of one run, as its reader holds them.

    Args:
        start: The run as a coroutine function of its port; called when the first event is asked for.

    Example:
        >>> async with agent.stream("Hello") as events:
        ...     async for event in events:
        ...         print(event)
    """

    __slots__ = ("_closed", "_loop", "_read_over", "_reply", "_start", "driver", "port")

    def __init__(self, start: Callable[[Port], Coroutine[Any, Any, Any]]) -> None:
        # Not the base's: this is a source and its iterator in one.
        self._start = start
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._read_over: asyncio.Future[None] | None = None
        self._reply: Reply[T_co] | None = None
        self.port = Port()
        self.driver: Coroutine[Any, Any, Any] | None = None

    def begin(self) -> Coroutine[Any, Any, Any]:
        """Begin the run.

        Raises:
            StopAsyncIteration: It is over.
        """
        if self._closed:
            raise StopAsyncIteration
        self._loop = asyncio.get_running_loop()
        self.driver = driver = self._start(self.port)
        return driver

    def finish(self) -> None:
        """The driver has ended."""
        self.driver = None
        self._closed = True

    def cut(self) -> None:
        """Nothing can be awaited any more."""
        if self.port.run is not None:
            self.port.run.cut()

    async def __anext__(self) -> HookEvent:
        """Let the driver run up to its next event."""
        port, driver = self.port, self.driver
        if port.reader is not None:
            raise self._second_reader()
        if driver is None:
            driver = self.begin()
        port.reader = READING
        try:
            stopping = port.stopping
            told = stopping is not None and stopping.interrupting is not None
            yielded = _resumed(driver, stopping) if told else driver.send(None)
            if yielded is not port.handed and await self._waited(driver, yielded):
                self.finish()
                raise StopAsyncIteration
        except StopIteration as end:
            self._reply = end.value
            self.finish()
            raise StopAsyncIteration from None
        except StopAsyncIteration as error:
            if self.driver is None:  # the good end
                raise
            self.finish()  # the run's own: it would read as a good end
            raise RuntimeError("the call failed with StopAsyncIteration") from error
        except BaseException:
            self.finish()
            raise
        finally:
            port.reader = None
            if self._read_over is not None and not self._read_over.done():
                self._read_over.set_result(None)
        return port.event  # pyright: ignore[reportReturnType] - the driver sets it before it awaits the port

    @types.coroutine
    def _waited(self, driver: Coroutine[Any, Any, Any], yielded: Any) -> Generator[Any, Any, bool]:
        """Wait with the driver for its next event; returns whether it has ended instead."""
        port = self.port
        try:
            while yielded is not port.handed:
                try:
                    if port.reader is READING:  # it really waits now: note who, for interrupts and for a second reader
                        port.reader = task = asyncio.current_task()
                        port.base = 0 if task is None else task.cancelling()
                        if task is not None and port.base:
                            yield from _sort_out(port, task)
                        task = None
                    sent = yield yielded
                except GeneratorExit:
                    self.driver = None
                    self.cut()
                    driver.close()
                    raise
                except BaseException as error:
                    # Its traceback holds this frame, and so the stream, for as long as the driver keeps the error.
                    yielded = driver.throw(error.with_traceback(None))
                else:
                    yielded = driver.send(sent)
        except StopIteration as end:
            self._reply = end.value
            return True
        return False

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
        reader = self.port.reader
        task = reader.get_name() if isinstance(reader, asyncio.Task) else "?"
        return UsageError(
            f"anext() on an agent's stream while task {task!r} already waits for its next event; a stream has one reader "
            "at a time. Await that read first, or make two calls for two runs."
        )

    async def aclose(self) -> None:
        """End the run and wait for its cleanup; a read still in flight in another task is cancelled first."""
        self._closed = True
        port = self.port
        reader = port.reader
        if isinstance(reader, asyncio.Task) and reader is not asyncio.current_task():
            if self._read_over is None or self._read_over.done():
                if port.stopping is not None:
                    port.stopping.close_reader()
                self._read_over = asyncio.get_running_loop().create_future()
                reader.cancel()
            await asyncio.shield(self._read_over)  # two may close at once, and one of them may be cancelled
        driver = self.driver
        if driver is None:
            return
        self.driver = None
        if port.stopping is not None:
            port.stopping.close_reader()
        port.closer = asyncio.current_task()
        try:
            await _Rest(driver, port)
        finally:
            port.closer = None

    def __del__(self) -> None:
        driver, loop = getattr(self, "driver", None), getattr(self, "_loop", None)
        if driver is None or loop is None:
            return
        if loop.is_running():
            if self.port.run is not None:
                self.port.run.abandon()
            # The task keeps the stream alive until its cleanup is done.
            loop.call_soon_threadsafe(_close_later, loop, self.aclose())
        else:
            self.cut()
            driver.close()


def _resumed(driver: Coroutine[Any, Any, Any], stopping: Stopper | None) -> Any:
    """Let a driver that was interrupted while its reader had an event go on: it is told, if it has not taken that in."""
    error = None if stopping is None else stopping.noticed()
    if error is None:
        return driver.send(None)
    try:
        return driver.throw(error)
    finally:
        del error  # its traceback holds this frame


def _sort_out(port: Port, task: asyncio.Task[Any]) -> Generator[Any, Any, None]:
    """A task that was cancelled before it reads on has taken that in, or is about to be told: then it concerns the run."""
    try:
        yield
    except asyncio.CancelledError as error:
        port.base = task.cancelling() - 1
        task.uncancel()
        task.cancel(*error.args)  # for what the run waits for


def _close_later(loop: asyncio.AbstractEventLoop, closing: Coroutine[Any, Any, None]) -> None:
    task = loop.create_task(closing, name="agentflow: closing a dropped stream")
    _closing_tasks.add(task)
    task.add_done_callback(_closing_tasks.discard)


_closing_tasks: set[asyncio.Task[None]] = set()
