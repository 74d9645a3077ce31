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
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from agentflow.chunks import ModelChunk
from agentflow.context import RunContext
from agentflow.errors import Aside, HookContractError
from agentflow.events import Event
from agentflow.messages import Msg, ToolResultBlock
from agentflow.ports.model import Model, ModelRequest
from agentflow.reactive import Empty, Flux, Mono
from agentflow.specs import ModelOptions

if TYPE_CHECKING:
    from reactivex import Observable

__all__ = ["ModelSource", "PrivateFlux", "ToolSource", "Transform", "Work", "layered", "standing_for"]

Transform: TypeAlias = Callable[[Flux[Any]], Any]
"""Makes other pieces of a tool's: gets them as a Flux, returns another."""
Opens: TypeAlias = Callable[[Callable[[], AsyncIterator[Any]]], AsyncIterator[Any]]
"""Opens a stream, and keeps it until it is closed."""
Around: TypeAlias = Callable[[Any, Any], Any]
Asked: TypeAlias = Callable[..., "ModelSource"]
"""Takes what `ModelSource.using` takes."""
Changed: TypeAlias = Callable[[Transform], "ToolSource"]
"""Other pieces of the same work."""


class Emits(Protocol):
    """What hands out pieces of a tool's work."""

    def emit(self, value: object) -> Awaitable[None]:
        """Hand out one; await it."""
        ...


class ToolCall(Protocol):
    """The call that something is done for, as a `ToolContext` has it."""

    @property
    def run(self) -> RunContext:
        """The run that it belongs to."""
        ...

    @property
    def emitter(self) -> Emits:
        """Hands out pieces of the work."""
        ...


Work: TypeAlias = Callable[[ToolCall], Awaitable[object]]
"""What is done in a tool's place: gets what the tool may ask of its call, returns what the tool would."""
Replaced: TypeAlias = Callable[[Work], "ToolSource"]
"""Other work in the same place."""


class Wrapping(Protocol):
    """A hook, as far as errors name it."""

    priority: int

    @property
    def name(self) -> str:
        """Its name."""
        ...


Layer: TypeAlias = tuple[Around, Wrapping, Event]
"""What a hook wraps work with, the hook, and the sealed event."""


class ModelSource(Flux[ModelChunk]):
    """The work behind `PreReasoning`: each run is one attempt at the model's reply. Not made by users.

    Args:
        inner: What runs.
        request: What the model will be asked.
        ask: Gives the same work with another request.
        layer: What is put around that.
        private: What the attribute says.
        opens: Opens each stream for its stage, which closes those that hooks leave open.

    Attributes:
        request: What the model will be asked: the event as hooks left it, with what they injected meanwhile.
        private: Whether a hook further in puts in what belongs to this session alone (see `PrivateFlux`).

    Example:
        >>> def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        ...     return source.catch(lambda error, _: source.using(model="openai/gpt-5-mini"))
    """

    def __init__(
        self,
        inner: Flux[ModelChunk],
        request: ModelRequest,
        ask: Asked,
        layer: Layer | None = None,
        private: bool = False,
        *,
        opens: Opens | None,
    ) -> None:
        self.inner = inner
        self.request = request
        self._ask = ask
        self._layer = layer
        self.private = private
        self.opens = opens

    def open(self) -> AsyncIterator[ModelChunk]:
        """Start an attempt; see `Flux.open`."""
        make = self.inner.open  # pyright: ignore[reportOptionalMemberAccess] - a source stands for something
        return make() if self.opens is None else self.opens(make)

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
        source = self._ask(model=model, input_messages=input_messages, options=options)
        return source if self._layer is None else layered(*self._layer, source)

    def over(self, inner: Observable[Any]) -> ModelSource:
        """The same source with other work; `using` asks the source as it was."""
        return ModelSource(_flux_of(inner), self.request, self._ask, self._layer, self.private, opens=self.opens)


class PrivateFlux(Flux[ModelChunk]):
    """A model's chunks with words in them that belong to one session, which its request does not show.

    Returned from `around`: whoever keeps replies by their request, further out, must not keep these.
    """


