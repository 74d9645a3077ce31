"""What a tool hands out while it works: each value of an async generator, each piece that a tool emits.

Rules:

1. Whoever makes a piece waits until it was taken: nothing is queued.
2. While a piece is with its hooks and its reader, the tool's time limit stands still.
3. However the work ends, the generator is closed before its caller goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextvars import Context
from typing import Any, Protocol, cast

from agentflow.events import ActingChunk, PreActing
from agentflow.ground.time_limit import TimeLimit
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.wrapping import Transform
from agentflow.loop.run import RunBase
from agentflow.loop.stage import Stage
from agentflow.loop.tool_call.limit import drive
from agentflow.messages import ToolUseBlock
from agentflow.reactive.iterators import raise_in

__all__ = ["Pieces"]


class Source(Protocol):
    """The turn whose pieces these are."""

    run: RunBase
    use: ToolUseBlock
    scope: FullHookSet | None
    delivered: bool
    broken: Exception | None
    tap: Callable[[object], Awaitable[None]] | None

    def count_wait(self, since: float) -> None:
        """Count the time since then as waiting."""
        ...


class Pieces:
    """The pieces of one attempt, on their way to `ActingChunk`.

    Args:
        turn: Whose they are.
        limit: The attempt's time limit.
        transform: What wrapping hooks make of them.
    """

    __slots__ = ("_limit", "_pump", "_queue", "_showing", "_transform", "_turn")

    def __init__(self, turn: Source, limit: TimeLimit, transform: Transform | None) -> None:
        self._turn = turn
        self._limit = limit
        self._transform = transform
        self._queue: asyncio.Queue[tuple[object]] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._showing = False

    async def fire(self, piece: object, tap: Callable[[object], Awaitable[None]] | None = None) -> None:
        """Show a piece to hooks and reader; `tap` gets it then."""
        turn = self._turn
        run, scope = turn.run, turn.scope
        turn.delivered = True
        events = run.events
        unheard = (events.chains[ActingChunk] if scope is None else events.chain_in(scope, ActingChunk)) is None
        if unheard and events.buffer is None:
            events.seq += 1
            if tap is None:
                run.scope.check()
                return
        counting = self._limit.pause()
        since, nested, self._showing = run.monotonic(), self._showing, True
        try:
            if not unheard or events.buffer is not None:
                try:
                    await events.emit(ActingChunk, (turn.use, piece), scope)
                except Exception as error:  # of a hook whose policy is that the call ends; the tool may not catch that
                    turn.broken = error
                    raise
            if tap is not None:
                await tap(piece)
            run.scope.check()
        finally:
            if not nested:  # where a tool emits from several tasks at once, the time counts once
                self._showing = False
                turn.count_wait(since)
            if counting:
                self._limit.resume()

    async def emit(self, piece: object) -> None:
        """What `ToolEmitter.emit` does."""
        if self._transform is None:
            await self.fire(piece)
            return
        if self._queue is None:
            self._queue = asyncio.Queue(1)
            self._pump = asyncio.get_running_loop().create_task(self._run_pump(self._queue, self._transform))
        await self._queue.put((piece,))

    async def _run_pump(self, queue: asyncio.Queue[tuple[object]], transform: Transform) -> None:
        ended = False

        async def emitted() -> AsyncIterator[object]:
            nonlocal ended
            while piece := await queue.get():
                yield piece[0]
            ended = True

        failure: Exception | None = None
        stage = Stage(self._turn.run, PreActing)
        source = stage.chunks_of(emitted())
        try:
            async for piece in source.over(transform(source)):
                await self.fire(piece)
        except Exception as error:
            failure = error
        finally:
            await stage.close()
        while not ended and await queue.get():  # the transform ended early: the tool must not wait for it
            pass
        if failure is not None:
            raise failure

    async def of(self, work: Any, place: Context, streaming: bool) -> object:
        """Run a tool that hands out pieces, and return what it makes."""
        try:
            made = await self._stream(work, place) if streaming else await drive(work, place, None, self._limit)
            if self._pump is not None and self._queue is not None:
                await self._queue.put(())  # pyright: ignore[reportArgumentType] - the empty tuple ends the stream
                await asyncio.shield(self._pump)
        except BaseException:
            if self._pump is not None:
                await _dropped(self._pump)
            raise
        return made

    async def _stream(self, values: AsyncIterator[object], place: Context) -> object:
        """Pass a streaming tool's values on; the result is their text joined, or their list.

        With a tap, whoever reads it has each value already: the result is the last one.
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


async def _dropped(pump: asyncio.Task[None]) -> None:
    """Cancel a pump and wait for its end, also where whoever waits is cancelled once more."""
    pump.cancel()
    while not pump.done():
        try:
            await asyncio.wait([pump])
        except asyncio.CancelledError:
            continue


async def _driven(values: Any, place: Context, limit: TimeLimit) -> AsyncGenerator[Any, None]:
    """The values of an async generator, each step in its context and under its limit."""
    try:
        while True:
            try:
                value = await drive(values.__anext__(), place, None, limit)
            except StopAsyncIteration:
                return
            try:
                yield value
            except asyncio.CancelledError as error:  # a time limit over the tool's own `yield` has passed (PEP 789)
                throw = getattr(values, "athrow", None)
                if throw is not None:
                    await drive(throw(error), place, None, limit)
                raise
    finally:
        aclose = getattr(values, "aclose", None)
        if aclose is not None:
            await drive(aclose(), place, None)
