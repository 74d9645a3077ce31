"""Facts: what a run has decided and done, as an append-only list. History is the fold of its facts.

Rules:

1. A fact is an output or a decision, never an input again and never a single token.
2. Natural keys: the run with the iteration, or the call with the tool-use id and the attempt; what hooks and tools add is
   numbered within its call. So the same fact is known when it is delivered twice.
3. Committed decisions are never taken again: a resume goes on at the first fact that is missing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from agentflow.ground.frozen import EMPTY
from agentflow.ground.values import NamedTuple
from agentflow.messages import Msg, Outcome, Pending, ToolResultBlock, ToolState, ToolUseBlock
from agentflow.specs import Usage

__all__ = [
    "CallClosed",
    "CallOpened",
    "CallResumed",
    "Compacted",
    "Fact",
    "Injected",
    "ModelRecord",
    "Reasoned",
    "RoundClosed",
    "RoundSuspended",
    "SessionBegan",
    "StateKept",
    "ToolDecided",
    "ToolFinished",
    "ToolStarted",
    "TurnRecord",
]


_F = TypeVar("_F", bound=tuple[Any, ...])


class _NewFact(Protocol):
    def __call__(self, kind: type[_F], fields: tuple[Any, ...], /) -> _F: ...


new_fact = cast("_NewFact", cast("Any", tuple).__new__)
"""Builds a fact of all its fields, in order, at half the price: `new_fact(ToolStarted, (run_id, use_id, attempt, call_id))`."""


class SessionBegan(NamedTuple):
    """The conversation starts with messages that were made elsewhere; the first fact of a session, where there is one."""

    messages: tuple[Msg, ...]


class CallOpened(NamedTuple):
    """A call's input was accepted (after the `PreCall` chain); `answer`: the chain gave the reply already."""

    run_id: str
    call_id: str
    messages: tuple[Msg, ...]
    max_iterations: int
    answer: Msg | None = None


class CallResumed(NamedTuple):
    """A run that was suspended, or cut by a crash, goes on in a new call; `decisions` answer what it waited for, by key."""

    run_id: str
    call_id: str
    decisions: Mapping[str, Any] = EMPTY


class Reasoned(NamedTuple):
    """A model's reply was accepted (after the `PostReasoning` chain).

    `accepted=False`: the chain said `Again`; `follow_up` holds its messages.
    `stop`: the call ends with this reason; `summary`: it is the tool-less reply at the limit.
    `model`: the one that answered, after a fallback another than the agent's; empty where a hook did.
    """

    run_id: str
    iteration: int
    message: Msg
    usage: Usage
    duration_ms: float
    accepted: bool = True
    follow_up: tuple[Msg, ...] = ()
    stop: str | None = None
    summary: bool = False
    model: str = ""


class ToolDecided(NamedTuple):
    """What the `PreActing` chain made of a call; once in each call of the run that vets it."""

    run_id: str
    tool_use_id: str
    tool_use: ToolUseBlock
    verdict: object
    call_id: str = ""


class ToolStarted(NamedTuple):
    """A tool is about to run."""

    run_id: str
    tool_use_id: str
    attempt: int
    call_id: str = ""


class ToolFinished(NamedTuple):
    """A tool call has its result (after the `PostActing` chain); the durations are those of that event."""

    run_id: str
    tool_use_id: str
    tool_use: ToolUseBlock
    result: ToolResultBlock
    duration_ms: float
    stop: str | None = None
    waited_ms: float = 0.0


class RoundClosed(NamedTuple):
    """All calls of a round are answered; `stop` ends the call with that reason."""

    run_id: str
    message_id: str
    results: tuple[ToolResultBlock, ...]
    stop: str | None = None


class RoundSuspended(NamedTuple):
    """The run waits for somebody outside; finished results are kept, the round stays open. All others are vetted again."""

    run_id: str
    pending: tuple[Pending, ...]
    call_id: str = ""


class Injected(NamedTuple):
    """Messages joined the conversation; while a round is open they wait for its end, ordered by call index.

    `key`: where in the run that was, if the chain that added them may run again after a crash.
    `number`: which of the things it is that hooks and tools have added to this call, from 1.
    """

    run_id: str
    messages: tuple[Msg, ...]
    at: int | None = None
    key: str | None = None
    call_id: str = ""
    number: int = 0


class Compacted(NamedTuple):
    """Later requests start with `messages` in place of the first `until` messages; `number` as in `Injected`."""

    run_id: str
    until: int
    messages: tuple[Msg, ...]
    call_id: str = ""
    number: int = 0


class StateKept(NamedTuple):
    """The session's typed state as it now is: JSON data by `"module:qualname"` of its class."""

    values: Mapping[str, Any]


class CallClosed(NamedTuple):
    """A call is over; `final` is stored as its last message (after the `PostCall` chain)."""

    run_id: str
    call_id: str
    outcome: Outcome
    final: Msg | None = None


Fact: TypeAlias = (
    SessionBegan
    | CallOpened
    | CallResumed
    | Reasoned
    | ToolDecided
    | ToolStarted
    | ToolFinished
    | RoundClosed
    | RoundSuspended
    | Injected
    | Compacted
    | StateKept
    | CallClosed
)
"""Everything that a store keeps of a session, in the order in which it happened."""


class TurnRecord(NamedTuple):
    """One tool call in a run's trace; the durations are those of `PostActing`."""

    tool_use_id: str
    name: str
    arguments: Mapping[str, Any]
    status: ToolState
    result: str
    duration_ms: float
    waited_ms: float = 0.0


class ModelRecord(NamedTuple):
    """One model call in a run's trace; `model` is empty where a hook gave the reply."""

    iteration: int
    usage: Usage
    duration_ms: float
    model: str


def turns_of(facts: Sequence[Fact]) -> tuple[TurnRecord, ...]:
    """The tool calls that ended, in the order in which they did."""
    return tuple(
        TurnRecord(
            f.tool_use_id,
            f.tool_use.name,
            f.tool_use.input,
            f.result.state,
            f.result.text,
            f.duration_ms,
            f.waited_ms,
        )
        for f in facts
        if isinstance(f, ToolFinished)
    )


def model_calls_of(facts: Sequence[Fact]) -> tuple[ModelRecord, ...]:
    """The model calls that ended."""
    return tuple(ModelRecord(f.iteration, f.usage, f.duration_ms, f.model) for f in facts if isinstance(f, Reasoned))
