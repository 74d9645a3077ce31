"""What `around` gets: the work behind a sealed Pre event, as a source that can be asked for something else.

Rules:

1. A source stays one through any number of hooks: what one hook makes of it, even with a plain operator, the next one gets
   as a source again. So each layer may ask for another request (`using`) or change a tool's pieces (`chunks`).
2. Asked so, a source passes it inwards, and each hook further in puts its `around` once more around what comes back.
3. Plain operators of several layers (`map`, `filter`, `tap` and their kin) run as one loop: a source hands them on to the
   stream inside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from agentflow.chunks import ModelChunk
from agentflow.messages import Msg, ToolResultBlock
from agentflow.ports.model import Model, ModelRequest
from agentflow.reactive import Empty, Flux, Mono
from agentflow.specs import ModelOptions

if TYPE_CHECKING:
    from reactivex import Observable

__all__ = ["ModelSource", "PrivateFlux", "ToolSource", "Transform"]

Transform: TypeAlias = Callable[[Flux[Any]], Any]
"""Makes other pieces of a tool's: gets them as a Flux, returns another."""
Asked: TypeAlias = Callable[["str | Model | None", "Sequence[Msg] | None", "ModelOptions | None"], "ModelSource"]
"""Another request for the same work: a model, messages, options; None: as they are."""


class ModelSource(Flux[ModelChunk]):
    """The work behind `PreReasoning`: each run is one attempt at the model's reply. Not made by users.

    Args:
        work: What runs.
        request: What the model will be asked.
        asked: What `using` does.
        private: What the attribute says.

    Attributes:
        request: What the model will be asked: the event as hooks left it, with what they injected meanwhile.
        private: Whether a hook further in puts in what belongs to this session alone (see `PrivateFlux`).

    Example:
        >>> def around(self, event, source):
        ...     if isinstance(event, PreReasoning):
        ...         return source.catch(lambda error, _: source.using(model="openai/gpt-5-mini"))
        ...     return source
    """

    def __init__(self, work: Flux[ModelChunk], request: ModelRequest, asked: Asked, private: bool = False) -> None:
        self._work = work
        self._asked = asked
        self.request = request
        self.private = private

    def open(self) -> AsyncIterator[ModelChunk]:
        """Start an attempt; see `Flux.open`."""
        return self._work.open()

    def using(
        self,
        *,
        model: str | Model | None = None,
        input_messages: Sequence[Msg] | None = None,
        options: ModelOptions | None = None,
    ) -> ModelSource:
        """The same work with another request; running it is another attempt.

        Args:
            model: Another model.
            input_messages: Other messages; they are put into a legal order.
            options: Laid over those of the request.
        """
        return self._asked(model, input_messages, options)

    def over(self, work: Observable[Any]) -> ModelSource:
        """The same source with other work; `using` asks the source as it was."""
        return ModelSource(_flux(work), self.request, self._asked, self.private)

    def wrapped(self, work: Observable[Any], asked: Asked) -> ModelSource:
        """What a hook has made of this source, as the next hook's source."""
        private = self.private or isinstance(work, PrivateFlux)
        return ModelSource(_flux(work), self.request, asked, private)


class PrivateFlux(Flux[ModelChunk]):
    """A model's chunks with words in them that belong to one session, which its request does not show.

    Returned from `around`: whoever keeps replies by their request, further out, must not keep these.
    """


class ToolSource(Mono[ToolResultBlock]):
    """The work behind `PreActing`: each run is one attempt at the tool. Not made by users.

    Args:
        work: What runs.
        changed: What `chunks` does.
    """

    def __init__(self, work: Mono[ToolResultBlock], changed: Callable[[Transform], ToolSource]) -> None:
        self._work = work
        self._changed = changed

    def resolve(self) -> Awaitable[ToolResultBlock | Empty]:
        """Start an attempt; see `Mono.resolve`."""
        return self._work.resolve()

    def chunks(self, transform: Transform) -> ToolSource:
        """The same work with its pieces changed on their way to `ActingChunk`.

        Args:
            transform: Gets the pieces as a Flux, returns another.

        Example:
            >>> def around(self, event, source):
            ...     if isinstance(event, PreActing):
            ...         return source.chunks(lambda pieces: pieces.map(mask))
            ...     return source
        """
        return self._changed(transform)

    def over(self, work: Observable[Any]) -> ToolSource:
        """The same source with other work; `chunks` changes the pieces of the source as it was."""
        return ToolSource(_mono(work), self._changed)

    def wrapped(self, work: Observable[Any], changed: Callable[[Transform], ToolSource]) -> ToolSource:
        """What a hook has made of this source, as the next hook's source."""
        return ToolSource(_mono(work), changed)


def _flux(work: Observable[Any]) -> Flux[ModelChunk]:
    return cast("Flux[ModelChunk]", work if isinstance(work, Flux) else Flux.from_observable(work))


def _mono(work: Observable[Any]) -> Mono[ToolResultBlock]:
    return cast("Mono[ToolResultBlock]", work if isinstance(work, Mono) else Mono.from_observable(work))
