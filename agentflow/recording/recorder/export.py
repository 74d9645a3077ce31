"""Make run logs from the facts of stored sessions, by converting the facts to events."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from inspect import isawaitable
from itertools import repeat
from typing import Protocol, runtime_checkable

from agentflow.errors import UsageError
from agentflow.loop.machine import Machine
from agentflow.recording.encoding import Line, header_line
from agentflow.recording.recorder.entry_builder import (
    NAMES,
    EntryBuilder,
    EntryValues,
    EventSeen,
    Observation,
    RecordedCall,
)
from agentflow.recording.recorder.hook import Redacts
from agentflow.recording.recorder.writer import as_text
from agentflow.vocabulary.events import (
    CallEnded,
    Event,
    MessagesAdded,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
)
from agentflow.vocabulary.facts import (
    CallClosed,
    CallOpened,
    CallResumed,
    Compacted,
    Fact,
    Injected,
    Reasoned,
    RoundSuspended,
    ToolDecided,
    ToolFinished,
)
from agentflow.vocabulary.messages import Outcome, Pending, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.store import Store, no_session
from agentflow.vocabulary.specs import ModelOptions, Usage
from agentflow.vocabulary.verdicts import Answer, AnyVerdict, Approve, Decided, Suspend

__all__ = ["KnowsTimes", "export_log", "lines_of_facts"]

_UNKNOWN_HOOK = "a hook"
"""Stands in for the name of a hook that decided, since most facts do not contain it."""


@runtime_checkable
class KnowsTimes(Protocol):
    """A store with the time of each fact."""

    def fact_times(self, session_id: str) -> Awaitable[Sequence[float]]:
        """Return the time at which each fact of a session was written, oldest first, in seconds since the epoch."""
        ...


async def export_log(
    store: Store, session_id: str, *, run_id: str | None = None, agent: str = "", redaction: Redacts | None = None
) -> list[str]:
    """Make a run log from a stored session.

    Args:
        store: The store of an agent or of durable runs.
        session_id: The session's id.
        run_id: One of its runs; None: all of them, in one log.
        agent: The agent's name for the log; facts do not contain it.
        redaction: Removes secrets.

    Returns:
        The lines, for a file, or for `agentflow.recording.read_lines`.

    Raises:
        StoreError: The session does not exist, or cannot be read.
        UsageError: It has no such run.

    Example:
        >>> from agentflow.recording import read_lines
        >>> store = MemoryStore()
        >>> reply = await Agent("a", ScriptedModel(["Hello!"]), store=store).call("Hi", session="ada")
        >>> log = read_lines(await export_log(store, "ada"))
        >>> [entry.type for entry in log.events()]
        ['PreCall', 'PreReasoning', 'PostReasoning', 'PostCall', 'CallEnded']
    """
    loaded = store.load(session_id)
    facts = tuple(await loaded if isawaitable(loaded) else loaded)
    if not facts:
        raise no_session(session_id)
    runs = list(dict.fromkeys(fact.run_id for fact in facts if isinstance(fact, CallOpened | CallResumed)))
    if run_id is not None and run_id not in runs:
        raise UsageError(f"Session {session_id!r} has no run {run_id!r}; its runs: {', '.join(runs) or 'none'}.")
    times = await store.fact_times(session_id) if isinstance(store, KnowsTimes) else None
    return lines_of_facts(facts, session_id, times=times, run_id=run_id, agent=agent, redaction=redaction)


def lines_of_facts(
    facts: Sequence[Fact],
    session_id: str,
    *,
    times: Sequence[float] | None = None,
    run_id: str | None = None,
    agent: str = "",
    redaction: Redacts | None = None,
) -> list[str]:
    """Make a run log from facts; without `times`, only durations are known, and the session begins at 0."""
    converter = _Converter(session_id, agent)
    # Filtered after the conversion, since the history of a run contains the messages of earlier runs.
    observations = [
        observation for observation in converter.all(facts, times) if run_id in (None, observation.owner.run)
    ]
    builder = EntryBuilder(clean=None if redaction is None else redaction.outside)
    return [as_text(line) for line in (header_line(origin="facts"), *builder.lines(observations), *builder.finish())]


class _Converter:
    """Converts facts to events."""

    def __init__(self, session_id: str, agent: str) -> None:
        self._session = session_id
        self._agent = agent
        self._machine = Machine.from_facts(())
        self._owner = RecordedCall({"call": "", "run": ""})
        self._time = 0.0
        self._began = 0.0
        self._seq = 0
        self._iteration = 0
        self._usage = Usage()

    def all(self, facts: Sequence[Fact], times: Sequence[float] | None) -> Iterable[Observation]:
        # Reversed, so that the first model of each run replaces its later ones.
        models = {fact.run_id: fact.model for fact in reversed(facts) if isinstance(fact, Reasoned)}
        for fact, time in zip(facts, repeat(None) if times is None else times, strict=times is not None):
            # Time never goes backwards, although the clocks of the processes that wrote the facts may differ.
            self._time = self._time + _seconds(fact) if time is None else max(time, self._time)
            if isinstance(fact, CallOpened | CallResumed):
                self._begin(fact, models.get(fact.run_id, ""))
            # Read before the fact is applied, since an event shows the history before it.
            history = self._machine.transcript.messages
            added = self._machine.apply(fact)
            if self._owner.call:
                yield from self._events(fact, history, added)
                yield EntryValues(self._owner, "facts", {"time": self._time, "facts": (fact,)})

    def _begin(self, fact: CallOpened | CallResumed, model: str) -> None:
        if fact.run_id != self._owner.run:
            self._seq = self._iteration = 0
        self._usage = Usage()
        line: Line = {"kind": "call", "call": fact.call_id, "run": fact.run_id, "session": self._session}
        line.update({"agent": self._agent, "model": model, "time": self._time})
        self._owner = RecordedCall({**line, "resumes": isinstance(fact, CallResumed)})
        self._began = self._time

    def _event(
        self,
        kind: type[Event],
        values: Mapping[str, object],
        time: float | None = None,
        decided: object = None,
        hook: str = _UNKNOWN_HOOK,
    ) -> EventSeen:
        self._seq += 1
        decision = None
        if isinstance(decided, AnyVerdict) and not isinstance(decided, Approve):  # a person approves, not a hook
            decision = Decided(decided, hook)
        when = self._time if time is None else time
        fields = [values.get(name) for name in NAMES[kind]]
        return EventSeen(self._owner, kind, (self._seq, self._iteration, when, decision, *fields))

    def _events(self, fact: Fact, history: Sequence[object], added: Sequence[object]) -> Iterable[EventSeen]:
        match fact:
            case CallOpened():
                yield self._event(
                    PreCall,
                    {"input_messages": fact.messages, "history": history},
                    decided=None if fact.answer is None else Answer(fact.answer),
                )
            case Reasoned():
                self._iteration = fact.iteration
                self._usage = self._usage + fact.usage
                purpose = "summary" if fact.summary else "reason"
                request = {"input_messages": history, "tools": (), "model": fact.model, "options": ModelOptions()}
                yield self._event(PreReasoning, {**request, "purpose": purpose}, self._time - _seconds(fact))
                reply = {"reasoning_result": fact.message, "usage": fact.usage, "duration_ms": fact.duration_ms}
                yield self._event(PostReasoning, {**reply, "purpose": purpose, "model": fact.model})
            case ToolDecided():
                yield self._event(PreActing, {"tool_use": fact.tool_use}, decided=fact.verdict)
            case ToolFinished():
                values = {"tool_use": fact.tool_use, "original_tool_use": fact.tool_use, "tool_result": fact.result}
                yield self._event(PostActing, {**values, "duration_ms": fact.duration_ms, "waited_ms": fact.waited_ms})
            case Injected() | Compacted():
                origin = "injected" if isinstance(fact, Injected) else "compacted"
                yield self._event(MessagesAdded, {"messages": tuple(added) or fact.messages, "origin": origin})
            case RoundSuspended():
                for wait in fact.pending:
                    if wait.tool_use is not None:
                        yield from self._waiting(wait, wait.tool_use)
            case CallClosed():
                yield from self._ended(fact, fact.outcome)
            case _:
                pass

    def _waiting(self, wait: Pending, use: ToolUseBlock) -> Iterable[EventSeen]:
        yield self._event(PreActing, {"tool_use": use}, decided=Suspend(wait.request), hook=wait.hook or _UNKNOWN_HOOK)
        result = ToolResultBlock(use.id, use.name, "Suspended: waits for a decision.", "suspended")
        values = {"tool_use": use, "original_tool_use": use, "tool_result": result, "duration_ms": 0.0}
        yield self._event(PostActing, values)

    def _ended(self, fact: CallClosed, outcome: Outcome) -> Iterable[EventSeen]:
        if fact.final is not None:
            lasted = (self._time - self._began) * 1000
            values = {"final_message": fact.final, "outcome": outcome, "usage": self._usage, "duration_ms": lasted}
            yield self._event(PostCall, values)
        yield self._event(CallEnded, {"outcome": outcome, "usage": self._usage})


def _seconds(fact: Fact) -> float:
    return fact.duration_ms / 1000 if isinstance(fact, Reasoned | ToolFinished) else 0.0
