"""The entries of a run log, one class for each `kind`; the JSON Schema in the documentation is made of them.

Rules:

1. Each thing stands once: an event, a message, a tool call, a result, a tool's description. Whatever names it later does so by
   its `ref`.
2. Entries stand in the order in which things happened; what an entry refers to stands before it.
3. Times are seconds since the epoch by the run's clock, `at` is milliseconds after the entry's `time`.
4. An entry of a call has a `number`: its place among those of the call since its last `call` entry, from 1. A line that is
   missing in between is known by that; 0: the log is older than such numbers.
5. A field that is added has a default, so that older logs stay readable; readers pass over what they do not know.
6. This is the schema. `reading.py` checks each line against it once; code that has an entry checks nothing again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias, cast

from agentflow.ground.validation import Above, TaggedBy, Within
from agentflow.runlog.fields import (
    CallRef,
    ChunkData,
    Count,
    DecisionData,
    End,
    ErrorData,
    EventFields,
    EventType,
    FactFields,
    Json,
    MessageData,
    MessageList,
    MessageRef,
    Milliseconds,
    OptionsData,
    Time,
    ToolData,
    ToolRef,
    ToolResultData,
    ToolResultRef,
    ToolUseData,
    ToolUseRef,
    VerdictData,
)

__all__ = [
    "FORM",
    "VERSION",
    "AnsweredEntry",
    "CallEntry",
    "ChunksEntry",
    "Entry",
    "EventEntry",
    "FactEntry",
    "FinishedEntry",
    "HookChange",
    "HookEntry",
    "Injection",
    "InterruptEntry",
    "LogEntry",
    "MarkEntry",
    "MessageEntry",
    "ParentCall",
    "PiecesEntry",
    "ReplyEntry",
    "RequestEntry",
    "StartedEntry",
    "ToolEntry",
    "ToolResultEntry",
    "ToolUseEntry",
    "WrittenEntry",
]

FORM = "agentflow.run-log"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """The first line of a log, and the first of what another process or recorder writes into the same file.

    Attributes:
        writer: Who writes. Several may write into one file, one behind the other or at once: their refs and numbers differ.
        library: The version of agentflow.
        content: Whether texts are kept; False: digests in their place.
        origin: `"recorder"`: written while the run ran; `"facts"`: made of what a store keeps.
        lost: How many things before this line found no room among those that waited to be written.
    """

    kind: Literal["log"] = "log"
    form: Literal["agentflow.run-log"] = FORM
    version: int = VERSION
    writer: str
    time: Time
    library: str = ""
    content: bool = True
    origin: Literal["recorder", "facts"] = "recorder"
    lost: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentCall:
    """Where a sub-agent was called from.

    Attributes:
        call: The caller's call.
        tool_use: The id of the tool call behind which it runs.
    """

    call: str
    tool_use: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEntry:
    """A call begins: what all its entries share.

    Attributes:
        hooks: The names of its hooks, in their order.
        parent: Of a sub-agent, where it was called from.
        resumes: Whether it goes on with a run that was suspended or cut.
        timeout: Seconds for the whole call, if it was given any.
        options: The options of its model calls, if the call was given any.
        streamed: Whether its events had a reader; False: it was called, and only hooks saw them.
    """

    kind: Literal["call"] = "call"
    call: str
    run: str
    session: str
    source: str = ""
    agent: str = ""
    description: str = ""
    model: str = ""
    time: Time = 0.0
    hooks: tuple[str, ...] = ()
    parent: ParentCall | None = None
    resumes: bool = False
    timeout: Annotated[float, Above(0)] | None = None
    options: OptionsData | None = None
    streamed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEntry:
    """A message; `tool_use` and `tool_result` blocks in it are `{"type", "ref"}`.

    Attributes:
        message: As `Msg.to_dict` writes it otherwise; without its texts where digests are kept only.
        digest: Of what it says, where that is not kept.
    """

    kind: Literal["message"] = "message"
    ref: str
    message: MessageData
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUseEntry:
    """A tool call: `id`, `name`, and `input`, or `raw` where the model's text is no JSON object."""

    kind: Literal["tool_use"] = "tool_use"
    ref: str
    value: ToolUseData


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultEntry:
    """A tool's result: `tool_use_id`, `name`, `content`, `state`."""

    kind: Literal["tool_result"] = "tool_result"
    ref: str
    value: ToolResultData


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEntry:
    """What a model is told of a tool: `name`, `description`, `parameters`, `type`."""

    kind: Literal["tool"] = "tool"
    ref: str
    value: ToolData


