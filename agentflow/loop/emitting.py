"""The events of a call: count them, build them if needed, pass them through their chain, and hand them to the reader.

Rules:

1. Events are built only in `fire`, `decide` and `sealed`, except that `loop/reasoning.py` itself builds the many chunk
   events that only a reader receives. An event without a hook or a reader costs one lookup.
2. `fire` and `decide` create a coroutine only for hooks that need time, or if the run must wait for its reader after hooks.
3. The failure of a hook is reported. If a hook fails on that report too, its failure is noted on the reported error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias, TypeVar, cast

from agentflow._support.cancellation import cancel_requests
from agentflow._support.logs import log_failure
from agentflow.errors import FailureNote
from agentflow.hooks.chain import Chain, run_chain
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.skipped import warn_skipped
from agentflow.loop.scope import RunScope
from agentflow.loop.suspended import suspends_as
from agentflow.vocabulary.events import (
    EVENT_TYPES,
    CallEnded,
    Error,
    ErrorPhase,
    Event,
    Frame,
    PostActing,
    PostReasoning,
    PreActing,
    PreToolRound,
    Purpose,
    TurnView,
)
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.verdicts import Recover

if TYPE_CHECKING:
    from agentflow.loop.stream import EventBuffer

__all__ = ["ALL_EVENTS", "EmitResult", "Events"]

E = TypeVar("E", bound=Event)

EmitResult: TypeAlias = E | Awaitable[E | None] | None
"""The result of emitting an event: None if it had no hook, the event after its hooks, or an awaitable of either."""


class Owner(Protocol):
    """The run that emits the events."""

    @property
    def resuming(self) -> bool:
        """Whether the open round was resumed with decisions."""
        ...

    def make_frame(self) -> Frame:
        """Return the values that its events share."""
        ...

    @property
    def turn(self) -> TurnView | None:
        """A view of the turn; None if this is the run of a call."""
        ...

    @property
    def purpose(self) -> Purpose | None:
        """The purpose of the next model call; None if the next action is not a model call."""
        ...


ALL_EVENTS: Final = frozenset(EVENT_TYPES)
_NO_OWNER: Owner = cast("Any", None)
"""The owner of a finished run's events; never used."""


