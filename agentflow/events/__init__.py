"""The events of a run: slotted, keyword-only values in one closed union, `HookEvent`.

Rules:

1. An event is valid once built. *Writable* fields may be assigned while its chain runs, and are checked then; all
   others never. After its chain an event is sealed: nothing can be assigned any more.
2. Events never hold the agent, a tool object or a task: `event.agent` is a view, `event.context` the
   call's `RunContext`.
3. What is common to a call is held once, in a `Frame`, and read through the event.
4. Decisions are waited for and may steer; notifications cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias, get_args

from agentflow.chunks import ModelChunk, fold
from agentflow.events import checks
from agentflow.events.base import Event, Frame, event_class
from agentflow.ground.frozen import EMPTY
from agentflow.ground.values import frozen
from agentflow.messages import Msg, Outcome, ToolResultBlock, ToolUseBlock
from agentflow.specs import ModelOptions, ToolSpec, Usage
from agentflow.verdicts import Again, Answer, Deny, Recover, Resolution, Stop, Suspend

__all__ = [
    "ActingChunk",
    "ActingEvent",
    "CallEnded",
    "CallEvent",
    "Decision",
    "Error",
    "ErrorPhase",
    "Event",
    "Frame",
    "HookEvent",
    "MessagesAdded",
    "Notification",
    "OnACall",
    "Paused",
    "PostActing",
    "PostCall",
    "PostPut",
    "PostReasoning",
    "PostToolRound",
    "PostTurn",
    "PreActing",
    "PreCall",
    "PrePut",
    "PreReasoning",
    "PreToolRound",
    "PreTurn",
    "ReasoningChunk",
    "ReasoningEvent",
    "Resumed",
    "TurnEvent",
    "TurnValue",
    "TurnView",
]

Purpose: TypeAlias = Literal["reason", "summary"]
Origin: TypeAlias = Literal["injected", "superseded", "stopped", "interrupted", "again", "closing", "recovered"]


class ErrorPhase(StrEnum):
    """Where an error arose."""

    CALL = "call"
    REASONING = "reasoning"
    ACTING = "acting"
    HOOK = "hook"


class Decision(Event):
    """Events that are waited for and may steer the run."""

    __slots__ = ()


class Notification(Event):
    """Events that tell and cannot steer."""

    __slots__ = ()


class CallEvent(Event):
    """Events of a whole call."""

    __slots__ = ()


class ReasoningEvent(Event):
    """Events around the model."""

    __slots__ = ()


class ActingEvent(Event):
    """Events around tools."""

    __slots__ = ()


class TurnEvent(Event):
    """Events of turns that the agent's own queue runs."""

    __slots__ = ()


@event_class
class PreCall(CallEvent, Decision):
    """A call was accepted; nothing is stored yet.

    Attributes:
        input_messages: This call's new messages (writable; they are stored).
        history: What the session holds so far (read-only).
    """

    input_messages: Sequence[Msg] = ()
    history: Final[Sequence[Msg]] = ()

    writable = {"input_messages": checks.input_messages}
    verdicts: ClassVar = (Deny, Answer)

    if TYPE_CHECKING:

        def replace(self, *, input_messages: Sequence[Msg] = ...) -> Self: ...


@event_class
class PreReasoning(ReasoningEvent, Decision):
    """A model call is about to be made.

    Attributes:
        input_messages: What will be sent, the system prompt first (writable, for this call only).
        tools: What the model is told it may call (writable, for this call only).
        model: The model's name (writable).
        options: The effective options (an assignment is merged over them).
        purpose: `"reason"`, or `"summary"` for the one call at the iteration limit that may use no tools
            (`options.tool_choice` is "none", whatever hooks say).
    """

    input_messages: Sequence[Msg] = ()
    tools: Sequence[ToolSpec] = ()
    model: str = ""
    options: ModelOptions = ModelOptions()
    purpose: Final[Purpose] = "reason"

    writable = {
        "input_messages": checks.of_messages("input_messages"),
        "tools": checks.specs,
        "model": checks.of_type("model", str, "a model's name (str)"),
        "options": checks.options,
    }
    verdicts: ClassVar = (Deny, Answer, Stop)

    if TYPE_CHECKING:

        def replace(
            self,
            *,
            input_messages: Sequence[Msg] = ...,
            tools: Sequence[ToolSpec] = ...,
            model: str = ...,
            options: ModelOptions = ...,
        ) -> Self: ...