@dataclass(frozen=True, slots=True, kw_only=True)
class EventEntry:
    """An event, as its hooks left it.

    Attributes:
        type: Its class.
        fields: Its own fields, without those that are not set.
        decision: What its chain decided.
    """

    kind: Literal["event"] = "event"
    type: EventType
    call: CallRef
    number: Count = 0
    seq: Count
    iteration: Count = 0
    time: Time = 0.0
    fields: EventFields = field(default_factory=EventFields)
    decision: DecisionData | None = None

    def ref(self, name: str) -> str:
        """The ref in a field that `REQUIRED` says the event has."""
        return cast("Mapping[str, str]", self.fields)[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksEntry:
    """`ReasoningChunk` events in a row.

    Attributes:
        seq: Of the first; the others follow without a gap.
        attempt: As the events say it.
        restart: Whether the first one makes those before it void.
        pieces: A text, or an object with the fields of a `ModelChunk` that are set.
        at: When each came.
        reply: The number of the reply whose own pieces these are; None: hooks have made or changed them.
        decision: Where the hooks of the last one have failed: `{"hook", "error"}`.
    """

    kind: Literal["chunks"] = "chunks"
    call: CallRef
    number: Count = 0
    seq: Count
    iteration: Count = 0
    time: Time = 0.0
    attempt: Count = 1
    restart: bool = False
    pieces: tuple[str | ChunkData, ...] = ()
    at: tuple[Milliseconds, ...] = ()
    reply: int | None = None
    decision: DecisionData | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecesEntry:
    """`ActingChunk` events in a row, of one tool call; `decision` as in `ChunksEntry`."""

    kind: Literal["pieces"] = "pieces"
    call: CallRef
    number: Count = 0
    seq: Count
    iteration: Count = 0
    time: Time = 0.0
    tool_use: ToolUseRef
    pieces: tuple[Json, ...] = ()
    at: tuple[Milliseconds, ...] = ()
    decision: DecisionData | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HookChange:
    """A field before and after; for a layer of `around`, what came in from the work and what went out."""

    field: str
    before: Json = None
    after: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """Messages that a hook or a tool has put into the conversation; `keep=False`: for the next request only."""

    messages: tuple[MessageRef, ...]
    keep: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEntry:
    """What a hook did to an event; it stands before the event's own entry.

    Attributes:
        event: The event's class.
        via: Through `on_event` or `around`, or only in the shadow.
        verdict: What it said.
        error: What it raised.
        injected: Messages that it has put into the conversation; an observer has an entry for that alone.
    """

    kind: Literal["hook"] = "hook"
    hook: str
    priority: Annotated[float, Within(-1e300, 1e300)] = 100
    event: EventType
    via: Literal["on_event", "around", "shadow"] = "on_event"
    call: CallRef
    number: Count = 0
    seq: Count = 0
    iteration: Count = 0
    time: Time = 0.0
    tool_use: ToolUseRef | None = None
    changes: tuple[HookChange, ...] = ()
    verdict: VerdictData | None = None
    error: ErrorData | None = None
    duration_ms: Milliseconds = 0.0
    injected: tuple[Injection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEntry:
    """A model is asked: behind all hooks, so an attempt that a hook tries again stands here more than once.

    Attributes:
        n: The number of its reply.
        side: What a side call is for (`context.complete(source=...)`); empty for the loop's own.
        messages: What it is asked; None: as the call's last `PreReasoning` event says.
        tools: The refs of what it may call; None: likewise.
        options: How it is to answer; None: likewise.
    """

    kind: Literal["request"] = "request"
    n: Count
    call: CallRef
    number: Count = 0
    iteration: Count = 0
    side: str = ""
    model: str = ""
    time: Time = 0.0
    messages: MessageList | None = None
    tools: tuple[ToolRef, ...] | None = None
    options: OptionsData | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyEntry:
    """Pieces of a reply that are no event: those of side calls, and those that hooks change or keep to themselves."""

    kind: Literal["reply"] = "reply"
    n: Count
    call: CallRef
    number: Count = 0
    time: Time = 0.0
    pieces: tuple[str | ChunkData, ...] = ()
    at: tuple[Milliseconds, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredEntry:
    """A reply is over.

    Attributes:
        waited: Of one that was cut: whether it was waited for; False: whoever had its last piece did not come back.
    """

    kind: Literal["answered"] = "answered"
    n: Count
    call: CallRef
    number: Count = 0
    time: Time = 0.0
    end: End = "done"
    error: ErrorData | None = None
    waited: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedEntry:
    """A tool's work begins: behind all hooks."""

    kind: Literal["started"] = "started"
    n: Count
    call: CallRef
    number: Count = 0
    tool_use: ToolUseRef
    iteration: Count = 0
    time: Time = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEntry:
    """A tool's work is over.

    Attributes:
        result: The ref of what it came to.
        injected: Messages that it has put into the conversation.
    """

    kind: Literal["finished"] = "finished"
    n: Count
    call: CallRef
    number: Count = 0
    time: Time = 0.0
    end: End = "done"
    result: ToolResultRef | None = None
    error: ErrorData | None = None
    injected: tuple[Injection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkEntry:
    """The place in the order of something that is no event: work that runs beside other work may depend on it.

    Attributes:
        what: `"began"`: a hook was called, and something else happened before it returned; `"injected"`: a hook or a tool
            called `context.inject`; `"decided"`: an agent in a race has answered.
        n: The number of the tool's work that did it; None: a hook did.
        seq: Of a hook, the number of its event in the call.
        hook: Its name.
    """

    kind: Literal["mark"] = "mark"
    call: CallRef
    number: Count = 0
    time: Time = 0.0
    what: Literal["began", "injected", "decided"]
    n: Count | None = None
    seq: Count = 0
    hook: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptEntry:
    """Somebody has ended the call.

    Attributes:
        how: By an interrupt, because its time was over, by leaving it (a cancelled task, a closed stream), or by a shutdown of
            the process.
        reason: What was said to an interrupt; of one that was left, whether it was its reader who has gone.
        by_itself: Whether hooks or tools of the call have interrupted it.
        by_caller: Whether those of a call that it belongs to have, such as a race of steps that another one has won.
        at: Where the call was suspended then, if something outside it has ended it: its driver first, then its parallel tool
            calls and sub-agents.
        given: The numbers of replies whose last piece the hooks had not passed on yet.
        work: The number of the tool's work that has interrupted it, if a tool has.
        read: Of a stream: how many events its reader had asked for (as far as the run knew), and how many the run may be ahead.
    """

    kind: Literal["interrupt"] = "interrupt"
    call: CallRef
    number: Count = 0
    time: Time = 0.0
    how: Literal["interrupt", "timeout", "left", "shutdown"] = "interrupt"
    reason: str = ""
    by_itself: bool = False
    by_caller: bool = False
    at: tuple[str, ...] = ()
    given: tuple[Count, ...] = ()
    work: Count | None = None
    read: tuple[Count, Count] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FactEntry:
    """A fact: what a store keeps of the run.

    Attributes:
        fact: Its kind, such as `"reasoned"`.
        fields: Its fields; messages, calls and results by ref.
    """

    kind: Literal["fact"] = "fact"
    fact: str
    call: CallRef
    number: Count = 0
    time: Time = 0.0
    fields: FactFields = field(default_factory=FactFields)


Entry: TypeAlias = (
    LogEntry
    | CallEntry
    | MessageEntry
    | ToolUseEntry
    | ToolResultEntry
    | ToolEntry
    | EventEntry
    | ChunksEntry
    | PiecesEntry
    | HookEntry
    | RequestEntry
    | ReplyEntry
    | AnsweredEntry
    | StartedEntry
    | FinishedEntry
    | MarkEntry
    | InterruptEntry
    | FactEntry
)
"""What stands in a log."""


def _kind(value: object) -> str | None:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


WrittenEntry = Annotated[
    Entry,
    TaggedBy(
        _kind,
        {
            "log": LogEntry,
            "call": CallEntry,
            "message": MessageEntry,
            "tool_use": ToolUseEntry,
            "tool_result": ToolResultEntry,
            "tool": ToolEntry,
            "event": EventEntry,
            "chunks": ChunksEntry,
            "pieces": PiecesEntry,
            "hook": HookEntry,
            "request": RequestEntry,
            "reply": ReplyEntry,
            "answered": AnsweredEntry,
            "started": StartedEntry,
            "finished": FinishedEntry,
            "mark": MarkEntry,
            "interrupt": InterruptEntry,
            "fact": FactEntry,
        },
    ),
]
"""A line as it comes from a file: its `kind` says which."""
