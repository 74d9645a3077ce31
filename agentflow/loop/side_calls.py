"""A model call beside the conversation (`context.complete`): no events, nothing stored; billed to the run that asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from agentflow.chunks import ModelChunk, fold
from agentflow.context import RunContext
from agentflow.ground.frozen import FrozenDict
from agentflow.hooks.hook_set import FullHookSet
from agentflow.messages import Msg
from agentflow.ports.model import Model, ModelRequest, resolve_model
from agentflow.reactive import Flux
from agentflow.specs import ModelOptions, Usage, one_call
from agentflow.transcript import legalise

__all__ = ["ask_beside"]


class Asker(Protocol):
    """The run that asks."""

    hooks: FullHookSet

    @property
    def context(self) -> RunContext:
        """What its hooks and tools know of it."""
        ...

    def add_usage(self, usage: Usage) -> None:
        """Bill it."""
        ...


async def ask_beside(
    run: Asker,
    model: str | Model,
    messages: Sequence[Msg],
    options: ModelOptions,
    source: str,
    new_id: Callable[[str], str],
) -> Msg:
    """Ask a model, through the hooks that wrap side calls, and bill the run.

    Args:
        run: Who asks.
        model: Who is asked.
        messages: What it is asked.
        options: With which options.
        source: Whose question it is.
        new_id: For what is made on the way.
    """
    asked = resolve_model(model)
    request = ModelRequest(legalise(messages, new_id), (), options, asked.name)
    stream: Flux[ModelChunk] = Flux(lambda: asked.stream(request))
    for hook in run.hooks.side_wrappers:
        stream = hook.around_side(run.context, request, source, stream)
    reply = fold([chunk async for chunk in stream.open()], new_id=new_id)
    run.add_usage(one_call(reply.usage))
    return Msg(reply.role, reply.content, source, reply.id, FrozenDict(side=source), reply.usage, reply.finish_reason)
