"""What the parts of the driver share: one call's state, its one way of firing events, and what contexts may ask of it.

Rules:

1. `fire` is the only place where events are built, chained and handed over; it costs nothing where nobody listens.
2. `record` is the only place where facts are made true.
3. An interrupt, a deadline, a cancelled task and a closed stream arrive as `CancelledError`; `absorb` says
   which it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeAlias, cast

from loguru import logger

from agentflow.chunks import ModelChunk, fold
from agentflow.context import AgentView, RunContext, StateMap, called_from
from agentflow.errors import Aside, CallTimeoutError, UsageError
from agentflow.events import (
    CallEnded,
    Error,
    ErrorPhase,
    Event,
    Frame,
    MessagesAdded,
    Origin,
    PostActing,
    PostReasoning,
    PreActing,
    PreToolRound,
    TurnView,
)
from agentflow.facts import Compacted, Fact, Injected, Reasoned, ToolFinished
from agentflow.ground.frozen import EMPTY, FrozenDict
from agentflow.ground.logs import log_failure
from agentflow.ground.values import field, frozen
from agentflow.hooks.chain import Chain, HookSet, run_chain
from agentflow.hooks.hook import Hook
from agentflow.hooks.scope import ProcessHooks, process_hooks
from agentflow.loop.active import Running
from agentflow.loop.machine import Machine
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.session import Session
from agentflow.loop.stream import READING, ForwardPort, Port
from agentflow.messages import Msg, Outcome, Pending, ToolResultBlock, ToolUseBlock, message, with_metadata
from agentflow.ports.model import Model, ModelRequest, resolve_model
from agentflow.ports.store import MemoryStore
from agentflow.specs import Clock, ModelOptions, ToolSpec, Usage
from agentflow.tools.tool import Tool
from agentflow.transcript import legalise
from agentflow.verdicts import Recover, Resolution

__all__ = [
    "LoopConfig",
    "OnUnknownOutcome",
    "RunBase",
    "ToolSuspended",
    "TurnPlace",
    "current_turn",
    "refuse_waiting_for_itself",
]


class TurnPlace(Protocol):
    """Where in a run some code is running: set in the context of each tool, and of each call's hooks in parallel rounds."""

    run: RunBase
    index: int
    port: Port | None
    use: ToolUseBlock
    inner: Mapping[str, Resolution] | None
    """What was decided for the calls of a sub-agent that is suspended behind this one."""
    recovers: bool
    """Whether it was started before the process ended, and is run again."""
    asked: int
    """How many sub-agents it has asked."""


def refuse_waiting_for_itself(session: Session, agent: str) -> None:
    """Refuse a call that would wait for a session which the very call that it is made from holds.

    Where the two are in different tasks, nobody can see whether the one waits for the other: then it is logged, and waits.

    Raises:
        UsageError: It is made from there.
    """
    task, place, holder = asyncio.current_task(), current_turn.get(), session.run
    certain = isinstance(holder, RunBase) and holder.works_in(task)
    if not certain:
        run = cast("RunBase | None", called_from.get()) if place is None else place.run
        certain = run is not None and run.waits_for(task)
        while run is not None and not run.over and not run.uses(session):
            certain = certain and run.parent is not None and run.parent.waits_for(run.task)
            run = run.parent
        if run is None or run.over:
            return
    if certain:
        raise UsageError(
            f"A call of agent {agent!r} on session {session.id!r} was made by a tool or a hook of a call on that same session, "
            "so each would wait for the other for ever. Make it in a conversation of its own (session=Session.fresh()), add "
            "to this one (context.inject(...)), or make it when this call has ended."
        )
    logger.warning(
        "a call of agent {} on session {} waits for the call from which it was begun; should that one wait for it, neither "
        "ever ends",
        agent,
        session.id,
    )


def attach(error: BaseException, problem: BaseException) -> None:
    """Note on an error what has failed while its call was being closed: what counts is what came first."""
    if problem is not error:
        error.add_note(Aside(f"while the call was being closed: {type(problem).__name__}: {problem}"))