class Events:
    """The events of one run.

    Args:
        owner: The run.
        hooks: Its hooks.
        now: Its clock.
        scope: Its task and its cancellation.
        buffer: Passes events to its reader; None if there is no reader.

    Attributes:
        seq: The number of the last emission point, counted even if no event was built there. Code that skips an event
            because it has neither a hook nor a reader must count it too.
        handled: The event types that a hook handles, or all of them if there is a reader. Events of other types need not
            be fired.
        iteration: The number of the current request to the model in the run, from 1; 0 before the first.
        in_chain: The events built by `decide` whose hooks are still running.
    """

    __slots__ = (
        "_disabled",
        "_frame",
        "_owner",
        "_reported",
        "buffer",
        "chains",
        "handled",
        "hooks",
        "in_chain",
        "iteration",
        "now",
        "scope",
        "seq",
    )

    def __init__(
        self,
        owner: Owner,
        hooks: FullHookSet,
        now: Callable[[], float],
        scope: RunScope,
        buffer: EventBuffer | None,
    ) -> None:
        self._owner = owner
        self.hooks = hooks
        self.chains: dict[type[Event], Chain | None] = hooks.compiled or hooks.all_chains
        # With a reader every event is built, so `handled` alone decides whether an emission point can be skipped.
        self.handled = hooks.handled if buffer is None else ALL_EVENTS
        self.now = now
        self.scope = scope
        self.buffer = buffer
        self._frame: Frame | None = None
        self._reported: tuple[BaseException, ...] = ()
        self._disabled: tuple[tuple[type[Event], Hook], ...] = ()
        self.in_chain: tuple[Event, ...] = ()
        self.seq = 0
        self.iteration = 0

    abandoned: ClassVar[bool] = False
    """Whether the run was detached from the task that executes it; see `agentflow.loop.endings`."""

    def of(self, owner: Owner) -> Events:
        """Return a copy for another owner."""
        # The buffer and the number of the last event are kept: the reader sees one sequence of events.
        other = copy(self)
        other._owner, other._frame, other.in_chain = owner, None, ()
        return other

    @property
    def frame(self) -> Frame:
        """The values that all events share; created with the first event."""
        frame = self._frame
        if frame is None:
            frame = self._frame = self._owner.make_frame()
        return frame

    def release(self) -> None:
        """Break the reference cycles between a finished run, its context and its last errors."""
        self._frame = None
        self._reported = ()
        self._owner = _NO_OWNER
        if self.buffer is not None:
            self.buffer.wake()
            self.buffer = None

    # ---- emitting

    def fire(self, kind: type[E], values: tuple[object, ...], hooks: FullHookSet | None = None) -> EmitResult[E]:
        """Count an event. If it has a hook or a reader, build it, pass it through its chain, and hand it to the reader.

        Args:
            kind: The event's class.
            values: The event's own fields except `decision`, in order.
            hooks: The hooks, if they differ from the run's.
        """
        self.seq += 1
        chain = self.chains[kind] if hooks is None else self.chain_in(hooks, kind)
        buffer = self.buffer
        if chain is None:
            if buffer is None:
                return None
            # No coroutine for an event that only the reader receives: the buffer's own awaitable is enough.
            full = buffer.put(kind.make(self, values))
            return cast("EmitResult[E]", full) if full is not None and self._waits() else None
        event: E = chain.make(self, values)
        rest = run_chain(chain, event, self)
        if rest is not None:
            return self._after_hooks(event, rest)
        if buffer is not None:
            full = buffer.put(event)
            if full is not None and self._waits():
                return self._after_reader(event, full)
        return event

    async def emit(self, kind: type[E], values: tuple[object, ...] = (), hooks: FullHookSet | None = None) -> E | None:
        """`fire`, and wait for the result.

        Returns:
            The event after its hooks; None if no hook handles it.
        """
        emitted = self.fire(kind, values, hooks)
        return emitted if emitted is None or isinstance(emitted, Event) else await emitted

    async def _after_hooks(self, event: E, rest: Coroutine[Any, Any, None]) -> E:
        try:
            await rest
        except BaseException as error:  # a hook failed, or the run was cancelled
            # The reader gets the event all the same, since an `Error` or Post event that belongs to it may follow.
            if self.buffer is not None and not isinstance(error, GeneratorExit):
                self.buffer.put(event)
            raise
        if (full := self.hand_over(event)) is not None:
            await full
        return event

    @suspends_as("reader")
    async def _after_reader(self, event: E, full: Awaitable[None]) -> E:
        await full
        return event

    def decide(
        self, kind: type[E], values: tuple[object, ...], hooks: FullHookSet | None = None, shown: bool = True
    ) -> EmitResult[E]:
        """Build an event and pass it through its chain. The caller then records the decision on the event, and hands the
        event to the reader afterwards.

        So the reader never sees a decision that a crash or a cancellation could undo.

        Args:
            kind: The event's class.
            values: The event's own fields except `decision`, in order.
            hooks: The hooks, if they differ from the run's.
            shown: Whether the reader receives it.
        """
        self.seq += 1
        chain = self.chains[kind] if hooks is None else self.chain_in(hooks, kind)
        if chain is None:
            if self.buffer is None or not shown:
                return None
            return kind.make(self, values)
        event: E = chain.make(self, values)
        in_chain = self.in_chain
        self.in_chain = (*in_chain, event)
        rest = run_chain(chain, event, self)
        if rest is not None:
            return self._decided(event, rest, shown)
        self.in_chain = in_chain  # no other task ran meanwhile, so the old tuple is right
        return event

    async def _decided(self, event: E, rest: Coroutine[Any, Any, None], shown: bool) -> E:
        try:
            await rest
        except BaseException as error:  # as in `_after_hooks`
            if self.buffer is not None and shown and not isinstance(error, GeneratorExit):
                self.buffer.put(event)
            raise
        finally:
            # Not the old tuple: parallel tool calls may have added events meanwhile.
            self.in_chain = tuple([other for other in self.in_chain if other is not event])
        return event

    def sealed(self, kind: type[E], values: tuple[object, ...]) -> E:
        """Build a sealed event that passes no chain, for `around` hooks or the reader."""
        return kind.make(self, values)

    def hand_over(self, event: Event) -> Awaitable[Event] | None:
        """Pass an event to the reader, if there is one. An awaitable is returned only if the run must wait for the
        reader."""
        if self.buffer is None:
            return None
        full = self.buffer.put(event)
        return None if full is None or not self._waits() else self._after_reader(event, full)

    def hand_over_after(self, writing: Awaitable[None] | None, event: Event | None) -> Awaitable[object] | None:
        """Wait until the decision on an event is stored, then pass the event to the reader. Return an awaitable only if
        one of these needs time."""
        buffer = self.buffer
        if event is None or buffer is None:
            return writing
        if writing is not None:
            return self._handed_over_after(writing, event)
        full = buffer.put(event)
        return None if full is None or not self._waits() else self._after_reader(event, full)

    async def _handed_over_after(self, writing: Awaitable[None], event: Event) -> None:
        await writing
        if (full := self.hand_over(event)) is not None:
            await full

    def _waits(self) -> bool:
        """Whether the run should wait for its reader. During cancellation or cleanup it should not, since the
        reader may have closed the stream."""
        return not self.scope.stopped and not self.scope.tasks.cleaning

    def chain_in(self, hooks: FullHookSet, kind: type[Event]) -> Chain | None:
        """Return the chain of a narrower scope, without the hooks that this run has disabled for the event type."""
        chain = hooks.chain(kind)
        for disabled, hook in self._disabled:
            if disabled is kind and chain is not None:
                chain = chain.without(hook)
        return chain

    # ---- reporting

    async def report(
        self,
        error: BaseException,
        phase: ErrorPhase,
        *,
        fatal: bool,
        hook: str | None = None,
        tool_use: ToolUseBlock | None = None,
        hooks: FullHookSet | None = None,
    ) -> Recover | None:
        """Fire `Error`, and return the verdict of its hooks. A fatal error is reported only once."""
        if fatal and any(error is reported for reported in self._reported):
            return None
        # Noted before the hooks run, so that the error is not reported a second time if one of them raises it again.
        self._reported = (*self._reported, error)
        owner = self._owner
        purpose = owner.purpose if phase is ErrorPhase.REASONING else None
        values = (error, phase, fatal, hook, tool_use, purpose, owner.turn)
        event = await self.emit(Error, values, hooks)
        return None if event is None else event.verdict

    # ---- hooks that fail (`Faults`)

    async def hook_failed(self, kind: type[Event], hook: Hook, error: Exception, fatal: bool) -> bool:
        """Report a hook's failure; see `agentflow.hooks.chain.Faults`."""
        if not fatal:
            where = self._frame or self.frame
            # The first failure is shown even if the library's log is disabled; later ones only go to that log.
            if not warn_skipped(hook, kind.__name__, error, where):
                text = "hook {} (priority {}) failed on {} and was skipped"
                log_failure("WARNING", error, text, hook.name, hook.priority, kind.__name__, where=where)
            # A hook that failed on a notification will probably fail on each one. A hook that may decide is called again.
            if issubclass(kind, Error | CallEnded) or not kind.verdicts:
                self._disable(kind, hook)
        # No `Error` event here: about an `Error` it might never end, and `CallEnded` is the last event of a call.
        if kind is Error or kind is CallEnded:
            if fatal:
                log_failure("ERROR", error, "hook {} failed while a failure was reported", hook.name, where=self.frame)
            # The error that is being reported is the last one.
            for reported in self._reported[-1:]:
                text = f"while this was reported, hook {hook.name!r} failed: {type(error).__name__}: {error}"
                reported.add_note(FailureNote(text))
            return True
        if not fatal:
            await self.report(error, ErrorPhase.HOOK, fatal=False, hook=hook.name)
            return True
        verdict = await self.report(error, ErrorPhase.HOOK, fatal=True, hook=hook.name)
        return verdict is not None

    def _disable(self, kind: type[Event], hook: Hook) -> None:
        """Stop calling a hook for an event type in this run."""
        self._disabled = (*self._disabled, (kind, hook))
        chain = self.chains[kind]
        if chain is not None:
            self.chains = {**self.chains, kind: chain.without(hook)}

    def passes_suspend(self, event: Event) -> bool:
        """Whether the chain should ignore a `Suspend`, because the run was resumed with a decision on it."""
        if not self._owner.resuming:
            return False
        return isinstance(event, PreToolRound) or (isinstance(event, PreActing) and event.approval is not None)

    def check(self) -> None:
        """Raise `CancelledError` if the run was cancelled, so that no further hook is called, except in cleanup."""
        scope = self.scope
        if scope.replay is not None and scope.replay.passes:
            scope.replay.passes = False  # set by a replay: the recorded run passed this check
        elif scope.stopped and not scope.tasks.is_cleaning():
            scope.check()

    def is_cancelled(self) -> bool:
        """See `Faults.is_cancelled`."""
        return not self.scope.tasks.is_cleaning() and self.scope.is_cancelled()

    def why_cancelled(self) -> str:
        """See `Faults.why_cancelled`."""
        scope = self.scope
        # In cleanup any request is new, since `RunScope.cleanup` has removed the requests from before it.
        if not cancel_requests() or not scope.tasks.is_cleaning():
            return ""
        return (
            f"cleanup took longer than {scope.tasks.cleanup_timeout:g} s"
            if scope.tasks.late
            else "its task was cancelled"
        )

    def post_events_in_chain(self, use_id: str | None) -> list[PostActing | PostReasoning]:
        """Return the Post events for which hooks are running; the one of tool call `use_id` last."""
        found = [event for event in self.in_chain if isinstance(event, PostActing | PostReasoning)]
        return sorted(found, key=lambda e: isinstance(e, PostActing) and e.original_tool_use.id == use_id)
