"""What the shelf's wrapping hooks hand on in place of a stage's source: it can still do what the bare source can.

A hook that wraps further out may ask a model's source for another request (`using`) and a tool's source for other pieces
(`chunks`). A plain operator would lose both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias, cast

from reactivex import Observable

from agentflow.chunks import ModelChunk
from agentflow.errors import UsageError
from agentflow.events import PreActing, PreReasoning
from agentflow.messages import Msg, ToolResultBlock
from agentflow.ports.model import Model, ModelRequest
from agentflow.reactive import Flux, Mono
from agentflow.specs import Lane, ModelOptions

__all__ = ["ModelSource", "ModelWork", "ToolSource", "ToolWork", "lane_of", "names", "pieces_of", "says_something"]

ModelWork: TypeAlias = Callable[["Flux[ModelChunk]", ModelRequest], AsyncIterator[ModelChunk]]
"""One run of a wrapped model call: gets the source and what it will be asked."""
ToolWork: TypeAlias = Callable[["Mono[ToolResultBlock]"], Awaitable[Any]]
"""One run of a wrapped tool: gets the source."""


class ModelSource(Flux[ModelChunk]):
    """A model's source with a hook's work around it.

    Args:
        event: The sealed event.
        source: What `around` was given.
        work: What a run does.

    Attributes:
        request: What the model will be asked.
        exact: Whether that is known for certain; False behind a hook that wraps with a plain operator.

    Example:
        >>> def around(self, event, source):
        ...     return ModelSource(event, source, self.run) if isinstance(event, PreReasoning) else source
    """

    def __init__(self, event: PreReasoning, source: Observable[Any], work: ModelWork) -> None:
        self._event = event
        self._inner: Flux[ModelChunk] = (
            cast("Flux[ModelChunk]", source) if isinstance(source, Flux) else Flux.from_observable(source)
        )
        self._work = work
        known = getattr(source, "request", None)
        self.exact = isinstance(known, ModelRequest)
        self.request = (
            known
            if isinstance(known, ModelRequest)
            else ModelRequest(event.input_messages, tuple(event.tools), event.options, event.model)
        )

    def open(self) -> AsyncIterator[ModelChunk]:
        """Start a run."""
        return self._work(self._inner, self.request)

    def using(
        self,
        *,
        model: str | Model | None = None,
        input_messages: Sequence[Msg] | None = None,
        options: ModelOptions | None = None,
    ) -> ModelSource:
        """The same work around another request.

        Args:
            model: Another model.
            input_messages: Other messages.
            options: Laid over those of the request.

        Raises:
            UsageError: A hook further in has wrapped the model with a plain operator.
        """
        ask = getattr(self._inner, "using", None)
        if ask is None:
            raise UsageError(
                "Another model was asked for where a hook further in (with a higher priority) has wrapped the model with a "
                "plain operator, which cannot pass that on. Give the hook that asks a higher priority than that hook."
            )
        return ModelSource(self._event, ask(model=model, input_messages=input_messages, options=options), self._work)


class ToolSource(Mono[ToolResultBlock]):
    """A tool's source with a hook's work around it.

    Args:
        source: What `around` was given.
        work: What a run does.
    """

    def __init__(self, source: Observable[Any], work: ToolWork) -> None:
        self._inner: Mono[ToolResultBlock] = (
            cast("Mono[ToolResultBlock]", source) if isinstance(source, Mono) else Mono.from_observable(source)
        )
        self._work = work

    def resolve(self) -> Awaitable[Any]:
        """Start a run."""
        return self._work(self._inner)

    def chunks(self, transform: Callable[[Flux[Any]], Any]) -> ToolSource:
        """The same work with the tool's pieces changed.

        Args:
            transform: Gets the pieces as a Flux, returns another.

        Raises:
            UsageError: A hook further in has wrapped the tool with a plain operator.
        """
        return ToolSource(pieces_of(self._inner, transform), self._work)


def pieces_of(source: Mono[ToolResultBlock], transform: Callable[[Flux[Any]], Any]) -> Mono[ToolResultBlock]:
    """The source with its pieces changed."""
    chunks = getattr(source, "chunks", None)
    if chunks is None:
        raise UsageError(
            "A tool's pieces were asked for where a hook further in (with a higher priority) has wrapped the tool with a "
            "plain operator, which cannot pass them on. Give the hook that asks a higher priority than that hook."
        )
    return cast("Mono[ToolResultBlock]", chunks(transform))


def names(patterns: Sequence[str], name: str) -> bool:
    """Whether one of the patterns fits a name.

    Example:
        >>> names(("read_*", "list_*"), "read_file")
        True
    """
    if "*" in patterns or name in patterns:  # what most say, at a tenth of the cost
        return True
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def says_something(chunk: ModelChunk) -> bool:
    """Whether a reader sees anything of the reply in this chunk."""
    return bool(chunk.text or chunk.thinking or chunk.tool_uses or chunk.blocks)


def lane_of(event: PreActing) -> Lane:
    """The lane of the tool that is asked for; an unknown tool is a write."""
    name = event.tool_use.name
    for spec in event.agent.tools:
        if spec.name == name:
            return spec.lane
    return "write"
