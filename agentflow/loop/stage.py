"""A stage: the work that follows one Pre event, the hooks that wrap it, and the streams that were opened in it.

Rules:

1. A source belongs to its stage. It may be run by the stage's task, or by a task of a library operator (`merge`, `amb`,
   `zip`, …) that the stage's task reads. A run in any other task, on another event loop or after the stage is refused,
   and the error says how to fix the hook.
2. When a stage ends, it closes the streams that were opened in it, outermost first. No stream runs after its stage.
3. If work cannot run twice, or not twice at the same time, the second subscription is refused.
4. If a stream (of the model, a tool's chunks or a hook) ends because of a cancellation, `CancelledError` is raised, so a
   partial reply is never mistaken for a complete one.
5. A `CancelledError` without a cancellation of the run counts as a failure of the hook. A cancellation that a hook
   swallows is raised again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import AsyncGeneratorType
from typing import Any, Final, TypeAlias, TypeVar, cast

from agentflow._support.cancellation import task_label
from agentflow._support.logs import log_failure
from agentflow.errors import HookError, UsageError
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.recording import ModelWork, ToolWork
from agentflow.hooks.wrapping import CHECK_THEIR_END, ModelSource, ToolSource, Transform, Work, checks_its_end, layered
from agentflow.loop.run import RunBase
from agentflow.loop.run_context import changed_request
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close, closing, raise_in
from agentflow.reactive.operators.items import Step
from agentflow.reactive.tasks import works_for
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import Event, PreActing, PreCall, PreToolRound
from agentflow.vocabulary.messages import Msg, ToolResultBlock
from agentflow.vocabulary.ports.model import Model, ModelRequest, resolve_model
from agentflow.vocabulary.specs import ModelOptions

__all__ = ["Attempts", "Stage", "apply_steps", "close_quietly", "model_source", "tool_source", "wrap"]

T = TypeVar("T")

# With more streams than this, the finished ones are removed: each retry adds streams. The number itself is not critical.
_MANY: Final = 32

_READ_ONCE: Final[dict[type[Event], str]] = {
    PreCall: "To retry a model call, wrap PreReasoning; to continue the call with feedback, return Again from PostReasoning.",
    PreToolRound: "To run a tool twice at the same time, wrap PreActing.",
}
"""The events whose work does not run twice at the same time, with the alternative."""

ToolAttempt: TypeAlias = Callable[["Transform | None", "Work | None"], Awaitable[ToolResultBlock]]
DoesWork: TypeAlias = Callable[[ToolWork], Awaitable[ToolResultBlock]]
ObservesModel: TypeAlias = Callable[[ModelRequest, ModelWork], ModelWork]


class Stage:
    """The work that follows one Pre event.

    Args:
        run: The call.
        kind: The event's class.

    Attributes:
        closed: Whether the stage has ended, so that its work must not run again.
        begun: The number of times that the work was started.
        opened: The open streams, in the order in which they were opened.
        failure: The `CancelledError` that the model or the tool raised itself; no hook is to blame for it.
    """

    # A stage wrapped by plain functions never sets these, so they become instance attributes only when they are set.
    _running = 0
    begun = 0
    closed = False
    failure: asyncio.CancelledError | None = None

    def __init__(self, run: RunBase, kind: type[Event]) -> None:
        self._scope = run.scope
        self._kind = kind
        self._task = asyncio.current_task()
        self.opened: list[AsyncGeneratorType[Any, None]] = []

    def check(self) -> None:
        """Refuse a use of the source that the stage does not allow.

        Raises:
            UsageError: The stage has ended, the work is already running or done, or this is a task of the user.
            CancelledError: The run was cancelled, and a hook swallowed the cancellation.
        """
        name = self._kind.__name__
        if self.closed:
            raise UsageError(
                f"The source of {name} was used after its stage had ended. Consume it inside the observable that `around` "
                "returns, before that completes. Do not store it or hand it to a background task."
            )
        task = asyncio.current_task()
        if task is not self._task and not works_for(task, self._task):
            raise UsageError(
                f"The source of {name} was read in task {'?' if task is None else task_label(task)!r}, which a hook created. "
                "A source must be read in the task that runs the hook. For a time limit use source.timeout(seconds) or "
                "asyncio.timeout(), for several sources at once Flux.merge, Mono.zip or source.amb(other). A background "
                "task must not read the source."
            )
        if self._running and self._kind in _READ_ONCE:
            self._scope.notify("twice")
            raise UsageError(f"The source of {name} was subscribed while it is running. {_READ_ONCE[self._kind]}")
        if self._kind is PreCall and self.begun:
            raise UsageError(
                f"The source of PreCall is the rest of the call, so it can be subscribed only once. {_READ_ONCE[PreCall]}"
            )
        self._scope.check()

    def check_reader(self, task: asyncio.Task[Any] | None) -> asyncio.Task[Any] | None:
        """Return the task that continues a stream; `task` is the one that read it before. Refuse a use as `check` does."""
        if self.closed or asyncio.current_task() is not task:
            self.check()
            return asyncio.current_task()
        return task

    def check_end(self, task: asyncio.Task[Any] | None) -> None:
        """Raise if a stream ended because its reader was cancelled: the reply is incomplete."""
        self._scope.check()
        if task is not None and task.cancelling():  # by a time limit in a hook, not by a cancellation of the run
            raise asyncio.CancelledError("a model swallowed the cancellation")

    async def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the stage's work for a subscriber."""
        self.check()
        self.begun += 1
        self._running += 1
        try:
            return await work()
        except asyncio.CancelledError as error:
            # For a model, `_attempt` notes the failure. The work of other stages consists of further stages, which do.
            if self._kind is PreActing:
                self.note_failure(error)
            raise
        finally:
            self._running -= 1

    def observe(self, observed: Callable[[ToolWork], ToolWork], work: ToolWork) -> Awaitable[ToolResultBlock]:
        """Run a tool's work for a subscriber, observed by `WorkListener`s."""
        return observed(partial(self.do, work))()

    def note_failure(self, error: asyncio.CancelledError) -> None:
        """Note a `CancelledError` that the work itself raised, that is, without a cancellation of the run."""
        if not self._scope.is_cancelled():
            self.failure = error

    def open_for_hook(self, make: Callable[[], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Open a stream that a hook reads. The stage closes it if the hook does not."""
        stream = self._opened(make)
        # These streams check their end themselves; a wrapper would cost time for each chunk.
        if stream.ag_code in CHECK_THEIR_END:
            return stream
        checked: Any = self._with_checked_end(stream)
        self.opened[self.opened.index(stream)] = checked  # closing the wrapper closes the stream
        return checked

    def open(self, flux: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
        """Open the outermost stream for the loop. The loop itself checks why the stream ended."""
        # `ModelSource.open` would register the stream a second time.
        return self._opened(flux.inner.open if type(flux) is ModelSource and flux.inner is not None else flux.open)

    def _opened(self, make: Callable[[], AsyncIterator[T]]) -> AsyncGeneratorType[T, None]:
        if len(self.opened) > _MANY:  # after many attempts, remove the finished streams from the list
            self.opened = [opened for opened in self.opened if opened.ag_frame is not None]
        index = len(self.opened)  # the streams that `make` opens come after this stream
        stream: Any = make()
        if stream.__class__ is not AsyncGeneratorType:
            stream = closing(stream)
        self.opened.insert(index, stream)
        return stream

    async def throw(self, error: asyncio.CancelledError) -> None:
        """Raise a cancellation in the open streams, innermost first, until one converts it to another error.

        If a model or a hook keeps a time limit open over a `yield` (PEP 789), this limit may have cancelled the task
        while an item was being handed over. The limit must then convert the cancellation to its own error.
        """
        for stream in reversed(self.opened):
            if stream.ag_frame is not None and not stream.ag_running:  # a running stream is calling this
                await raise_in(stream, error)

    def chunks_of(self, stream: AsyncIterator[T]) -> ChunkSource[T]:
        """Return the chunks of a streaming tool as a source of this stage."""
        return ChunkSource(Flux(partial(self._bound, stream)), self.open_for_hook)

    @checks_its_end
    async def _bound(self, stream: AsyncIterator[T]) -> AsyncIterator[T]:
        """Read a stream with the checks of the stage."""
        self.check()
        task = asyncio.current_task()
        async for item in stream:
            try:
                yield item
            except asyncio.CancelledError as error:  # from `throw`
                await raise_in(stream, error)
                raise
            # Checked after each item, since a hook can hand the iterator to another task between two items.
            task = self.check_reader(task)
        self.check_end(task)

    async def _with_checked_end(self, stream: AsyncGeneratorType[T, None]) -> AsyncIterator[T]:
        """Read a hook's stream. If the stream swallowed a cancellation and ended, raise the cancellation again."""
        try:
            async for item in stream:
                try:
                    yield item
                except asyncio.CancelledError as error:  # from `throw`
                    await raise_in(stream, error)
                    raise
        except BaseException:  # any failure, or the reader closed this
            await stream.aclose()
            raise
        self.check_end(asyncio.current_task())

    async def outcome(self, wrapped: Any) -> Any:
        """Run the wrapped work to its value (or `EMPTY`), and end the stage."""
        mono = cast("Mono[Any]", wrapped if isinstance(wrapped, Mono) else Mono.from_observable(wrapped))
        return await self.run_to_end(mono.resolve())

    async def run_to_end(self, wrapped: Awaitable[T], keep: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Run the wrapped work to its end, and end the stage.

        Args:
            wrapped: The wrapped work.
            keep: Called with the value if the run is cancelled while the stage ends.

        Raises:
            HookError: A hook raised `CancelledError`, but the run was not cancelled.
            asyncio.CancelledError: The run was cancelled, even if a hook swallowed the cancellation.
        """
        try:
            value = await wrapped
        except GeneratorExit:  # the event loop is closed
            self.closed = True
            raise
        except BaseException as error:  # the stage closes its streams on every path
            await self.close()
            if not isinstance(error, asyncio.CancelledError) or error is self.failure or self._scope.is_cancelled():
                raise
            raise _cancelled_hook(self._kind) from error
        try:
            await self.close()
            # A finished tool has a result, even if the run was stopped meanwhile.
            if self._kind is not PreActing:
                self._scope.check()
        except asyncio.CancelledError:
            if keep is not None:
                await keep(value)
            raise
        return value

    async def close(self) -> None:
        """End the stage: close the streams that hooks have left open, outermost first.

        Meanwhile no stream of the stage can be read, because a closed stream would look like a complete reply.
        """
        self.closed = True
        cancellation: asyncio.CancelledError | None = None
        # Moved to a local name first, since a cleanup that opens a stream changes the list.
        opened, self.opened = self.opened, []
        for stream in opened:
            if stream.ag_frame is None:  # the stream has finished
                continue
            try:
                await close(stream)
            except asyncio.CancelledError as error:
                if self._scope.is_cancelled():
                    cancellation = error  # raised at the end, when every stream is closed
                else:
                    self._cleanup_failed(error)
            except BaseExceptionGroup as group:  # raised by a generator that is closed inside a task group
                if group.subgroup((KeyboardInterrupt, SystemExit)) is not None:
                    raise
                self._cleanup_failed(group)
            except Exception as error:  # a failure of the hook's cleanup does not change the stage's outcome
                self._cleanup_failed(error)
        if cancellation is not None:
            raise cancellation

    def _cleanup_failed(self, error: BaseException) -> None:
        """Log that closing a stream failed, which does not change the stage's outcome."""
        log_failure("DEBUG", error, f"closing a stream of {self._kind.__name__} that a hook left open failed")


class ChunkSource(Flux[T]):
    """The chunks of a tool for a hook. `opens` opens each stream for its stage, which closes any that the hook leaves open."""

    def __init__(self, inner: Flux[T], opens: Callable[[Callable[[], AsyncIterator[Any]]], AsyncIterator[Any]]) -> None:
        self.inner = inner
        self.opens = opens

    def open(self) -> AsyncIterator[T]:
        """Start a run; see `Flux.open`."""
        return self.opens(self.inner.open)  # pyright: ignore[reportOptionalMemberAccess, reportOptionalCall] - set by __init__

    def with_chunks(self, inner: Any) -> ChunkSource[Any]:
        """Return the same source with other chunks."""
        return ChunkSource(Flux[Any].wrap(inner), self.opens)  # pyright: ignore[reportArgumentType] - set by __init__


def wrap(run: RunBase, kind: type[Any], event: Any, source: Any, scope: FullHookSet | None = None) -> Any:
    """Apply the hooks' `around` to a stage's work, the lowest priority outermost. At least one hook wraps it.

    Args:
        run: The call.
        kind: The event's class.
        event: The sealed event.
        source: The work.
        scope: The hooks, if they differ from the run's.
    """
    arounds = (run.events.hooks if scope is None else scope).arounds(kind)
    return layered(arounds, event, source, outermost=arounds[0])


def apply_steps(run: RunBase, kind: type[Event], steps: Sequence[Step], value: Any, dropped: object) -> Any:
    """Apply the plain functions of wrapping hooks to a value, until one returns `dropped`.

    Raises:
        HookError: A function raised `CancelledError`, but the run was not cancelled.
        RuntimeError: A function raised `StopIteration` or `StopAsyncIteration`, which would look like the end of a stream.
    """
    try:
        for step in steps:
            value = step(value)
            if value is dropped:
                break
    except asyncio.CancelledError as error:
        if run.scope.is_cancelled():
            raise
        raise _cancelled_hook(kind) from error
    except (StopIteration, StopAsyncIteration) as error:
        raise RuntimeError(f"a hook that wraps {kind.__name__} raised {type(error).__name__}") from error
    return value


def _cancelled_hook(kind: type[Event]) -> HookError:
    return HookError(f"A hook that wraps {kind.__name__} raised CancelledError, but the run was not cancelled.")


class Attempts:
    """Counts the runs of one reply's source.

    Args:
        stage: The stage.
        observed: Returns the work of a request, observed by `WorkListener`s; None: there are none.

    Attributes:
        count: The number of runs started.
        delivered: Whether any run has yielded a chunk.
        model: The name of the model of the last run, or of the last chunk; empty before the first run.
    """

    count = 0
    delivered = False
    model = ""

    def __init__(self, stage: Stage, observed: ObservesModel | None) -> None:
        self.stage = stage
        self.observed = observed

    def begin(self, model: str) -> bool:
        """Start a run with a model. Return whether earlier chunks should be discarded."""
        self.count += 1
        self.model = model
        return self.delivered


def model_source(attempts: Attempts, model: str | Model, request: ModelRequest) -> ModelSource:
    """Return the source for `PreReasoning` that the innermost hook receives.

    Args:
        attempts: Counts the runs of the source.
        model: The model to call.
        request: The request to the model.
    """
    work = partial(_attempt, attempts, model, request)
    return ModelSource(
        Flux(work if attempts.observed is None else attempts.observed(request, work)),
        request,
        partial(_using, attempts, model, request),
        opens=attempts.stage.open_for_hook,
    )


def _using(
    attempts: Attempts,
    current: str | Model,
    request: ModelRequest,
    /,
    *,
    model: str | Model | None,
    input_messages: Sequence[Msg] | None,
    options: ModelOptions | None,
) -> ModelSource:
    """Return the same work with another request; see `ModelSource.using`."""
    changed = changed_request(request, model, input_messages, options)
    return model_source(attempts, current if model is None else model, changed)


@checks_its_end
async def _attempt(attempts: Attempts, model: str | Model, request: ModelRequest) -> AsyncIterator[ModelChunk]:
    """Yield the chunks of one attempt at the model's reply."""
    name, stage = request.model, attempts.stage
    stage.check()
    stage.begun += 1
    task = asyncio.current_task()
    restart = attempts.begin(name)
    stream = resolve_model(model).stream(request)
    try:
        async for chunk in stream:
            if restart:
                restart = False
                # The reader already has chunks of an earlier attempt, and must discard them.
                chunk = replace(chunk, restart=True)
            attempts.delivered = True
            attempts.model = name  # of concurrent attempts, the one that delivered the last chunk counts
            try:
                yield chunk
            except asyncio.CancelledError as error:  # from `Stage.throw`
                await raise_in(stream, error)
                raise
            task = stage.check_reader(task)
        stage.check_end(task)
    except BaseException as error:  # any failure, or the reader closed this
        if isinstance(error, asyncio.CancelledError):
            stage.note_failure(error)
        # Now, not when the generator is garbage-collected: the connection belongs to this stage.
        await close_quietly(stream)
        raise
    if getattr(stream, "ag_frame", stream) is not None:  # an iterator of another type may hold a connection
        await close_quietly(stream)


def tool_source(
    do: DoesWork, work: ToolAttempt, emits: bool, transform: Transform | None = None, instead: Work | None = None
) -> ToolSource:
    """Return the source for `PreActing` that the innermost hook receives.

    Args:
        do: Runs work in its stage.
        work: Runs one attempt, given a transform of the chunks and other work to run instead.
        emits: Whether the work may emit chunks.
        transform: Changes the chunks.
        instead: Runs instead of the tool.
    """
    return ToolSource(
        Mono(partial(do, partial(work, transform, instead))),
        partial(_changed, do, work, emits, transform, instead),
        partial(_replaced, do, work, transform),
        None,
        emits,
    )


def _replaced(
    do: DoesWork, work: ToolAttempt, transform: Transform | None, instead: Work, transformed: bool
) -> ToolSource:
    """Return a source with other work."""
    return tool_source(do, work, True, None if transformed else transform, instead)


def _changed(
    do: DoesWork,
    work: ToolAttempt,
    emits: bool,
    transform: Transform | None,
    instead: Work | None,
    further: Transform,
) -> ToolSource:
    """Return a tool's source with a further change of its chunks."""

    def both(chunks: Flux[Any]) -> Any:
        assert transform is not None
        changed = transform(chunks)
        return further(chunks.with_chunks(changed) if isinstance(chunks, ChunkSource) else changed)

    return tool_source(do, work, emits, further if transform is None else both, instead)


async def close_quietly(stream: AsyncIterator[Any]) -> None:
    """Close a stream after a failed read. A failure to close is logged, since the error of the read is raised."""
    try:
        await close(stream)
    except Exception as error:
        log_failure("DEBUG", error, "closing a model's stream failed")
