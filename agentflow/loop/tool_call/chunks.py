"""The chunks of a tool: each value of an async generator, and each value that a tool emits.

Rules:

1. The tool waits until its chunk was handled: there is no queue.
2. While hooks and the reader handle a chunk, the tool's time limit is paused.
3. The generator is always closed before its caller continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextvars import Context
from typing import Any, Protocol, cast

from agentflow._support.time_limit import TimeLimit
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.wrapping import Transform
from agentflow.loop.run import RunBase
from agentflow.loop.stage import Stage
from agentflow.loop.tool_call.limit import drive
from agentflow.reactive.iterators import raise_in
from agentflow.vocabulary.events import ActingChunk, PreActing
from agentflow.vocabulary.messages import ToolUseBlock

__all__ = ["ToolChunks"]


class Source(Protocol):
    """The tool call that produces the chunks."""

    run: RunBase
    use: ToolUseBlock
    scope: FullHookSet | None
    delivered: bool
    broken: Exception | None
    tap: Callable[[object], Awaitable[None]] | None

    def count_wait(self, since: float) -> None:
        """Count the time since then as waiting."""
        ...


class ToolChunks:
    """The chunks of one attempt, which become `ActingChunk` events.

    Args:
        turn: The tool call.
        limit: The attempt's time limit.
        transform: The changes by wrapping hooks.
    """

    __slots__ = ("_limit", "_pump", "_queue", "_showing", "_signal", "_transform", "_turn")

    def __init__(self, turn: Source, limit: TimeLimit, transform: Transform | None) -> None:
        self._turn = turn
        self._limit = limit
        self._transform = transform
        self._queue: asyncio.Queue[tuple[object]] | None = None
        self._pump: asyncio.Task[BaseException | None] | None = None
        self._signal: BaseException | None = None
        self._showing = False

    async def fire(self, chunk: object, tap: Callable[[object], Awaitable[None]] | None = None) -> None:
        """Pass a chunk to hooks and the reader, then to `tap`."""
        turn = self._turn
        run, scope = turn.run, turn.scope
        turn.delivered = True
        events = run.events
        no_hook = (events.chains[ActingChunk] if scope is None else events.chain_in(scope, ActingChunk)) is None
        if no_hook and events.buffer is None:
            events.seq += 1
            if tap is None:
                run.scope.check()
                return
        counting = self._limit.pause()
        since, nested, self._showing = run.monotonic(), self._showing, True
        try:
            if not no_hook or events.buffer is not None:
                try:
                    await events.emit(ActingChunk, (turn.use, chunk), scope)
                except Exception as error:  # a hook's failure ends the call; the tool must not swallow it
                    turn.broken = error
                    raise
            if tap is not None:
                await tap(chunk)
            run.scope.check()
        finally:
            if not nested:  # count the time once if the tool emits from several tasks
                self._showing = False
                turn.count_wait(since)
            if counting:
                self._limit.resume()

    async def emit(self, chunk: object) -> None:
        """Implement `ToolEmitter.emit`."""
        if self._transform is None:
            await self.fire(chunk)
            return
        if self._signal is not None:
            raise self._signal
        if self._queue is None:
            self._queue = asyncio.Queue(1)
            self._pump = asyncio.get_running_loop().create_task(self._run_pump(self._queue, self._transform))
        await self._queue.put((chunk,))

    async def _run_pump(self, queue: asyncio.Queue[tuple[object]], transform: Transform) -> BaseException | None:
        """Pass on the transformed chunks. Return the exception if this fails.

        A signal that a task raises escapes through the event loop, so it is raised in the tool's own task instead.
        """
        ended = False

        async def emitted() -> AsyncIterator[object]:
            nonlocal ended
            while chunk := await queue.get():
                yield chunk[0]
            ended = True

        failure: BaseException | None = None
        stage = Stage(self._turn.run, PreActing)
        source = stage.chunks_of(emitted())
        try:
            try:
                async for chunk in source.over(transform(source)):
                    await self.fire(chunk)
            finally:
                await stage.close()
        except Exception as error:
            failure = error
        except (KeyboardInterrupt, SystemExit) as error:
            failure = self._signal = error
        while not ended and await queue.get():  # the transform ended early; do not block the tool
            pass
        return failure

    async def of(self, work: Any, place: Context, streaming: bool) -> object:
        """Run a tool that emits chunks, and return its result."""
        try:
            made = await self._stream(work, place) if streaming else await drive(work, place, None, self._limit)
            if self._pump is not None and self._queue is not None:
                await self._queue.put(())  # pyright: ignore[reportArgumentType] - the empty tuple ends the stream
                if (failure := await asyncio.shield(self._pump)) is not None:
                    raise failure
        except BaseException:
            if self._pump is not None:
                await _dropped(self._pump)
            raise
        return made

    async def _stream(self, values: AsyncIterator[object], place: Context) -> object:
        """Pass a streaming tool's values on; the result is their joined text, or a list.

        With a tap, which receives each value, the result is the last value.
        """
        driven = _driven(values, place, self._limit)
        stream: Any = driven
        stage: Stage | None = None
        if self._transform is not None:
            stage = Stage(self._turn.run, PreActing)
            source = stage.chunks_of(driven)
            stream = source.over(self._transform(source)).open()
        tap = self._turn.tap
        collected: list[object] = []
        try:
            async for value in stream:
                if tap is not None:
                    collected.clear()
                collected.append(value)
                try:
                    await self.fire(value, tap)
                except asyncio.CancelledError as error:
                    scope = self._turn.run.scope
                    if scope.is_cancelled() and not scope.stopped:
                        await (raise_in(stream, error) if stage is None else stage.throw(error))
                    raise
        finally:
            try:
                if stage is not None:
                    await stage.close()
            finally:
                await driven.aclose()
        if tap is not None:
            return collected[0] if collected else None
        if all(isinstance(value, str) for value in collected):
            return "".join(cast("list[str]", collected))
        return collected[0] if len(collected) == 1 else collected


async def _dropped(pump: asyncio.Task[BaseException | None]) -> None:
    """Cancel a pump and wait for its end, even if this task is cancelled again."""
    pump.cancel()
    while not pump.done():
        try:
            await asyncio.wait([pump])
        except asyncio.CancelledError:
            continue


async def _driven(values: Any, place: Context, limit: TimeLimit) -> AsyncGenerator[Any, None]:
    """Yield the values of an async generator, running each step in its context and under its limit."""
    try:
        while True:
            try:
                value = await drive(values.__anext__(), place, None, limit)
            except StopAsyncIteration:
                return
            try:
                yield value
            except asyncio.CancelledError as error:  # a time limit over the tool's `yield` has passed (PEP 789)
                throw = getattr(values, "athrow", None)
                if throw is not None:
                    await drive(throw(error), place, None, limit)
                raise
    finally:
        aclose = getattr(values, "aclose", None)
        if aclose is not None:
            await drive(aclose(), place, None)
