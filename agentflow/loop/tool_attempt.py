"""The attempts of a tool call: lock, retries, and chunks (values that an async generator yields or a tool emits).

Rules:

1. The lock is held for one attempt, from before its arguments are checked until after its cleanup; not while waiting
   for the next attempt, and not while hooks handle the result.
2. Exceptions and timeouts are retried as `RetryPolicy` defines. There is no retry after a cancellation, after invalid
   arguments, or after a stream has delivered a chunk.
3. A tool waits until its chunk has been handled: there is no queue.
4. A tool's time limit does not run while the tool waits for its lock, nor while hooks and the reader handle a chunk.
5. A generator is always closed before its caller continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, ClassVar, Protocol, cast

from agentflow._support.cancellation import cancel_requests, count_exactly
from agentflow._support.locks import FairLock
from agentflow._support.logs import ids_of, logger
from agentflow._support.time_limit import LimitPassed, TimeLimit, drive
from agentflow.errors import (
    SafeExecutionError,
    ToolArgumentError,
    ToolContractError,
    ToolNotFoundError,
    TurnTimeoutError,
)
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.wrapping import Transform, Work
from agentflow.loop.escalation import ToolSuspended
from agentflow.loop.journal import wait_if_needed
from agentflow.loop.run import TurnPlace, current_turn
from agentflow.loop.stage import Stage
from agentflow.reactive.iterators import raise_in
from agentflow.tools.results import failure_text
from agentflow.tools.tool import FullTool
from agentflow.tools.tool_context import ToolContext, ToolEmitter
from agentflow.vocabulary.events import ActingChunk, PreActing
from agentflow.vocabulary.facts import ToolStarted, new_fact
from agentflow.vocabulary.messages import ToolState, ToolUseBlock
from agentflow.vocabulary.ports.retry import RetryPolicy

__all__ = ["Hold", "HookWork", "failure_of", "fits", "held_locks", "make_attempt", "work_of"]

_FIRST_WAIT = 0.2  # seconds, before the second attempt; each further wait is longer
_MAX_WAIT = 5.0


class Hold:
    """A lock that is held for one attempt.

    Attributes:
        lock: The lock of the tool.
        released: Whether the lock was released; a background task of the tool may still refer to this object.
    """

    __slots__ = ("lock", "released")

    def __init__(self, lock: FairLock) -> None:
        self.lock = lock
        self.released = False


held_locks: ContextVar[tuple[Hold, ...]] = ContextVar("agentflow_held_locks", default=())
"""The locks that the running code holds, including those of its callers. Set in the context of a tool's work."""


class AttemptedCall(TurnPlace, Protocol):
    """The tool call that is attempted; see `ToolCall`."""

    hooks: FullHookSet | None
    attempt: int

    def key(self) -> str:
        """Return a key that is stable across retries and recoveries of this call."""
        ...


class HookWork:
    """Work that a hook runs instead of a tool, with the interface of a tool.

    Args:
        name: The tool's name.
        work: The function to run.
    """

    __slots__ = ("_work", "name")

    timeout: ClassVar[float | None] = None
    wants_context: ClassVar[bool] = True
    streaming: ClassVar[bool] = False

    def __init__(self, name: str, work: Work) -> None:
        self.name = name
        self._work = work

    async def start(self, _use: ToolUseBlock, context: ToolContext | None) -> object:
        """Run the work."""
        assert context is not None
        return await self._work(context)


