"""Which facts may be written together with the next one, in one transaction.

A write takes longer than the rest of a round, so facts that follow each other directly are written together: a reply with
the decision on its call and the start of its tool, a result with the end of its round, an answer with the end of its call.

Rules:

1. Nothing visible from outside happens between a held fact and the fact with which it is written: no hook is called, no
   effect starts, and the run does not wait. The reader gets the events of the facts after the write.
2. So if a crash loses a held fact, it also loses everything that followed from this fact.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from agentflow.hooks.hook_set import FullHookSet
from agentflow.loop.config import LoopConfig
from agentflow.loop.emitting import Events
from agentflow.loop.journal import StoredJournal
from agentflow.loop.machine import Machine
from agentflow.loop.scope import RunScope
from agentflow.loop.session import FullSession
from agentflow.tools.tool import FullTool
from agentflow.vocabulary.events import PostCall, PostToolRound, PreActing, PreCall, PreToolRound
from agentflow.vocabulary.facts import Fact, Reasoned, ToolDecided, ToolFinished
from agentflow.vocabulary.messages import ToolUseBlock

__all__ = ["stored_journal"]


class StoringRun(Protocol):
    """The run whose facts are stored."""

    config: LoopConfig
    events: Events
    machine: Machine
    resumption: Any
    scope: RunScope
    session: FullSession

    @property
    def parent(self) -> StoringRun | None:
        """The run that called it."""
        ...

    def place(self) -> int | None:
        """Return the position in its round of the running tool call, or None outside tools."""
        ...

    def hooks_of(self, tool: FullTool[..., Any] | None) -> FullHookSet | None:
        """Return the hooks for one tool, or None if they equal the run's."""
        ...


def stored_journal(run: StoringRun) -> StoredJournal:
    """Return the journal of a run whose session has a store."""
    buffer = run.events.buffer
    return StoredJournal(run.session, run.scope, run.place, partial(may_wait, run), buffer if _holds(run) else None)


def _holds(run: StoringRun) -> bool:
    """Whether events can be kept from the reader: not those of a sub-agent, because its caller's events do not wait."""
    buffer, parent = run.events.buffer, run.parent
    return buffer is not None and buffer.holds and (parent is None or parent.events.buffer is not buffer)


def may_wait(run: StoringRun, fact: Fact) -> bool:
    """Whether a fact may be written with the next one, since the next one follows directly.

    Args:
        run: The run, before the fact is applied.
        fact: Any fact; all but `Reasoned`, `ToolDecided` and `ToolFinished` are written at once.
    """
    scope = run.scope
    # A run that is stopping may end before its next fact.
    if scope.stopped or scope.halts() or run.resumption is not None:
        return False
    if isinstance(fact, ToolDecided):
        return _tool_starts(run, fact)
    events = run.events
    # Otherwise the reader receives the event of the fact at once, so the fact must be stored.
    if events.buffer is not None and not _holds(run):
        return False
    if isinstance(fact, Reasoned):
        uses = fact.message.tool_uses
        if fact.stop is not None or fact.summary:
            return False
        if not uses:
            return events.chains[PostCall] is None and not _wrapped(events.hooks, PreCall)
        # Several calls run in tasks of their own, so it is unknown which fact is next.
        return len(uses) == 1 and _round_acts(run, uses[0])
    if not isinstance(fact, ToolFinished) or len(run.machine.transcript.open_round) != 1:
        return False
    stopped = fact.stop is not None or run.machine.stop is not None
    return not stopped and events.chains[PostToolRound] is None and not _wrapped(events.hooks, PreToolRound)


def _tool_starts(run: StoringRun, fact: ToolDecided) -> bool:
    """Whether the tool starts directly after the decision on its call."""
    use = fact.tool_use
    tool = run.config.tools.get(use.name)
    # In each of these cases no tool starts, or it may have to wait first.
    if (
        tool is None
        or fact.verdict is not None
        or tool.lock is not None
        or fact.tool_use_id in run.machine.round.started
    ):
        return False
    # A hook has changed the call: if its type is another one now, it may be deferred.
    if not any(use is requested for requested in run.machine.transcript.open_round):
        return False
    return not _wrapped(run.hooks_of(tool) or run.events.hooks, PreActing)


def _round_acts(run: StoringRun, use: ToolUseBlock) -> bool:
    """Whether a reply's only call is decided directly after the reply."""
    tool = run.config.tools.get(use.name)
    # An unknown tool is reported as an error, approval and external tools suspend the call, and a lock may be held.
    if tool is None or tool.requires_approval or tool.external or tool.lock is not None:
        return False
    events = run.events
    hooks = run.hooks_of(tool)
    before_tool = events.chains[PreActing] if hooks is None else hooks.chain(PreActing)
    if before_tool is not None or events.chains[PreToolRound] is not None:
        return False
    return not _wrapped(hooks or events.hooks, PreActing) and not _wrapped(events.hooks, PreToolRound)


def _wrapped(hooks: FullHookSet, kind: Any) -> bool:
    """Whether hooks wrap or observe the work after a Pre event, so that they may run before the next fact."""
    return kind in hooks.wraps or (kind is PreActing and bool(hooks.tool_listeners))
