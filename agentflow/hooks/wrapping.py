"""The sources that `around` receives: the work that follows a sealed Pre event, and methods to run it differently.

Rules:

1. A source stays a source through any number of hooks: the result of one hook, even of a plain operator, is passed to
   the next hook as a source. So each wrapper can change the request (`using`) or a tool's chunks (`chunks`).
2. Such a change is passed to the innermost source, and each hook that has wrapped it applies its `around` to the new source.
3. Plain operators of several wrappers (`map`, `filter`, `tap` and similar) run as one loop: a source passes them on to
   the stream inside it. If all wrappers are plain, the loop applies them to each chunk itself, without a stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar, cast

from agentflow.errors import FailureNote, HookContractError
from agentflow.reactive import Empty, Flux, Mono
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import Event
from agentflow.vocabulary.messages import Msg, ToolResultBlock
from agentflow.vocabulary.ports.model import Model, ModelRequest
from agentflow.vocabulary.specs import ModelOptions

if TYPE_CHECKING:
    from reactivex import Observable

Transform: TypeAlias = Callable[[Flux[Any]], Any]
"""Changes a tool's chunks: receives them as a Flux and returns another Flux."""
Opens: TypeAlias = Callable[[Callable[[], AsyncIterator[Any]]], AsyncIterator[Any]]
"""Opens a stream and owns it until it is closed."""
Around: TypeAlias = Callable[[Any, Any], Any]
UsesRequest: TypeAlias = Callable[..., "ModelSource"]
"""Has the signature of `ModelSource.using`."""
ChangesChunks: TypeAlias = Callable[[Transform], "ToolSource"]
"""Returns the same work with other chunks."""


G = TypeVar("G", bound=Callable[..., AsyncIterator[Any]])

CHECK_THEIR_END: Final[set[CodeType]] = set()
"""The code objects of the generators that `checks_its_end` marked."""


def checks_its_end(generator: G) -> G:
    """Mark a generator that never ends early by swallowing a cancellation, so that the loop need not check how it ended.

    Each `async for` in it must read a source of the stage, and it must not handle `CancelledError`.
    """
    CHECK_THEIR_END.add(cast("FunctionType", generator).__code__)
    return generator


class Emits(Protocol):
    """An object that emits chunks of a tool's work."""

    def emit(self, value: object) -> Awaitable[None]:
        """Emit one chunk; must be awaited."""
        ...


class ToolCallContext(Protocol):
    """The tool call for which the work runs, as in `ToolContext`."""

    @property
    def run(self) -> RunContext:
        """The context of its run."""
        ...

    @property
    def emitter(self) -> Emits:
        """Emits chunks of the work."""
        ...


Work: TypeAlias = Callable[[ToolCallContext], Awaitable[object]]
"""Runs instead of a tool: receives the tool's call, returns a value as the tool would."""
ReplacesWork: TypeAlias = Callable[[Work, bool], "ToolSource"]
"""Returns other work to run instead of the tool."""


class Wrapping(Protocol):
    """A hook, with the attributes that error messages show."""

    priority: int

    @property
    def name(self) -> str:
        """Its name."""
        ...


Layer: TypeAlias = tuple[Around, Wrapping]
"""A hook's `around`, and the hook."""
Layers: TypeAlias = tuple[Sequence[Layer], Event]
"""Hooks to apply, the outermost first, and the sealed event."""


