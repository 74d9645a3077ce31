"""A call's events: counted, built where somebody is there, passed through their chain, handed to the reader.

Rules:

1. `fire` and `decide` are the only places where events are built; an event that nobody listens to costs a look.
2. Nothing waits that does not have to: what hooks answer at once, and what only a reader sees, needs no coroutine.
3. A hook that fails is reported; a failure of reporting is noted on what was reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from copy import copy
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, cast

from agentflow.errors import Aside
from agentflow.events import (
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
from agentflow.ground.logs import log_failure
from agentflow.hooks.chain import Chain, run_chain
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.skipped import warn_skipped
from agentflow.loop.scope import RunScope, forget_cancellations
from agentflow.loop.stream import EventBuffer
from agentflow.messages import ToolUseBlock
from agentflow.verdicts import Recover

__all__ = ["Events", "Heard"]

E = TypeVar("E", bound=Event)

Heard: TypeAlias = E | Awaitable[E | None] | None
"""What became of an event: None, nobody was there; the event, as its hooks left it; or what has to be awaited to get it."""


class Owner(Protocol):
    """The run whose events these are."""

    resuming: bool

    def make_frame(self) -> Frame:
        """What its events share."""
        ...

    @property
    def turn(self) -> TurnView | None:
        """The turn that is run, where no model has asked for it."""
        ...

    @property
    def purpose(self) -> Purpose | None:
        """What the model is asked for next."""
        ...


_NO_OWNER: Owner = cast("Any", None)
"""The owner of the events of a finished run: nothing is asked of it any more."""


class Events:
    """The events of one run.

    Args:
        owner: The run.
        hooks: Its hooks.
        now: Its clock.
        scope: Its task, and whether it was cancelled.
        buffer: The hand-over to its reader; None: it has none.

    Attributes:
        seq: The number of the last emission point; counted whether or not an event was built there. Code that has found
            that no hook handles an event, and no reader gets it, counts the point itself.
        iteration: The round of reasoning that events belong to.
        judging: The events whose hooks are running.
    """

    __slots__ = (
        "_disabled",
        "_frame",
        "_now",
        "_owner",
        "_reported",
        "buffer",
        "chains",
        "hooks",
        "iteration",
        "judging",
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
        self._now = now
        self.scope = scope
        self.buffer = buffer
        self._frame: Frame | None = None
        self._reported: tuple[BaseException, ...] = ()
        self._disabled: tuple[tuple[type[Event], Hook], ...] = ()
        self.judging: tuple[Event, ...] = ()
        self.seq = 0
        self.iteration = 0

    abandoned: ClassVar[bool] = False
    """Whether the run was taken away from its driver; see `agentflow.loop.abandoning`."""

    def of(self, owner: Owner) -> Events:
        """The same events for another owner."""
        other = copy(self)
        other._owner, other.judging = owner, ()
        return other

    @property
    def frame(self) -> Frame:
        """What the events share; made with the first one."""
        frame = self._frame
        if frame is None:
            frame = self._frame = self._owner.make_frame()
        return frame

    def let_go(self) -> None:
        """Break the reference cycles of a finished run: it, its context and its last errors."""
        self._frame = None
        self._reported = ()
        self._owner = _NO_OWNER
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            buffer.wake()

    # ---- building and passing on

    def fire(self, kind: type[E], values: tuple[object, ...], scope: FullHookSet | None = None) -> Heard[E]:
        """Count an event; if a hook handles it or a reader gets it, build it, pass it through its chain, hand it over.

        Args:
            kind: Its class.
            values: Its own fields but `decision`, in order.
            scope: The hooks, if they are others than the run's.
        """
        self.seq += 1
        chain = self.chains[kind] if scope is None else self.chain_in(scope, kind)
        buffer = self.buffer
        if chain is None:
            if buffer is None:
                return None
            full = buffer.put(kind.make(self._frame or self.frame, self.iteration, self.seq, self._now(), values))
            return cast("Heard[E]", full) if full is not None and self._waits() else None
        event: E = kind.make_open(self._frame or self.frame, self.iteration, self.seq, self._now(), values)
        waits = run_chain(chain, event, self)
        if waits is not None:
            return self._passed_on(event, waits)
        if buffer is not None:
            full = buffer.put(event)
            if full is not None and self._waits():
                return self._after(event, full)
        return event

    async def emit(self, kind: type[E], values: tuple[object, ...] = (), scope: FullHookSet | None = None) -> E | None:
        """`fire`, and wait for it.

        Returns:
            The event, as its hooks left it; None: no hook handles it.
        """
        heard = self.fire(kind, values, scope)
        return heard if heard is None or isinstance(heard, Event) else await heard

    async def _passed_on(self, event: E, waits: Coroutine[Any, Any, None]) -> E:
        try:
            await waits
        except GeneratorExit:
            raise
        except (
            BaseException
        ):  # a hook has failed, or the run is cancelled: whoever got the Pre event waits for this one
            if self.buffer is not None:
                self.buffer.put(event)
            raise
        await self.hand_over(event)
        return event

    async def _after(self, event: E, full: Awaitable[None]) -> E:
        await full
        return event

    def decide(
        self, kind: type[E], values: tuple[object, ...], scope: FullHookSet | None = None, shown: bool = True
    ) -> Heard[E]:
        """Build an event and pass it through its chain; the caller makes what it decided a fact, and hands it over then.

        So nobody is shown a decision that a crash or a cancellation could take back.

        Args:
            kind: Its class.
            values: Its own fields but `decision`, in order.
            scope: The hooks, if they are others than the run's.
            shown: Whether the reader gets it.
        """
        self.seq += 1
        chain = self.chains[kind] if scope is None else self.chain_in(scope, kind)
        if chain is None:
            if self.buffer is None or not shown:
                return None
            return kind.make(self._frame or self.frame, self.iteration, self.seq, self._now(), values)
        event: E = kind.make_open(self._frame or self.frame, self.iteration, self.seq, self._now(), values)
        judging = self.judging
        self.judging = (*judging, event)
        waits = run_chain(chain, event, self)
        if waits is not None:
            return self._decided(event, waits, shown)
        self.judging = judging
        return event

    async def _decided(self, event: E, waits: Coroutine[Any, Any, None], shown: bool) -> E:
        try:
            await waits
        except GeneratorExit:
            raise
        except BaseException:
            if self.buffer is not None and shown:
                self.buffer.put(event)
            raise
        finally:
            self.judging = tuple([other for other in self.judging if other is not event])
        return event

    def sealed(self, kind: type[E], values: tuple[object, ...]) -> E:
        """The event once more for wrapping hooks, where no chain has built it."""
        return kind.make(self._frame or self.frame, self.iteration, self.seq, self._now(), values)

    async def hand_over(self, event: Event) -> None:
        """Give an event to the reader, if there is one, and wait until the run may continue."""
        if self.buffer is not None:
            full = self.buffer.put(event)
            if full is not None and self._waits():
                await full

    def _waits(self) -> bool:
        """Whether the run waits for its reader: not while it is cancelled or cleans up, since it may have left."""
        return not self.scope.stopped and not self.scope.cleaning

    def chain_in(self, scope: FullHookSet, kind: type[Event]) -> Chain | None:
        """The chain of a narrower scope, without the hooks that have failed in this run."""
        chain = scope.chain(kind)
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
        scope: FullHookSet | None = None,
    ) -> Recover | None:
        """Fire `Error`; a fatal error is reported once, wherever it is met again on its way out."""
        if fatal and any(error is reported for reported in self._reported):
            return None
        self._reported = (*self._reported, error)
        owner = self._owner
        purpose = owner.purpose if phase is ErrorPhase.REASONING else None
        told = (error, phase, fatal, hook, tool_use, purpose, owner.turn)
        event = await self.emit(Error, told, scope)
        return None if event is None else event.verdict

    # ---- hooks that fail (`Faults`)

    async def hook_failed(self, kind: type[Event], hook: Hook, error: Exception, fatal: bool) -> bool:
        """Report a hook's failure; see `agentflow.hooks.chain.Faults`."""
        if not fatal:
            where = self._frame or self.frame
            if not warn_skipped(hook, kind.__name__, error, where):
                said = "hook {} (priority {}) failed on {} and was skipped"
                log_failure("WARNING", error, said, hook.name, hook.priority, kind.__name__, where=where)
            if issubclass(kind, Error | CallEnded) or not kind.verdicts:
                self._disable(kind, hook)
        if kind is Error or kind is CallEnded:  # never report a failure of reporting by an event
            if fatal:
                log_failure("ERROR", error, "hook {} failed while a failure was reported", hook.name, where=self.frame)
            for reported in self._reported[-1:]:
                said = f"while this was reported, hook {hook.name!r} failed: {type(error).__name__}: {error}"
                reported.add_note(Aside(said))
            return True
        if not fatal:
            await self.report(error, ErrorPhase.HOOK, fatal=False, hook=hook.name)
            return True
        verdict = await self.report(error, ErrorPhase.HOOK, fatal=True, hook=hook.name)
        return verdict is not None

    def _disable(self, kind: type[Event], hook: Hook) -> None:
        """Do not call a hook for an event type again in this run."""
        self._disabled = (*self._disabled, (kind, hook))
        chain = self.chains[kind]
        if chain is not None:
            self.chains = {**self.chains, kind: chain.without(hook)}

    def passes_suspend(self, event: Event) -> bool:
        """Whether a `Suspend` has been answered by resuming, so that the chain goes on past it."""
        if not self._owner.resuming:
            return False
        return isinstance(event, PreToolRound) or (isinstance(event, PreActing) and event.approval is not None)

    def check(self) -> None:
        """Raise if the run was cancelled, unless the hooks of its cleanup are running: no further hook is called."""
        scope = self.scope
        if scope.stopped and not scope.cleans():
            scope.check()

    def is_cancelled(self) -> bool:
        """See `Faults.is_cancelled`."""
        return not self.scope.cleans() and self.scope.is_cancelled()

    def cut_off(self) -> str:
        """See `Faults.cut_off`."""
        scope, task = self.scope, asyncio.current_task()
        if task is None or not task.cancelling() or not scope.cleans():
            return ""
        forget_cancellations(task)
        return f"cleanup took longer than {scope.cleanup_timeout:g} s" if scope.late else "its task was cancelled"

    def judged(self, mine: str | None) -> list[PostActing | PostReasoning]:
        """The Post events whose hooks are running; that of one's own tool call last."""
        found = [event for event in self.judging if isinstance(event, PostActing | PostReasoning)]
        return sorted(found, key=lambda e: isinstance(e, PostActing) and e.original_tool_use.id == mine)