class ToolSource(Mono[ToolResultBlock]):
    """The work behind `PreActing`: each run is one attempt at the tool. Not made by users.

    Args:
        inner: What runs.
        change: Gives the same work with other pieces.
        replace: Gives other work in its place.
        layer: What is put around that.
    """

    def __init__(
        self, inner: Mono[ToolResultBlock], change: Changed, replace: Replaced, layer: Layer | None = None
    ) -> None:
        self.inner = inner
        self._change = change
        self._replace = replace
        self._layer = layer

    def resolve(self) -> Awaitable[ToolResultBlock | Empty]:
        """Start an attempt; see `Mono.resolve`."""
        return self.inner.resolve()  # pyright: ignore[reportOptionalMemberAccess] - a source stands for something

    def chunks(self, transform: Transform) -> ToolSource:
        """The same work with its pieces changed on their way to `ActingChunk`.

        Args:
            transform: Gets the pieces as a Flux, returns another.

        Example:
            >>> def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
            ...     return source.chunks(lambda pieces: pieces.map(mask))
        """
        source = self._change(transform)
        return source if self._layer is None else layered(*self._layer, source)

    def instead(self, work: Work) -> ToolSource:
        """Other work in the tool's place: the tool does not run, and what comes of this is taken for what came of it.

        Its lock, retries and time limit are the tool's own, and do not count here; nor are the arguments checked.

        Args:
            work: Gets the call's `ToolContext`; what it emits become `ActingChunk` events.

        Example:
            >>> def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
            ...     return source.instead(self.recorded)
        """
        source = self._replace(work)
        return source if self._layer is None else layered(*self._layer, source)

    def over(self, inner: Observable[Any]) -> ToolSource:
        """The same source with other work; `chunks` changes the pieces of the source as it was."""
        return ToolSource(_mono_of(inner), self._change, self._replace, self._layer)


def layered(around: Around, hook: Wrapping, event: Event, source: Any) -> Any:
    """Put one hook's `around` around a source; what can be asked for something else still can be.

    Args:
        around: The hook's method.
        hook: The hook.
        event: The sealed event.
        source: The work, with the layers further in.

    Raises:
        HookContractError: The hook returned something else than a source.
    """
    try:
        made = around(event, source)
    except Exception as error:
        kind = type(event).__name__
        error.add_note(Aside(f"raised by hook {hook.name} (priority {hook.priority}) on {kind}"))
        raise
    if made is source or type(made) in _SOURCES:
        return made
    below: type[Any] = source.__class__
    if below is ModelSource and isinstance(made, Flux):
        private = source.private or isinstance(made, PrivateFlux)
        layer = (around, hook, event)
        return ModelSource(made, source.request, source.using, layer, private, opens=source.opens)  # pyright: ignore[reportUnknownArgumentType]
    if below is ToolSource and isinstance(made, Mono):
        return ToolSource(made, source.chunks, source.instead, (around, hook, event))  # pyright: ignore[reportUnknownArgumentType]
    if not hasattr(made, "subscribe"):
        raise HookContractError(
            f"{hook.name}.around",
            type(event).__name__,
            "None (is a `return` missing? what stays as it is is returned too: `return source`)"
            if made is None
            else type(made).__name__,
            "the source, or any Mono, Flux or Observable",
        )
    if below is ModelSource:
        return ModelSource(
            Flux.from_observable(made),
            source.request,
            source.using,
            (around, hook, event),
            source.private,
            opens=source.opens,
        )
    if below is ToolSource:
        return ToolSource(Mono.from_observable(made), source.chunks, source.instead, (around, hook, event))
    return made


def standing_for(made: Any, watched: Observable[Any]) -> Observable[Any]:
    """What is put in the place of what a hook has made: as much a source as that, and as private."""
    if isinstance(made, ModelSource | ToolSource):
        return made.over(watched)
    if isinstance(made, PrivateFlux):
        return PrivateFlux(_flux_of(watched).open)
    return watched


def _flux_of(work: Any) -> Flux[ModelChunk]:
    return work if isinstance(work, Flux) else Flux.from_observable(work)  # pyright: ignore[reportUnknownVariableType]


def _mono_of(work: Any) -> Mono[ToolResultBlock]:
    return work if isinstance(work, Mono) else Mono.from_observable(work)  # pyright: ignore[reportUnknownVariableType]


_SOURCES = (ModelSource, ToolSource)
