"""What a session's facts have made so far, and which facts fit it; `loop/machine.py` folds them.

What a fact must be besides legal in its state (`loop/states.py`) is judged here: of the run that is open, about a call that
waits, of messages that can stand where they would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from agentflow.errors import TranscriptError, UsageError
from agentflow.facts import (
    CallClosed,
    CallOpened,
    Injected,
    Reasoned,
    RoundClosed,
    RoundSuspended,
    SessionBegan,
    ToolDecided,
    ToolFinished,
    ToolStarted,
)
from agentflow.ground.frozen import EMPTY
from agentflow.ground.ids import new_id as fresh_id
from agentflow.loop.states import ASSISTANT, RESPONSE, SUSPENDED, TOOL_EXECUTION, USER_INPUT
from agentflow.messages import Msg, Pending, ToolResultBlock, ToolUseBlock
from agentflow.transcript import MessageView, Transcript, check_injected

__all__ = ["NO_CALLS", "Action", "Folded", "names", "session_start"]

NO_CALLS: set[str] = set()
"""What is unfinished where no round is open; never added to."""

Action: TypeAlias = Literal["input", "reason", "summary", "act", "respond", "suspended"]
"""What comes next: wait for input, ask the model, ask it for the summary, run the open calls, reply, wait for a decision."""


class Folded:
    """A session's transcript, and the state of its open run.

    Args:
        messages: What the conversation starts with.
        new_id: Where ids of messages that the machine makes come from.
    """

    __slots__ = (
        "answers",
        "call_id",
        "closed",
        "compacted",
        "decided",
        "final",
        "finished",
        "injected",
        "iteration",
        "late",
        "limited",
        "max_iterations",
        "new_id",
        "pending",
        "run_id",
        "started",
        "state",
        "state_kept",
        "stop",
        "transcript",
        "unfinished",
    )

    def __init__(self, messages: Iterable[Msg] = (), new_id: Callable[[str], str] = fresh_id) -> None:
        self.transcript = session_start(messages) if messages else Transcript()
        self.state = USER_INPUT
        self.new_id = new_id
        self.run_id = ""
        self.call_id = ""
        self.max_iterations = 0
        self.iteration = 0
        self.limited = False
        self.decided: dict[str, tuple[Any, ...]] = EMPTY  # of the open round; made when one opens
        self.started: dict[str, int] = EMPTY
        self.finished: dict[str, ToolResultBlock] = EMPTY
        self.unfinished = NO_CALLS  # the calls of the open round that have no result yet
        self.final: Msg | None = None
        self.stop: str | None = None
        self.pending: tuple[Pending, ...] = ()
        self.closed: tuple[Any, ...] | None = None
        self.answers: dict[str, Any] | None = None  # the decisions on what was pending, until they are used up
        self.injected: tuple[str, ...] = ()  # keys of what was injected since the last decision
        self.late: tuple[Msg, ...] = ()  # what was injected behind the answer, and is stored with it
        self.compacted: tuple[int, tuple[Msg, ...]] | None = None
        self.state_kept: Mapping[str, Any] = EMPTY

    def next(self) -> Action:
        """What the driver has to do now."""
        state = self.state
        if state is TOOL_EXECUTION:
            return "act"
        if state is ASSISTANT:
            if self.final is not None:
                return "respond"
            return "reason" if self.iteration < self.max_iterations else "summary"
        if state is RESPONSE:
            return "respond"
        return "suspended" if state is SUSPENDED else "input"

    @property
    def ended(self) -> CallClosed | None:
        """How the last call ended."""
        return None if self.closed is None else CallClosed._make(self.closed)

    def waiting_inside(self) -> dict[str, tuple[Pending, ...]]:
        """What sub-agents wait for in calls of the open round that were not entered again since, by the call's id."""
        found: dict[str, tuple[Pending, ...]] = {}
        for waits in self.pending:
            use_id = waits.within
            if use_id is not None and use_id not in self.started and use_id not in self.finished:
                found[use_id] = (*found.get(use_id, ()), waits)
        return found

    def decision_on(self, tool_use_id: str) -> ToolDecided | None:
        """What the hooks made of an open call, where they have been asked."""
        decided = self.decided.get(tool_use_id)
        return None if decided is None else ToolDecided._make(decided)

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

    # ---- which facts fit

    def judge_began(self, fact: SessionBegan) -> None:
        """Check a `SessionBegan`."""
        if len(self.transcript):
            raise UsageError(f"A session begins once; this one has {len(self.transcript)} messages already.")
        session_start(fact.messages)

    def judge_opened(self, fact: CallOpened) -> None:
        """Check a `CallOpened`."""
        for msg in fact.messages:
            if msg.role != "user":
                _words_only(msg, "A call's input")
        if fact.answer is not None:
            _words_only(fact.answer, "A call's answer")

    def judge_suspended(self, fact: RoundSuspended) -> None:
        """Check a `RoundSuspended`."""
        if fact.run_id != self.run_id:
            raise self.of_another_run(fact)

    def judge_reasoned(self, fact: Reasoned) -> None:
        """Check a `Reasoned`."""
        if fact.run_id != self.run_id:
            raise self.of_another_run(fact)
        msg = fact.message
        if msg.role != "assistant":
            raise UsageError(f"A reply is a message of the assistant, not of {msg.role!r}.")
        for block in msg.content:
            if type(block) is ToolUseBlock:
                if fact.summary:
                    raise UsageError(f"A summary asks for no tools; this one asks for {names(msg.tool_uses)}.")
                self.transcript.check_uses(msg.tool_uses)
                break
        for followed in fact.follow_up:
            check_injected(followed)

    def judge_tool(self, fact: ToolDecided | ToolStarted | ToolFinished) -> None:
        """Check what happens to a call: it is one of the open round's that has no result yet."""
        if fact.tool_use_id not in self.unfinished:
            raise self.not_open(fact)

    def not_open(self, fact: ToolDecided | ToolStarted | ToolFinished) -> UsageError:
        """What a fact about a call that waits for nothing is refused with."""
        waits = f"the open round waits for {sorted(self.unfinished)}" if self.unfinished else "no call is open"
        return UsageError(f"A fact {type(fact).__name__} came for call {fact.tool_use_id!r}; {waits}.")

    def judge_round(self, fact: RoundClosed) -> None:
        """Check a `RoundClosed`."""
        if fact.run_id != self.run_id:
            raise self.of_another_run(fact)
        self.transcript.check_round(fact.results)

    def judge_injected(self, fact: Injected) -> None:
        """Check an `Injected`."""
        for msg in fact.messages:
            check_injected(msg)

    def judge_closed(self, fact: CallClosed) -> None:
        """Check a `CallClosed`."""
        if fact.run_id != self.run_id:
            raise self.of_another_run(fact)
        if fact.outcome == "suspended":
            if self.state is not SUSPENDED:
                raise UsageError(
                    f"A call that nothing has suspended (state {self.state.name}) cannot close as suspended."
                )
            return
        if self.transcript.open_round:
            raise UsageError(f"A call cannot close while {names(self.transcript.open_round)} wait for results.")
        if fact.final is not None:
            _words_only(fact.final, "A call's last message")

    def of_another_run(self, fact: Any) -> UsageError:
        """What a fact of a run that is not open is refused with."""
        return UsageError(
            f"A fact {type(fact).__name__} of run {fact.run_id!r} came while run {self.run_id!r} is open. (Does work go on "
            "behind the call that it belongs to?)"
        )


def names(uses: Iterable[ToolUseBlock]) -> list[str]:
    """The ids of calls, for texts."""
    return [use.id for use in uses]


def session_start(messages: Iterable[Msg]) -> Transcript:
    """The conversation that a session starts with: nothing waits for an answer that nobody would give."""
    transcript = Transcript(messages)
    if transcript.open_round:
        raise TranscriptError(
            f"A session cannot start with open calls: {names(transcript.open_round)} have no results. Put a tool message "
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
