"""The states of a session, the transitions between them as data, and the state folded from its facts.

`loop/machine.py` folds the facts. `python -m agentflow.loop.states` prints the table on the page "Design".

Rules:

1. A fact without an entry in a state's row is illegal in that state.
2. If the content of a fact determines the next state, the entry contains a state for each case, by name; `machine.py`
   decides which case applies.
3. The machine reads every next state from this table, when it applies a fact and when it checks a series of facts.
4. In addition, a fact must belong to the open run, refer to an open call, and contain only messages that are legal at
   their position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from agentflow._support.frozen import EMPTY
from agentflow.errors import TranscriptError, UsageError
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
from agentflow.vocabulary.messages import Msg, Pending, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.transcript import MessageView, Transcript, check_injected

__all__ = [
    "NOT_SUSPENDED",
    "NO_ROUND",
    "TRANSITIONS",
    "Action",
    "FoldedState",
    "OpenRound",
    "State",
    "Suspension",
    "documented",
    "legal_in",
    "names",
    "session_start",
    "ways",
]


class State(Enum):
    """The state of a session."""

    USER_INPUT = "user input"
    ASSISTANT = "assistant"
    TOOL_EXECUTION = "tool execution"
    RESPONSE = "response"
    SUSPENDED = "suspended"

    row: dict[type, Callable[[Any, Any], tuple[Msg, ...]]]
    """The legal facts, with the machine's function that folds each."""


USER_INPUT: Final = State.USER_INPUT
ASSISTANT: Final = State.ASSISTANT
TOOL_EXECUTION: Final = State.TOOL_EXECUTION
RESPONSE: Final = State.RESPONSE
SUSPENDED: Final = State.SUSPENDED

ReplyCase: TypeAlias = Literal["with tool calls", "without tool calls", "rejected"]
RoundCase: TypeAlias = Literal["without a Stop", "with a Stop"]
ResumeCase: TypeAlias = Literal["in a round", "between rounds", "after the answer"]
CloseCase: TypeAlias = Literal["suspended", "ended"]

AFTER_OPENING: Final = ASSISTANT
AFTER_SUSPENDING: Final = SUSPENDED
AFTER_REPLY: Final[dict[ReplyCase, State]] = {
    "with tool calls": TOOL_EXECUTION,
    "without tool calls": RESPONSE,
    "rejected": ASSISTANT,
}
AFTER_ROUND: Final[dict[RoundCase, State]] = {"without a Stop": ASSISTANT, "with a Stop": RESPONSE}
AFTER_RESUME: Final[dict[ResumeCase, State]] = {
    "in a round": TOOL_EXECUTION,
    "between rounds": ASSISTANT,
    "after the answer": RESPONSE,
}
AFTER_CLOSE: Final[dict[CloseCase, State]] = {"suspended": SUSPENDED, "ended": USER_INPUT}

TRANSITIONS: Final[Mapping[State, Mapping[type[Fact], State | Mapping[Any, State]]]] = {
    USER_INPUT: {
        SessionBegan: USER_INPUT,
        CallOpened: AFTER_OPENING,
        Injected: USER_INPUT,
        Compacted: USER_INPUT,
        StateKept: USER_INPUT,
    },
    ASSISTANT: {
        Reasoned: AFTER_REPLY,
        RoundSuspended: AFTER_SUSPENDING,  # a Suspend on PostToolRound
        CallResumed: ASSISTANT,
        CallClosed: USER_INPUT,
        Injected: ASSISTANT,
        Compacted: ASSISTANT,
        StateKept: ASSISTANT,
    },
    TOOL_EXECUTION: {
        ToolDecided: TOOL_EXECUTION,
        ToolStarted: TOOL_EXECUTION,
        ToolFinished: TOOL_EXECUTION,
        RoundClosed: AFTER_ROUND,
        RoundSuspended: AFTER_SUSPENDING,
        CallResumed: TOOL_EXECUTION,
        Injected: TOOL_EXECUTION,
        Compacted: TOOL_EXECUTION,
        StateKept: TOOL_EXECUTION,
    },
    RESPONSE: {
        RoundSuspended: AFTER_SUSPENDING,  # a Suspend on the last reply
        CallResumed: RESPONSE,
        CallClosed: USER_INPUT,
        Injected: RESPONSE,
        Compacted: RESPONSE,
        StateKept: RESPONSE,
    },
    SUSPENDED: {
        RoundClosed: AFTER_ROUND,  # the call ends without a decision: interrupted, or failed
        CallResumed: AFTER_RESUME,
        CallClosed: AFTER_CLOSE,
        Injected: SUSPENDED,
        Compacted: SUSPENDED,
        StateKept: SUSPENDED,
    },
}


