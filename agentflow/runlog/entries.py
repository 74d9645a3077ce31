"""The entries of a run log, one class for each `kind`; the JSON Schema in the documentation is made of them.

Rules:

1. Each thing stands once: an event, a message, a tool call, a result, a tool's description. Whatever names it later does so by
   its `ref`.
2. Entries stand in the order in which things happened; what an entry refers to stands before it.
3. Times are seconds since the epoch by the run's clock, `at` is milliseconds after the entry's `time`.
4. An entry of a call has a `number`: its place among those of the call since its last `call` entry, from 1. A line that is
   missing in between is known by that; 0: the log is older than such numbers.
5. A field that is added has a default, so that older logs stay readable; readers pass over what they do not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from agentflow.ground.validation import TaggedBy

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
    "MessageEntry",
    "MessageList",
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

Json: TypeAlias = Any
"""JSON data."""

End: TypeAlias = Literal["done", "failed", "cut"]
"""How work ended: by itself, with an error, or because nobody wanted it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageList:
    """A list of messages by what it has in common with the one before it.

    Attributes:
        keep: So many messages from the start of the last list of the same call (those of side calls do not count).
        add: The refs of those behind them.
    """

    keep: int = 0
    add: tuple[str, ...] = ()


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
    time: float
    library: str = ""
    content: bool = True
    origin: Literal["recorder", "facts"] = "recorder"
    lost: int = 0


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
    time: float = 0.0
    hooks: tuple[str, ...] = ()
    parent: ParentCall | None = None
    resumes: bool = False
    timeout: float | None = None
    options: dict[str, Json] | None = None
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
    message: dict[str, Json]
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUseEntry:
    """A tool call: `id`, `name`, and `input`, or `raw` where the model's text is no JSON object."""

    kind: Literal["tool_use"] = "tool_use"
    ref: str
    value: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResultEntry:
    """A tool's result: `tool_use_id`, `name`, `content`, `state`."""

    kind: Literal["tool_result"] = "tool_result"
    ref: str
    value: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEntry:
    """What a model is told of a tool: `name`, `description`, `parameters`, `type`."""

    kind: Literal["tool"] = "tool"
    ref: str
    value: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventEntry:
    """An event, as its hooks left it.

    Attributes:
        type: Its class.
        fields: Its own fields: messages, calls, results and tools by ref, lists of messages as `MessageList`, errors as
            `{"type", "module", "message"}`, usage and options without what is not set.
        decision: What its chain decided: `{"hook", "verdict"}`, or `{"hook", "error"}` where it failed.
    """

    kind: Literal["event"] = "event"
    type: str
    call: str
    number: int = 0
    seq: int
    iteration: int = 0
    time: float = 0.0
    fields: dict[str, Json] = field(default_factory=dict[str, Json])
    decision: dict[str, Json] | None = None


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
    call: str
    number: int = 0
    seq: int
    iteration: int = 0
    time: float = 0.0
    attempt: int = 1
    restart: bool = False
    pieces: tuple[str | dict[str, Json], ...] = ()
    at: tuple[float, ...] = ()
    reply: int | None = None
    decision: dict[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecesEntry:
    """`ActingChunk` events in a row, of one tool call; `decision` as in `ChunksEntry`."""

    kind: Literal["pieces"] = "pieces"
    call: str
    number: int = 0
    seq: int
    iteration: int = 0
    time: float = 0.0
    tool_use: str
    pieces: tuple[Json, ...] = ()
    at: tuple[float, ...] = ()
    decision: dict[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HookChange:
    """A field before and after; for a layer of `around`, what came in from the work and what went out."""

    field: str
    before: Json = None
    after: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """Messages that a hook or a tool has put into the conversation; `keep=False`: for the next request only."""

    messages: tuple[str, ...]
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
    priority: float = 100
    event: str
    via: Literal["on_event", "around", "shadow"] = "on_event"
    call: str
    number: int = 0
    seq: int = 0
    iteration: int = 0
    time: float = 0.0
    tool_use: str | None = None
    changes: tuple[HookChange, ...] = ()
    verdict: dict[str, Json] | None = None
    error: dict[str, Json] | None = None
    duration_ms: float = 0.0
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
    n: int
    call: str
    number: int = 0
    iteration: int = 0
    side: str = ""
    model: str = ""
    time: float = 0.0
    messages: MessageList | None = None
    tools: tuple[str, ...] | None = None
    options: dict[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyEntry:
    """Pieces of a reply that are no event: those of side calls, and those that hooks change or keep to themselves."""

    kind: Literal["reply"] = "reply"
    n: int
    call: str
    number: int = 0
    time: float = 0.0
    pieces: tuple[str | dict[str, Json], ...] = ()
    at: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredEntry:
    """A reply is over.

    Attributes:
        waited: Of one that was cut: whether it was waited for; False: whoever had its last piece did not come back.
    """

    kind: Literal["answered"] = "answered"
    n: int
    call: str
    number: int = 0
    time: float = 0.0
    end: End = "done"
    error: dict[str, Json] | None = None
    waited: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedEntry:
    """A tool's work begins: behind all hooks."""

    kind: Literal["started"] = "started"
    n: int
    call: str
    number: int = 0
    tool_use: str
    iteration: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEntry:
    """A tool's work is over.

    Attributes:
        result: The ref of what it came to.
        injected: Messages that it has put into the conversation.
    """

    kind: Literal["finished"] = "finished"
    n: int
    call: str
    number: int = 0
    time: float = 0.0
    end: End = "done"
    result: str | None = None
    error: dict[str, Json] | None = None
    injected: tuple[Injection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptEntry:
    """Somebody has ended the call.

    Attributes:
        how: By an interrupt, because its time was over, or by leaving it (a cancelled task, a closed stream).
        reason: What was said to an interrupt; of one that was left, whether it was its reader who has gone.
        by_itself: Whether hooks or tools of the call have interrupted it.
    """

    kind: Literal["interrupt"] = "interrupt"
    call: str
    number: int = 0
    time: float = 0.0
    how: Literal["interrupt", "timeout", "left"] = "interrupt"
    reason: str = ""
    by_itself: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FactEntry:
    """A fact: what a store keeps of the run.

    Attributes:
        fact: Its kind, such as `"reasoned"`.
        fields: Its fields; messages, calls and results by ref.
    """

    kind: Literal["fact"] = "fact"
    fact: str
    call: str = ""
    number: int = 0
    time: float = 0.0
    fields: dict[str, Json] = field(default_factory=dict[str, Json])


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
            "interrupt": InterruptEntry,
            "fact": FactEntry,
        },
    ),
]
"""A line as it comes from a file: its `kind` says which."""
