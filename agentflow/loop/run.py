"""`RunBase`: the common base of calls and turns. It also implements `CallPort`, the loop's side of a `RunContext`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from agentflow._support.lazy import later
from agentflow.errors import UsageError
from agentflow.hooks.hook_set import FullHookSet
from agentflow.loop.config import LoopConfig
from agentflow.loop.emitting import Events
from agentflow.loop.holding import stored_journal
from agentflow.loop.journal import Journal
from agentflow.loop.machine import Machine
from agentflow.loop.run_context import ask_beside, compaction_of, injected, measure, note_injection, window_of
from agentflow.loop.scope import RunScope
from agentflow.loop.session import FullSession
from agentflow.loop.tool_call_parts import RestoredCall, WorkProgress
from agentflow.loop.waits import Waits
from agentflow.tools.tool import FullTool
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.context import Compaction, ContextWindow, RunContext
from agentflow.vocabulary.events import Frame, PostActing, PostReasoning, Purpose, TurnView
from agentflow.vocabulary.facts import Compacted, Fact, Injected, Reasoned, ToolFinished
from agentflow.vocabulary.messages import (
    Msg,
    Outcome,
    Pending,
    Reply,
    ToolResultBlock,
    ToolUseBlock,
    message,
    with_metadata,
)
from agentflow.vocabulary.ports.model import ModelRequest, searches_tools
from agentflow.vocabulary.specs import ModelOptions, Usage
from agentflow.vocabulary.transcript import legalise
from agentflow.vocabulary.typed_state import StateMap
from agentflow.vocabulary.verdicts import Resolution

if TYPE_CHECKING:
    from agentflow.loop.output import side
    from agentflow.loop.stream import EventBuffer
else:
    side = later("agentflow.loop.output.side")

__all__ = ["Resumption", "RunBase", "RunSettings", "TurnPlace", "current_turn"]


class TurnPlace(Protocol):
    """The tool call in which the running code works. `current_turn` holds it in a tool's work and, in parallel rounds, in
    the hooks of each call."""

    run: RunBase
    index: int
    use: ToolUseBlock
    restored: RestoredCall

    def suspend(self, pending: tuple[Pending, ...]) -> None:
        """Let the call wait for decisions."""
        ...

    @property
    def progress(self) -> WorkProgress:
        """The progress of its work."""
        ...

    @property
    def waits(self) -> Waits:
        """The time for which its work waits for people, hooks, locks and readers."""
        ...


NOTHING = Usage()
current_turn: ContextVar[TurnPlace | None] = ContextVar("agentflow_turn", default=None)


class RunSettings:
    """The values with which a run begins.

    Attributes:
        options: The options of the model.
        deps: The dependencies of its tools.
        timeout: The limit for the whole run in seconds; None: no limit.
        source: The path of sub-agent names; empty for the top-level agent.
        parent: The run that called it.
        buffer: Passes its events to a reader; None: there is no reader.
        children: Whether the run's reader receives the events of sub-agents.
        messages: The input of the call.
        typed: Adds the typed output to the reply; None if no typed output was requested.
        inherits: Context variables to set for the work of each tool, with their values.
    """

    __slots__ = (
        "buffer",
        "children",
        "deps",
        "inherits",
        "messages",
        "options",
        "parent",
        "source",
        "timeout",
        "typed",
    )

    def __init__(
        self,
        options: ModelOptions,
        deps: object = None,
        timeout: float | None = None,
        source: str = "",
        parent: RunBase | None = None,
        buffer: EventBuffer | None = None,
        children: bool = False,
        messages: tuple[Msg, ...] = (),
    ) -> None:
        self.options = options
        self.deps = deps
        self.timeout = timeout
        self.source = source
        self.parent = parent
        self.buffer = buffer
        self.children = children
        self.messages = messages
        self.typed: Callable[[Reply], Awaitable[Reply]] | None = None
        self.inherits: tuple[tuple[ContextVar[Any], Any], ...] = ()


class Resumption:
    """The decisions with which a call continues a run.

    Args:
        original: The decisions passed to this call.
        decisions: The decisions that apply to the open round, by the ids of its pending calls: `original`, or those of an
            earlier resume that a crash interrupted.
        in_subagents: The decisions on calls of suspended sub-agents, by the id of the tool call that runs the sub-agent.
        in_round: Whether the open round was resumed with decisions; False after this round.
    """

    __slots__ = ("decisions", "in_round", "in_subagents", "original")

    def __init__(
        self,
        original: Mapping[str, Resolution],
        decisions: Mapping[str, Resolution],
        in_subagents: Mapping[str, Mapping[str, Resolution]],
        in_round: bool,
    ) -> None:
        self.original = original
        self.decisions = decisions
        self.in_subagents = in_subagents
        self.in_round = in_round


class Additions:
    """The content of a run's requests besides its history, and additions of its hooks and tools.

    Attributes:
        head: The system prompt, with which each request starts.
        transient: Messages injected for the next request only.
        partial: The partial reply of the model, if the call was interrupted during the reply.
        repeatable: The kind of the running chain, `reasoning` or `round`, if it may run again after a crash; otherwise "".
        injections: The number of injections by that chain.
        count: The number of additions by hooks and tools in this call.
        inline: The position in its round of the call that runs in the driver's task, if the round has several calls.
        approved: The tool calls for which a hook has obtained a person's approval.
        bills: The usage of each model call; the earlier items may be replaced by their sum.
    """

    # Defaults on the class: most runs never set these, so `__init__` need not.
    partial: Msg | None = None
    repeatable: str = ""
    injections: int = 0
    count: int = 0
    inline: int | None = None
    approved: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.head: tuple[Msg, ...] = ()
        self.transient: tuple[Msg, ...] = ()
        self.bills: list[Usage] = []


class RunBase:
    """One call, or one turn.

    Args:
        config: The configuration of its agent.
        hooks: Its hooks.
        session: Its session.
        run_id: The id of the run that this call begins or continues.
        settings: The values with which it begins.

    Attributes:
        events: Emits its events.
        journal: Applies and stores its facts.
        scope: Its task, and its cancellation.
        additions: The content of its requests besides the history, and additions of its hooks and tools.
        resumption: The decisions with which it continues the run; None if it begins one.
        round: The running tool round, or its only call; see `agentflow.loop.round`.
    """

    __slots__ = (
        "__weakref__",
        "_context",
        "additions",
        "call_id",
        "config",
        "events",
        "journal",
        "machine",
        "outcome",
        "resumption",
        "round",
        "run_id",
        "scope",
        "session",
        "settings",
    )

    can_halt: ClassVar[bool] = True
    """Whether the run can be stopped at a safe point and continued later."""

    def __init__(
        self, config: LoopConfig, hooks: FullHookSet, session: FullSession, run_id: str, settings: RunSettings
    ) -> None:
        self.config = config
        self.session = session
        self.machine: Machine = session.machine
        self.run_id = run_id
        self.call_id = config.new_id("call_")
        self.settings = settings
        parent = settings.parent
        scope = RunScope(None if parent is None else parent.scope, settings.timeout, config.cleanup_timeout)
        self.scope = scope
        self.events = Events(self, hooks, config.clock.now, scope, settings.buffer)
        self.journal = Journal(session, scope) if session.store is None else stored_journal(self)
        self.additions = Additions()
        self.resumption: Resumption | None = None
        self.outcome: Outcome = "completed"
        self.round: object = None
        self._context: RunContext | None = None

    @property
    def hooks(self) -> FullHookSet:
        """Its hooks."""
        return self.events.hooks

    @property
    def parent(self) -> RunBase | None:
        """The run that called it."""
        return self.settings.parent

    @property
    def resuming(self) -> bool:
        """Whether the open round was resumed with decisions."""
        return self.resumption is not None and self.resumption.in_round

    def abandoned_by_reader(self) -> None:
        """Make the session's next call wait for this run's cleanup, since the stream was abandoned."""
        self.session.closing = True

    @property
    def context(self) -> RunContext:
        """The context for hooks and tools; created on first use."""
        return self._context or self.make_context(None)

    def make_context(self, state: StateMap | None) -> RunContext:
        """Create the context. Pass the typed state of the run if this call continues one."""
        config, session, settings = self.config, self.session, self.settings
        context = self._context = RunContext(
            self,
            self.run_id,
            self.call_id,
            session.id,
            settings.source,
            config.view,
            config.clock,
            config.new_id,
            settings.deps,
            session.state,
            state,
        )
        return context

    def make_frame(self) -> Frame:
        """Return the values that all its events share."""
        return Frame(self.run_id, self.call_id, self.session.id, self.settings.source, self.config.view, self.context)

    @property
    def turn(self) -> TurnView | None:
        """A view of the turn; None if this is the run of a call."""
        return None

    @property
    def purpose(self) -> Purpose | None:
        """The purpose of the next model call; None if the next action is not a model call."""
        action = self.machine.next()
        return action if action == "reason" or action == "summary" else None

    @property
    def finished(self) -> bool:
        """Whether the run is finished, except for hooks of its last event."""
        return self.scope.state in ("ending", "done")

    @property
    def orphaned(self) -> bool:
        """Whether its event loop was closed while it was running."""
        return self.scope.orphaned

    def finish_lost(self) -> None:
        """Finish a run after its event loop was closed."""
        self.scope.finish(None, None)

    def release(self) -> None:
        """Break the reference cycles of a finished run, its parts and its context."""
        self.round = None
        buffer, parent = self.events.buffer, self.settings.parent
        if buffer is not None and (parent is None or parent.events.buffer is not buffer):  # not the parent's
            buffer.end()
        self.events.release()
        if self.session.store is not None:
            self.journal.release()
        self._context = None

    def shows_children(self) -> bool:
        """Whether events of a sub-agent that the running code calls are passed to this run's reader."""
        task = self.scope.tasks.driver  # not from another event loop: the buffer's futures belong to this run's loop
        return self.settings.children and task is not None and task.get_loop() is asyncio.get_running_loop()

    def hooks_of(self, tool: FullTool[..., Any] | None) -> FullHookSet | None:
        """Return the hooks for one tool; None: the same as the run's."""
        if tool is None:
            return None
        narrower, process = tool.hooks, self.config.process
        if not narrower and not (tool.tags and process.hooks):  # the usual case: nothing to look up
            return None
        found = self.events.hooks.inside(narrower, process.matching(self.config.tags | tool.tags))
        return None if found is self.events.hooks else found  # `inside` returns the set itself if it adds no hook

    # ---- the position of the running code

    def place(self) -> int | None:
        """Return the position in its round of the running tool call, or None outside tools."""
        turn = current_turn.get()
        return turn.index if turn is not None and turn.run is self else None

    def uses(self, session: FullSession) -> bool:
        """Whether this call runs on a session: on this object, or on another with the same id in the same store."""
        own = self.session
        return own is session or (own.store is not None and own.store is session.store and own.id == session.id)

    # ---- `CallPort`: the services of a `RunContext`

    def facts(self) -> Sequence[Fact]:
        """Return the run's facts, including those of its earlier calls, then one for each Post event in its hooks.

        So a hook of `PostActing` or `PostReasoning` finds the call of its event in the trace, as the last one.
        """
        turn = current_turn.get()
        use_id = turn.use.id if turn is not None and turn.run is self else None
        return (*self.journal.facts, *map(self._fact_of, self.events.post_events_in_chain(use_id)))

    def _fact_of(self, event: PostActing | PostReasoning) -> Fact:
        """Return the fact that a Post event becomes if its hooks change nothing more."""
        if isinstance(event, PostActing):
            call = event.original_tool_use.id
            return ToolFinished(
                self.run_id, call, event.tool_use, event.tool_result, event.duration_ms, None, event.waited_ms
            )
        reply, used = event.reasoning_result, event.usage
        return Reasoned(self.run_id, event.iteration, reply, used, event.duration_ms, model=event.model)

    def legal_reply(self, msg: Msg) -> Msg:
        """Return a reply that a hook assigned, without tool results and with tool-use ids that are unique."""
        content = tuple([block for block in msg.content if not isinstance(block, ToolResultBlock)])
        chunk = ModelChunk(blocks=content)  # `fold` repairs the ids
        folded = fold((chunk,), id=msg.id, used_ids=self.machine.transcript.used_ids, new_id=self.config.new_id)
        return message("assistant", folded.content, msg.id, msg.metadata, msg.usage, msg.finish_reason)

    def say(self, text: str, source: str) -> Msg:
        """Return a synthetic message of the assistant, marked with its source."""
        return with_metadata(Msg.assistant(text, id=self.config.new_id("msg_")), synthetic=source)

    @property
    def usage(self) -> Usage:
        """The usage of the run so far, summed when read."""
        bills = self.additions.bills
        if not bills:
            return NOTHING
        if len(bills) == 1:
            return bills[0]
        billed = tuple(bills)
        total = Usage.total(billed)
        bills[: len(billed)] = [total]  # only the items in the sum: other threads may have appended more
        return total

    def add_usage(self, usage: Usage) -> None:
        """Add usage to this run and its parents."""
        self.additions.bills.append(usage)
        parent = self.settings.parent
        if parent is not None:
            parent.add_usage(usage)

    def inject(self, messages: tuple[Msg, ...], keep: bool, source: str) -> None:
        """See `RunContext.inject`."""
        marked = injected(messages, source, self.finished, self.journal.announcements)
        key: str | None = None
        additions = self.additions
        if keep and additions.repeatable:
            key = f"{self.events.iteration}:{additions.repeatable}:{additions.injections}"
            additions.injections += 1
            if key in self.machine.injected:  # the chain runs again after a crash, and these were stored before it
                return
        note_injection(self, marked, keep)
        if not keep:
            additions.transient = (*additions.transient, *marked)  # not stored, and removed with the next request
            return
        at = additions.inline if (position := self.place()) is None else position
        self.journal.request(Injected(self.run_id, marked, at, key, self.call_id, self.next_number()))

    def next_number(self) -> int:
        """Return the number of the next addition by hooks and tools in this call."""
        self.additions.count += 1
        return self.additions.count

    def approve(self, tool_use_id: str) -> None:
        """See `RunContext.approve`."""
        self.additions.approved |= {tool_use_id}

    def approved(self, tool_use_id: str) -> bool:
        """Whether a hook has obtained a person's approval for a call."""
        return tool_use_id in self.additions.approved

    def waiting(self) -> AbstractContextManager[object]:
        """Return a context manager: time in its block counts as waiting, not as work, of the enclosing tool calls."""
        place = current_turn.get()
        waits = place.waits if place is not None and place.run is self else self.scope.waits
        return nullcontext() if waits is None else waits

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
        request = legalise(self._next_request() if messages is None else messages, config.new_id)
        return await measure(ModelRequest(request, config.specs, self.settings.options, name), config.model)

    def searches_tools(self, model: str) -> bool:
        """See `RunContext.searches_tools`."""
        own = self.config.model
        try:
            return searches_tools(own if not isinstance(own, str) and own.name == model else model)
        except UsageError:  # the model is unknown: a call of it will raise this error
            return False

    def _next_request(self) -> Sequence[Msg]:
        return self.machine.request_view(self.additions.head)

    @property
    def history(self) -> Sequence[Msg]:
        """See `RunContext.history`."""
        return self.machine.transcript.messages

    async def complete(self, messages: tuple[Msg, ...], model: Any, source: str, options: ModelOptions) -> Msg:
        """See `RunContext.complete`."""
        chosen = self.config.model if model is None else model
        return await ask_beside(self, chosen, messages, options, source, self.config.new_id)

    async def complete_typed(
        self, messages: tuple[Msg, ...], model: Any, source: str, options: ModelOptions, output: Any
    ) -> Reply[Any]:
        """See `RunContext.complete`."""
        return await side.ask_aside(
            output,
            self.config.model if model is None else model,
            messages,
            options,
            lambda sent, changed: self.complete(sent, model, source, changed),
            self.run_id,
        )

    def compact(self, until: int, messages: tuple[Msg, ...]) -> Compaction:
        """See `RunContext.compact`."""
        done = compaction_of(self.machine, self.events.iteration, until, messages)
        self.journal.request(Compacted(self.run_id, until, messages, self.call_id, self.next_number()))
        return done
