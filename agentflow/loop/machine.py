"""The loop as a table: states, the facts that are legal in each, and what to do next. Pure: no I/O, no clock, no tasks.

    USER_INPUT ──CallOpened──▶ ASSISTANT ──Reasoned──▶ TOOL_EXECUTION ──RoundClosed──▶ ASSISTANT …
                                   │ (no tool calls)         │ (a Stop)
                                   └────────▶ RESPONSE ◀─────┘ ──CallClosed──▶ USER_INPUT

Rules:

1. Tool dispatch never ends the loop: after a round comes reasoning, unless a verdict stopped the call.
2. `max_iterations=N` is N replies of the model, rejected ones counted, then one summary without tools.
3. A fact that is not legal in the state raises and changes nothing.
4. The transcript is the fold of the facts, and the only thing that a machine holds besides the state of the open run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Literal, TypeAlias

from agentflow.errors import UsageError
from agentflow.facts import (
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
from agentflow.frozen import EMPTY
from agentflow.ids import new_id as fresh_id
from agentflow.messages import (
    ContentBlock,
    Msg,
    Pending,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    message,
    tool_result,
)
from agentflow.transcript import MessageView, Transcript

__all__ = ["Action", "Machine", "State", "is_blank"]


class State(Enum):
    """Where a session is."""

    USER_INPUT = "user input"
    ASSISTANT = "assistant"
    TOOL_EXECUTION = "tool execution"
    RESPONSE = "response"


Action: TypeAlias = Literal["input", "reason", "summary", "act", "respond", "suspended"]
"""What comes next: wait for input, ask the model, ask it for the summary, run the open calls, reply, wait for a decision."""

SUPERSEDED = "Not run: this reply was superseded."


def is_blank(msg: Msg) -> bool:
    """Whether an assistant's message holds nothing that can be stored or sent: no call, no data, no words."""
    for block in msg.content:  # noqa: SIM110 - `all` over a generator costs four times as much, several times a call
        if type(block) is not TextBlock or block.text.strip():
            return False
    return True


