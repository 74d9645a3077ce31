"""A run: what calls and turns have in common, and what contexts may ask of it. Its stages have modules of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, Protocol

from agentflow.chunks import ModelChunk, fold
from agentflow.context import Compaction, ContextWindow, RunContext
from agentflow.events import Frame, PostActing, PostReasoning, Purpose, TurnView
from agentflow.facts import Compacted, Fact, Injected, Reasoned, ToolFinished
from agentflow.ground.frozen import EMPTY
from agentflow.hooks.hook_set import FullHookSet
from agentflow.loop.additions import compacted, injected, note_injection
from agentflow.loop.config import LoopConfig
from agentflow.loop.emitting import Events
from agentflow.loop.journal import Journal, StoredJournal
from agentflow.loop.machine import Machine
from agentflow.loop.scope import RunScope
from agentflow.loop.session import FullSession
from agentflow.loop.side_calls import ask_beside
from agentflow.loop.stream import EventBuffer
from agentflow.loop.window import measured, window_of
from agentflow.messages import Msg, Outcome, Pending, Reply, ToolResultBlock, ToolUseBlock, message, with_metadata
from agentflow.output.side import ask_aside
from agentflow.ports.model import ModelRequest
from agentflow.specs import ModelOptions, Usage
from agentflow.tools.tool import FullTool
from agentflow.transcript import legalise
from agentflow.typed_state import StateMap
from agentflow.verdicts import Resolution

__all__ = ["RunBase", "TurnPlace", "current_turn"]


class TurnPlace(Protocol):
    """Where in a run some code is running: set in the context of each tool, and of each call's hooks in parallel rounds."""

    run: RunBase
    index: int
    use: ToolUseBlock
    pending: tuple[Pending, ...]
    inner: Mapping[str, Resolution] | None
    """What was decided for the calls of a sub-agent that is suspended behind this one."""
    recovers: bool
    """Whether it was started before the process ended, and is run again."""
    asked: int
    """How many sub-agents it has asked."""


NOTHING = Usage()
current_turn: ContextVar[TurnPlace | None] = ContextVar("agentflow_turn", default=None)


