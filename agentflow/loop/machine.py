"""The loop as a table: states, the facts that are legal in each, and what to do next. Pure: no I/O, no clock, no tasks.

    USER_INPUT ──CallOpened──▶ ASSISTANT ──Reasoned──▶ TOOL_EXECUTION ──RoundClosed──▶ ASSISTANT …
                                   │ (no tool calls)         │ (a Stop)
                                   └────────▶ RESPONSE ◀─────┘ ──CallClosed──▶ USER_INPUT

Rules:

1. Tool dispatch never ends the loop: after a round comes reasoning, unless a verdict stopped the call.
2. `max_iterations=N` is N replies of the model, rejected ones counted, then one summary without tools.
3. A fact that is not legal raises and changes nothing: `check` says it before the fact is written, and what `check` lets
   pass, `apply` takes.
4. The transcript is the fold of the facts, and the only thing that a machine holds besides the state of the open run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Literal, NamedTuple, TypeAlias

from agentflow.errors import TranscriptError, UsageError
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
from agentflow.ground.frozen import EMPTY
from agentflow.ground.ids import new_id as fresh_id
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
from agentflow.transcript import MessageView, Transcript, check_injected

__all__ = ["Action", "Machine", "State", "is_blank"]


class State(Enum):
    """Where a session is."""

    USER_INPUT = "user input"
    ASSISTANT = "assistant"
    TOOL_EXECUTION = "tool execution"
    RESPONSE = "response"

    row: dict[type, Callable[[Machine, Any], tuple[Msg, ...]]]
    """The facts that are legal here, and what folds each."""


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
        "unfinished",
    )

    def __init__(self, messages: Iterable[Msg] = (), new_id: Callable[[str], str] = fresh_id) -> None:
        self.transcript = _begins(messages)
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
        self.unfinished: set[str] = set()  # the calls of the open round that have no result yet
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
        """Take in a fact, if it is legal.

        Returns:
            The messages that this stored and that the fact does not carry itself: those that had waited for a legal
            place, made-up results of superseded calls.

        Raises:
            UsageError: The fact is not legal in this state.
        """
        handler = self.state.row.get(fact.__class__)
        if handler is None:
            raise _misplaced(fact, self.state, _TABLE[type(fact)].legal)
        return handler(self, fact)

    def check(self, *facts: Fact) -> None:
        """Refuse facts that are not legal one behind the other, before they are written; nothing changes.

        One of them may be of any kind; what is written with it are facts of which the state says all.

        Raises:
            UsageError: One is not legal.
        """
        state = self.state
        leads: Fact | None = None
        for fact in facts:
            legal, _, judge, target = _TABLE[type(fact)]
            if type(fact) not in _ALONG:
                if leads is not None:
                    raise UsageError(
                        f"Facts {type(leads).__name__} and {type(fact).__name__} cannot be written together: write one, "
                        "then the other."
                    )
                leads = fact
            if state not in legal:
                raise _misplaced(fact, state, legal)
            if judge is not None:
                judge(self, fact)
            if target is not None:
                state = target(self, fact)

    # ---- what is legal

    def judge_began(self, fact: SessionBegan) -> None:
        """Check a `SessionBegan`."""
        if len(self.transcript):
            raise UsageError(f"A session begins once; this one has {len(self.transcript)} messages already.")
        _begins(fact.messages)

    def judge_opened(self, fact: CallOpened) -> None:
        """Check a `CallOpened`."""
        if self.suspended:
            raise UsageError("A call cannot be opened on a suspended session; resume it first.")
        for msg in fact.messages:
            if msg.role != "user":
                _words_only(msg, "A call's input")
        if fact.answer is not None:
            _words_only(fact.answer, "A call's answer")

    def judge_suspended(self, fact: RoundSuspended) -> None:
        """Check a `RoundSuspended`."""
        if fact.run_id != self.run_id:
            raise self._of_another_run(fact)

    def judge_reasoned(self, fact: Reasoned) -> None:
        """Check a `Reasoned`."""
        if fact.run_id != self.run_id:
            raise self._of_another_run(fact)
        msg = fact.message
        if msg.role != "assistant":
            raise UsageError(f"A reply is a message of the assistant, not of {msg.role!r}.")
        for block in msg.content:
            if type(block) is ToolUseBlock:
                if fact.summary:
                    raise UsageError(f"A summary asks for no tools; this one asks for {_names(msg.tool_uses)}.")
                self.transcript.check_uses(msg.tool_uses)
                break
        for followed in fact.follow_up:
            check_injected(followed)

    def judge_tool(self, fact: ToolDecided | ToolStarted | ToolFinished) -> None:
        """Check what happens to a call: it is one of the open round's that has no result yet."""
        if fact.tool_use_id not in self.unfinished:
            raise self._not_open(fact)

    def _not_open(self, fact: ToolDecided | ToolStarted | ToolFinished) -> UsageError:
        waits = f"the open round waits for {sorted(self.unfinished)}" if self.unfinished else "no call is open"
        return UsageError(f"A fact {type(fact).__name__} came for call {fact.tool_use_id!r}; {waits}.")

    def judge_round(self, fact: RoundClosed) -> None:
        """Check a `RoundClosed`."""
        if fact.run_id != self.run_id:
            raise self._of_another_run(fact)
        self.transcript.check_round(fact.results)

    def judge_injected(self, fact: Injected) -> None:
        """Check an `Injected`."""
        for msg in fact.messages:
            check_injected(msg)

    def judge_closed(self, fact: CallClosed) -> None:
        """Check a `CallClosed`."""
        if fact.run_id != self.run_id:
            raise self._of_another_run(fact)
        if fact.outcome == "suspended":
            return
        if self.transcript.open_round:
            raise UsageError(f"A call cannot close while {_names(self.transcript.open_round)} wait for results.")
        if fact.final is not None:
            _words_only(fact.final, "A call's last message")

    def _of_another_run(self, fact: Any) -> UsageError:
        return UsageError(
            f"A fact {type(fact).__name__} of run {fact.run_id!r} came while run {self.run_id!r} is open. (Does work go on "
            "behind the call that it belongs to?)"
        )

    # ---- what they change; what is not legal is refused first

    def on_began(self, fact: SessionBegan) -> tuple[Msg, ...]:
        """Fold a `SessionBegan`."""
        self.judge_began(fact)
        self.transcript = Transcript(fact.messages)
        return ()

    def on_opened(self, fact: CallOpened) -> tuple[Msg, ...]:
        """Fold a `CallOpened`."""
        messages = fact.messages
        if self.suspended or fact.answer is not None or len(messages) != 1 or messages[0].role != "user":
            self.judge_opened(fact)
        for msg in messages:
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
        msg = fact.message
        usual = fact.accepted and not fact.summary
        if not usual or fact.run_id != self.run_id or msg.role != "assistant":
            self.judge_reasoned(fact)
        acts = False
        if usual:
            for block in msg.content:
                if type(block) is ToolUseBlock:
                    self.transcript.append(msg)  # refuses it if an id was used
                    acts = True
                    break
        self.iteration = fact.iteration
        self.limited = self.limited or fact.summary
        self.stop = fact.stop
        if self.injected:
            self.injected = ()
        if acts:
            uses = self.transcript.open_round
            self.unfinished = {uses[0].id} if len(uses) == 1 else {use.id for use in uses}
            self.state = State.TOOL_EXECUTION
            return ()
        if not fact.accepted:
            return self._reject(fact)
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
        if fact.tool_use_id not in self.unfinished:
            raise self._not_open(fact)
        self.decided[fact.tool_use_id] = fact
        return ()

    def on_tool_started(self, fact: ToolStarted) -> tuple[Msg, ...]:
        """Fold a `ToolStarted`."""
        if fact.tool_use_id not in self.unfinished:
            raise self._not_open(fact)
        self.started[fact.tool_use_id] = fact.attempt
        if self.answers:  # an approval is for one time
            self.answers.pop(fact.tool_use_id, None)
        return ()

    def on_tool_finished(self, fact: ToolFinished) -> tuple[Msg, ...]:
        """Fold a `ToolFinished`."""
        if fact.tool_use_id not in self.unfinished:
            raise self._not_open(fact)
        self.unfinished.discard(fact.tool_use_id)
        self.finished[fact.tool_use_id] = fact.result
        if fact.stop is not None and self.stop is None:
            self.stop = fact.stop
        return ()

    def on_round_closed(self, fact: RoundClosed) -> tuple[Msg, ...]:
        """Fold a `RoundClosed`."""
        if fact.run_id != self.run_id:
            raise self._of_another_run(fact)
        _, landed = self.transcript.close_round(fact.results, fact.message_id)
        self.decided = {}
        self.started = {}
        self.finished = {}
        self.unfinished = set()
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
        self.judge_suspended(fact)
        self.pending = fact.pending
        self.suspended = True
        self.answers = None
        self.injected = ()
        self.decided = {}  # whatever has no result then is vetted again: what was allowed yesterday is judged today
        for waits in fact.pending:
            if waits.within is not None:  # the call had begun; it is entered again
                self.started.pop(waits.within, None)
        return ()

    def on_injected(self, fact: Injected) -> tuple[Msg, ...]:
        """Fold an `Injected`."""
        self.judge_injected(fact)
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
        final = fact.final
        if (
            final is not self.final
            or fact.run_id != self.run_id
            or self.transcript.open_round
            or fact.outcome == "suspended"
        ):
            self.judge_closed(fact)
            if fact.outcome == "suspended":
                return ()
        added: tuple[Msg, ...] = ()
        if final is not None and not is_blank(final):
            self.transcript.append(final)
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


