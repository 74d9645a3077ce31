"""Rebuild a history in two ways that must agree: by folding a run's facts, and by folding its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from agentflow.loop.machine import Machine, is_blank
from agentflow.vocabulary.events import (
    CallEnded,
    Event,
    MessagesAdded,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreCall,
)
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.messages import Msg, ToolResultBlock
from agentflow.vocabulary.transcript import Transcript
from agentflow.vocabulary.verdicts import Again, Deny

__all__ = ["fold_events", "fold_facts"]


def fold_facts(facts: Iterable[Fact], messages: Iterable[Msg] = ()) -> tuple[Msg, ...]:
    """Return the history that results from a session's facts.

    Args:
        facts: The facts, oldest first.
        messages: The initial messages of the session.
    """
    return tuple(Machine.from_facts(facts, messages).transcript.messages)


def fold_events(events: Iterable[Event], messages: Iterable[Msg] = ()) -> tuple[Msg, ...]:
    """Return the history that results from the events of a session's calls; it equals the stored history.

    Args:
        events: The events of one or more calls of the agent itself (with an empty `source`), in order.
        messages: The initial messages of the session.

    Returns:
        The messages. Tool messages have new ids, since events do not contain them.
    """
    fold = _Fold(messages)
    for event in events:
        fold.apply(event)
    return tuple(fold.transcript.messages)


class _Fold:
    def __init__(self, messages: Iterable[Msg]) -> None:
        self.transcript = Transcript(messages)
        self.results: dict[str, ToolResultBlock] = {}
        self.final: Msg | None = None
        # Whether the call was suspended: its reply is stored when it is resumed, even if a hook of PostCall interrupts it.
        self.parked = False
        self.opened = False

    def apply(self, event: Event) -> None:
        if isinstance(event, PreCall):
            # The messages of a call that was never opened are not stored.
            self.opened = not _denied(event) and not _failed(event)
            if self.opened:
                for msg in event.input_messages:
                    self.transcript.append(msg)
        elif isinstance(event, PostReasoning):
            self._reasoned(event)
        elif isinstance(event, PostActing):
            if event.tool_result.state != "suspended":
                self.results[event.tool_result.tool_use_id] = event.tool_result
        elif isinstance(event, PostToolRound):
            self._round(event.tool_results)
        elif isinstance(event, MessagesAdded):
            self._added(event)
        elif isinstance(event, PostCall):
            if not _failed(event):
                self.parked = event.outcome == "suspended"
                if not self.parked:
                    self.final = event.final_message
        elif isinstance(event, CallEnded):
            self._ended(event)

    def _reasoned(self, event: PostReasoning) -> None:
        if _failed(event):
            return
        msg = event.reasoning_result
        verdict = event.decision.verdict if event.decision is not None else None
        if isinstance(verdict, Again):
            if not is_blank(msg):
                self.transcript.append(msg)
        elif msg.tool_uses and event.purpose != "summary":
            self.transcript.append(msg)
        else:
            calls = msg.tool_uses  # tool calls in a summary are removed
            self.final = replace(msg, content=tuple(b for b in msg.content if b not in calls)) if calls else msg

    def _round(self, results: Sequence[ToolResultBlock]) -> None:
        # A suspended round stays open until the resumed call emits `PostToolRound` again.
        if all(result.state != "suspended" for result in results) and self.transcript.open_round:
            self.transcript.close_round(results)

    def _added(self, event: MessagesAdded) -> None:
        if self.final is not None:  # these messages are stored after the reply
            if not is_blank(self.final):
                self.transcript.append(self.final)
            self.final = None
        for msg in event.messages:
            if msg.role == "tool":
                if self.transcript.open_round:
                    self.transcript.close_round(msg.tool_results)
            else:
                self.transcript.append(msg)

    def _ended(self, event: CallEnded) -> None:
        parked, self.parked = self.parked, False
        if parked or event.outcome == "suspended":
            return
        if self.opened and self.final is not None and not is_blank(self.final):
            self.transcript.append(self.final)
        self.final = None
        self.opened = True


def _denied(event: PreCall) -> bool:
    return event.decision is not None and isinstance(event.decision.verdict, Deny)


def _failed(event: Event) -> bool:
    return event.decision is not None and event.decision.error is not None