class RunBase:
    """One call, or one turn, as its stages see it.

    Attributes:
        events: Builds, chains, hands over and counts its events.
        journal: Makes its facts true.
        scope: Its task, and the one way to cancel it.
        input_messages: What the user says.
        given: The decisions of a call that continues the run; None: it begins one.
        head: The system prompt, in front of each request.
        transient: What was injected for the next request only.
        decisions: Those that resume it, by tool-use id; `decided_inside` those for sub-agents behind a call.
        resuming: Whether the round that is open was decided on.
        partial: What the model had said when it was cut.
        round: The tool round that is running.
        repeatable: Where in the run this is, while a chain is running that may run again after a crash.
        injections: How often that chain has injected something.
        added: How much hooks and tools have added to this call.
        inline: The place in its round of the call that runs in the driver's own task, where there are others.
        typed: Gives its reply the typed output, if it was asked for one.
        inherits: What is set in the context of each tool's work.
    """

    __slots__ = (
        "__weakref__",
        "_approved",
        "_bills",
        "_context",
        "_state",
        "added",
        "call_id",
        "children",
        "config",
        "decided_inside",
        "decisions",
        "deps",
        "events",
        "given",
        "head",
        "hooks",
        "inherits",
        "injections",
        "inline",
        "input_messages",
        "journal",
        "machine",
        "monotonic",
        "options",
        "outcome",
        "parent",
        "partial",
        "repeatable",
        "resuming",
        "round",
        "run_id",
        "scope",
        "session",
        "source",
        "transient",
        "typed",
    )

    can_halt: ClassVar[bool] = True
    """Whether it is kept, so that it can be gone on with."""

    def __init__(
        self,
        config: LoopConfig,
        hooks: FullHookSet,
        session: FullSession,
        run_id: str,
        options: ModelOptions,
        deps: object,
        timeout: float | None,
        source: str,
        parent: RunBase | None,
        buffer: EventBuffer | None,
        children: bool,
    ) -> None:
        clock = config.clock
        self.config = config
        self.hooks = hooks
        self.session = session
        self.machine: Machine = session.machine
        self.options = options
        self.deps = deps
        self.source = source
        self.parent = parent
        self.children = children
        self.run_id = run_id
        self.call_id = config.new_id("call_")
        self.monotonic = clock.monotonic
        scope = RunScope(None if parent is None else parent.scope, timeout, config.cleanup_timeout)
        self.scope = scope
        self.events = Events(self, hooks, clock.now, scope, buffer)
        self.journal = Journal(session, scope) if session.store is None else StoredJournal(session, scope, self.place)
        self.input_messages: tuple[Msg, ...] = ()
        self.given: Mapping[str, Resolution] | None = None
        self.head: tuple[Msg, ...] = ()
        self.transient: tuple[Msg, ...] = ()
        self.decisions: Mapping[str, Resolution] = EMPTY
        self.decided_inside: Mapping[str, Mapping[str, Resolution]] = EMPTY
        self.resuming = False
        self.outcome: Outcome = "completed"
        self.partial: Msg | None = None
        self.round: object = None
        self.repeatable = ""
        self.injections = 0
        self.added = 0
        self.inline: int | None = None
        self.typed: Callable[[Reply], Awaitable[Reply]] | None = None
        self.inherits: tuple[tuple[ContextVar[Any], Any], ...] = ()
        self._approved: frozenset[str] = frozenset()
        self._bills: list[Usage] | None = None
        self._context: RunContext | None = None
        self._state: StateMap | None = None

    def abandoned_by_reader(self) -> None:
        """Its stream was dropped: calls on the session wait for its cleanup."""
        self.session.closing = True

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

    def make_frame(self) -> Frame:
        """What its events share."""
        return Frame(self.run_id, self.call_id, self.session.id, self.source, self.config.view, self.context)

    @property
    def turn(self) -> TurnView | None:
        """The turn that is run, where no model has asked for it."""
        return None

    @property
    def purpose(self) -> Purpose | None:
        """What the model is asked for next."""
        action = self.machine.next()
        return action if action == "reason" or action == "summary" else None

    @property
    def over(self) -> bool:
        """Whether it is finished, but for hooks of its last event."""
        return self.scope.state in ("ending", "done")

    @property
    def lost(self) -> bool:
        """Whether its event loop was closed under it."""
        return self.scope.lost

    def cut(self) -> None:
        """Finish a run whose event loop is gone."""
        self.scope.finish(None, None)

    def let_go(self) -> None:
        """Break the reference cycles of a finished run, its parts and its context."""
        self.round = None
        buffer, parent = self.events.buffer, self.parent
        if buffer is not None and (parent is None or parent.events.buffer is not buffer):
            buffer.end()
        self.events.let_go()
        if self.session.store is not None:
            self.journal.let_go()
        self._context = None

    def shows_children(self) -> bool:
        """Whether the events of the sub-agents that are called here go to its reader."""
        task = self.scope.task
        return self.children and task is not None and task.get_loop() is asyncio.get_running_loop()

    def scope_of(self, tool: FullTool[..., Any] | None) -> FullHookSet | None:
        """The hooks for one tool, where they are others than the run's."""
        if tool is None:
            return None
        narrower, process = tool.hooks, self.config.process
        if not narrower and not (tool.tags and process.hooks):
            return None
        found = self.hooks.inside(narrower, process.matching(self.config.tags | tool.tags))
        return None if found is self.hooks else found

    # ---- where in the run code is running

    def place(self) -> int | None:
        """The place in its round of the tool call whose code is running here; None: it is no tool's code."""
        turn = current_turn.get()
        return turn.index if turn is not None and turn.run is self else None

    def uses(self, session: FullSession) -> bool:
        """Whether this is a call on a session, or on the same one of the same store."""
        own = self.session
        return own is session or (own.store is not None and own.store is session.store and own.id == session.id)

    # ---- what contexts may ask (`CallPort`)

    def facts(self) -> Sequence[Fact]:
        """The run's facts so far, those of the calls that were suspended included, and what hooks are judging, as it stands.

        So the trace holds the tool call or the model call that a hook sees the end of: behind what others see meanwhile.
        """
        turn = current_turn.get()
        mine = turn.use.id if turn is not None and turn.run is self else None
        return (*self.journal.facts, *map(self._fact_of, self.events.judged(mine)))

    def _fact_of(self, event: PostActing | PostReasoning) -> Fact:
        """What a Post event will be as a fact, if its hooks leave it as it is."""
        if isinstance(event, PostActing):
            call = event.original_tool_use.id
            return ToolFinished(
                self.run_id, call, event.tool_use, event.tool_result, event.duration_ms, None, event.waited_ms
            )
        reply, used = event.reasoning_result, event.usage
        return Reasoned(self.run_id, event.iteration, reply, used, event.duration_ms, model=event.model)

    def legal_reply(self, msg: Msg) -> Msg:
        """What hooks make of a reply may repeat ids of calls, or hold results: fold it again."""
        content = tuple([block for block in msg.content if not isinstance(block, ToolResultBlock)])
        chunk = ModelChunk(blocks=content)
        folded = fold((chunk,), id=msg.id, used_ids=self.machine.transcript.used_ids, new_id=self.config.new_id)
        return message("assistant", folded.content, msg.id, msg.metadata, msg.usage, msg.finish_reason)

    def say(self, text: str, source: str) -> Msg:
        """A message of the assistant that nobody said, marked with where it comes from."""
        return with_metadata(Msg.assistant(text, id=self.config.new_id("msg_")), synthetic=source)

    @property
    def usage(self) -> Usage:
        """What the run has consumed so far; bills are added up when it is read."""
        bills = self._bills
        if bills is None:
            return NOTHING
        if len(bills) == 1:
            return bills[0]
        billed = tuple(bills)
        total = Usage.total(billed)
        bills[: len(billed)] = [total]  # other threads may add to it
        return total

    def add_usage(self, usage: Usage) -> None:
        """Bill this run, and those that caused it."""
        if self._bills is None:
            self._bills = [usage]
        else:
            self._bills.append(usage)
        if self.parent is not None:
            self.parent.add_usage(usage)

    def inject(self, messages: tuple[Msg, ...], keep: bool, source: str) -> None:
        """See `RunContext.inject`."""
        marked = injected(messages, source, self.over, self.journal.telling)
        key: str | None = None
        if keep and self.repeatable:
            key = f"{self.events.iteration}:{self.repeatable}:{self.injections}"
            self.injections += 1
            if key in self.machine.injected:
                return
        note_injection(self, marked, keep)
        if not keep:
            self.transient = (*self.transient, *marked)
            return
        at = self.inline if (place := self.place()) is None else place
        self.journal.hold(Injected(self.run_id, marked, at, key, self.call_id, self.next_number()))

    def next_number(self) -> int:
        """The number of what hooks and tools add next to this call."""
        self.added += 1
        return self.added

    def approve(self, tool_use_id: str) -> None:
        """See `RunContext.approve`."""
        self._approved |= {tool_use_id}

    def approved(self, tool_use_id: str) -> bool:
        """Whether a hook has had a call allowed by a person."""
        return tool_use_id in self._approved

    def interrupt(self, reason: str = "interrupted") -> None:
        """See `RunContext.interrupt`."""
        self.scope.cancel("interrupted", reason)

    def window(self) -> ContextWindow:
        """See `RunContext.window`."""
        return window_of(self._next_request(), self.config.specs, self.config.model)

    async def measure(self, messages: Sequence[Msg] | None) -> ContextWindow:
        """See `RunContext.measure`."""
        config = self.config
        name = config.model if isinstance(config.model, str) else config.model.name
        asked = legalise(self._next_request() if messages is None else messages, config.new_id)
        return await measured(ModelRequest(asked, config.specs, self.options, name), config.model)

    def _next_request(self) -> Sequence[Msg]:
        machine = self.machine
        return machine.transcript.view(self.head) if machine.compacted is None else machine.request_view(self.head)

    @property
    def history(self) -> Sequence[Msg]:
        """See `RunContext.history`."""
        return self.machine.transcript.messages

    async def complete(self, messages: tuple[Msg, ...], model: Any, source: str, options: ModelOptions) -> Msg:
        """See `RunContext.complete`."""
        asked = self.config.model if model is None else model
        return await ask_beside(self, asked, messages, options, source, self.config.new_id)

    async def complete_typed(
        self, messages: tuple[Msg, ...], model: Any, source: str, options: ModelOptions, output: Any
    ) -> Reply[Any]:
        """See `RunContext.complete`."""
        asked = self.config.model if model is None else model
        return await ask_aside(
            output, asked, messages, options, lambda told, with_: self.complete(told, model, source, with_), self
        )

    def compact(self, until: int, messages: tuple[Msg, ...]) -> Compaction:
        """See `RunContext.compact`."""
        done = compacted(self.machine, self.events.iteration, until, messages)
        self.journal.hold(Compacted(self.run_id, until, messages, self.call_id, self.next_number()))
        return done
