"""The work behind Pre events as wrapping hooks get it, and the onion of `around` that they put around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from agentflow.chunks import ModelChunk
from agentflow.errors import HookContractError
from agentflow.events import Event, PreActing
from agentflow.hooks.chain import HookSet
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import concerns_tool
from agentflow.loop.run import RunBase
from agentflow.messages import Msg
from agentflow.ports.model import Model, ModelRequest, resolve_model
from agentflow.reactive import Flux
from agentflow.specs import ModelOptions
from agentflow.transcript import legalise

__all__ = ["Attempts", "Keep", "ModelFlux", "Rewrap", "close_stream", "keep_using", "sealed", "wrap"]

E = TypeVar("E", bound=Event)

Rewrap: TypeAlias = Callable[[Any], Any]
"""A hook's `around` once more, on another source."""
Keep: TypeAlias = Callable[[Any, Any, Rewrap], Any]
"""Makes what `around` returned able to do what its source can: gets that, the source, and `around` once more."""


def sealed(run: RunBase, kind: type[E], *values: object) -> E:
    """The sealed event for wrapping hooks where no chain has built it."""
    event = kind.draft(run.frame, run.iteration, run.seq, run.now(), None, *values)
    event.__class__ = kind
    return event


def wrap(
    run: RunBase, kind: type[Any], event: Any, source: Any, scope: HookSet | None = None, keep: Keep | None = None
) -> Any:
    """Put the onion of `around` around a stage's work; the lowest priority is outermost.

    Args:
        run: The call.
        kind: The event's class.
        event: The sealed event.
        source: The work.
        scope: The hooks, where they are others than the run's.
        keep: Where the work can do more than run: a plain operator of one hook must not take that from the next.
    """
    for around, hook in reversed((run.hooks if scope is None else scope).arounds(kind)):
        if kind is PreActing and hook.only_tools and not concerns_tool(hook, event.tool_use):
            continue
        wrapped = _wrapped(around, hook, kind, event, source)
        if wrapped is source:
            continue
        if keep is not None:
            wrapped = keep(wrapped, source, partial(_wrapped, around, hook, kind, event))
        source = wrapped
    return source


def _wrapped(around: Any, hook: Hook, kind: type[Any], event: Any, source: Any) -> Any:
    try:
        wrapped = around(event, source)
    except Exception as error:
        error.add_note(f"raised by hook {hook.name} (priority {hook.priority}) on {kind.__name__}")
        raise
    if wrapped is source or wrapped is None:
        return source
    if not hasattr(wrapped, "subscribe"):
        raise HookContractError(
            f"{hook.name}.around",
            kind.__name__,
            type(wrapped).__name__,
            "the source, or any Mono, Flux or Observable",
        )
    return wrapped


class ModelFlux(Flux[ModelChunk]):
    """The work behind `PreReasoning`: each run is one attempt at the model's reply.

    Example:
        >>> def around(self, event, source):
        ...     if isinstance(event, PreReasoning):
        ...         return source.catch(lambda error, _: source.using(model="openai/gpt-5-mini"))
        ...     return source
    """

    def __init__(self, model: str | Model, request: ModelRequest, attempts: Attempts) -> None:
        self._model = model
        self._request = request
        self._attempts = attempts
        super().__init__(self._run)

    @property
    def request(self) -> ModelRequest:
        """What the model will be asked: the event as hooks left it, with what they injected meanwhile."""
        return self._request

    async def _run(self) -> AsyncIterator[ModelChunk]:
        attempts = self._attempts
        first = attempts.begin()
        stream = resolve_model(self._model).stream(self._request)
        try:
            async for chunk in stream:
                if first:
                    first = False
                    chunk = replace(chunk, restart=True)
                attempts.delivered = True
                yield chunk
        finally:
            await close_stream(stream)

    def using(
        self,
        *,
        model: str | Model | None = None,
        input_messages: Sequence[Msg] | None = None,
        options: ModelOptions | None = None,
    ) -> ModelFlux:
        """The same work with another request; running it is another attempt.

        Args:
            model: Another model.
            input_messages: Other messages; they are put into a legal order.
            options: Laid over those of the request.
        """
        before = self._request
        request = ModelRequest(
            before.messages if input_messages is None else legalise(input_messages),
            before.tools,
            before.options.merge(options),
            before.model if model is None else model if isinstance(model, str) else model.name,
        )
        return ModelFlux(self._model if model is None else model, request, self._attempts)


class WrappedModel(ModelFlux):
    """What a hook made of the work behind `PreReasoning`, which can still be asked another request."""

    def __init__(self, wrapped: Any, source: ModelFlux, again: Rewrap) -> None:
        self._source_flux = source
        self._again = again
        flux = cast("Flux[ModelChunk]", wrapped if isinstance(wrapped, Flux) else Flux.from_observable(wrapped))
        cast("Any", Flux).__init__(self, flux.open)

    @property
    def request(self) -> ModelRequest:
        """What the model will be asked."""
        return self._source_flux.request

    def using(self, **request: Any) -> Any:
        """The same hook's work around another request; its `around` is called once more."""
        source = self._source_flux.using(**request)
        return keep_using(self._again(source), source, self._again)


def keep_using(wrapped: Any, source: Any, again: Rewrap) -> Any:
    """Give what a hook made of a model's work `using` and `request`, if it has lost them."""
    return wrapped if hasattr(wrapped, "using") else WrappedModel(wrapped, source, again)


class Attempts:
    """Counts the runs of one reply's source.

    Attributes:
        count: Runs begun.
        delivered: Whether any chunk has left a run.
    """

    __slots__ = ("count", "delivered")

    def __init__(self) -> None:
        self.count = 0
        self.delivered = False

    def begin(self) -> bool:
        """Begin a run; returns whether the pieces before it are void."""
        self.count += 1
        return self.delivered


async def close_stream(stream: AsyncIterator[Any]) -> None:
    """Close a stream that can be closed."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()