class ToolSuspended(Exception):  # noqa: N818 - a signal from a sub-agent to the call that it is the tool of
    """What a tool was doing is suspended.

    Args:
        agent: The sub-agent that waits.
        pending: What for.
    """

    def __init__(self, agent: str, pending: tuple[Pending, ...]) -> None:
        super().__init__(f"Agent {agent!r} is suspended.")
        self.agent = agent
        self.pending = pending

    def pending_of(self, use: ToolUseBlock) -> tuple[Pending, ...]:
        """The same, as the caller's session keeps it: keys of the caller's call and, behind a slash, of the sub-agent's."""
        return tuple(
            replace(
                waits,
                id=f"{use.id}/{waits.id}",
                within=use.id,
                source=f"{self.agent}/{waits.source}" if waits.source else self.agent,
            )
            for waits in self.pending
        )


NOTHING = Usage()

ONE_CALL = Usage(model_calls=1)


def one_call(usage: Usage | None) -> Usage:
    """The usage of one model call, whatever the model reported."""
    if usage is None:
        return ONE_CALL
    return usage if usage.model_calls else usage + ONE_CALL


current_turn: ContextVar[TurnPlace | None] = ContextVar("agentflow_turn", default=None)

System = str | Msg | Callable[[RunContext], "str | Msg | Awaitable[str | Msg | None] | None"] | None


OnUnknownOutcome: TypeAlias = Literal["tell", "suspend"]
"""Who learns of a tool that was running when the process ended: `"tell"` the model, `"suspend"` a person."""


@frozen
class LoopConfig:
    """What an agent gives the loop: settled when the agent is built, shared by all its runs."""

    view: AgentView
    model: str | Model
    system: System
    tools: Mapping[str, Tool[..., Any]]
    specs: tuple[ToolSpec, ...]
    dep_types: tuple[tuple[str, type], ...]
    options: ModelOptions
    max_iterations: int
    schedule: ToolSchedule
    clock: Clock
    new_id: Callable[[str], str]
    tags: frozenset[str] = frozenset()
    process: ProcessHooks = process_hooks
    on_unknown_outcome: OnUnknownOutcome = "tell"
    running: Running = field(default_factory=Running)


