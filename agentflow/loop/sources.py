"""The work behind Pre events as wrapping hooks get it, and the onion of `around` that they put around it.

Rules:

1. A source belongs to its stage: subscribed when that is over it raises, and what still runs of it then is cancelled, and
   waited for, before the stage ends. So nothing happens in a call, or to its session, behind its stage.
2. Where work cannot be done twice, or not twice at the same time, the second subscription raises.
3. A `CancelledError` that nobody asked for is a failing hook; a cancellation that a hook has swallowed is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast
from weakref import ref

from agentflow.chunks import ModelChunk
from agentflow.errors import HookError, UsageError
from agentflow.events import Event, PreActing, PreCall, PreToolRound
from agentflow.ground.logs import log_failure
from agentflow.hooks.answers import cancellations, raise_swallowed
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.options import concerns_tool
from agentflow.hooks.wrapping import ModelSource, ToolSource, Transform, Work, layered
from agentflow.loop.run import RunBase
from agentflow.messages import Msg, ToolResultBlock
from agentflow.ports.model import Model, ModelRequest, resolve_model
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import Runs, close
from agentflow.specs import ModelOptions
from agentflow.transcript import legalise

__all__ = ["Attempts", "Stage", "close_quietly", "model_source", "tool_source", "wrap"]

T = TypeVar("T")

ToolWork: TypeAlias = Callable[["Transform | None", "Work | None"], Awaitable[ToolResultBlock]]


class Stage:
    """What the sources behind one Pre event belong to: who runs them, and until when they may be run.

    Args:
        run: The call.
        kind: The event's class.

    Attributes:
        over: Whether nothing of it may be run any more.
        begun: How often it was run.
        runs: The streams that were opened of it and are not dropped, the outermost first.
        readings: The attempts at a model's reply that are open.
    """

    __slots__ = ("_before", "_gone", "_kind", "_loop", "_mine", "_run", "_tasks", "begun", "over", "readings", "runs")

    def __init__(self, run: RunBase, kind: type[Event]) -> None:
        self._run = run
        self._kind = kind
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[Any] | None] = []
        self._gone: asyncio.Future[None] | None = None
        self._mine: asyncio.Task[Any] | None = None
        self._before = 0
        self.begun = 0
        self.over = False
        self.runs = Runs()
        self.readings: list[_Reading] = []

    def check(self) -> None:
        """Refuse a subscription that the stage does not allow.

        Raises:
            UsageError: It comes late, once too often, or from another thread's loop.
        """
        name = self._kind.__name__
        if self.over:
            raise UsageError(
                f"The source behind {name} was used when its stage was over. It is work of that one stage: use it in "
                "what `around` returns, and nowhere else; it cannot be kept for later, or be left to a task that goes on "
                "behind the stage."
            )
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                f"The source behind {name} was subscribed on another event loop than its call runs on. Only blocking work "
                "of your own belongs on subscribe_on(threads())."
            )
        if self._kind is PreCall and self.begun:
            raise UsageError(
                "The source behind PreCall is the rest of the call; it can be subscribed once. To try a model again, "
                "wrap PreReasoning; to send the agent back to work, return Again from PostReasoning."
            )
        if self._kind is PreToolRound and self._tasks:
            raise UsageError(
                "The source behind PreToolRound was subscribed while it runs; a round runs once at a time. To run one tool "
                "twice at once, wrap PreActing."
            )

    async def enter(self) -> asyncio.Task[Any] | None:
        """Refuse a subscription that the stage does not allow, or that a hook makes after it has swallowed a cancellation.

        Returns:
            The task that subscribes.
        """
        if self.over or self.begun or self._tasks or asyncio.get_running_loop() is not self._loop:
            self.check()
        task = asyncio.current_task()
        if self._mine is task and cancellations() > self._before and self._run.stopping.is_cancelled():
            await raise_swallowed(self._kind.__name__)
        return task

    async def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run the stage's work for somebody who has subscribed to it."""
        task = await self.enter()
        self.begun += 1
        self._tasks.append(task)
        stopping = self._run.stopping
        strays = {task} if task is not None and not stopping.waits_for(task) else None
        if strays is not None:  # an operator's own task: no call that is made in it outlives this one
            stopping.tasks = (*stopping.tasks, strays)
        try:
            return await work()
        finally:
            if strays is not None:
                stopping.tasks = tuple([tasks for tasks in stopping.tasks if tasks is not strays])
            self._tasks.remove(task)
            if self._gone is not None:
                self._tell()

    def left(self, reading: _Reading) -> None:
        """Say that an attempt is over."""
        self.readings.remove(reading)
        if self._gone is not None:
            self._tell()

    def _tell(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    async def outcome(self, wrapped: Any) -> Any:
        """Run what the hooks have made of the work, to its value (or `EMPTY`), and end the stage."""
        mono = cast("Mono[Any]", wrapped if isinstance(wrapped, Mono) else Mono.from_observable(wrapped))
        return await self.ended(mono.resolve())

    async def ended(self, wrapped: Awaitable[T], keep: Callable[[T], Awaitable[None]] | None = None) -> T:
        """Run what the hooks have made of the work, to its end, and end the stage.

        Args:
            wrapped: What they have made.
            keep: Gets what came of it, where the run is cancelled while the stage ends.

        Raises:
            HookError: A hook has raised `CancelledError` itself, although nobody cancelled the run.
            asyncio.CancelledError: The run was cancelled, also where a hook has swallowed that.
        """
        self._mine, self._before = asyncio.current_task(), cancellations()
        try:
            value = await wrapped
        except GeneratorExit:  # the run itself is dropped: nothing can be awaited any more
            self.over = True
            raise
        except BaseException as error:
            by_hook = isinstance(error, asyncio.CancelledError) and not self._run.stopping.is_cancelled()
            await self.close()
            if not by_hook:
                raise
            raise HookError(
                f"What hooks made of the source behind {self._kind.__name__} raised CancelledError itself, although nobody "
                "cancelled the run."
            ) from error
        try:
            await self.close()
            if cancellations() > self._before and self._run.stopping.is_cancelled():
                await raise_swallowed(self._kind.__name__)
        except asyncio.CancelledError as error:
            if keep is not None:
                self._run.stopping.absorb(error)
                await keep(value)
            raise
        return value

    async def close(self) -> None:
        """End the stage: nothing of it runs any more when this returns, and nothing of it can be run."""
        self.over = True
        cut = await self._close_runs() if self.runs else None
        mine = asyncio.current_task()
        while self._tasks or self.readings:
            reading = [each.task for each in self.readings if each.stream() is not None]
            working = [t for t in (*self._tasks, *reading) if t is not None and t is not mine and not t.done()]
            if not working and (
                cut is not None or len(reading) == len(self.readings) or self._run.stopping.is_cancelled()
            ):
                break  # (what was dropped is being closed: that is waited for, unless somebody cancels)
            for task in working:
                task.cancel()
            self._gone = self._loop.create_future()
            try:
                await self._gone
            except asyncio.CancelledError as error:  # the work is told once more
                cut = error
        if cut is not None:
            raise cut

    async def _close_runs(self) -> asyncio.CancelledError | None:
        """Close the streams that hooks have left open, the outermost first; one that is being read ends with its reader.

        Closing a generator does not close what that was reading: so all are held before the first is closed.
        """
        cut: asyncio.CancelledError | None = None
        for run in [run() for run in self.runs]:
            if run is None:
                continue
            try:
                await run.end(self.check)
            except asyncio.CancelledError as error:
                if self._run.stopping.is_cancelled():
                    cut = error
                else:
                    self._cleanup_failed(error)
            except BaseExceptionGroup as group:  # what a generator that is closed in a task group makes of that
                if group.subgroup((KeyboardInterrupt, SystemExit)) is not None:
                    raise
                self._cleanup_failed(group)
            except Exception as error:
                self._cleanup_failed(error)
        return cut

    def _cleanup_failed(self, error: BaseException) -> None:
        """What a hook has left open has failed while it was closed; what came of the stage stands."""
        log_failure("DEBUG", error, f"closing what a hook has left open behind {self._kind.__name__} failed")


def wrap(run: RunBase, kind: type[Any], event: Any, source: Any, scope: FullHookSet | None = None) -> Any:
    """Put the onion of `around` around a stage's work; the lowest priority is outermost.

    Args:
        run: The call.
        kind: The event's class.
        event: The sealed event.
        source: The work.
        scope: The hooks, where they are others than the run's.
    """
    for around, hook in reversed((run.hooks if scope is None else scope).arounds(kind)):
        if kind is PreActing and hook.only_tools and not concerns_tool(hook, event.tool_use):
            continue
        source = layered(around, hook, event, source)
    return source


def model_source(attempts: Attempts, model: str | Model, request: ModelRequest) -> ModelSource:
    """The work behind `PreReasoning` as the outermost hook gets it if no other wraps it.

    Args:
        attempts: Counts its runs.
        model: Who is asked.
        request: What.
    """
    return ModelSource(
        Flux(partial(_opened, attempts, model, request)),
        request,
        partial(_asked, attempts, model, request),
        runs=attempts.stage.runs,
    )


def _asked(
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


class _Reading:
    """An attempt that is open.

    Attributes:
        task: Who reads it, or has read it last.
        stream: Gives its chunks; nothing where whoever read it has dropped or closed it.
    """

    __slots__ = ("stream", "task")

    task: asyncio.Task[Any] | None
    stream: Callable[[], AsyncIterator[ModelChunk] | None]


def _dropped() -> None:
    """What a reference to a stream that is about to be closed gives."""


def _opened(attempts: Attempts, model: str | Model, request: ModelRequest) -> AsyncIterator[ModelChunk]:
    reading = _Reading()
    stream = _attempt(attempts, reading, model, request)
    reading.stream = ref(stream)
    return stream


async def _attempt(
    attempts: Attempts, reading: _Reading, model: str | Model, request: ModelRequest
) -> AsyncIterator[ModelChunk]:
    """One attempt at the model's reply."""
    name, stage = request.model, attempts.stage
    reading.task = task = await stage.enter()
    stage.readings.append(reading)
    stream: AsyncIterator[ModelChunk] | None = None
    try:
        first = attempts.begin(name)
        before = 0 if task is None else task.cancelling()
        stream = resolve_model(model).stream(request)
        async for chunk in stream:
            if stage.over:
                stage.check()
            if first:
                first = False
                chunk = replace(chunk, restart=True)
            attempts.delivered = True
            attempts.model = name  # of several at once, the one that is listened to
            yield chunk
            reading.task = task = asyncio.current_task()  # each chunk may be read in a task of its own
            before = 0 if task is None else task.cancelling()
        if task is not None and task.cancelling() > before:  # else layers would take half a reply for a whole one
            await raise_swallowed("PreReasoning", "a model")
    except GeneratorExit:
        reading.stream = _dropped  # who closes it may be a task of its own
        if stream is not None:
            await close(stream)
        raise
    except BaseException:
        if stream is not None:
            await close_quietly(stream)
        raise
    finally:
        stage.left(reading)


def tool_source(
    stage: Stage, work: ToolWork, transform: Transform | None = None, instead: Work | None = None
) -> ToolSource:
    """The work behind `PreActing` as the outermost hook gets it if no other wraps it.

    Args:
        stage: What its runs belong to.
        work: One attempt at the tool; gets what changes its pieces, and what is done in its place.
        transform: What changes them.
        instead: What is done in the tool's place.
    """
    return ToolSource(
        Mono(partial(stage.do, partial(work, transform, instead))),
        partial(_changed, stage, work, transform, instead),
        lambda other: tool_source(stage, work, transform, other),
    )


def _changed(
    stage: Stage, work: ToolWork, before: Transform | None, instead: Work | None, transform: Transform
) -> ToolSource:
    """The same work with its pieces changed, behind what has changed them before."""
    if before is None:
        return tool_source(stage, work, transform, instead)
    return tool_source(stage, work, lambda pieces: transform(before(pieces)), instead)


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
        """Begin a run of a model; returns whether the pieces before it are void."""
        self.count += 1
        self.model = model
        return self.delivered


async def close_quietly(stream: AsyncIterator[Any]) -> None:
    """Close a stream whose reading failed; the failure that counts is the one on its way."""
    try:
        await close(stream)
    except Exception as error:
        log_failure("DEBUG", error, "closing a model's stream failed")