async def make_attempt(
    call: AttemptedCall,
    tool: FullTool[..., Any] | HookWork,
    transform: Transform | None,
    holding: tuple[Hold, ...] = (),
) -> object:
    """Run one attempt of a tool, or of a hook's work instead, while it holds locks."""
    run, use = call.run, call.use
    call.attempt += 1
    limit = tool.timeout
    chunks: ToolChunks | None = None
    context: ToolContext | None = None
    if tool.wants_context:
        chunks = ToolChunks(call, TimeLimit(limit), transform)
        context = ToolContext(use, run.context, call.attempt, call.key(), ToolEmitter(chunks.emit))
    try:
        # Checks the arguments, and runs nothing yet: a call with invalid arguments never counts as started.
        work: Any = tool.start(use, context)
    except BaseException:  # held facts are written before hooks of `Error` run
        await wait_if_needed(run.journal.write_held())
        raise
    try:
        # Stored before the first step of the tool: after a crash, a call without this fact is certain to have had no effect.
        writing = run.journal.append(new_fact(ToolStarted, (run.run_id, use.id, call.attempt, run.call_id)))
        if writing is not None:
            await writing
    except BaseException:  # the tool's coroutine was never started
        if not tool.streaming:
            work.close()
        raise
    # The tool runs in this task, but in its own context: hooks and the next attempt do not see the variables that it sets.
    step_context = copy_context()
    step_context.run(current_turn.set, call)
    if holding:
        step_context.run(held_locks.set, holding)
    for variable, value in run.settings.inherits:
        step_context.run(variable.set, value)
    try:
        if chunks is None:
            try:
                yielded = step_context.run(work.send, None)
            except StopIteration as stop:  # most tools that wait for nothing end here
                return stop.value
            return await drive(work, step_context, TimeLimit(limit), yielded)
        return await chunks.of(work, step_context, tool.streaming)
    except LimitPassed as passed:
        raise TurnTimeoutError(tool.name, limit or 0.0, use.id, passed.late) from passed.__cause__


def work_of(call: AttemptedCall, tool: FullTool[..., Any] | None, transform: Transform | None) -> Awaitable[object]:
    """Return the work of a tool, with its lock and retries.

    Raises:
        ToolNotFoundError: There is no tool.
    """
    if tool is None:
        raise ToolNotFoundError(call.use.name, tuple(call.run.config.tools))
    if tool.lock is None and not tool.retries:
        return make_attempt(call, tool, transform)
    return run_with_retries(call, tool, transform)


def fits(tool: FullTool[..., Any], use: ToolUseBlock) -> bool:
    """Whether the arguments of a call are valid for its tool."""
    try:
        tool.validate(use)
    except ToolArgumentError:
        return False
    return True


def failure_of(error: Exception, use: ToolUseBlock) -> tuple[str, ToolState]:
    """Return the text and the state of a failed call's result."""
    if isinstance(error, ToolNotFoundError):
        return str(error), "not_found"
    if isinstance(error, TurnTimeoutError):  # the error belongs to this call, or to a turn that the tool ran
        return str(error), "timeout" if error.turn == use.id else "error"
    own_error = isinstance(error, ToolArgumentError | ToolContractError)
    return str(error) if own_error else failure_text(error), "error"


async def run_with_retries(call: AttemptedCall, tool: FullTool[..., Any], transform: Transform | None) -> object:
    """Run a tool under its lock, with the retries that its policy allows."""
    if not tool.retries:
        return await _locked(call, tool, transform)

    def should_retry(error: Exception) -> bool:
        return not (
            call.progress.delivered or isinstance(error, ToolArgumentError | SafeExecutionError | ToolSuspended)
        )

    def log_retry(_attempt: int, error: BaseException, _wait: float) -> None:
        logger.bind(**ids_of(call.run.events.frame)).trace(
            "tool {} failed in attempt {} and is retried: {!r}", tool.name, call.attempt, error
        )

    policy = RetryPolicy(
        who=f"Tool {tool.name!r}",
        attempts=tool.retries + 1,
        first_wait=_FIRST_WAIT,
        max_wait=_MAX_WAIT,
        jitter=0,
        should_retry=should_retry,
    )
    attempts = policy.start(call.run.config.clock.sleep, log_retry)
    while True:
        try:
            return await _locked(call, tool, transform)
        except Exception as error:  # the policy decides which are retried
            if not await attempts.another(error):
                raise


