"""`Hook`: one method for all events, one for wrapping the work behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast

from reactivex import Observable

from agentflow.chunks import ModelChunk
from agentflow.events import Event, HookEvent, PreActing, PreReasoning
from agentflow.hooks.wrapping import ModelSource, ToolSource
from agentflow.messages import Msg, ToolResultBlock
from agentflow.specs import AnyTool
from agentflow.verdicts import Verdict

__all__ = ["FailurePolicy", "Hook", "HookResult", "HookValue"]

HookValue: TypeAlias = HookEvent | Verdict | None
HookResult: TypeAlias = "HookValue | Awaitable[HookResult] | Observable[Any]"
"""What `on_event` may return: the event (the same or a changed one), a verdict, None, or any of these later."""

FailurePolicy: TypeAlias = Literal["abort", "skip", "deny"]

S = TypeVar("S", bound="Observable[Any]")


class Hook:
    """Subclass it, match the events you care about, return the event.

    Attributes:
        priority: Ascending order within a class of hooks; bands: 0-49 system, 50-99 checks, 100-499 behaviour, 500 and
            up output.
        on_failure: What an exception of this hook does: `"abort"` ends the call, `"skip"` undoes the hook's edits and
            goes on, `"deny"` refuses the work. None: abort on a decision event, skip on a notification and for observers.
        timeout: Seconds that one event may take; a synchronous hook needs `in_thread=True` for it.
        guard: Runs after all editing hooks of its event, on the sealed event; may deny, stop, suspend
            or ask again, never edit or answer.
        observer: Runs after the chain on the sealed event, always; changes nothing, and its failure harms nothing.
        scope: `"own"`: this agent's calls; `"tree"`: those of its sub-agents too.
        serial: Never overlaps with itself, not even in parallel rounds or runs.
        shadow: Runs on a copy; what it would have changed is recorded in `event.context.shadows`, and nothing applied.
        in_thread: `on_event` is an ordinary blocking function and runs in a thread.
        tags: Free labels, for filters.
        only_tools: Patterns such as `"delete_*"`: events about other tools are not shown to the hook.
        events: The event classes (or base classes) that it listens to; None: all. What nobody listens to is not built.
        wraps: The Pre events whose work its `around` may wrap; None: all four. For the others `around` is not called.
            (`around_model` and `around_tool` say themselves which they are for.)

    Example:
        >>> class Polite(Hook):
        ...     def on_event(self, event: HookEvent) -> HookResult:
        ...         match event:
        ...             case PreCall(input_messages=[*_, last]):
        ...                 print("asked:", last.text)
        ...             case _:
        ...                 pass
        ...         return event
    """

    priority: int = 100
    on_failure: FailurePolicy | None = None
    timeout: float | None = None
    guard: bool = False
    observer: bool = False
    scope: Literal["own", "tree"] = "own"
    serial: bool = False
    shadow: bool = False
    in_thread: bool = False
    tags: frozenset[str] = frozenset()
    only_tools: tuple[str, ...] = ()
    events: ClassVar[tuple[type[Event], ...] | None] = None
    wraps: ClassVar[tuple[type[Event], ...] | None] = None

    @property
    def name(self) -> str:
        """What errors and `describe()` call this hook."""
        return type(self).__name__

    def on_event(self, event: HookEvent) -> HookResult:
        """See an event; change it, answer it, veto it, or let it pass."""
        return event

    def around(self, event: HookEvent, source: S) -> S | Observable[Any]:
        """Wrap the work behind a sealed Pre event; `around_model` and `around_tool` are the typed forms for one of them.

        Args:
            event: `PreCall`, `PreReasoning`, `PreToolRound` or `PreActing`; its chain is over.
            source: The work, cold: a `Flux[ModelChunk]` for `PreReasoning`, a `Mono[ToolResultBlock]` for
                `PreActing`, a `Mono[tuple[ToolResultBlock, ...]]` for `PreToolRound`, a `Mono[Msg]` for `PreCall`.
                Subscribing again runs it again.

        Returns:
            `source` itself, or what takes its place.
        """
        return source

    def around_model(self, event: PreReasoning, source: ModelSource) -> Observable[ModelChunk]:
        """Wrap a model call; the typed form of `around` for `PreReasoning`, and called in its place.

        Args:
            event: The sealed event.
            source: Each run of it is one attempt; `source.using(model=...)` is the same with another request, and
                `source.request` what the model will be asked.

        Returns:
            `source` itself, or what takes its place.

        Example:
            >>> class Fallback(Hook):
            ...     def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
            ...         return source.catch(lambda error, _: source.using(model="openai/gpt-5-mini"))
        """
        return cast("Observable[ModelChunk]", self.around(event, source))

    def around_tool(self, event: PreActing, source: ToolSource) -> Observable[ToolResultBlock]:
        """Wrap a tool call; the typed form of `around` for `PreActing`, and called in its place.

        Args:
            event: The sealed event.
            source: Each run of it is one attempt; `source.chunks(...)` changes the pieces on their way to `ActingChunk`.

        Returns:
            `source` itself, or what takes its place.

        Example:
            >>> class Twice(Hook):
            ...     def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
            ...         return source.retry(2)
        """
        return cast("Observable[ToolResultBlock]", self.around(event, source))

    def concerns(self, reply: Msg) -> bool:
        """Whether a reply of the model concerns this hook.

        Where all hooks of `PostReasoning` say no, and nobody reads the stream, the event is not built. Where it is built,
        every hook gets it: check again in `on_event`.
        """
        return True

    def tools(self) -> Iterable[AnyTool]:
        """Tools that come with the hook."""
        return ()

    def __repr__(self) -> str:
        if type(self.priority) in (int, float):
            return f"<{self.name} priority={self.priority}>"
        return f"<{type(self).__name__}>"  # the text of a method, which is refused as a priority, would hold this one