class RunBase:
    """One call, as the parts of the driver see it."""

    # What most calls never change stands here, once, and not in each call's dict.
    usage = NOTHING
    seq = 0
    iteration = 0
    head: tuple[Msg, ...] = ()
    transient: tuple[Msg, ...] = ()
    decisions: Mapping[str, Resolution] = EMPTY
    decided_inside: Mapping[str, Mapping[str, Resolution]] = EMPTY
    resuming = False
    holding = True
    """Whether what is injected has to wait: for the call's input, or for the reply that is being made."""
    held: tuple[Injected, ...] = ()
    landed: tuple[tuple[tuple[Msg, ...], Origin], ...] = ()
    outcome: Outcome = "completed"
    partial: Msg | None = None
    task: asyncio.Task[Any] | None = None
    tasks: tuple[Set[asyncio.Task[Any]], ...] = ()
    """Those of its parallel round, and those in which operators run what hooks have wrapped."""
    base = 0
    over = False
    halting = False
    leaving = False
    can_halt = True
    """Whether it is kept, so that it can be gone on with."""
    unwritten: tuple[Fact, ...] = ()
    repeatable = ""
    """Where in the run this is, while a chain is running that may run again after a crash."""
    inline: int | None = None
    """The place in its round of the call that runs in the driver's own task, where there are others."""
    injections = 0
    """How often that chain has injected something."""
    added = 0
    """How much hooks and tools have added to this call."""
    _context: RunContext | None = None
    _state: StateMap | None = None
    _frame: Frame | None = None
    interrupting: str | None = None
    _deadline = False
    _cancelled: asyncio.Task[Any] | None = None
    _absorbed = False
    _timer: asyncio.TimerHandle | None = None
    _ending = False
    """Whether hooks of `CallEnded` run: they alone can be cut off, since the call is over."""
    _cuts = 0
    _cut_why = ""
    _closing = False
    _reported: tuple[BaseException, ...] = ()
    approved: frozenset[str] = frozenset()
    """The calls that a hook has had allowed by a person."""
    inherits: tuple[tuple[ContextVar[Any], Any], ...] = ()
    """What is set in the context of each tool's work."""
    _disabled: tuple[tuple[type[Event], Hook], ...] = ()

    def __init__(
        self,
        config: LoopConfig,
        hooks: HookSet,
        session: Session,
        run_id: str,
        options: ModelOptions,
        deps: object,
        timeout: float | None,
        source: str,
        parent: RunBase | None,
        reader: Port | None,
        children: bool,
    ) -> None:
        self.config = config
        self.hooks = hooks
        self.chains: dict[type[Event], Chain | None] = hooks.all_chains
        self.session = session
        self.machine: Machine = session.machine
        self.options = options
        self.deps = deps
        self.timeout = timeout
        self.source = source
        self.parent = parent
        self.reader = self.port = reader
        self.children = children
        self.run_id = run_id
        self.call_id = config.new_id("call_")
        self.now = config.clock.now
        self.monotonic = config.clock.monotonic
        self.fact_list: list[Fact] = []
        self.judging: list[Event] = []

    @property
    def context(self) -> RunContext:
        """What hooks and tools may ask of this call; made when somebody does."""
        context = self._context
        if context is None:
            config, session = self.config, self.session
            context = self._context = RunContext(
                self,
                self.run_id,
                self.call_id,
                session.id,
                self.source,
                config.view,
                config.clock,
                config.new_id,
                self.deps,
                session.state,
                self._state,
            )
        return context

    @property
    def frame(self) -> Frame:
        """What this call's events share; made with the first event."""
        frame = self._frame
        if frame is None:
            frame = self._frame = Frame(
                self.run_id, self.call_id, self.session.id, self.source, self.config.view, self.context
            )
        return frame

    # ---- events

    async def fire(
        self, kind: type[Event], port: Port | None, *values: object, scope: HookSet | None = None
    ) -> Event | None:
        """Build an event, pass it through its chain (the run's, or a narrower scope's), hand it to the reader.

        The body repeats `decide` and `hand_over`: a streamed round passes here eight times, and each frame costs 0.15 µs.

        Returns:
            The sealed event; None where nobody listens (it was counted, not built).
        """
        self.seq += 1
        chain = self.chains[kind] if scope is None else self.chain_in(scope, kind)
        reader = None if port is None or port.closed else port
        if chain is None and reader is None:
            return None
        make = kind.make if chain is None else kind.make_open
        event: Event = make(self._frame or self.frame, self.iteration, self.seq, self.now(), *values)
        if chain is not None:
            try:
                await run_chain(chain, event, self)
            except BaseException as error:
                await self._chain_failed(event, reader, error)
                raise
        if reader is not None:
            reader.event = event
            await reader
        if self.interrupting is not None:
            self.notice_interrupt()
        return event

    async def decide(
        self, kind: type[Event], port: Port | None, *values: object, scope: HookSet | None = None
    ) -> Event | None:
        """Build an event and pass it through its chain; the caller makes what it decided a fact, and hands it over then.

        So nobody is shown a decision that a crash or a closed stream could take back.
        """
        self.seq += 1
        chain = self.chains[kind] if scope is None else self.chain_in(scope, kind)
        if chain is None and (port is None or port.closed):
            return None
        make = kind.make if chain is None else kind.make_open
        event: Event = make(self._frame or self.frame, self.iteration, self.seq, self.now(), *values)
        if chain is None:
            return event
        self.judging.append(event)
        try:
            await run_chain(chain, event, self)
        except BaseException as error:
            await self._chain_failed(event, port, error)
            raise
        finally:
            self.judging.remove(event)
        return event

    def scope_of(self, tool: Tool[..., Any] | None) -> HookSet | None:
        """The hooks for one tool, where they are others than the run's."""
        if tool is None:
            return None
        narrower, process = tool.hooks, self.config.process
        if not narrower and not (tool.tags and process.hooks):
            return None
        found = self.hooks.inside(narrower, process.matching(self.config.tags | tool.tags))
        return None if found is self.hooks else found

    def chain_in(self, scope: HookSet, kind: type[Event]) -> Chain | None:
        """The chain of a narrower scope, without the hooks that have failed in this run."""
        chain = scope.chain(kind)
        for disabled, hook in self._disabled:
            if disabled is kind and chain is not None:
                chain = chain.without(hook)
        return chain

    async def _chain_failed(self, event: Event, port: Port | None, error: BaseException) -> None:
        """Show the event all the same: whoever saw its Pre event waits for it."""
        if isinstance(error, GeneratorExit):
            return
        self.absorb(error)
        if port is not None and not port.closed:
            port.event = event
            await port

    async def hand_over(self, event: Event, port: Port | None) -> None:
        """Give an event to the reader, and notice an interrupt."""
        if port is not None and not port.closed:
            port.event = event
            await port
        if self.interrupting is not None:
            self.notice_interrupt()

    @property
    def turn(self) -> TurnView | None:
        """The turn that is run, where no model has asked for it."""
        return None

    def notice_interrupt(self) -> None:
        """Raise if the call was interrupted and has not taken that in."""
        if not self._absorbed and not self.over:
            raise asyncio.CancelledError(self.interrupting)

    async def fire_landed(self) -> None:
        """Tell of stored messages that no other event carries."""
        if self.unwritten:
            await self.settle()
        while self.landed:
            (messages, origin), *rest = self.landed
            self.landed = tuple(rest)
            await self.fire(MessagesAdded, self.port, messages, origin)

    def here(self) -> Port | None:
        """The port for code that may run in a task of a parallel round."""
        turn = current_turn.get()
        return self.port if turn is None or turn.run is not self else turn.port

    # ---- facts

    def tell_results(self, origin: Origin) -> None:
        """The results of the round that was just closed are carried by no event: tell of them."""
        stored = self.machine.transcript.messages
        results = next(msg for msg in reversed(stored) if msg.role == "tool")
        self.landed = (((results,), origin), *self.landed)

    def note(self, fact: Fact, origin: Origin = "injected", *also: Fact) -> Awaitable[None] | None:
        """Make a fact true: into the store, then into the machine; messages that landed are told of later.

        What hooks have injected while it was decided is written with it, all or none: a decision that is a fact is never
        taken again.

        Args:
            fact: The fact.
            origin: Where messages come from that land with it.
            also: Facts that are true with it.

        Returns:
            An awaitable only where the store needs time.
        """
        session = self.session
        if session.store is None and not also:
            landed = self.machine.apply(fact)
            self.fact_list.append(fact)
            if landed or origin != "injected":
                self._tell(fact, landed, origin)
            return None
        facts = (*self._asked_for(), fact, *also) if self.unwritten else (fact, *also)
        kept = session.record(*facts)
        if not isinstance(kept, list):
            return self._noted(facts, kept, fact, origin)
        self._took(facts, kept, fact, origin)
        return None

    def _asked_for(self) -> tuple[Fact, ...]:
        """What plain functions have asked for, as far as it belongs to the code that is running here."""
        turn = current_turn.get()
        mine = turn.index if turn is not None and turn.run is self else None
        asked = [fact for fact in self.unwritten if mine is None or getattr(fact, "at", None) in (None, mine)]
        self.unwritten = tuple([fact for fact in self.unwritten if fact not in asked])
        return tuple(asked)

    def _took(self, facts: Sequence[Fact], landed: Sequence[tuple[Msg, ...]], fact: Fact, origin: Origin) -> None:
        """Facts have become true."""
        self.fact_list.extend(facts)
        for one, messages in zip(facts, landed, strict=True):
            self._tell(one, messages, origin if one is fact else "injected")

    def _tell(self, fact: Fact, landed: tuple[Msg, ...], origin: Origin) -> None:
        if landed:
            self.landed = (*self.landed, (landed, origin))
        if isinstance(fact, Reasoned) and fact.follow_up:
            self.landed = (*self.landed, (fact.follow_up, "again"))

    async def _noted(
        self, facts: Sequence[Fact], kept: Awaitable[list[tuple[Msg, ...]]], fact: Fact, origin: Origin
    ) -> None:
        """Wait for the store; a cancellation waits with it, since what was decided and shown must not be lost."""
        writing = asyncio.ensure_future(kept)
        cut: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.wait([writing])
            except asyncio.CancelledError as error:
                cut = error
        self._took(facts, writing.result(), fact, origin)
        if cut is not None:
            raise cut

    async def keep(self, writing: Awaitable[None]) -> asyncio.CancelledError | None:
        """Wait for facts to be written; a cancellation that came meanwhile is returned, to be raised when they are shown."""
        try:
            await writing
        except asyncio.CancelledError as error:
            self.absorb(error)
            return error
        return None

    async def record(self, fact: Fact, origin: Origin = "injected", *also: Fact) -> None:
        """`note`, and wait for it."""
        kept = self.note(fact, origin, *also)
        if kept is not None:
            await kept

    # ---- hooks that fail (`Faults`)

    async def hook_failed(self, kind: type[Event], hook: Hook, error: Exception, fatal: bool) -> bool:
        """Report a hook's failure; see `agentflow.hooks.chain.Faults`."""
        if not fatal:
            log_failure(
                "WARNING",
                error,
                "hook {} (priority {}) failed on {} and was skipped",
                hook.name,
                hook.priority,
                kind.__name__,
            )
            if issubclass(kind, Error | CallEnded) or not kind.verdicts:
                self.disable(kind, hook)
        if kind is Error or kind is CallEnded:  # never report a failure of reporting by an event
            if fatal:
                log_failure("ERROR", error, "hook {} failed while a failure was reported", hook.name)
            for reported in self._reported[-1:]:
                said = f"while this was reported, hook {hook.name!r} failed: {type(error).__name__}: {error}"
                reported.add_note(Aside(said))
            return True
        if not fatal:
            await self.report(error, ErrorPhase.HOOK, fatal=False, hook=hook.name)
            return True
        verdict = await self.report(error, ErrorPhase.HOOK, fatal=True, hook=hook.name)
        return verdict is not None

    def disable(self, kind: type[Event], hook: Hook) -> None:
        """Do not call a hook for an event type again in this run."""
        self._disabled = (*self._disabled, (kind, hook))
        chain = self.chains[kind]
        if chain is not None:
            self.chains = {**self.chains, kind: chain.without(hook)}

    def passes_suspend(self, event: Event) -> bool:
        """Whether a `Suspend` has been answered by resuming, so that the chain goes on past it."""
        if not self.resuming:
            return False
        return isinstance(event, PreToolRound) or (isinstance(event, PreActing) and event.approval is not None)

    def uses(self, session: Session) -> bool:
        """Whether this is a call on a session, or on the same one of the same store."""
        own = self.session
        return own is session or (own.store is not None and own.store is session.store and own.id == session.id)

    def driven_by(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is the one that drives the run, and is inside it now (not in the loop that reads its stream)."""
        if task is None or (self.over and not self._ending):
            return False
        if self.reader is None:
            return self.task is task
        return self.reader.reader is task or (self.reader.reader is READING and self.task is task)

    def works_in(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task drives the run, or is one of its round or of an operator around its work."""
        return self.driven_by(task) or any(task in tasks for tasks in self.tasks)

    def waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether the run waits for whatever a task does: it works in it, or in another thread."""
        if self.works_in(task):
            return True
        loop = self._loop()
        return loop is not None and task is not None and task.get_loop() is not loop

    def is_cancelled(self) -> bool:
        """Whether a `CancelledError` is a cancellation of this run, and not somebody's own."""
        return self.interrupting is not None or self.is_cancelled_from_outside()

    def is_cancelled_from_outside(self) -> bool:
        """Whether the task was cancelled by somebody else than the run, or its reader is gone."""
        if self._closing:
            return True
        task = asyncio.current_task()
        return task is not None and task.cancelling() > self._base_of(task)

    def _base_of(self, task: asyncio.Task[Any]) -> int:
        """How often the running task had been cancelled before it ran, or read, this call."""
        reader = self.reader
        if reader is None:
            return self.base if task is self.task else 0
        if reader.reader is READING:  # it has not waited yet, so nothing has been thrown into it
            return task.cancelling()
        return reader.base if task is reader.reader else 0

    async def take_task(self) -> None:
        """Note the task that runs this. A cancellation that is on its way to it came before, and is raised here."""
        self.task = task = asyncio.current_task()
        if self.reader is None and task is not None and task.cancelling():
            await asyncio.sleep(0)
            self.base = task.cancelling()

    async def report(
        self,
        error: BaseException,
        phase: ErrorPhase,
        *,
        fatal: bool,
        hook: str | None = None,
        tool_use: ToolUseBlock | None = None,
        port: Port | None = None,
        scope: HookSet | None = None,
    ) -> Recover | None:
        """Fire `Error`; a fatal error is reported once, wherever it is met again on its way out."""
        if fatal and any(error is reported for reported in self._reported):
            return None
        self._reported = (*self._reported, error)
        action = self.machine.next() if phase is ErrorPhase.REASONING else None
        purpose = action if action == "reason" or action == "summary" else None
        told = (error, phase, fatal, hook, tool_use, purpose, self.turn)
        event = await self.fire(Error, port or self.here(), *told, scope=scope)
        if event is None or event.decision is None:
            return None
        verdict = event.decision.verdict
        return verdict if isinstance(verdict, Recover) else None

    # ---- interrupts

    def interrupt(self, reason: str = "interrupted") -> None:
        """End the call from wherever: another task, another thread, a hook or a tool of this call."""
        loop = self._loop()
        if self._ending and loop is not None:
            loop.call_soon_threadsafe(self._cut_off, f"the call was interrupted ({reason})")
            return
        if self.over or self.interrupting is not None:
            return
        self.interrupting = reason
        if loop is not None:
            # Later, and not here: a task that cancels itself would be hit at an await behind the run's end.
            loop.call_soon_threadsafe(self._cancel_driver)

    @property
    def inner(self) -> bool:
        """Whether it is a sub-agent's."""
        return self.parent is not None

    @property
    def left_open(self) -> bool:
        """Whether its session holds a call that `agent.resume` goes on with."""
        return self.machine.next() not in ("input", "suspended")

    def halt(self) -> None:
        """Stop at the next safe point, and leave the call open; see `agentflow.agent.shutdown`."""
        self.halting = True

    def leave(self, reason: str) -> None:
        """End the call at once, and leave it open as a crash would."""
        self.halting = self.leaving = True
        self.interrupt(reason)

    def halts(self) -> bool:
        """Whether this call, or one that it belongs to, is to stop at its next safe point."""
        return self.halting or (self.parent is not None and self.parent.halts())

    def leaves(self) -> bool:
        """Whether this call, or one that it belongs to, is being left as it is: nothing more is stored."""
        return self.leaving or (self.parent is not None and self.parent.leaves())

    @property
    def session_id(self) -> str:
        """The id of its session."""
        return self.session.id

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return None if self.task is None else self.task.get_loop()

    def watch_the_clock(self) -> None:
        """Count the call's `timeout` from now."""
        if self._timer is not None:
            self._timer.cancel()
        if self.timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(self.timeout, self._expire)

    def _expire(self) -> None:
        if self._ending:
            self._cut_off(f"the call's timeout of {self.timeout:g} s passed once more")
            self.watch_the_clock()
        elif not self.over and self.interrupting is None:
            self._deadline = True
            self.interrupting = f"timeout of {self.timeout:g} s"
            self._cancel_driver()

    def _cut_off(self, why: str) -> None:
        """End the wait for a hook of `CallEnded`."""
        task = self.task if self.reader is None else self.reader.reader
        if self._ending and isinstance(task, asyncio.Task) and not task.done():
            self._cuts += 1
            self._cut_why = why
            task.cancel()

    def cut_off(self) -> str:
        """See `agentflow.hooks.chain.Faults`."""
        if not self._cuts:
            return ""
        self.take_back_cuts()
        return "" if self.is_cancelled_from_outside() else self._cut_why

    def take_back_cuts(self) -> None:
        """Take back what a hook was cut off by, whether or not it heeded that."""
        task = asyncio.current_task()
        while self._cuts:
            self._cuts -= 1
            if task is not None:
                task.uncancel()

    def _cancel_driver(self) -> None:
        if self.over or self._absorbed:
            return
        task = self.task if self.reader is None else self.reader.reader
        if isinstance(task, asyncio.Task) and not task.done():
            self._cancelled = task
            task.cancel()

    def absorb(self, error: BaseException) -> None:
        """Take in what ends the run: our own cancellation is taken back, a real one means that the reader is gone.

        A signal (`KeyboardInterrupt`) on top of an interrupt takes its place: nothing raises for the interrupt any more.

        Only the task that drives the run tells which it is; tasks of a parallel round are cancelled by their round.
        """
        if isinstance(error, Exception) or self._closing:
            return
        task = asyncio.current_task()
        driving = self.task if self.reader is None else self.reader.reader
        if task is None or (driving is not task and driving is not READING):
            return
        if self.interrupting is not None and not self._absorbed:
            self._absorbed = True
            if self._cancelled is task:
                task.uncancel()
        if isinstance(error, asyncio.CancelledError) and task.cancelling() > self._base_of(task):
            self._closing = True
            if self.reader is not None:
                self.reader.closed = True

    def interrupted(self) -> str | None:
        """The reason, if the run was interrupted and nobody else cancelled it."""
        return self.interrupting if self._absorbed and not self._closing else None

    def timed_out(self) -> CallTimeoutError | None:
        """The error of a passed deadline."""
        if self._deadline and self.timeout is not None:
            return CallTimeoutError(self.timeout, self.config.view.name)
        return None

    def close_reader(self) -> None:
        """The reader has closed the stream."""
        self._closing = True
        if self.reader is not None:
            self.reader.closed = True

    def abandon(self) -> None:
        """The stream was dropped: calls on the session wait for the cleanup."""
        self.session.closing = True

    # ---- what contexts may ask (`CallPort`)

    def facts(self) -> Sequence[Fact]:
        """The run's facts so far, those of the calls that were suspended included, and what hooks are judging, as it stands.

        So the trace holds the tool call or the model call that a hook sees the end of: behind what others see meanwhile.
        """
        turn = current_turn.get()
        mine = turn.use.id if turn is not None and turn.run is self else None
        judging = sorted(self.judging, key=lambda e: isinstance(e, PostActing) and e.original_tool_use.id == mine)
        return (*self.fact_list, *[fact for event in judging if (fact := self._fact_of(event)) is not None])

    def _fact_of(self, event: Event) -> Fact | None:
        """What a Post event will be as a fact, if its hooks leave it as it is."""
        if isinstance(event, PostActing):
            call = event.original_tool_use.id
            return ToolFinished(self.run_id, call, event.tool_use, event.tool_result, event.duration_ms)
        if isinstance(event, PostReasoning):
            reply, used = event.reasoning_result, event.usage
            return Reasoned(self.run_id, event.iteration, reply, used, event.duration_ms, model=event.model)
        return None

    def legal_reply(self, msg: Msg) -> Msg:
        """What hooks make of a reply may repeat ids of calls, or hold results: fold it again."""
        content = tuple([block for block in msg.content if not isinstance(block, ToolResultBlock)])
        chunk = ModelChunk(blocks=content)
        folded = fold((chunk,), id=msg.id, used_ids=self.machine.transcript.used_ids, new_id=self.config.new_id)
        return message("assistant", folded.content, msg.id, msg.metadata, msg.usage, msg.finish_reason)

    def say(self, text: str, source: str) -> Msg:
        """A message of the assistant that nobody said, marked with where it comes from."""
        return with_metadata(Msg.assistant(text, id=self.config.new_id("msg_")), synthetic=source)

    def add_usage(self, usage: Usage) -> None:
        """Bill this run, and those that caused it."""
        self.usage = usage if self.usage is NOTHING else self.usage + usage
        if self.parent is not None:
            self.parent.add_usage(usage)

    def inject(self, messages: tuple[Msg, ...], keep: bool, source: str) -> None:
        """See `RunContext.inject`."""
        if self.over:
            raise UsageError("This call is over: nothing can be injected into it any more.")
        marked = tuple([m if "synthetic" in m.metadata else with_metadata(m, synthetic=source) for m in messages])
        for msg in marked:
            if msg.role not in ("user", "assistant") or msg.tool_uses:
                raise UsageError(
                    f"context.inject takes user messages and assistant messages without tool calls, not {msg.role!r}."
                )
        if not keep:
            self.transient = (*self.transient, *marked)
            return
        turn = current_turn.get()
        key: str | None = None
        if self.repeatable:
            key = f"{self.repeatable}:{self.injections}"
            self.injections += 1
            if key in self.machine.injected:
                return
        at = turn.index if turn is not None and turn.run is self else self.inline
        fact = Injected(self.run_id, marked, at, key, self.call_id, self.next_number())
        if self.holding:
            self.held = (*self.held, fact)
        else:
            self._note_later(fact)

    def next_number(self) -> int:
        """The number of what hooks and tools add next to this call."""
        self.added += 1
        return self.added

    def let_go(self) -> tuple[Fact, ...]:
        """Hand over what was injected while there was no place for it yet, to be written with what makes the place."""
        held, self.held = self.held, ()
        return held

    async def let_in(self) -> None:
        """Store what was injected while there was no place for it yet."""
        self.holding = False
        while self.held:
            fact, *rest = self.held
            self.held = tuple(rest)
            await self.record(fact)

    def _note_later(self, fact: Fact) -> None:
        """Make a fact true from a plain function: at once, or, where the store needs time, at the next safe point."""
        if self.session.store is None or type(self.session.store) is MemoryStore:  # a subclass may take its time
            self.note(fact)
        else:
            self.unwritten = (*self.unwritten, fact)

    async def settle(self) -> None:
        """Write what plain functions have asked for, in their order."""
        while self.unwritten:
            *_, fact = self.unwritten
            self.unwritten = self.unwritten[:-1]
            await self.record(fact)  # with what was asked for before it

    def approve(self, tool_use_id: str) -> None:
        """See `RunContext.approve`."""
        self.approved |= {tool_use_id}

    @property
    def history(self) -> Sequence[Msg]:
        """See `RunContext.history`."""
        return self.machine.transcript.messages

    async def complete(self, messages: tuple[Msg, ...], model: Any, source: str, options: ModelOptions) -> Msg:
        """See `RunContext.complete`."""
        asked = resolve_model(model if model is not None else self.config.model)
        request = ModelRequest(legalise(messages, self.config.new_id), (), options, asked.name)
        stream = asked.stream(request)
        chunks = [chunk async for chunk in stream]
        reply = fold(chunks, new_id=self.config.new_id)
        self.add_usage(one_call(reply.usage))
        return Msg(
            reply.role, reply.content, source, reply.id, FrozenDict(side=source), reply.usage, reply.finish_reason
        )

    def compact(self, until: int, messages: tuple[Msg, ...]) -> None:
        """See `RunContext.compact`."""
        stored = self.machine.transcript.messages
        if not 0 <= until <= len(stored):
            raise UsageError(f"compact(until={until}): the history has {len(stored)} messages.")
        open_round = until == len(stored) and bool(self.machine.transcript.open_round)
        if open_round or (until < len(stored) and stored[until].role == "tool"):
            raise UsageError(f"compact(until={until}) cuts between tool calls and their results.")
        self._note_later(Compacted(self.run_id, until, messages, self.call_id, self.next_number()))

    def child_port(self, port: Port | None) -> Port | None:
        """Where a sub-agent's events go: to this call's reader, if it asked for them and can be reached from here."""
        if not self.children or port is None or port.closed:
            return None
        if type(port) is Port:  # the reader's own port: only the task that drives the run may await it
            driving = port.reader
            if driving is not READING and driving is not asyncio.current_task():
                return None
        return ForwardPort(port)
