"""The entries of a run log, one class for each `kind`; the documented JSON Schema is generated from them.

Rules:

1. Each object is written once: an event, a message, a tool call, a result, a tool's description. Later entries use its `ref`.
2. Entries are in the order of events; an entry refers only to earlier entries.
3. Times are in seconds since the epoch, by the run's clock; `at` is in milliseconds after the entry's `time`.
4. An entry of a call has a `number`: its position among the call's entries since its last `call` entry, from 1. A gap shows
   that a line is missing. 0 means that the log was written before these numbers were introduced.
5. A new field has a default, so that older logs stay readable; readers ignore fields that they do not know.
6. These classes are the schema. `reading.py` validates each line against it once; code that uses entries never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args

from agentflow._support.validation import Above, TaggedBy, Within
from agentflow.recording.fields import (
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
    """The first line of a log, and the first line of each further process or recorder that writes to the same file.

    Attributes:
        writer: The writer's id. Several writers may use one file, even at the same time; their refs and numbers differ.
        library: The version of agentflow.
        content: Whether texts are recorded; if False, digests replace them.
        origin: `"recorder"`: written during the run; `"facts"`: derived from a store's facts.
        lost: The number of entries before this line that were dropped because the write queue was full.
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
    """The call and tool call in which a sub-agent was called.

    Attributes:
        call: The caller's call.
        tool_use: The id of the tool call that runs it.
    """

    call: str
    tool_use: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEntry:
    """The start of a call, with the data that all its entries share.

    Attributes:
        hooks: The names of its hooks, in order.
        parent: For a sub-agent, its caller.
        resumes: Whether it resumes a suspended or interrupted run.
        timeout: Seconds for the whole call, if set.
        options: The model options of the call, if set.
        streamed: Whether its events had a reader; False if only hooks saw them.
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
        message: In the form of `Msg.to_dict`; without texts if only digests are recorded.
        digest: The digest of the content, if the content is not recorded.
    """

    kind: Literal["message"] = "message"
    ref: str
    message: MessageData
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUseEntry:
    """A tool call: `id`, `name`, and `input`, or `raw` if the model's text is not a JSON object."""

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
    """A tool's description as sent to a model: `name`, `description`, `parameters`, `type`."""

    kind: Literal["tool"] = "tool"
    ref: str
    value: ToolData