async def _locked(call: AttemptedCall, tool: FullTool[..., Any], transform: Transform | None) -> object:
    lock = tool.lock
    if lock is None:
        return await make_attempt(call, tool, transform)
    held = held_locks.get()
    if any(hold.lock is lock and not hold.released for hold in held):
        raise SafeExecutionError(
            f"Tool {tool.name!r} (lock=True) called itself while holding its own lock, which would deadlock. "
            "Call its function directly there, or remove lock=True."
        )
    if not lock.try_acquire():  # a free lock does not count as a wait
        with call.waits:
            await lock.acquire()
    hold = Hold(lock)
    try:
        # With the callers' locks, so that a nested call of one of these tools is refused instead of waiting for its caller.
        return await make_attempt(call, tool, transform, (*held, hold))
    finally:
        # Recorded in the object, since background tasks of the tool have a copy of the context variable.
        hold.released = True
        lock.release()


class ToolChunks:
    """The chunks of one attempt, which become `ActingChunk` events.

    Args:
        call: The tool call.
        limit: The attempt's time limit.
        transform: The changes by wrapping hooks.
    """

    __slots__ = ("_call", "_limit", "_progress", "_pump", "_queue", "_signal", "_transform")

    def __init__(self, call: AttemptedCall, limit: TimeLimit, transform: Transform | None) -> None:
        self._call = call
        self._progress = call.progress
        self._limit = limit
        self._transform = transform
        self._queue: asyncio.Queue[tuple[object]] | None = None
        self._pump: asyncio.Task[BaseException | None] | None = None
        self._signal: BaseException | None = None

    async def fire(self, chunk: object, consume: Callable[[object], Awaitable[None]] | None = None) -> None:
        """Pass a chunk to hooks and the reader, then to `consume`."""
        call = self._call
        run, hooks = call.run, call.hooks
        events = run.events
        events.check()  # a tool may be woken between the request and the delivery of its cancellation
        self._progress.delivered = True
        no_hook = (events.chains[ActingChunk] if hooks is None else events.chain_in(hooks, ActingChunk)) is None
        if no_hook and events.buffer is None:
            events.seq += 1
            # The fast path: nothing handles the chunk, so no event is built and the limit is not paused.
            if consume is None:
                run.scope.check()
                return
        counting = self._limit.pause()
        try:
            with call.waits:
                if not no_hook or events.buffer is not None:
                    try:
                        await events.emit(ActingChunk, (call.use, chunk), hooks)
                    except Exception as error:  # a hook's failure ends the call; the tool must not swallow it
                        self._progress.chunk_error = error
                        raise
                if consume is not None:
                    await consume(chunk)
                run.scope.check()
        finally:
            if counting:
                self._limit.resume()

    async def emit(self, chunk: object) -> None:
        """Implement `ToolEmitter.emit`."""
        if self._transform is None:
            await self.fire(chunk)
            return
        if self._signal is not None:
            raise self._signal
        # The tool pushes its chunks, and the transform pulls them: a task between the two is unavoidable. It is created
        # with the first chunk, and the queue of one chunk keeps the tool from running ahead.
        if self._queue is None:
            self._queue = asyncio.Queue(1)
            self._pump = asyncio.get_running_loop().create_task(self._run_pump(self._queue, self._transform))
            count_exactly(self._pump)
        await self._queue.put((chunk,))

    async def _run_pump(self, queue: asyncio.Queue[tuple[object]], transform: Transform) -> BaseException | None:
        """Pass on the transformed chunks. Return the exception if this fails.

        If this task raised a signal, it would escape through the event loop. The tool's own task raises it instead.
        """
        ended = False

        async def emitted() -> AsyncIterator[object]:
            nonlocal ended
            while chunk := await queue.get():
                yield chunk[0]
            ended = True

        failure: BaseException | None = None
        stage = Stage(self._call.run, PreActing)
        source = stage.chunks_of(emitted())
        try:
            try:
                async for chunk in source.with_chunks(transform(source)):
                    await self.fire(chunk)
            finally:
                await stage.close()
        except Exception as error:
            failure = error
        except (KeyboardInterrupt, SystemExit) as error:
            failure = self._signal = error
        while not ended and await queue.get():  # the transform ended early, and must not block the tool
            pass
        return failure

    async def of(self, work: Any, step_context: Context, streaming: bool) -> object:
        """Run a tool that emits chunks, and return its result."""
        try:
            result = (
                await self._stream(work, step_context) if streaming else await drive(work, step_context, self._limit)
            )
            if self._pump is not None and self._queue is not None:
                await self._queue.put(())  # pyright: ignore[reportArgumentType] - the empty tuple ends the stream
                # Shielded, so that only `_cancel_pump`, which also waits for it, cancels the pump.
                if (failure := await asyncio.shield(self._pump)) is not None:
                    raise failure
        except BaseException:  # no task outlives the attempt
            if self._pump is not None:
                await _cancel_pump(self._pump)
            raise
        return result

    async def _stream(self, values: AsyncIterator[object], step_context: Context) -> object:
        """Pass on the values of a streaming tool. Return their joined text or a list of them as the result.

        If `consume` receives each value, the last value is returned instead.
        """
        driven = _driven(values, step_context, self._limit)
        stream: Any = driven
        stage: Stage | None = None
        if self._transform is not None:
            stage = Stage(self._call.run, PreActing)
            source = stage.chunks_of(driven)
            stream = source.with_chunks(self._transform(source)).open()
        consume = self._progress.consume
        collected: list[object] = []
        requested = cancel_requests()
        try:
            async for value in stream:
                if consume is not None:
                    collected.clear()  # a turn's values go to its reader; only the last one is kept
                collected.append(value)
                try:
                    await self.fire(value, consume)
                except asyncio.CancelledError as error:
                    scope = self._call.run.scope
                    # A time limit inside the tool has cancelled the task while the chunk was handled. Raise it at the
                    # tool's `yield`, so that the limit can turn it into its own `TimeoutError`.
                    if scope.is_cancelled() and not scope.stopped:
                        await (raise_in(stream, error) if stage is None else stage.throw(error))
                    raise
        finally:
            try:
                if stage is not None:
                    await stage.close()
            finally:
                await driven.aclose()
        # Compared, since the count may include requests from before this stream.
        if cancel_requests() > requested:
            raise asyncio.CancelledError("a hook of a chunk swallowed the cancellation")
        if consume is not None:
            return collected[0] if collected else None
        if all(isinstance(value, str) for value in collected):
            return "".join(cast("list[str]", collected))
        return collected[0] if len(collected) == 1 else collected


async def _cancel_pump(pump: asyncio.Task[BaseException | None]) -> None:
    """Cancel a pump task and wait for its end, even if this task is cancelled again."""
    pump.cancel()
    while not pump.done():
        try:
            await asyncio.wait([pump])
        except asyncio.CancelledError:
            continue


async def _driven(values: Any, step_context: Context, limit: TimeLimit) -> AsyncGenerator[Any, None]:
    """Yield the values of an async generator. Run each step of it in `step_context` and under `limit`."""
    try:
        while True:
            try:
                value = await drive(values.__anext__(), step_context, limit)
            except StopAsyncIteration:
                return
            try:
                yield value
            except asyncio.CancelledError as error:  # a time limit over the tool's `yield` has passed (PEP 789)
                throw = getattr(values, "athrow", None)
                if throw is not None:
                    await drive(throw(error), step_context, limit)
                raise
    finally:
        aclose = getattr(values, "aclose", None)
        if aclose is not None:
            # The tool's limit may have passed already; the run's limit for cleanup applies.
            await drive(aclose(), step_context, TimeLimit(None))
