"""A stage: the work behind one Pre event, the wrappers that hooks put around it, and what was opened in it.

Rules:

1. A source belongs to its stage. The stage's own task runs it, or a task of one of our operators (`merge`, `amb`, `zip`, …)
   that the stage's task reads. In any other task, on another event loop or after the stage it is refused, with the cure.
2. What was opened in a stage is closed when the stage ends, by the stage, the outermost first. Nothing of it runs after it.
3. Where work cannot be done twice, or not twice at the same time, the second subscription is refused.
4. The end of a stream (the model's, a tool's chunks, or what a hook has made of them) is the end of a reply only if nothing
   has cancelled it: else `CancelledError` is raised there, so half a reply never passes for a whole one.
5. A `CancelledError` that nobody asked for is a failing hook; a cancellation that a hook swallows is raised again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from types import AsyncGeneratorType
from typing import Any, Final, TypeAlias, TypeVar, cast

from agentflow.chunks import ModelChunk
from agentflow.errors import HookError, UsageError
from agentflow.events import Event, PreActing, PreCall, PreToolRound
from agentflow.ground.logs import log_failure
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.options import concerns_tool
from agentflow.hooks.wrapping import ModelSource, ToolSource, Transform, Work, layered
from agentflow.loop.run import RunBase
from agentflow.messages import Msg, ToolResultBlock
from agentflow.ports.model import Model, ModelRequest, resolve_model
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close, closing, raise_in
from agentflow.reactive.tasks import works_for
from agentflow.specs import ModelOptions
from agentflow.transcript import legalise

__all__ = ["Attempts", "Stage", "close_quietly", "model_source", "tool_source", "wrap"]

T = TypeVar("T")

_MANY: Final = 32

ToolWork: TypeAlias = Callable[["Transform | None", "Work | None"], Awaitable[ToolResultBlock]]


class Stage:
    """The work behind one Pre event.

    Args:
        run: The call.
        kind: The event's class.

    Attributes:
        over: Whether nothing of it may be run any more.
        begun: How often it was run.
        opened: The streams that were opened of it and are not finished, in that order.
    """

    __slots__ = ("_kind", "_running", "_scope", "_task", "begun", "opened", "over")

    def __init__(self, run: RunBase, kind: type[Event]) -> None:
        self._scope = run.scope
        self._kind = kind
        self._task = asyncio.current_task()
        self._running = 0
        self.begun = 0
        self.over = False
        self.opened: list[AsyncIterator[Any]] = []

    def check(self) -> None:
        """Refuse a use of the source that the stage does not allow.

        Raises:
            UsageError: It comes late, once too often, or in a task of somebody's own.
            CancelledError: The run was cancelled, and a hook has swallowed that.
        """
        name = self._kind.__name__
        if self.over:
            raise UsageError(
                f"The source of {name} was used after its stage had ended. Consume it inside what `around` returns, before "
                "that completes; do not store it, and do not leave it to a background task."
            )
        task = asyncio.current_task()
        if task is not self._task and not works_for(task, self._task):
            raise UsageError(
                f"The source of {name} was read in task {'?' if task is None else task.get_name()!r}, which a hook created. "
                "A source is read in the task that runs the hook. For a time limit use source.timeout(seconds) or "
                "asyncio.timeout(), for several sources at once Flux.merge, Mono.zip or source.amb(other); for work in the "
                "background start a task that does not read the source."
            )
        if self._kind is PreCall and self.begun:
            raise UsageError(
                "The source of PreCall is the rest of the call; it can be subscribed once. To try a model again, "
                "wrap PreReasoning; to send the agent back to work, return Again from PostReasoning."
            )
        if self._kind is PreToolRound and self._running:
            raise UsageError(
                "The source of PreToolRound was subscribed while it runs; a round runs once at a time. To run one tool "
                "twice at once, wrap PreActing."
            )
        self._scope.check()

    def check_reader(self, task: asyncio.Task[Any] | None) -> asyncio.Task[Any] | None:
        """Refuse to continue a stream of the source after the stage, or in another task than it was opened in."""
        if self.over or asyncio.current_task() is not task:
            self.check()
            return asyncio.current_task()
        return task

    def check_end(self, task: asyncio.Task[Any] | None) -> None:
        """Raise if a stream has ended only because its reader was cancelled: that is no whole reply."""
        self._scope.check()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError("a model has swallowed it")

    async def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the stage's work for whoever has subscribed to it."""
        self.check()
        self.begun += 1
        self._running += 1
        try:
            return await work()
        finally:
            self._running -= 1

    def opens(self, make: Callable[[], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Open a stream that a hook reads; the stage closes it if the hook does not."""
        stream = self._opened(make)
        if stream.ag_code in _CHECK_THEIR_END:
            return stream
        self.opened[self.opened.index(stream)] = whole = self._whole(stream)
        return whole

    def open(self, flux: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
        """Open the outermost stream for the loop, which checks its end itself."""
        return self._opened(flux.inner.open if type(flux) is ModelSource and flux.inner is not None else flux.open)

    def _opened(self, make: Callable[[], AsyncIterator[T]]) -> AsyncGeneratorType[T, None]:
        if len(self.opened) > _MANY:  # many attempts: those that are finished need no closing
            self.opened = [one for one in self.opened if getattr(one, "ag_frame", one) is not None]
        place = len(self.opened)  # what it opens itself, at once, comes after it
        stream = generator(make())
        self.opened.insert(place, stream)
        return stream

    async def throw(self, error: asyncio.CancelledError) -> None:
        """Raise a cancellation in the open streams, the innermost first, until one makes an error of its own of it.

        A model or a hook may have a time limit open over a `yield` (PEP 789). It has cancelled the task while an item was
        handed over, and turns that into its own error where it was set.
        """
        for stream in reversed(self.opened):
            if isinstance(stream, AsyncGeneratorType) and stream.ag_frame is not None and not stream.ag_running:
                await raise_in(cast("AsyncIterator[Any]", stream), error)

    def chunks_of(self, stream: AsyncIterator[T]) -> ChunkSource[T]:
        """The chunks of a streaming tool as a source of this stage."""
        return ChunkSource(Flux(partial(self._bound, stream)), self.opens)

    async def _bound(self, stream: AsyncIterator[T]) -> AsyncIterator[T]:
        """Read a stream under the rules of the stage."""
        self.check()
        task = asyncio.current_task()
        async for item in stream:
            try:
                yield item
            except asyncio.CancelledError as error:  # of `throw`
                await raise_in(stream, error)
                raise
            task = self.check_reader(task)
        self.check_end(task)

    async def _whole(self, stream: AsyncGeneratorType[T, None]) -> AsyncIterator[T]:
        """Read what a hook has made of a stream; if it ends because it swallowed a cancellation, that is raised again."""
        try:
            async for item in stream:
                try:
                    yield item
                except asyncio.CancelledError as error:  # of `throw`
                    await raise_in(stream, error)
                    raise
        except BaseException:
            await stream.aclose()
            raise
        self.check_end(asyncio.current_task())

    async def outcome(self, wrapped: Any) -> Any:
        """Run what the hooks have made of the work, to its value (or `EMPTY`), and end the stage."""
        mono = cast("Mono[Any]", wrapped if isinstance(wrapped, Mono) else Mono.from_observable(wrapped))
        return await self.ended(mono.resolve())

    async def ended(self, wrapped: Awaitable[T], keep: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Run what the hooks have made of the work, to its end, and end the stage.

        Args:
            wrapped: What they have made.
            keep: Gets its value if the run is cancelled while the stage ends.

        Raises:
            HookError: A hook has raised `CancelledError` itself, although the run was not cancelled.
            asyncio.CancelledError: The run was cancelled, also if a hook has swallowed that.
        """
        try:
            value = await wrapped
        except GeneratorExit:  # the event loop is gone: nothing can be awaited any more
            self.over = True
            raise
        except BaseException as error:
            await self.close()
            if not isinstance(error, asyncio.CancelledError) or self._scope.is_cancelled():
                raise
            raise HookError(
                f"What hooks made of the source of {self._kind.__name__} raised CancelledError itself, although the run "
                "was not cancelled."
            ) from error
        try:
            await self.close()
            self._scope.check()
        except asyncio.CancelledError:
            if keep is not None:
                await keep(value)
            raise
        return value

    async def close(self) -> None:
        """End the stage: close the streams that hooks have left open, the outermost first.

        What the outer ones still read of the inner ones while they are closed is refused, and is no end of a reply.
        """
        self.over = True
        cut: asyncio.CancelledError | None = None
        opened, self.opened = self.opened, []
        for stream in opened:
            try:
                await close(stream)
            except asyncio.CancelledError as error:
                if self._scope.is_cancelled():
                    cut = error
                else:
                    self._cleanup_failed(error)
            except BaseExceptionGroup as group:  # what a generator that is closed in a task group makes of that
                if group.subgroup((KeyboardInterrupt, SystemExit)) is not None:
                    raise
                self._cleanup_failed(group)
            except Exception as error:
                self._cleanup_failed(error)
        if cut is not None:
            raise cut

    def _cleanup_failed(self, error: BaseException) -> None:
        """What a hook has left open has failed while it was closed; the stage's outcome stands."""
        log_failure("DEBUG", error, f"closing what a hook has left open of {self._kind.__name__} failed")


class ChunkSource(Flux[T]):
    """The chunks of a tool as a hook gets them; the stage opens (`opens`) each stream, and closes what the hook leaves open."""

    def __init__(self, inner: Flux[T], opens: Callable[[Callable[[], AsyncIterator[Any]]], AsyncIterator[Any]]) -> None:
        self.inner = inner
        self.opens = opens

    def open(self) -> AsyncIterator[T]:
        """Start a run; see `Flux.open`."""
        return self.opens(self.inner.open)  # pyright: ignore[reportOptionalMemberAccess, reportOptionalCall] - both are set

    def over(self, made: Any) -> ChunkSource[Any]:
        """The same source with other chunks."""
        return ChunkSource(Flux[Any].wrap(made), self.opens)  # pyright: ignore[reportArgumentType] - it is set


def wrap(run: RunBase, kind: type[Any], event: Any, source: Any, scope: FullHookSet | None = None) -> Any:
    """Put the hooks' `around` around a stage's work; the lowest priority is outermost.

    Args:
        run: The call.
        kind: The event's class.
        event: The sealed event.
        source: The work.
        scope: The hooks, if they are others than the run's.
    """
    for around, hook in reversed((run.hooks if scope is None else scope).arounds(kind)):
        if kind is PreActing and hook.only_tools and not concerns_tool(hook, event.tool_use):
            continue
        source = layered(around, hook, event, source)
    return source


class Attempts:
    """Counts the runs of one reply's source.

    Args:
        stage: What they belong to.

    Attributes:
        count: Runs begun.
        delivered: Whether any chunk has left a run.
        model: The name of the model behind the last run, or the last chunk; empty before the first.
    """

    __slots__ = ("count", "delivered", "model", "stage")

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.count = 0
        self.delivered = False
        self.model = ""

    def begin(self, model: str) -> bool:
        """Begin a run of a model; returns whether the chunks before it are void."""
        self.count += 1
        self.model = model
        return self.delivered


def model_source(attempts: Attempts, model: str | Model, request: ModelRequest) -> ModelSource:
    """The work behind `PreReasoning` as the outermost hook gets it if no other wraps it.

    Args:
        attempts: Counts its runs.
        model: The model.
        request: What it is asked.
    """
    return ModelSource(
        Flux(partial(_attempt, attempts, model, request)),
        request,
        partial(_using, attempts, model, request),
        opens=attempts.stage.opens,
    )


def _using(
    attempts: Attempts,
    current: str | Model,
    before: ModelRequest,
    /,
    *,
    model: str | Model | None,
    input_messages: Sequence[Msg] | None,
    options: ModelOptions | None,
) -> ModelSource:
    """The same work with another request; see `ModelSource.using`."""
    request = ModelRequest(
        before.messages if input_messages is None else legalise(input_messages),
        before.tools,
        before.options.merge(options),
        before.model if model is None else model if isinstance(model, str) else model.name,
    )
    return model_source(attempts, current if model is None else model, request)


async def _attempt(attempts: Attempts, model: str | Model, request: ModelRequest) -> AsyncIterator[ModelChunk]:
    """One attempt at the model's reply."""
    name, stage = request.model, attempts.stage
    stage.check()
    stage.begun += 1
    task = asyncio.current_task()
    void = attempts.begin(name)
    stream = resolve_model(model).stream(request)
    try:
        async for chunk in stream:
            if void:
                void = False
                chunk = replace(chunk, restart=True)
            attempts.delivered = True
            attempts.model = name  # with several attempts at once, the one whose chunk is delivered
            try:
                yield chunk
            except asyncio.CancelledError as error:  # of `Stage.throw`
                await raise_in(stream, error)
                raise
            task = stage.check_reader(task)
        stage.check_end(task)
    except BaseException:
        await close_quietly(stream)
        raise
    if getattr(stream, "ag_frame", stream) is not None:  # an iterator that is no generator may hold a connection
        await close_quietly(stream)


def tool_source(
    stage: Stage, work: ToolWork, transform: Transform | None = None, instead: Work | None = None
) -> ToolSource:
    """The work behind `PreActing` as the outermost hook gets it if no other wraps it.

    Args:
        stage: What its runs belong to.
        work: One attempt at the tool; gets what changes its chunks, and what is done instead of it.
        transform: What changes them.
        instead: What is done instead of the tool.
    """
    return ToolSource(
        Mono(partial(stage.do, partial(work, transform, instead))),
        partial(_changed, stage, work, transform, instead),
        lambda other: tool_source(stage, work, transform, other),
    )


def _changed(
    stage: Stage, work: ToolWork, before: Transform | None, instead: Work | None, transform: Transform
) -> ToolSource:
    """The same work with its chunks changed, after what has changed them before."""
    if before is None:
        return tool_source(stage, work, transform, instead)

    def both(chunks: Flux[Any]) -> Any:
        made = before(chunks)
        return transform(chunks.over(made) if isinstance(chunks, ChunkSource) else made)

    return tool_source(stage, work, both, instead)


def generator(stream: AsyncIterator[T]) -> AsyncGeneratorType[T, None]:
    """A stream as an async generator."""
    kind: type = type(stream)
    made: Any = stream if kind is AsyncGeneratorType else closing(stream)
    return made


async def close_quietly(stream: AsyncIterator[Any]) -> None:
    """Close a stream whose reading failed; the failure that counts is the one on its way."""
    try:
        await close(stream)
    except Exception as error:
        log_failure("DEBUG", error, "closing a model's stream failed")


_CHECK_THEIR_END: Final = {_attempt.__code__, Stage._bound.__code__}  # pyright: ignore[reportPrivateUsage]