def _names(uses: Iterable[ToolUseBlock]) -> list[str]:
    return [use.id for use in uses]


def _misplaced(fact: Fact, state: State, legal: tuple[State, ...]) -> UsageError:
    return UsageError(
        f"A fact {type(fact).__name__} is not legal in state {state.name}; legal in "
        f"{', '.join(sorted(one.name for one in legal))}. (Facts of two runs mixed up?)"
    )


def _begins(messages: Iterable[Msg]) -> Transcript:
    """The conversation that a session starts with: nothing waits for an answer that nobody would give."""
    transcript = Transcript(messages)
    if transcript.open_round:
        raise TranscriptError(
            f"A session cannot start with open calls: {_names(transcript.open_round)} have no results. Put a tool message "
            "with their results behind them, or leave the message that asks for them out."
        )
    return transcript


def _words_only(msg: Msg, what: str) -> None:
    """Refuse what asks for tools, or answers them, where nobody would run or has asked for them."""
    if msg.role != "assistant":
        raise UsageError(f"{what} cannot be a {msg.role} message here.")
    for block in msg.content:
        if type(block) is ToolUseBlock or type(block) is ToolResultBlock:
            raise UsageError(f"{what} holds a {type(block).__name__}; it can hold no tool calls or results.")


# Tuples, not sets: membership is then an identity test, and an enum's hash costs a Python call.
_ANY = tuple(State)
_RUNNING = (State.ASSISTANT, State.TOOL_EXECUTION, State.RESPONSE)
_ASSISTANT = (State.ASSISTANT,)
_TOOLS = (State.TOOL_EXECUTION,)


