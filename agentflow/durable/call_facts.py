"""Facts of one call, read from its session: its end, its suspension, its usage and its messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from agentflow.durable.records import run_of
from agentflow.vocabulary.facts import (
    CallClosed,
    CallOpened,
    CallResumed,
    Compacted,
    Fact,
    Injected,
    Reasoned,
    RoundClosed,
    RoundSuspended,
    SessionBegan,
    StateKept,
    ToolDecided,
    ToolFinished,
    ToolStarted,
)
from agentflow.vocabulary.messages import Msg, Pending
from agentflow.vocabulary.specs import Usage


def usage_of(facts: Sequence[Fact], run_id: str) -> Usage:
    """Return the usage of a run's model calls."""
    return sum((f.usage for f in facts if isinstance(f, Reasoned) and f.run_id == run_id), Usage())


def end_of_call(call_facts: Sequence[Fact]) -> CallClosed | RoundSuspended | None:
    """Return the end of the call that `call_facts` begins with, or its suspension; None if it is unfinished."""
    opened = call_facts[0]
    assert isinstance(opened, CallOpened | CallResumed)
    end: CallClosed | RoundSuspended | None = None
    for fact in call_facts[1:]:
        match fact:
            case CallOpened():
                break
            case CallResumed():
                if run_of(fact.call_id) == opened.run_id:
                    break  # the run's next call; a later attempt at this one has a `call_id` without the run's id
                end = None
            case RoundSuspended():
                end = fact
            case CallClosed():
                end = end if fact.outcome == "suspended" else fact
            case (
                SessionBegan()
                | Reasoned()
                | ToolDecided()
                | ToolStarted()
                | ToolFinished()
                | RoundClosed()
                | Injected()
                | Compacted()
                | StateKept()
            ):
                pass
            case _:
                assert_never(fact)
    return end


def message_ids(facts: Sequence[Fact]) -> Iterator[str]:
    """Yield the ids of the facts' messages that do not come from the model: inputs, injections and follow-ups."""
    for fact in facts:
        match fact:
            case CallOpened(messages=messages) | Injected(messages=messages) | Reasoned(follow_up=messages):
                yield from (msg.id for msg in messages)
            case _:
                pass


def pending_of(facts: Sequence[Fact]) -> tuple[Pending, ...]:
    """Return the pending calls of the last suspended round."""
    for fact in reversed(facts):
        if isinstance(fact, RoundSuspended):
            return fact.pending
    return ()


def last_reply(messages: Sequence[Msg]) -> Msg | None:
    """Return the last message, if it is a reply."""
    last = messages[-1] if len(messages) else None
    return last if last is not None and last.role == "assistant" else None
