"""The fields of run log entries: references, and the fields of events, facts, verdicts, messages, calls and results.

Rules:

1. A field has the same meaning wherever it occurs, so one class has the fields of all events, another those of all facts.
2. Data in a log that no code reads is `Json`; all other data has a type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Required, TypeAlias, get_args

from typing_extensions import TypedDict

from agentflow._support.validation import Refers, Within, fits
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import EVENT_TYPES, Origin, Purpose
from agentflow.vocabulary.messages import Outcome, Role, ToolState
from agentflow.vocabulary.specs import ModelOptions
from agentflow.vocabulary.verdicts import AnyVerdict

__all__ = [
    "CHANGED",
    "REQUIRED",
    "CallRef",
    "ChunkData",
    "Count",
    "DecisionData",
    "End",
    "ErrorData",
    "EventFields",
    "EventType",
    "FactFields",
    "Json",
    "MessageData",
    "MessageList",
    "MessageRef",
    "Milliseconds",
    "OptionsData",
    "PendingData",
    "Time",
    "ToolData",
    "ToolRef",
    "ToolResultData",
    "ToolResultRef",
    "ToolUseData",
    "ToolUseRef",
    "UsageData",
    "VerdictData",
]

Json: TypeAlias = Any
"""JSON data that no code reads: arguments, results, the values of hooks and tools."""

# Larger integers are not exact in JavaScript, in which the inspector reads logs.
Count: TypeAlias = Annotated[int, Within(0, 2**53)]
# About 3,000 years before and after 1970: a time outside this range can only come from a damaged log.
Time: TypeAlias = Annotated[float, Within(-1e11, 1e11)]
"""Seconds since the epoch."""
Milliseconds: TypeAlias = Annotated[float, Within(-1e14, 1e14)]

MessageRef: TypeAlias = Annotated[str, Refers("message")]
ToolUseRef: TypeAlias = Annotated[str, Refers("tool call")]
ToolResultRef: TypeAlias = Annotated[str, Refers("tool result")]
ToolRef: TypeAlias = Annotated[str, Refers("tool")]
CallRef: TypeAlias = Annotated[str, Refers("call")]

ChunkData: TypeAlias = Annotated[dict[str, Json], fits(ModelChunk)]
OptionsData: TypeAlias = Annotated[dict[str, Json], fits(ModelOptions)]

if TYPE_CHECKING:
    EventType: TypeAlias = str
    VerdictType: TypeAlias = str
else:
    EventType = Literal[tuple(kind.__name__ for kind in EVENT_TYPES)]
    VerdictType = Literal[tuple(kind.__name__ for kind in get_args(AnyVerdict))]
"""The names of the classes of events and verdicts."""

REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "PreCall": ("input_messages", "history"),
    "PreReasoning": ("input_messages",),
    "PostReasoning": ("reasoning_result",),
    "PreActing": ("tool_use",),
    "PostActing": ("tool_use", "tool_result"),
    "PostCall": ("final_message",),
    "Error": ("error", "phase"),
    "MessagesAdded": ("origin",),
}
"""The required fields of each event type."""

End: TypeAlias = Literal["done", "failed", "cut"]
"""How work ended: normally, with an error, or by a cancellation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageList:
    """A list of messages, encoded by its difference from the previous list.

    Attributes:
        keep: The number of messages shared with the start of the call's previous list (side calls do not count).
        add: The refs of the messages after the shared ones.
    """

    keep: Count = 0
    add: tuple[MessageRef, ...] = ()


class ErrorData(TypedDict, total=False):
    """An exception: its class, its text, and its attributes that are data."""

    type: Required[str]
    module: str
    message: str | None
    attributes: dict[str, str | int | float | bool | None]


class VerdictData(TypedDict, total=False):
    """A verdict: its name, and its value under the name of its field; `RunLog.carried` reads the value.

    A message, messages and a result are `{"message": ref}`, `{"messages": [refs]}` and `{"tool_result": ref}`; other data
    of this form is wrapped as `{"data": ...}`.
    """

    verdict: Required[VerdictType]
    reason: str
    value: Json
    messages: Json
    request: Json
    input: dict[str, Json] | None


