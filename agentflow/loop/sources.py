"""The work behind Pre events as wrapping hooks get it, and the onion of `around` that they put around it.

A source belongs to its stage (`loop/stage.py`). A model's stream that ends has given its whole reply: where it ends because it
was cancelled, that is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import ref

from agentflow.chunks import ModelChunk
from agentflow.events import PreActing
from agentflow.ground.logs import log_failure
from agentflow.hooks.answers import raise_swallowed
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.options import concerns_tool
from agentflow.hooks.wrapping import ModelSource, ToolSource, Transform, Work, layered
from agentflow.loop.run import RunBase
from agentflow.loop.stage import Reading, Stage, gone
from agentflow.messages import Msg, ToolResultBlock
from agentflow.ports.model import Model, ModelRequest, resolve_model
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.specs import ModelOptions
from agentflow.transcript import legalise

__all__ = ["Attempts", "close_quietly", "model_source", "tool_source", "wrap"]

T = TypeVar("T")

ToolWork: TypeAlias = Callable[["Transform | None", "Work | None"], Awaitable[ToolResultBlock]]


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


def _opened(attempts: Attempts, model: str | Model, request: ModelRequest) -> AsyncIterator[ModelChunk]:
    reading = Reading()
    stream = _attempt(attempts, reading, model, request)
    reading.stream = ref(stream)
    return stream


async def _attempt(
    attempts: Attempts, reading: Reading, model: str | Model, request: ModelRequest
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
        if (
            getattr(stream, "ag_frame", stream) is not None
        ):  # an iterator of somebody's own, which may hold a connection
            await close_quietly(stream)
    except GeneratorExit:
        reading.stream = gone  # who closes it may be a task of its own
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
