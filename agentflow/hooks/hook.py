"""`Hook`: one method to handle all events, and one to wrap the work that follows a Pre event."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from reactivex import Observable

from agentflow.hooks.wrapping import ModelSource, ToolSource
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import Event, HookEvent, PreActing, PreReasoning
from agentflow.vocabulary.messages import Msg, ToolResultBlock
from agentflow.vocabulary.specs import AnyTool
from agentflow.vocabulary.verdicts import Verdict

HookValue: TypeAlias = HookEvent | Verdict | None
HookResult: TypeAlias = "HookValue | Awaitable[HookResult] | Observable[Any]"
"""The possible return values of `on_event`: the event (the same or a changed one), a verdict, None, or an awaitable or
observable of one of these."""

FailurePolicy: TypeAlias = Literal["abort", "skip", "deny"]

S = TypeVar("S", bound="Observable[Any]")


class Hook:
    """The base class of hooks. Match the events you care about, and return the event.

    Attributes:
        priority: Order within editing hooks, guards or observers, ascending. Bands: 0-49 system, 50-99 checks, 100-499
            behaviour, 500 and above output.
        on_failure: How to handle an exception of this hook: `"abort"` ends the call, `"skip"` undoes the hook's edits
            and continues, `"deny"` refuses the work. None: skip if the hook is an observer or the event is a
            notification; abort on other events.
        timeout: The time limit for one event, in seconds. A synchronous hook also needs `in_thread=True`.
        guard: Whether the hook is a guard: it runs on the sealed event, after all editing hooks. A guard may deny,
            stop, suspend or ask again, but never edit or answer.
        observer: Whether the hook is an observer: it always runs, on the sealed event, after the chain. An observer
            changes nothing, and by default its failure does not affect the call.
        scope: `"own"`: only calls of this agent; `"tree"`: also calls of its sub-agents.
        serial: The hook never runs twice at the same time, even in parallel rounds or runs, or in several event loops. A call
            made inside it must not reach the hook again, since it would wait for itself.
        shadow: Runs on a copy of the event. The hook's changes are not applied, but recorded in
            `event.context.shadows`.
        in_thread: Runs `on_event`, a blocking function, in a thread.
        tags: Labels. A process-wide hook with tags applies only to agents, turns and tools with one of them.
        only_tools: Patterns such as `"delete_*"`: the hook does not see events of other tools.
        events: The event classes (or base classes) that the hook handles; None: all. An event that no hook handles is
            built only for the reader of a stream.
        wraps: The Pre events for which `around` is called; None: all four. (`around_model` and `around_tool` are called
            without an entry here.)

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
    events: tuple[type[Event], ...] | None = None
    wraps: tuple[type[Event], ...] | None = None

    @property
    def name(self) -> str:
        """The name in error messages and `describe()`."""
        return type(self).__name__

    def on_event(self, event: HookEvent) -> HookResult:
        """Handle an event: change it, answer it, veto it, or let it pass."""
        return event

    def around(self, event: HookEvent, source: S) -> S | Observable[Any]:
        """Wrap the work that follows a sealed Pre event. `around_model` and `around_tool` are the typed forms for one
        event.

        Args:
            event: `PreCall`, `PreReasoning`, `PreToolRound` or `PreActing`, after its chain.
            source: The work, cold: a `Flux[ModelChunk]` for `PreReasoning`, a `Mono[ToolResultBlock]` for `PreActing`,
                a `Mono[tuple[ToolResultBlock, ...]]` for `PreToolRound`, a `Mono[Msg]` for `PreCall`. Subscribing again
                runs the work again.

        Returns:
            `source` itself, or an observable to use instead.
        """
        return source

    def around_model(self, event: PreReasoning, source: ModelSource) -> Observable[ModelChunk]:
        """Wrap a model call: the typed form of `around` for `PreReasoning`, called instead of it.

        Args:
            event: The sealed event.
            source: Each subscription is one attempt. `source.using(model=...)` is the same call with another request,
                and `source.request` is the request to the model.

        Returns:
            `source` itself, or an observable to use instead.

        Example:
            >>> class Fallback(Hook):
            ...     def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
            ...         return source.catch(lambda error, _: source.using(model="openai/gpt-5-mini"))
        """
        return cast("Observable[ModelChunk]", self.around(event, source))

    def around_tool(self, event: PreActing, source: ToolSource) -> Observable[ToolResultBlock]:
        """Wrap a tool call: the typed form of `around` for `PreActing`, called instead of it.

        Args:
            event: The sealed event.
            source: Each subscription is one attempt. `source.chunks(...)` changes the chunks before they become
                `ActingChunk` events.

        Returns:
            `source` itself, or an observable to use instead.

        Example:
            >>> class Twice(Hook):
            ...     def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
            ...         return source.retry(2)
        """
        return cast("Observable[ToolResultBlock]", self.around(event, source))

    def concerns(self, reply: Msg) -> bool:
        """Whether this hook should see a reply of the model.

        If all hooks of `PostReasoning` return False, none of them is called. Otherwise hooks that returned False may be
        called too, so `on_event` should check again.
        """
        return True

    def tools(self) -> Iterable[AnyTool]:
        """Return tools that come with the hook."""
        return ()

    def __repr__(self) -> str:
        if type(self.priority) in (int, float):
            return f"<{self.name} priority={self.priority}>"
        return (
            f"<{type(self).__name__}>"  # if `priority` is a method by mistake (refused later), its repr would recurse
        )


class NarrowHook(Hook):
    """A hook whose `on_event` accepts only the classes in `events`, which a type checker would refuse for `Hook`."""

    if TYPE_CHECKING:
        on_event: Any
