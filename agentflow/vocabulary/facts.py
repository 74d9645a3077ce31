"""Facts: the decisions and results of a run, as an append-only list. A session's history is the fold of its facts.

Rules:

1. A fact is an output or a decision. It does not repeat the conversation, and is never a single token.
2. Facts have natural keys: the run with the iteration, or the call with the tool-use id and the attempt; additions of
   hooks and tools are numbered within their call. So a fact that is delivered twice is recognised.
3. A committed decision is never made again: a resume continues at the first missing fact.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from agentflow._support.frozen import EMPTY
from agentflow._support.values import NamedTuple
from agentflow.vocabulary.messages import Msg, Outcome, Pending, ToolResultBlock, ToolState, ToolUseBlock
from agentflow.vocabulary.specs import Usage

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
"""Build a fact from all its fields, in order, twice as fast as the constructor: `new_fact(ToolStarted, (run_id, use_id,
attempt, call_id))`.
"""


class SessionBegan(NamedTuple):
    """The conversation starts with messages from elsewhere. Only the first fact of a session can be of this type."""

    messages: tuple[Msg, ...]


class CallOpened(NamedTuple):
    """A call's input was accepted (after the `PreCall` chain). `answer` is set if the chain supplied the reply."""

    run_id: str
    call_id: str
    messages: tuple[Msg, ...]
    max_iterations: int
    answer: Msg | None = None


class CallResumed(NamedTuple):
    """A suspended or crashed run continues in a new call; `decisions` has the decisions on its pending entries, by key."""

    run_id: str
    call_id: str
    decisions: Mapping[str, Any] = EMPTY


class Reasoned(NamedTuple):
    """A model's reply was accepted or rejected (after the `PostReasoning` chain).

    `accepted=False`: the chain returned `Again`, and `follow_up` has its messages. `stop`: if set, the call ends with
    this reason. `summary`: whether this is the summary, the final reply without tools at the iteration limit. `model`:
    the model that answered, which can be a fallback; empty if a hook supplied the reply.
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
    """The decision of the `PreActing` chain on a tool call. If the agent call is resumed and evaluates the tool call
    again, there is another such fact.
    """

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
    """A tool call has its result (after the `PostActing` chain); the durations are those of the `PostActing` event."""

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
    """The run waits for an external decision. The round stays open with its finished results; the resume evaluates the
    unfinished calls again.
    """

    run_id: str
    pending: tuple[Pending, ...]
    call_id: str = ""


class Injected(NamedTuple):
    """Messages were added to the conversation; while a round is open they wait for its end, ordered by call index.

    `at`: the index of the tool call during which the messages were added. `key`: the position in the run. It is set if
    the hooks that added the messages may run again after a crash, so that the same addition is recognised and not
    stored twice. `number`: counts the additions by hooks and tools in this call, from 1.
    """

    run_id: str
    messages: tuple[Msg, ...]
    at: int | None = None
    key: str | None = None
    call_id: str = ""
    number: int = 0


class Compacted(NamedTuple):
    """Later requests start with `messages` instead of the first `until` messages; `number` as in `Injected`."""

    run_id: str
    until: int
    messages: tuple[Msg, ...]
    call_id: str = ""
    number: int = 0


class StateKept(NamedTuple):
    """The session's current typed state: JSON data by `"module:qualname"` of its class."""

    values: Mapping[str, Any]


class CallClosed(NamedTuple):
    """A call has ended; `final` is stored as its last message (after the `PostCall` chain)."""

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
"""An entry of a session's list of facts in a store."""


class TurnRecord(NamedTuple):
    """A tool call in a run's trace; the durations are those of `PostActing`."""

    tool_use_id: str
    name: str
    arguments: Mapping[str, Any]
    status: ToolState
    result: str
    duration_ms: float
    waited_ms: float = 0.0


class ModelRecord(NamedTuple):
    """A model call in a run's trace; `model` is empty if a hook supplied the reply."""

    iteration: int
    usage: Usage
    duration_ms: float
    model: str


def turns_of(facts: Sequence[Fact]) -> tuple[TurnRecord, ...]:
    """Return the tool calls, in the order in which they finished."""
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
    """Return the finished model calls."""
    return tuple(ModelRecord(f.iteration, f.usage, f.duration_ms, f.model) for f in facts if isinstance(f, Reasoned))