class Machine:
    """A session's state, made of facts.

    Args:
        messages: What the conversation starts with.
        new_id: Where ids of messages that the machine makes come from.
    """

    __slots__ = (
        "_late",
        "answers",
        "call_id",
        "compacted",
        "decided",
        "ended",
        "final",
        "finished",
        "injected",
        "iteration",
        "limited",
        "max_iterations",
        "new_id",
        "pending",
        "run_id",
        "started",
        "state",
        "state_kept",
        "stop",
        "suspended",
        "transcript",
    )

    def __init__(self, messages: Iterable[Msg] = (), new_id: Callable[[str], str] = fresh_id) -> None:
        self.transcript = Transcript(messages)
        self.state = State.USER_INPUT
        self.new_id = new_id
        self.run_id = ""
        self.call_id = ""
        self.max_iterations = 0
        self.iteration = 0
        self.limited = False
        self.decided: dict[str, ToolDecided] = {}
        self.started: dict[str, int] = {}
        self.finished: dict[str, ToolResultBlock] = {}
        self.final: Msg | None = None
        self.stop: str | None = None
        self.pending: tuple[Pending, ...] = ()
        self.suspended = False
        self.ended: CallClosed | None = None  # how the last call ended
        self.answers: dict[str, Any] | None = None  # the decisions on what was pending, until they are used up
        self.injected: tuple[str, ...] = ()  # keys of what was injected since the last decision
        self.compacted: tuple[int, tuple[Msg, ...]] | None = None
        self.state_kept: Mapping[str, Any] = EMPTY
        self._late: list[Msg] = []

    @classmethod
    def from_facts(
        cls, facts: Iterable[Fact], messages: Iterable[Msg] = (), new_id: Callable[[str], str] = fresh_id
    ) -> Machine:
        """Fold facts into a machine; any prefix of a run's facts is a state that the run can go on from."""
        machine = cls(messages, new_id)
        for fact in facts:
            machine.apply(fact)
        return machine

    def next(self) -> Action:
        """What the driver has to do now."""
        if self.suspended:
            return "suspended"
        state = self.state
        if state is State.TOOL_EXECUTION:
            return "act"
        if state is State.ASSISTANT:
            if self.final is not None:
                return "respond"
            return "reason" if self.iteration < self.max_iterations else "summary"
        return "respond" if state is State.RESPONSE else "input"

    @property
    def open_calls(self) -> tuple[ToolUseBlock, ...]:
        """The calls of the open round that have no result yet, in the model's order."""
        finished = self.finished
        open_round = self.transcript.open_round
        return tuple([use for use in open_round if use.id not in finished]) if finished else open_round

    def request_view(self, head: tuple[Msg, ...] = ()) -> MessageView:
        """The messages that a request is built from: the history, or the compaction and what follows it."""
        if self.compacted is None:
            return self.transcript.view(head)
        until, instead = self.compacted
        return self.transcript.view(head + instead, until)

    def apply(self, fact: Fact) -> tuple[Msg, ...]:
        """Take in a fact.

        Returns:
            The messages that this stored and that the fact does not carry itself: those that had waited for a legal
            place, made-up results of superseded calls.

        Raises:
            UsageError: The fact is not legal in this state.
        """
        kind = type(fact)
        legal, handler = _TABLE[kind]
        if self.state not in legal:
            raise UsageError(
                f"A fact {kind.__name__} is not legal in state {self.state.name}; legal in "
                f"{', '.join(sorted(state.name for state in legal))}. (Facts of two runs mixed up?)"
            )
        return handler(self, fact)

    def on_began(self, fact: SessionBegan) -> tuple[Msg, ...]:
        """Fold a `SessionBegan`."""
        if len(self.transcript):
            raise UsageError(f"A session begins once; this one has {len(self.transcript)} messages already.")
        self.transcript = Transcript(fact.messages)
        return ()

    def on_opened(self, fact: CallOpened) -> tuple[Msg, ...]:
        """Fold a `CallOpened`."""
        if self.suspended:
            raise UsageError("A call cannot be opened on a suspended session; resume it first.")
        for msg in fact.messages:
            self.transcript.append(msg)
        self.run_id, self.call_id = fact.run_id, fact.call_id
        self.max_iterations = fact.max_iterations
        self.iteration = 0
        self.limited = False
        self.final = fact.answer
        self.stop = None
        self.answers = None
        self.injected = ()
        self.state = State.ASSISTANT
        return ()

    def on_resumed(self, fact: CallResumed) -> tuple[Msg, ...]:
        """Fold a `CallResumed`."""
        self.call_id = fact.call_id
        if self.suspended:  # else it goes on after a crash, with the decisions that it has
            self.answers = dict(fact.decisions)
        self.suspended = False
        return ()

    def on_reasoned(self, fact: Reasoned) -> tuple[Msg, ...]:
        """Fold a `Reasoned`."""
        self.iteration = fact.iteration
        self.limited = self.limited or fact.summary
        self.stop = fact.stop
        if self.injected:
            self.injected = ()
        msg = fact.message
        if not fact.accepted:
            return self._reject(fact)
        if not fact.summary:
            for block in msg.content:
                if type(block) is ToolUseBlock:
                    self.transcript.append(msg)
                    self.state = State.TOOL_EXECUTION
                    return ()
        self.final = msg
        self.state = State.RESPONSE
        return ()

    def _reject(self, fact: Reasoned) -> tuple[Msg, ...]:
        added: list[Msg] = []
        if not is_blank(fact.message):
            self.transcript.append(fact.message)
            if uses := fact.message.tool_uses:
                results = [tool_result(use.id, use.name, SUPERSEDED, "denied") for use in uses]
                closed, landed = self.transcript.close_round(results, f"{fact.message.id}-superseded"[:40])
                added = [closed, *landed]
        for msg in fact.follow_up:
            self.transcript.inject(msg)
        self.state = State.ASSISTANT
        return tuple(added)

    def on_tool_decided(self, fact: ToolDecided) -> tuple[Msg, ...]:
        """Fold a `ToolDecided`."""
        self.decided[fact.tool_use_id] = fact
        return ()

    def on_tool_started(self, fact: ToolStarted) -> tuple[Msg, ...]:
        """Fold a `ToolStarted`."""
        self.started[fact.tool_use_id] = fact.attempt
        if self.answers:  # an approval is for one time
            self.answers.pop(fact.tool_use_id, None)
        return ()

    def on_tool_finished(self, fact: ToolFinished) -> tuple[Msg, ...]:
        """Fold a `ToolFinished`."""
        self.finished[fact.tool_use_id] = fact.result
        if fact.stop is not None and self.stop is None:
            self.stop = fact.stop
        return ()

    def on_round_closed(self, fact: RoundClosed) -> tuple[Msg, ...]:
        """Fold a `RoundClosed`."""
        _, landed = self.transcript.close_round(fact.results, fact.message_id)
        self.decided = {}
        self.started = {}
        self.finished = {}
        self.pending = ()
        self.suspended = False
        self.answers = None
        self.injected = ()
        stop = fact.stop if fact.stop is not None else self.stop
        if stop is not None:
            self.answer_with(stop, fact.run_id)
        else:
            self.state = State.ASSISTANT
        return landed

    def answer_with(self, reason: str, source: str) -> None:
        """Close the call with a synthetic message of the assistant (part of folding a Stop)."""
        content: tuple[ContentBlock, ...] = (TextBlock(reason or "stopped"),)
        self.final = message("assistant", content, f"{source}-stop"[-40:], {"synthetic": "stopped"})
        self.state = State.RESPONSE

    def on_round_suspended(self, fact: RoundSuspended) -> tuple[Msg, ...]:
        """Fold a `RoundSuspended`."""
        self.pending = fact.pending
        self.suspended = True
        self.answers = None
        self.injected = ()
        for waits in fact.pending:
            if waits.within is not None:  # the call had begun; it is vetted and entered again
                self.decided.pop(waits.within, None)
                self.started.pop(waits.within, None)
            else:  # likewise, where nobody knows how it ended; that it has started stays true
                self.decided.pop(waits.id, None)
        return ()

    def on_injected(self, fact: Injected) -> tuple[Msg, ...]:
        """Fold an `Injected`."""
        if fact.key is not None:
            self.injected = (*self.injected, fact.key)
        if self.state is State.RESPONSE:
            self._late.extend(fact.messages)
            return ()
        return tuple([msg for msg in fact.messages if self.transcript.inject(msg, fact.at)])

    def on_compacted(self, fact: Compacted) -> tuple[Msg, ...]:
        """Fold a `Compacted`."""
        self.compacted = (fact.until, fact.messages)
        return ()

    def on_state_kept(self, fact: StateKept) -> tuple[Msg, ...]:
        """Fold a `StateKept`."""
        self.state_kept = fact.values
        return ()

    def on_closed(self, fact: CallClosed) -> tuple[Msg, ...]:
        """Fold a `CallClosed`."""
        if fact.outcome == "suspended":
            return ()
        added: tuple[Msg, ...] = ()
        if self.transcript.open_round:
            raise UsageError(
                f"A call cannot close while {[use.id for use in self.transcript.open_round]} wait for results."
            )
        if fact.final is not None and not is_blank(fact.final):
            self.transcript.append(fact.final)
        if self._late:
            added = tuple(self._late)
            self._late = []
            for msg in added:
                self.transcript.inject(msg)
        self.ended = fact
        self.final = None
        self.stop = None
        self.pending = ()
        self.suspended = False
        self.answers = None
        self.injected = ()
        self.state = State.USER_INPUT
        return added