def _after_reasoned(machine: Machine, fact: Reasoned) -> State:
    if not fact.accepted:
        return State.ASSISTANT
    return State.TOOL_EXECUTION if fact.message.tool_uses and not fact.summary else State.RESPONSE


def _after_round(machine: Machine, fact: RoundClosed) -> State:
    return State.ASSISTANT if fact.stop is None and machine.stop is None else State.RESPONSE


def _after_closed(machine: Machine, fact: CallClosed) -> State:
    return machine.state if fact.outcome == "suspended" else State.USER_INPUT


def _opened(machine: Machine, fact: CallOpened) -> State:
    return State.ASSISTANT


class _Rule(NamedTuple):
    """One kind of fact: where it is legal, what it changes, what else must hold, and where it leads (None: nowhere)."""

    legal: tuple[State, ...]
    handler: Callable[[Machine, Any], tuple[Msg, ...]]
    judge: Callable[[Machine, Any], None] | None
    target: Callable[[Machine, Any], State] | None


_ALONG = (Injected, Compacted, StateKept, RoundSuspended)
"""What may be written with another fact."""

_TABLE: dict[type, _Rule] = {
    SessionBegan: _Rule((State.USER_INPUT,), Machine.on_began, Machine.judge_began, None),
    CallOpened: _Rule((State.USER_INPUT,), Machine.on_opened, Machine.judge_opened, _opened),
    CallResumed: _Rule(_RUNNING, Machine.on_resumed, None, None),
    Reasoned: _Rule(_ASSISTANT, Machine.on_reasoned, Machine.judge_reasoned, _after_reasoned),
    ToolDecided: _Rule(_TOOLS, Machine.on_tool_decided, Machine.judge_tool, None),
    ToolStarted: _Rule(_TOOLS, Machine.on_tool_started, Machine.judge_tool, None),
    ToolFinished: _Rule(_TOOLS, Machine.on_tool_finished, Machine.judge_tool, None),
    RoundClosed: _Rule(_TOOLS, Machine.on_round_closed, Machine.judge_round, _after_round),
    RoundSuspended: _Rule(_RUNNING, Machine.on_round_suspended, Machine.judge_suspended, None),
    Injected: _Rule(_ANY, Machine.on_injected, Machine.judge_injected, None),
    Compacted: _Rule(_ANY, Machine.on_compacted, None, None),
    StateKept: _Rule(_ANY, Machine.on_state_kept, None, None),
    CallClosed: _Rule(_RUNNING, Machine.on_closed, Machine.judge_closed, _after_closed),
}

for _state in State:
    _state.row = {kind: rule.handler for kind, rule in _TABLE.items() if _state in rule.legal}
