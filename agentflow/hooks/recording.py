"""Report the effect of each hook on each event to `ChangeListener`s: the interface for provenance.

If a set of hooks contains a `ChangeListener`, the calls of the other hooks are wrapped in code that compares the event
before and after (`recorded_calls`), and so are their `around` wrappers (`recorded_layers`). A set without a listener pays
nothing: its compiled calls are the hooks' own methods.

Rules:

1. Values are compared by identity: they are frozen, so another object is a change.
2. A listener changes nothing. If it fails, the failure is logged.
3. Durations use the run's clock, so they are repeatable in virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar, Literal, TypeAlias

from agentflow._support.values import frozen
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource
from agentflow.reactive import Flux
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import Event, PreActing, PreReasoning
from agentflow.vocabulary.messages import Msg, ToolResultBlock
from agentflow.vocabulary.ports.model import ModelRequest


@frozen
class FieldChange:
    """A writable field before and after a hook's call."""

    field: str
    before: Any
    after: Any


@frozen
class HookCall:
    """One call of a hook's `on_event`, and its effect.

    Attributes:
        hook: The hook.
        event: The event; later editing hooks may still change it.
        changes: The fields that the hook changed.
        verdict: The hook's verdict.
        error: The exception that the hook raised.
        duration_ms: How long it took.
        shadow: Whether the hook ran as a shadow, so that its changes were not applied.
        injected: The messages of each `context.inject` call of the hook, with `keep`.
        via: `on_event` or `around`; changes by `around` are reported as a `LayerRun` instead.
    """

    hook: Hook
    event: Event
    changes: tuple[FieldChange, ...] = ()
    verdict: Any = None
    error: BaseException | None = None
    duration_ms: float = 0.0
    shadow: bool = False
    injected: tuple[tuple[tuple[Msg, ...], bool], ...] = ()
    via: Literal["on_event", "around"] = "on_event"


@frozen
class LayerRun:
    """The input and output of one `around` wrapper, after its work has finished.

    Attributes:
        hook: The hook.
        event: The sealed Pre event.
        before: The result of the inner work: a message folded from chunks, a result, or results. None if the wrapper
            did not run the inner work, or ran other work.
        after: The result of the wrapper.
        duration_ms: From the call of `around` until the result.
    """

    hook: Hook
    event: Event
    before: Any
    after: Any
    duration_ms: float = 0.0


class ChangeListener(Hook):
    """An observer that is notified of the effects of the other hooks in its set, and of messages that observers inject.

    Example:
        >>> class Edits(ChangeListener):
        ...     events = ()
        ...     def on_call(self, call: HookCall) -> None:
        ...         for change in call.changes:
        ...             print(call.hook.name, "changed", change.field)
    """

    observer = True
    changes_only: bool = False
    """Whether to report only calls and wrappers that changed something, decided, injected messages or failed. Reporting
    then costs one comparison for each call without effect."""

    def on_begin(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """Called before a hook receives an event. If it returns an awaitable, that is awaited first."""
        return None

    def on_end(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """Called after an awaited hook has returned or failed. If it returns an awaitable, that is awaited first."""
        return None

    def on_answer(self, event: Event) -> None:
        """Called after a hook has answered without an await, if `on_begin` had made the hook wait."""

    def on_injection(self, hook: Hook, event: Event) -> None:
        """Called when a hook that handles an event injects messages."""

    def on_call(self, call: HookCall) -> None:
        """Called after an editing hook or a guard has answered, or after any hook has injected messages."""

    def on_layer(self, layer: LayerRun) -> None:
        """Called after the work of an event has passed an `around` wrapper."""


class VerdictListener(Hook):
    """An observer that needs some events only to see the verdicts of other hooks.

    If neither an editing hook nor a guard handles such an event, no verdict is possible, and the event is not built for
    this hook.

    Example:
        >>> class Refusals(VerdictListener):
        ...     for_verdicts = events = (PreActing,)
        ...     def on_event(self, event: HookEvent) -> None:
        ...         if event.decision is not None:
        ...             print(event.decision.hook, "decided", event.decision.verdict)
    """

    observer = True
    for_verdicts: ClassVar[tuple[type[Event], ...]] = ()
    """The `events` that are needed only for their verdicts."""


class ConditionalWrapper(Hook):
    """A hook that needs to wrap work in some calls only.

    If all hooks that wrap an event are of this class, and none of them needs to wrap it, the work runs as if no hook
    wrapped it.

    Example:
        >>> class Sampled(ConditionalWrapper):
        ...     def wraps_in(self, context: RunContext) -> bool:
        ...         return hash(context.call_id) % 100 == 0
    """

    def wraps_in(self, context: RunContext) -> bool:
        """Whether to wrap the next work of a call. The function should be fast, and must not raise."""
        return True


class SideWrapper(Hook):
    """A hook that wraps the side calls (`context.complete`) of other hooks and tools. Side calls have no event.

    The hooks nest as in `around`: the lowest priority is outermost.

    Example:
        >>> class Counts(SideWrapper):
        ...     def around_side(self, context, request, side, chunks):
        ...         print(side, "asks", request.model)
        ...         return chunks
    """

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: ModelSource
    ) -> Flux[ModelChunk]:
        """Wrap a side call.

        Args:
            context: The context of the call in which it is made.
            request: The request to the model.
            side: The purpose of the side call.
            chunks: The model's reply. Each subscription sends a request; `chunks.using(...)` sends another request.
        """
        return chunks


ModelWork: TypeAlias = Callable[[], AsyncIterator[ModelChunk]]
"""Opens the model's reply to one request."""
ToolWork: TypeAlias = Callable[[], Awaitable[ToolResultBlock]]
"""Starts one attempt of a tool call."""


class WorkListener(Hook):
    """An observer of the work of models and tools: their start, chunks and end, inside all `around` wrappers.

    It costs less than a wrapper, since nothing changes the work: each method returns work that passes on the same chunks,
    result and failure. A listener that also wraps models with `around` is not called for models; likewise for tools.

    Example:
        >>> class Times(WorkListener):
        ...     def on_tool_work(self, event: PreActing, work: ToolWork) -> ToolWork:
        ...         async def timed() -> ToolResultBlock:
        ...             began = event.context.clock.monotonic()
        ...             try:
        ...                 return await work()
        ...             finally:
        ...                 print(event.tool_use.name, event.context.clock.monotonic() - began)
        ...         return timed
    """

    observer = True

    def on_model_work(self, event: PreReasoning, request: ModelRequest, work: ModelWork) -> ModelWork | None:
        """Return the work of a model, observed; None means `work` itself.

        A generator that reads the reply should close it in a `finally`. Otherwise, if a wrapper stops reading early,
        the connection to the model stays open.

        Args:
            event: The sealed event of the model call.
            request: The request to the model.
            work: Opens the reply.
        """
        return work

    def on_tool_work(self, event: PreActing, work: ToolWork) -> ToolWork | None:
        """Return the work of a tool, observed; None means `work` itself.

        Args:
            event: The sealed event of the tool call.
            work: Starts an attempt, including the tool's own lock and retries.
        """
        return work


Listeners: TypeAlias = tuple[ChangeListener, ...]