@dataclass(frozen=True, slots=True, kw_only=True)
class EventEntry:
    """An event, after its hooks.

    Attributes:
        type: The name of its class.
        fields: Its fields, except unset ones.
        decision: The decision of its hook chain.
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
        """Return the ref in a field that `REQUIRED` lists for the event's type."""
        return cast("Mapping[str, str]", self.fields)[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksEntry:
    """Consecutive `ReasoningChunk` events.

    Attributes:
        seq: The number of the first event; the others follow without a gap.
        attempt: The attempt of the events.
        restart: Whether the first event discards earlier chunks of the reply.
        pieces: Each chunk: a text, or an object with the set fields of a `ModelChunk`.
        at: The time of each chunk.
        paused: How long the run paused for its reader after each chunk; zeros at the end are left out.
        reply: The number of the reply that these chunks come from unchanged; None if hooks created or changed them.
        decision: `{"hook", "error"}` if a hook failed on the last event.
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
    paused: tuple[Milliseconds, ...] = ()
    reply: int | None = None
    decision: DecisionData | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecesEntry:
    """Consecutive `ActingChunk` events of one tool call; `decision` as in `ChunksEntry`.

    Attributes:
        n: The number of the tool's work; None unless the same tool call was running more than once at that time.
    """

    kind: Literal["pieces"] = "pieces"
    call: CallRef
    number: Count = 0
    seq: Count
    iteration: Count = 0
    time: Time = 0.0
    tool_use: ToolUseRef
    n: Count | None = None
    pieces: tuple[Json, ...] = ()
    at: tuple[Milliseconds, ...] = ()
    paused: tuple[Milliseconds, ...] = ()
    decision: DecisionData | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HookChange:
    """A field before and after a hook; for an `around` wrapper, its input from the work and its output."""

    field: str
    before: Json = None
    after: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """Messages that a hook or a tool injected into the conversation; `keep=False`: for the next request only."""

    messages: tuple[MessageRef, ...]
    keep: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEntry:
    """The effect of a hook on an event, written before the entry of the event; for an `around` wrapper, after its work.

    Attributes:
        event: The event's class.
        via: How the hook was called: by `on_event`, by `around`, or as a shadow hook.
        verdict: The verdict that it returned.
        error: The exception that it raised.
        injected: Messages that it injected; an observer has an entry only for these.
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
    """A request as sent to the model, after all hooks. Retries produce one entry each.

    Attributes:
        n: The number of the reply to it.
        side: The purpose of a side call (`context.complete(source=...)`); empty for the loop's own request.
        messages: The messages; None if they equal those of the call's last `PreReasoning` event.
        tools: The refs of the offered tools; None if they equal those of that event.
        options: The model options; None if they equal those of that event.
        work: The number of the tool's work that made the side call; None if a hook made it.
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
    work: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyEntry:
    """Chunks of a reply that no event shows: those of side calls, and those that hooks changed or withheld.

    Attributes:
        after: The number of the call's last event when the chunks came; None in older logs.
    """

    kind: Literal["reply"] = "reply"
    n: Count
    call: CallRef
    number: Count = 0
    time: Time = 0.0
    pieces: tuple[str | ChunkData, ...] = ()
    at: tuple[Milliseconds, ...] = ()
    after: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredEntry:
    """The end of a reply.

    Attributes:
        waited: For a cancelled reply, whether a chunk was awaited; False if the reader still handled the last chunk.
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
    """The start of a tool's work, after all hooks."""

    kind: Literal["started"] = "started"
    n: Count
    call: CallRef
    number: Count = 0
    tool_use: ToolUseRef
    iteration: Count = 0
    time: Time = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEntry:
    """The end of a tool's work.

    Attributes:
        result: The ref of its result.
        injected: Messages that it injected into the conversation.
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
    """The position of something that is not an event, but on which concurrent work may depend.

    Attributes:
        what: `"began"`: a hook was called, and another entry was written or another event's hook was called before it
            returned; `"injected"`: a hook or a tool called `context.inject`; `"decided"`: an agent in a race has finished;
            `"read"`: the run has waited for the reader of an event, for a millisecond or more, or while other entries
            were written; `"unread"`: such a wait was cancelled; `"failed"`: a parallel tool call failed, and the other
            calls were cancelled; `"twice"`: a hook subscribed to the rest of the call, or to a round of tools, while it was
            running; `"pending"`: the call was cancelled while a hook's cancellation of its own task was pending;
            `"swallowed"`: a model or hook swallowed such a cancellation before the end of a reply.
        n: The number of the tool's work that caused it; None for a hook.
        seq: For a hook or a wait for the reader, the number of the event in the call.
        hook: The hook's name.
        at: For `"failed"`, the suspension points as in `InterruptEntry`; `given` has the same meaning as there.
    """

    kind: Literal["mark"] = "mark"
    call: CallRef
    number: Count = 0
    time: Time = 0.0
    what: Literal["began", "injected", "decided", "read", "unread", "failed", "twice", "pending", "swallowed"]
    n: Count | None = None
    seq: Count = 0
    hook: str = ""
    at: tuple[str, ...] = ()
    given: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptEntry:
    """The end of a call by an interrupt, a timeout or a cancellation.

    Attributes:
        how: `"interrupt"`, `"timeout"`, `"left"` (a cancelled task or a closed stream) or `"shutdown"` of the process.
        reason: The reason for an interrupt; for `"left"`, empty unless the reader closed the stream.
        by_itself: Whether a hook or tool of the call interrupted the call.
        by_caller: Whether a hook or tool of an enclosing call interrupted it, for example because another step won a race.
        at: The suspension points when the call was ended from outside, or by an awaited hook (whose task is `"here"`): the
            call's driver, then its parallel tool calls and sub-agents. Empty if they are unknown.
        given: The numbers of the replies whose last chunk the hooks had not passed on yet.
        work: If a tool interrupted the call, the number of the tool's work.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FactEntry:
    """A fact, as kept by a store.

    Attributes:
        fact: Its kind, such as `"reasoned"`.
        fields: Its fields; messages, calls and results are refs.
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
"""Any entry of a log."""


def _kind(value: object) -> str | None:
    return cast("dict[str, Any]", value).get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


WrittenEntry = Annotated[
    Entry, TaggedBy(_kind, {kind.__dataclass_fields__["kind"].default: kind for kind in get_args(Entry)})
]
"""A line of a file, distinguished by its `kind`."""