def legal_in(kind: type[Fact]) -> list[State]:
    """Return the states in which a fact is legal."""
    return [state for state, row in TRANSITIONS.items() if kind in row]


Action: TypeAlias = Literal["input", "reason", "summary", "act", "respond", "suspended"]
"""The next action, in this order: wait for input, call the model, request the summary, run the open calls, reply, or wait
for a decision."""


class OpenRound(NamedTuple):
    """The progress of the calls of the open round, by their ids.

    Attributes:
        decided: The decisions of the `PreActing` hooks.
        started: The number of the last attempt of each call that has started.
        finished: The results.
        unfinished: The calls without a result.
    """

    decided: dict[str, ToolDecided]
    started: dict[str, int]
    finished: dict[str, ToolResultBlock]
    unfinished: set[str]


NO_ROUND: Final = OpenRound(EMPTY, EMPTY, EMPTY, set())
"""The value if no round is open. It is shared, so it must never be modified."""


class Suspension(NamedTuple):
    """The calls for which a suspended run waits, and the decisions on them.

    Attributes:
        pending: The calls that wait for a decision.
        answers: The decisions that are not used yet, by call; None before the run was resumed.
    """

    pending: tuple[Pending, ...] = ()
    answers: dict[str, Any] | None = None


NOT_SUSPENDED: Final = Suspension()


class FoldedState:
    """A session's transcript, and the state of its open run.

    Args:
        messages: The initial messages of the conversation.
    """

    __slots__ = (
        "call_id",
        "compacted",
        "ended",
        "final",
        "injected",
        "iteration",
        "late",
        "limited",
        "max_iterations",
        "round",
        "run_id",
        "state",
        "state_kept",
        "stop",
        "suspension",
        "transcript",
    )

    def __init__(self, messages: Iterable[Msg] = ()) -> None:
        self.transcript = session_start(messages) if messages else Transcript()
        self.state = USER_INPUT
        self.run_id = ""
        self.call_id = ""
        self.max_iterations = 0
        self.iteration = 0
        self.limited = False
        self.round = NO_ROUND
        self.final: Msg | None = None
        self.stop: str | None = None
        self.suspension = NOT_SUSPENDED
        self.ended: CallClosed | None = None  # the fact that ended the last call
        self.injected: tuple[str, ...] = ()  # keys of injections since the last decision
        self.late: tuple[Msg, ...] = ()  # injected after the answer, and appended to the transcript after it
        self.compacted: tuple[int, tuple[Msg, ...]] | None = None
        self.state_kept: Mapping[str, Any] = EMPTY

    def next(self) -> Action:
        """Return the next action for the driver."""
        state = self.state
        if state is TOOL_EXECUTION:
            return "act"
        if state is ASSISTANT:
            if self.final is not None:  # a verdict on PreCall has answered the call
                return "respond"
            return "reason" if self.iteration < self.max_iterations else "summary"
        if state is RESPONSE:
            return "respond"
        return "suspended" if state is SUSPENDED else "input"

    def waiting_inside(self) -> dict[str, tuple[Pending, ...]]:
        """Return the pending calls of suspended sub-agents, by the id of the tool call, unless the tool call was
        started again."""
        found: dict[str, tuple[Pending, ...]] = {}
        for wait in self.suspension.pending:
            use_id = wait.within
            if use_id is not None and use_id not in self.round.started and use_id not in self.round.finished:
                found[use_id] = (*found.get(use_id, ()), wait)
        return found

    @property
    def open_calls(self) -> tuple[ToolUseBlock, ...]:
        """The calls of the open round without a result, in the model's order."""
        finished = self.round.finished
        open_round = self.transcript.open_round
        return tuple([use for use in open_round if use.id not in finished]) if finished else open_round

    def request_view(self, head: tuple[Msg, ...] = ()) -> MessageView:
        """Return the messages for a request: the history, or the compaction and the messages after it."""
        if self.compacted is None:
            return self.transcript.view(head)
        until, instead = self.compacted
        return self.transcript.view(head + instead, until)

    # ---- checks of facts

    def check_began(self, fact: SessionBegan) -> None:
        """Check a `SessionBegan`."""
        if len(self.transcript):
            raise UsageError(
                f"SessionBegan must be the first fact, but this session has {len(self.transcript)} messages."
            )
        session_start(fact.messages)

    def check_opened(self, fact: CallOpened) -> None:
        """Check a `CallOpened`."""
        for msg in fact.messages:
            if msg.role != "user":
                _check_text_only(msg, "A call's input")
        if fact.answer is not None:
            _check_text_only(fact.answer, "A call's answer")

    def check_suspended(self, fact: RoundSuspended) -> None:
        """Check a `RoundSuspended`."""
        if fact.run_id != self.run_id:
            raise self.of_another_run(fact)

    def check_reasoned(self, fact: Reasoned) -> None:
        """Check a `Reasoned`."""
        if fact.run_id != self.run_id:
            raise self.of_another_run(fact)
        msg = fact.message
        if msg.role != "assistant":
            raise UsageError(f"A reply must be a message of the assistant, not of {msg.role!r}.")
        for block in msg.content:
            if type(block) is ToolUseBlock:
                if fact.summary:
                    raise UsageError(f"A summary must not call tools, but this one calls {names(msg.tool_uses)}.")
                self.transcript.check_uses(msg.tool_uses)
                break
        for followed in fact.follow_up:
            check_injected(followed)

    def check_tool(self, fact: ToolDecided | ToolStarted | ToolFinished) -> None:
        """Check a fact about a call, which must be a call of the open round without a result."""
        if fact.tool_use_id not in self.round.unfinished:
            raise self.not_open_error(fact)

    def not_open_error(self, fact: ToolDecided | ToolStarted | ToolFinished) -> UsageError:
        """Return the error for a fact about a call that is not open."""
        unfinished = self.round.unfinished
        state = f"the open calls are {sorted(unfinished)}" if unfinished else "no call is open"
        return UsageError(f"A fact {type(fact).__name__} came for call {fact.tool_use_id!r}; {state}.")

    def check_round(self, fact: RoundClosed) -> None:
        """Check a `RoundClosed`."""
        if fact.run_id != self.run_id:
            raise self.of_another_run(fact)
        self.transcript.check_round(fact.results)

    def check_injected(self, fact: Injected) -> None:
        """Check an `Injected`."""
        for msg in fact.messages:
            check_injected(msg)

    def check_closed(self, fact: CallClosed) -> None:
        """Check a `CallClosed`."""
        if fact.run_id != self.run_id:
            raise self.of_another_run(fact)
        if fact.outcome == "suspended":
            if self.state is not SUSPENDED:
                raise UsageError(f"A call in state {self.state.name} cannot close as suspended; it was not suspended.")
            return
        if self.transcript.open_round:
            raise UsageError(f"A call cannot close while {names(self.transcript.open_round)} have no results.")
        if fact.final is not None:
            _check_text_only(fact.final, "A call's last message")

    def of_another_run(self, fact: Any) -> UsageError:
        """Return the error for a fact of another run."""
        return UsageError(
            f"A fact {type(fact).__name__} of run {fact.run_id!r} came while run {self.run_id!r} is open. (Does a background "
            "task outlive its call?)"
        )