class ModelSource(Flux[ModelChunk]):
    """The model call that follows `PreReasoning`: each subscription is one attempt. Not created by users.

    Args:
        inner: The stream to run.
        request: The request to the model.
        ask: Returns the same work with another request.
        layer: The wrapper to apply to the work that `ask` returns.
        private: The initial value of the attribute `private`.
        opens: Opens each stream for its stage, which closes streams that hooks leave open.

    Attributes:
        request: The request to the model: the event after its hooks, with the messages they injected.
        private: Whether an inner hook adds text that belongs to this session only (see `PrivateFlux`).

    Example:
        >>> def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        ...     return source.catch(lambda error, _: source.using(model="openai/gpt-5-mini"))
    """

    def __init__(
        self,
        inner: Flux[ModelChunk],
        request: ModelRequest,
        ask: UsesRequest,
        layer: Layers | None = None,
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
        make = self.inner.open  # pyright: ignore[reportOptionalMemberAccess] - set by __init__
        return make() if self.opens is None else self.opens(make)

    def using(
        self,
        *,
        model: str | Model | None = None,
        input_messages: Sequence[Msg] | None = None,
        options: ModelOptions | None = None,
    ) -> ModelSource:
        """Return the same work with another request. Subscribing to it is another attempt.

        Args:
            model: Another model.
            input_messages: Other messages; they are put into a legal order.
            options: Merged over the options of the request.
        """
        source = self._ask(model=model, input_messages=input_messages, options=options)
        return source if self._layer is None else layered(*self._layer, source)

    def with_work(self, inner: Observable[Any]) -> ModelSource:
        """Return the same source with other work; `using` still changes the original request."""
        return ModelSource(_flux_of(inner), self.request, self._ask, self._layer, self.private, opens=self.opens)


class PrivateFlux(Flux[ModelChunk]):
    """A model's chunks with text that belongs to one session and is not in the request.

    If `around` returns a `PrivateFlux`, outer hooks that cache replies by request do not cache this reply.
    """


class ToolSource(Mono[ToolResultBlock]):
    """The tool call that follows `PreActing`: each subscription is one attempt. Not created by users.

    Args:
        inner: The work to run.
        change: Returns the same work with other chunks.
        replace: Returns other work to run instead.
        layer: The wrapper to apply to the work that `change` or `replace` returns.
        emits: The initial value of the attribute `emits`.

    Attributes:
        emits: Whether the work may emit chunks.
    """

    def __init__(
        self,
        inner: Mono[ToolResultBlock],
        change: ChangesChunks,
        replace: ReplacesWork,
        layer: Layers | None = None,
        emits: bool = True,
    ) -> None:
        self.inner = inner
        self.emits = emits
        self._change = change
        self._replace = replace
        self._layer = layer

    def resolve(self) -> Awaitable[ToolResultBlock | Empty]:
        """Start an attempt; see `Mono.resolve`."""
        return self.inner.resolve()  # pyright: ignore[reportOptionalMemberAccess] - set by __init__

    def chunks(self, transform: Transform) -> ToolSource:
        """Return the same work with its chunks changed before they become `ActingChunk` events.

        Args:
            transform: Receives the chunks as a Flux and returns another Flux.

        Example:
            >>> def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
            ...     return source.chunks(lambda chunks: chunks.map(mask))
        """
        source = self._change(transform)
        return source if self._layer is None else layered(*self._layer, source)

    def instead(self, work: Work, transformed: bool = False) -> ToolSource:
        """Return other work to run instead of the tool; its result is used as the tool's result.

        The lock, retries, time limit and argument checks of the tool do not apply.

        Args:
            work: Receives the call's `ToolContext`. Values that it emits become `ActingChunk` events.
            transformed: Whether these values come from earlier events, which `chunks` has changed already, so that it
                does not change them again.

        Example:
            >>> def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
            ...     return source.instead(self.recorded)
        """
        source = self._replace(work, transformed)
        return source if self._layer is None else layered(*self._layer, source)

    def with_work(self, inner: Observable[Any]) -> ToolSource:
        """Return the same source with other work; `chunks` still changes the original work."""
        return ToolSource(_mono_of(inner), self._change, self._replace, self._layer, self.emits)


def layered(layers: Sequence[Layer], event: Event, source: Any, outermost: Layer | None = None) -> Any:
    """Apply hooks' `around` to a source, the last one first. The result is a source of the same kind, for the next hook.

    Args:
        layers: The hooks, the outermost first.
        event: The sealed event.
        source: The work, with the inner wrappers.
        outermost: The layer that no other hook follows: its result may be any observable.

    Raises:
        HookContractError: A hook returned something other than an observable.
    """
    for layer in reversed(layers):
        around, hook = layer
        try:
            wrapped = around(event, source)
        except Exception as error:  # raised again, with a note that names the hook
            kind = type(event).__name__
            error.add_note(FailureNote(f"raised by hook {hook.name} (priority {hook.priority}) on {kind}"))
            raise
        if wrapped is source:
            continue
        # A source of its own, for example from `using`: the wrappers inside this one are applied already.
        if wrapped.__class__ in _SOURCES:
            source = wrapped
        # No hook needs its `using` or `chunks`.
        elif layer is outermost:
            return _checked(wrapped, hook, event)
        elif source.__class__ is ModelSource:
            stream: Any = wrapped  # pyright would lose the type of its items
            if not isinstance(wrapped, Flux):
                stream = Flux[Any].from_observable(_checked(wrapped, hook, event))
            private = source.private or isinstance(wrapped, PrivateFlux)
            # Rule 2: its `using` asks the source inside, and applies this layer to the new source.
            source = ModelSource(stream, source.request, source.using, ((layer,), event), private, opens=source.opens)
        elif source.__class__ is ToolSource:
            work: Any = wrapped
            if not isinstance(wrapped, Mono):
                work = Mono[Any].from_observable(_checked(wrapped, hook, event))
            source = ToolSource(work, source.chunks, source.instead, ((layer,), event), source.emits)
        else:
            source = _checked(wrapped, hook, event)
    return source


def _checked(wrapped: Any, hook: Wrapping, event: Event) -> Any:
    """Return the result of `around` if it is an observable."""
    if hasattr(wrapped, "subscribe"):
        return wrapped
    raise HookContractError(
        f"{hook.name}.around",
        type(event).__name__,
        "None (is a `return` missing? to change nothing, `return source`)"
        if wrapped is None
        else type(wrapped).__name__,
        "the source, or any Mono, Flux or Observable",
    )


def observed_as(wrapped: Any, watched: Observable[Any]) -> Observable[Any]:
    """Return an observed stream in the form of the hook's result: a source if the result is a source, and private if
    the result is private."""
    if isinstance(wrapped, ModelSource | ToolSource):
        return wrapped.with_work(watched)
    if isinstance(wrapped, PrivateFlux):
        return PrivateFlux(_flux_of(watched).open)
    return watched


def _flux_of(work: Any) -> Flux[ModelChunk]:
    return cast("Flux[ModelChunk]", work if isinstance(work, Flux) else Flux.from_observable(work))


def _mono_of(work: Any) -> Mono[ToolResultBlock]:
    return cast("Mono[ToolResultBlock]", work if isinstance(work, Mono) else Mono.from_observable(work))


# Compared by exact class, which is faster than `isinstance` with an abstract class.
_SOURCES: Final = (ModelSource, ToolSource)