@event_class
class ReasoningChunk(ReasoningEvent, Notification):
    """A piece of the model's reply has arrived.

    Attributes:
        incremental_chunk: The piece.
        attempt: Which attempt at this reply it belongs to, from 1.
        restart: The pieces before this one are void.
    """

    incremental_chunk: Final[ModelChunk] = ModelChunk()
    attempt: Final[int] = 1
    restart: Final[bool] = False
    _chunks: Final[Sequence[ModelChunk]] = ()
    _stop: Final[int] = 0

    @property
    def accumulated_message(self) -> Msg:
        """The reply so far, put together when it is read (costs as much as the reply is long)."""
        return fold(self._chunks[: self._stop] or (self.incremental_chunk,), id="")


@event_class
class PostReasoning(ReasoningEvent, Decision):
    """The model's reply is complete, and not yet stored.

    Attributes:
        reasoning_result: The reply (writable: it decides what history holds and which tools run).
        usage: What this model call consumed.
        duration_ms: How long it took from the request (the hooks of `PreReasoning` are done) to the last chunk; a hook that
            wraps the model call, such as a rate limit, and the reader of its chunks are included.
        purpose: As in `PreReasoning`.
        model: The name of the model that answered, after a fallback another than was asked first; empty where a hook
            gave the reply.
    """

    reasoning_result: Msg = Msg("assistant", id="")
    usage: Final[Usage] = Usage()
    duration_ms: Final[float] = 0.0
    purpose: Final[Purpose] = "reason"
    model: Final[str] = ""

    writable = {"reasoning_result": checks.assistant}
    verdicts: ClassVar = (Again, Stop, Suspend)

    if TYPE_CHECKING:

        def replace(self, *, reasoning_result: Msg = ...) -> Self: ...


@event_class
class PreToolRound(ActingEvent, Decision):
    """The model asked for tools; fires once for all of them.

    Attributes:
        tool_uses: The calls, in the model's order.
    """

    tool_uses: Final[tuple[ToolUseBlock, ...]] = ()

    verdicts: ClassVar = (Deny, Stop, Suspend)


@event_class
class PreActing(ActingEvent, Decision):
    """A tool is about to run; fires for each call, unknown tools included.

    Attributes:
        tool_use: The call (writable: name and input; validated again).
        approval: The decision that resumes a suspended call, or None.
    """

    tool_use: ToolUseBlock
    approval: Final[Resolution | None] = None

    writable = {"tool_use": checks.tool_use}
    verdicts: ClassVar = (Deny, Answer, Suspend)

    if TYPE_CHECKING:

        def replace(self, *, tool_use: ToolUseBlock = ...) -> Self: ...


OnACall: TypeAlias = Deny | Answer | Suspend
"""What `PreActing` may come to, which goes along with the call."""


@event_class
class ActingChunk(ActingEvent, Notification):
    """A tool has handed out a piece of progress or a value of its stream.

    Attributes:
        tool_use: The call.
        chunk: The piece.
    """

    tool_use: Final[ToolUseBlock]
    chunk: Final[Any] = None


@event_class
class PostActing(ActingEvent, Decision):
    """A tool call is over, whatever happened to it.

    Attributes:
        tool_use: The call as it was run.
        original_tool_use: The call as the model made it.
        tool_result: The result (writable: history, model and stream all see this one).
        duration_ms: How long the tool worked, its retries and the hooks that wrap it included. Waiting is not in it.
        waited_ms: How long the call waited besides: for the hooks of `PreActing` (a person who approves, a breakpoint),
            for the tool's lock, and for the hooks and the reader of its chunks. What the calls of a sub-agent wait inside a
            tool is that tool's work: while one of them waits, others may work.
    """

    tool_use: Final[ToolUseBlock]
    original_tool_use: Final[ToolUseBlock]
    tool_result: ToolResultBlock
    duration_ms: Final[float] = 0.0
    waited_ms: Final[float] = 0.0

    writable = {"tool_result": checks.tool_result}
    verdicts: ClassVar = (Stop,)

    if TYPE_CHECKING:

        def replace(self, *, tool_result: ToolResultBlock = ...) -> Self: ...


@event_class
class PostToolRound(ActingEvent, Decision):
    """All results of a round are recorded.

    Attributes:
        tool_uses: The calls, in the model's order.
        tool_results: Their results, in the same order.
    """

    tool_uses: Final[tuple[ToolUseBlock, ...]] = ()
    tool_results: Final[tuple[ToolResultBlock, ...]] = ()

    verdicts: ClassVar = (Stop, Suspend)


