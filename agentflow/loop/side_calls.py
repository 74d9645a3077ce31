"""Side calls of a model (`context.complete`): no events, nothing stored, billed to the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from agentflow._support.frozen import FrozenDict
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.recording import SideWrapper
from agentflow.hooks.wrapping import ModelSource
from agentflow.ports.model import Model, ModelRequest, resolve_model
from agentflow.reactive import Flux
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.specs import ModelOptions, Usage, one_call
from agentflow.vocabulary.transcript import legalise

__all__ = ["ask_beside"]


class Asker(Protocol):
    """The run that makes a side call."""

    hooks: FullHookSet

    @property
    def context(self) -> RunContext:
        """The context of its hooks and tools."""
        ...

    def add_usage(self, usage: Usage) -> None:
        """Add usage to the run."""
        ...


async def ask_beside(
    run: Asker,
    model: str | Model,
    messages: Sequence[Msg],
    options: ModelOptions,
    source: str,
    new_id: Callable[[str], str],
) -> Msg:
    """Call a model through the hooks that wrap side calls, and bill the run.

    Args:
        run: The run.
        model: The model.
        messages: The messages.
        options: The options.
        source: The name of the caller.
        new_id: Creates ids.
    """
    asked = resolve_model(model)
    work = _work(asked, ModelRequest(legalise(messages, new_id), (), options, asked.name), new_id)
    for hook in run.hooks.side_wrappers:
        work = _wrapped(hook, run.context, source, work)
    received: list[ModelChunk] = []
    chunks = work.open()
    try:
        async for chunk in chunks:
            if chunk.restart:
                _bill(run, received)
                received = []
            received.append(chunk)
    except BaseException:  # bill the usage reported so far
        _bill(run, received)
        raise
    finally:
        await close(chunks)
    reply = fold(received, new_id=new_id)
    run.add_usage(one_call(reply.usage))
    return Msg(reply.role, reply.content, source, reply.id, FrozenDict(side=source), reply.usage, reply.finish_reason)


def _bill(run: Asker, received: Sequence[ModelChunk]) -> None:
    usage = next((chunk.usage for chunk in reversed(received) if chunk.usage is not None), None)
    if usage is not None:
        run.add_usage(one_call(usage))


def _work(model: str | Model, request: ModelRequest, new_id: Callable[[str], str]) -> ModelSource:
    """Return the model call, which can be repeated with another request."""
    return ModelSource(
        Flux(lambda: resolve_model(model).stream(request)), request, partial(_other, model, request, new_id), opens=None
    )


def _other(
    current: str | Model,
    before: ModelRequest,
    new_id: Callable[[str], str],
    /,
    *,
    model: str | Model | None,
    input_messages: Sequence[Msg] | None,
    options: ModelOptions | None,
) -> ModelSource:
    """Return the same call with another request; see `ModelSource.using`."""
    request = ModelRequest(
        before.messages if input_messages is None else legalise(input_messages, new_id),
        before.tools,
        before.options.merge(options),
        before.model if model is None else model if isinstance(model, str) else model.name,
    )
    return _work(current if model is None else model, request, new_id)


def _wrapped(hook: SideWrapper, context: RunContext, side: str, work: ModelSource) -> ModelSource:
    """Apply one hook's `around_side`. The result is still a source: another request passes through the hook again."""
    made = hook.around_side(context, work.request, side, work)
    if made is work:
        return work

    def using(
        *, model: str | Model | None, input_messages: Sequence[Msg] | None, options: ModelOptions | None
    ) -> ModelSource:
        return _wrapped(hook, context, side, work.using(model=model, input_messages=input_messages, options=options))

    return ModelSource(made, work.request, using, opens=None)
