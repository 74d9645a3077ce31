"""The events of a run: slotted, keyword-only values in one closed union, `HookEvent`.

Rules:

1. An event is valid once built. *Writable* fields may be assigned while the event's chain of hooks runs, and each
   assignment is checked; all other fields are read-only. After the chain the event is sealed: all fields are read-only.
2. Events never refer to the agent, a tool object or a task: `event.agent` is a view, `event.context` the call's
   `RunContext`.
3. Values that all events of a call share are stored once, in a `Frame`, and read through the event.
4. The hooks of a decision may steer the run, and it waits for them. The hooks of a notification cannot steer it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias, get_args

from agentflow._support.frozen import EMPTY
from agentflow._support.values import frozen
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.events import checks
from agentflow.vocabulary.events.base import Event, Frame, event_class
from agentflow.vocabulary.messages import Msg, Outcome, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.specs import ModelOptions, ToolSpec, Usage
from agentflow.vocabulary.verdicts import Again, Answer, Deny, Recover, Resolution, Stop, Suspend

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
    """The phase in which an error occurred."""

    CALL = "call"
    REASONING = "reasoning"
    ACTING = "acting"
    HOOK = "hook"


class Decision(Event):
    """Events on which hooks may steer the run; the run waits for these hooks."""

    __slots__ = ()


class Notification(Event):
    """Events on which hooks cannot steer the run."""

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
    """Events of turns, and of an agent's queue of turns."""

    __slots__ = ()


@event_class
class PreCall(CallEvent, Decision):
    """A call was accepted; nothing is stored yet.

    Attributes:
        input_messages: This call's new messages (writable; they are stored).
        history: The messages of the session so far (read-only).
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
        input_messages: The messages to send, the system prompt first (writable, for this call only).
        tools: The tools that the model may call (writable, for this call only).
        model: The model's name (writable).
        options: The effective options (an assignment is merged over them).
        purpose: `"reason"`, or `"summary"` for the final call without tools at the iteration limit; for this call
            `options.tool_choice` is always "none".
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
    """A chunk of the model's reply has arrived.

    Attributes:
        incremental_chunk: The chunk.
        attempt: The attempt at this reply, from 1.
        restart: Whether all earlier chunks should be discarded.
    """

    incremental_chunk: Final[ModelChunk] = ModelChunk()
    attempt: Final[int] = 1
    restart: Final[bool] = False
    # All events of an attempt share the growing list `_chunks`; `_stop` is its length at the time of this event.
    _chunks: Final[Sequence[ModelChunk]] = ()
    _stop: Final[int] = 0

    @property
    def accumulated_message(self) -> Msg:
        """The reply so far. Each access folds the chunks again, in time proportional to their number."""
        return fold(self._chunks[: self._stop] or (self.incremental_chunk,), id="")


@event_class
class PostReasoning(ReasoningEvent, Decision):
    """The model's reply is complete but not yet stored.

    Attributes:
        reasoning_result: The reply (writable: it is stored in the history, and its tool calls run).
        usage: The usage of this model call.
        duration_ms: Time from the request (after the hooks of `PreReasoning`) to the last chunk. It includes hooks that
            wrap the model call, such as a rate limit, and the reader of its chunks.
        purpose: As in `PreReasoning`.
        model: The name of the model that answered, which differs from the requested one after a fallback; empty if a
            hook supplied the reply.
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
    """The model called tools; fired once for all calls of the reply.

    Attributes:
        tool_uses: The calls, in the model's order.
    """

    tool_uses: Final[tuple[ToolUseBlock, ...]] = ()

    verdicts: ClassVar = (Deny, Stop, Suspend)


@event_class
class PreActing(ActingEvent, Decision):
    """A tool is about to run; fired for each call, including calls of unknown tools.

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
"""The verdicts on `PreActing` that are stored with the call."""


@event_class
class ActingChunk(ActingEvent, Notification):
    """A tool has emitted a progress report or a value of its stream.

    Attributes:
        tool_use: The call.
        chunk: The emitted value.
    """

    tool_use: Final[ToolUseBlock]
    chunk: Final[Any] = None


@event_class
class PostActing(ActingEvent, Decision):
    """A tool call has finished, whatever its result.

    Attributes:
        tool_use: The call as it ran, after the hooks.
        original_tool_use: The call as the model made it.
        tool_result: The result (writable; used by history, model and stream).
        duration_ms: How long the tool worked, including retries and the hooks that wrap it, but without `waited_ms`.
        waited_ms: How long the call waited: for the hooks of `PreActing` (such as a person's approval, or a
            breakpoint), for the tool's lock, and for the hooks and the reader of its chunks. If the tool has called
            agents (such as sub-agents), the time in which all of them waited in this way is included.
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
        outcome: How the call ended.
        usage: The usage of the whole call.
        duration_ms: How long the call took, including hooks and the persons that they wait for.
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
    """A hook's view of a turn that is in a queue or runs directly.

    Attributes:
        id: The turn's id, also the id of the `tool_use` of its Acting events.
        tool_use: The tool's name and the bound arguments.
        timeout: The time limit in seconds.
        stop_reason: How the turn ended (`StopReason`); None until then.
        tags: The turn's labels.
        sender: The agent that sent the turn; empty if none did.
        sender_run: The run that sent the turn, if any.
        output: The tool's return value, or the last value of a stream; None until the turn has ended.
        start_time: Start time, in seconds since the epoch; None until the turn has started.
        end_time: End time; None until the turn has ended.
        duration_ms: Time from start to end, including hooks and a stream's reader (`PostActing` has the time of the
            tool alone); None until the turn has ended.
        metadata: A copy of the turn's metadata at the time this view was created.
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
        error: The exception.
        phase: The phase in which it was raised.
        fatal: Whether the error ends the call (if so, `Recover` is allowed).
        hook: The hook that failed, if any.
        tool_use: The tool call that failed, if any.
        purpose: The purpose of the model call that failed, as in `PreReasoning`; otherwise None.
        turn: The turn that failed, in a queue or run directly; otherwise None.
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
        outcome: How the call ended.
        error: The exception, if the call failed.
        usage: The usage of the whole call.
    """

    outcome: Final[Outcome] = "completed"
    error: Final[BaseException | None] = None
    usage: Final[Usage] = Usage()


@event_class
class MessagesAdded(CallEvent, Notification):
    """Messages that are not part of any other event were stored.

    Attributes:
        messages: The messages, as stored.
        origin: Why they were added.
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
    """A turn is about to run, directly or from a queue."""

    turn: Final[TurnView]


@event_class
class TurnValue(TurnEvent, Notification):
    """A turn has yielded a value, or returned its result."""

    turn: Final[TurnView]
    value: Final[Any] = None


@event_class
class PostTurn(TurnEvent, Decision):
    """A turn has finished; see `turn.stop_reason`."""

    turn: Final[TurnView]
    error: Final[BaseException | None] = None


@event_class
class Paused(TurnEvent, Notification):
    """The queue was paused between two turns."""


@event_class
class Resumed(TurnEvent, Notification):
    """The queue continues."""


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
"""Any event; a `match` over this union can end in `assert_never`."""

EVENT_TYPES: tuple[type[Event], ...] = get_args(HookEvent)
"""The members of `HookEvent`, in the order of the union."""