class DecisionData(TypedDict, total=False):
    """The decision of an event's hook chain: a verdict, or the error with which it failed."""

    hook: Required[str]
    verdict: VerdictData
    error: ErrorData


class UsageData(TypedDict, total=False):
    """A usage, without unset fields."""

    input_tokens: Count
    output_tokens: Count
    cache_read_tokens: Count
    cache_write_tokens: Count
    reasoning_tokens: Count
    cost: Annotated[float, Within(-1e12, 1e12)] | None
    model_calls: Count


class EventFields(TypedDict, total=False):
    """The fields of all event types. `REQUIRED` lists the required ones."""

    input_messages: MessageList
    history: MessageList
    tools: list[ToolRef]
    model: str | None
    options: OptionsData
    purpose: Purpose | None
    reasoning_result: MessageRef
    usage: UsageData
    duration_ms: Milliseconds
    waited_ms: Milliseconds
    tool_uses: list[ToolUseRef]
    tool_use: ToolUseRef
    original_tool_use: ToolUseRef
    approval: VerdictData
    tool_result: ToolResultRef
    tool_results: list[ToolResultRef]
    final_message: MessageRef
    outcome: Outcome
    error: ErrorData
    phase: Literal["call", "reasoning", "acting", "hook"]
    fatal: bool
    hook: str | None
    turn: dict[str, Json]
    value: Json
    messages: list[MessageRef]
    origin: Literal[Origin, "compacted"]


class MessageData(TypedDict, total=False):
    """A message; `tool_use` and `tool_result` blocks in it are `{"type", "ref"}`."""

    role: Required[Role]
    content: list[dict[str, Json]]
    name: str | None
    id: str
    metadata: dict[str, Json]
    usage: UsageData | None
    finish_reason: str | None


class ToolUseData(TypedDict, total=False):
    """A tool call: `input`, or `raw` if the model's text is not a JSON object; `digest` if texts are not recorded."""

    id: Required[str]
    name: Required[str]
    input: dict[str, Json]
    raw: str
    digest: str


class ToolResultData(TypedDict, total=False):
    """A tool's result."""

    tool_use_id: Required[str]
    name: Required[str]
    content: str | list[dict[str, Json]]
    state: ToolState
    digest: str


class ToolData(TypedDict, total=False):
    """A tool's description as sent to a model."""

    name: Required[str]
    description: str
    parameters: dict[str, Json]
    type: str | None
    requires_approval: bool
    digest: str


class PendingData(TypedDict, total=False):
    """A decision, in a fact, for which a suspended call waits."""

    id: Required[str]


class FactFields(TypedDict, total=False):
    """The fields of all facts."""

    run_id: str
    call_id: str
    messages: list[MessageRef]
    max_iterations: Count
    answer: MessageRef | None
    decisions: dict[str, VerdictData]
    iteration: Count
    message: MessageRef
    usage: UsageData
    duration_ms: Milliseconds
    waited_ms: Milliseconds
    accepted: bool
    follow_up: list[MessageRef]
    stop: str | None
    summary: bool
    model: str
    tool_use_id: str
    tool_use: ToolUseRef
    verdict: VerdictData | None
    attempt: Count
    result: ToolResultRef
    message_id: str
    results: list[ToolResultRef]
    pending: list[PendingData]
    at: int | None
    key: str | None
    number: Count
    until: Count
    values: dict[str, Json]
    outcome: Outcome
    final: MessageRef | None


CHANGED: Final[Mapping[str, Any]] = {
    "input_messages": MessageList,
    "history": MessageList,
    "reasoning_result": MessageRef,
    "final_message": MessageRef,
    "message": MessageRef,
    "reply": MessageRef,
    "tool_use": ToolUseRef,
    "tool_result": ToolResultRef,
    "tool_results": list[ToolResultRef],
    "tools": list[ToolRef],
    "options": OptionsData,
}
"""The type of a `HookChange` value, unless it is None; the values of other fields are untyped data."""