def names(uses: Iterable[ToolUseBlock]) -> list[str]:
    """Return the ids of calls, for messages."""
    return [use.id for use in uses]


def session_start(messages: Iterable[Msg]) -> Transcript:
    """Return the initial conversation of a session, which must have no open calls."""
    transcript = Transcript(messages)
    if transcript.open_round:
        raise TranscriptError(
            f"A session cannot start with open calls: {names(transcript.open_round)} have no results. Add a tool message "
            "with their results, or remove the message with the calls."
        )
    return transcript


def _check_text_only(msg: Msg, what: str) -> None:
    """Refuse a message with tool calls or results, since they would not run."""
    if msg.role != "assistant":
        raise UsageError(f"{what} must not be a {msg.role} message.")
    for block in msg.content:
        if type(block) is ToolUseBlock or type(block) is ToolResultBlock:
            raise UsageError(f"{what} contains a {type(block).__name__}, but must not contain tool calls or results.")


def documented() -> str:
    """Return the transitions as a Markdown table."""
    lines = [f"| Fact | {' | '.join(f'in `{state.name}`' for state in State)} |", f"|---|{'---|' * len(State)}"]
    for kind in get_args(Fact):
        cells = [_cell(state, TRANSITIONS[state].get(kind)) for state in State]
        lines.append(f"| `{kind.__name__}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def ways() -> Iterator[tuple[State, State, str]]:
    """Yield each transition to another state, with its fact."""
    for state, row in TRANSITIONS.items():
        for kind, to in row.items():
            if isinstance(to, State):
                if to is not state:
                    yield state, to, kind.__name__
            else:
                yield from ((state, target, f"{kind.__name__}, {case}") for case, target in to.items())


def _cell(state: State, to: State | Mapping[Any, State] | None) -> str:
    if to is None:
        return "–"
    if isinstance(to, State):
        return "stays" if to is state else f"`{to.name}`"
    return "; ".join(f"{case}: {_cell(state, target)}" for case, target in to.items())


if __name__ == "__main__":
    print(documented())