# Tuples, not sets: membership is then an identity test, and an enum's hash costs a Python call.
_ANY = tuple(State)
_RUNNING = (State.ASSISTANT, State.TOOL_EXECUTION, State.RESPONSE)
_ASSISTANT = (State.ASSISTANT,)
_TOOLS = (State.TOOL_EXECUTION,)

_TABLE: dict[type, tuple[tuple[State, ...], Callable[[Machine, Any], tuple[Msg, ...]]]] = {
    SessionBegan: ((State.USER_INPUT,), Machine.on_began),
    CallOpened: ((State.USER_INPUT,), Machine.on_opened),
    CallResumed: (_RUNNING, Machine.on_resumed),
    Reasoned: (_ASSISTANT, Machine.on_reasoned),
    ToolDecided: (_TOOLS, Machine.on_tool_decided),
    ToolStarted: (_TOOLS, Machine.on_tool_started),
    ToolFinished: (_TOOLS, Machine.on_tool_finished),
    RoundClosed: (_TOOLS, Machine.on_round_closed),
    RoundSuspended: (_RUNNING, Machine.on_round_suspended),
    Injected: (_ANY, Machine.on_injected),
    Compacted: (_ANY, Machine.on_compacted),
    StateKept: (_ANY, Machine.on_state_kept),
    CallClosed: (_ANY, Machine.on_closed),
}