@event_class
class PostCall(CallEvent, Decision):
    """The call has a reply.

    Attributes:
        final_message: The reply (writable: returned and stored; its tool calls cannot change).
        outcome: How the call ends.
        usage: What the whole call consumed.
        duration_ms: How long the call has taken: all of it, hooks and the people they wait for included.
    """

    final_message: Msg = Msg("assistant", id="")
    outcome: Final[Outcome] = "completed"
    usage: Final[Usage] = Usage()
    duration_ms: Final[float] = 0.0

    writable = {"final_message": checks.final}

    if TYPE_CHECKING:

        def replace(self, *, final_message: Msg = ...) -> Self: ...


@frozen(kw_only=True)
class TurnView:
    """What a hook may know of a turn that was put into a queue or is run by hand.

    Attributes:
        id: The turn's id; the `tool_use` of its Acting events has the same.
        tool_use: The tool's name and the bound arguments.
        timeout: Seconds that it may take.
        stop_reason: How it ended (`StopReason`); None while it has not.
        tags: Its labels.
        sender: The agent that sent it; empty where nobody did.
        sender_run: The run that it was sent from, if there was one.
        output: What the tool returned, of a stream the last value; None while it has not ended.
        start_time: When it began, in seconds since the epoch; None while it has not.
        end_time: When it ended; None while it has not.
        duration_ms: From its beginning to its end, hooks and a stream's reader included (`PostActing` has the tool's own
            time); None while it has not ended.
        metadata: What travels with it, as it was when this was made.
    """

    id: str
    tool_use: ToolUseBlock
    timeout: float | None = None
    stop_reason: str | None = None
    tags: frozenset[str] = frozenset()
    sender: str = ""
    sender_run: str = ""
    output: object = None
    start_time: float | None = None
    end_time: float | None = None
    duration_ms: float | None = None
    metadata: Mapping[str, object] = EMPTY


@event_class
class Error(CallEvent, Notification):
    """A model call, a tool, a hook or a store failed.

    Attributes:
        error: What was raised.
        phase: Where.
        fatal: Whether the call ends with it (then `Recover` is legal).
        hook: The hook that failed, where one did.
        tool_use: The tool call it concerns, where there is one.
        purpose: Where a model call failed, what it was for, as in `PreReasoning`; else None.
        turn: The turn it concerns, where that is in a queue or is run by hand; else None.
    """

    error: Final[BaseException]
    phase: Final[ErrorPhase] = ErrorPhase.CALL
    fatal: Final[bool] = False
    hook: Final[str | None] = None
    tool_use: Final[ToolUseBlock | None] = None
    purpose: Final[Purpose | None] = None
    turn: Final[TurnView | None] = None

    verdicts: ClassVar = (Recover,)


@event_class
class CallEnded(CallEvent, Notification):
    """The last event of every call.

    Attributes:
        outcome: How it ended.
        error: What it failed with.
        usage: What the whole call consumed.
    """

    outcome: Final[Outcome] = "completed"
    error: Final[BaseException | None] = None
    usage: Final[Usage] = Usage()


@event_class
class MessagesAdded(CallEvent, Notification):
    """Messages were stored that no other event carries.

    Attributes:
        messages: The messages, as stored.
        origin: Why they exist.
    """

    messages: Final[tuple[Msg, ...]] = ()
    origin: Final[Origin] = "injected"


@event_class
class PrePut(TurnEvent, Decision):
    """A turn is about to enter the queue."""

    turn: Final[TurnView]

    verdicts: ClassVar = (Deny,)


@event_class
class PostPut(TurnEvent, Notification):
    """A turn has entered the queue."""

    turn: Final[TurnView]


@event_class
class PreTurn(TurnEvent, Decision):
    """The queue is about to run a turn."""

    turn: Final[TurnView]


@event_class
class TurnValue(TurnEvent, Notification):
    """A turn of the queue has given a value."""

    turn: Final[TurnView]
    value: Final[Any] = None


@event_class
class PostTurn(TurnEvent, Decision):
    """A turn of the queue is over; `turn.stop_reason` says how."""

    turn: Final[TurnView]
    error: Final[BaseException | None] = None


@event_class
class Paused(TurnEvent, Notification):
    """The queue stopped between two turns."""


@event_class
class Resumed(TurnEvent, Notification):
    """The queue goes on."""


HookEvent: TypeAlias = (
    PreCall
    | PreReasoning
    | ReasoningChunk
    | PostReasoning
    | PreToolRound
    | PreActing
    | ActingChunk
    | PostActing
    | PostToolRound
    | PostCall
    | Error
    | CallEnded
    | MessagesAdded
    | PrePut
    | PostPut
    | PreTurn
    | TurnValue
    | PostTurn
    | Paused
    | Resumed
)
"""Every event there is; a `match` over it can end in `assert_never`."""

EVENT_TYPES: tuple[type[Event], ...] = get_args(HookEvent)
"""The members of `HookEvent`, in the order in which a run meets them."""
