"""The events of a run: slotted, keyword-only values in one closed union, `HookEvent`.

Rules:

1. An event is valid once built. *Writable* fields may be assigned while its chain runs, and are checked then; all
   others never. After its chain an event is sealed: nothing can be assigned any more.
2. Events never hold the agent, a tool object or a task: `event.agent` is a view, `event.context` the
   call's `RunContext`.
3. What is common to a call is held once, in a `Frame`, and read through the event.
4. Decisions are waited for and may steer; notifications cannot.

An event has three classes of one layout: the *draft* that the loop fills, the *open* form that editing hooks get, and
the class itself, which is the sealed form. All three are instances of the class, so `match` and `isinstance` see no
difference. Switching costs 0.03 µs; frozen copies would cost 1 µs an event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeVar, cast, dataclass_transform

from agentflow.chunks import ModelChunk, fold
from agentflow.ground.frozen import EMPTY
from agentflow.ground.values import draft_class, field, frozen, maker
from agentflow.messages import Msg, Outcome, ToolResultBlock, ToolUseBlock
from agentflow.specs import ModelOptions, ToolSpec, Usage
from agentflow.transcript import MessageView
from agentflow.verdicts import Again, Answer, Decided, Deny, Recover, Resolution, Stop, Suspend

if TYPE_CHECKING:
    from agentflow.context import AgentView, RunContext

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


class Frame:
    """What all events of one call share."""

    __slots__ = ("agent", "call_id", "context", "run_id", "session_id", "source")

    def __init__(
        self, run_id: str, call_id: str, session_id: str, source: str, agent: AgentView, context: RunContext
    ) -> None:
        self.run_id = run_id
        self.call_id = call_id
        self.session_id = session_id
        self.source = source
        self.agent = agent
        self.context = context


_T = TypeVar("_T")
_put = object.__setattr__
_Check: TypeAlias = "Callable[[Any, object], object]"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Event:
    """The base of all events.

    Attributes:
        iteration: The round of reasoning that the event belongs to, from 1; 0 before the first.
        seq: Its number in the run; emission points are counted whether or not anybody listened there. It is given when the
            event is made: in a parallel round whose hooks or store wait, a reader may get a higher number first.
        time: Seconds since the epoch, by the run's clock.
        decision: After the chain: the verdict and the hook that gave it, or None.
    """

    _frame: Final[Frame | None] = None
    iteration: Final[int] = 0
    seq: Final[int] = 0
    time: Final[float] = 0.0
    decision: Final[Decided | None] = None

    writable: ClassVar[Mapping[str, _Check]] = {}
    """The fields that editing hooks may assign, each with its check."""
    verdicts: ClassVar[tuple[type, ...]] = ()
    """The verdicts that are legal for this event."""
    make: ClassVar[Callable[..., Any]]
    """Builds a sealed one from all its fields but `decision`, by position (the loop's way)."""
    make_open: ClassVar[Callable[..., Any]]
    """Builds one that editing hooks may write to."""
    open_form: ClassVar[type[Event]]
    sealed_form: ClassVar[type[Event]]

    @property
    def frame(self) -> Frame:
        """What all events of the call share."""
        if self._frame is None:
            raise AttributeError(
                f"This {type(self).__name__} was built by hand and belongs to no run: it has no run_id, agent or context."
            )
        return self._frame

    @property
    def run_id(self) -> str:
        """The run: a call and its resumes."""
        return self.frame.run_id

    @property
    def call_id(self) -> str:
        """The call: from user input to reply."""
        return self.frame.call_id

    @property
    def session_id(self) -> str:
        """The session."""
        return self.frame.session_id

    @property
    def source(self) -> str:
        """The path of sub-agent names, `/` between them; empty at the top."""
        return self.frame.source

    @property
    def agent(self) -> AgentView:
        """What a hook may know of the agent."""
        return self.frame.agent

    @property
    def context(self) -> RunContext:
        """The call's context."""
        return self.frame.context

    @property
    def sealed(self) -> bool:
        """Whether nothing can be assigned any more."""
        return type(self) is not self.open_form

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some writable fields changed; the result can be returned from a hook.

        Raises:
            AttributeError: A named field is not writable.
            TypeError: A value has the wrong type.

        Example:
            >>> event = PreActing(tool_use=ToolUseBlock("1", "add", {"a": 1}))
            >>> event.replace(tool_use=event.tool_use.replace(input={"a": 2})).tool_use.input["a"]
            2
        """
        copy = cast("Self", object.__new__(cast("Any", self.open_form)))
        for name in _field_names(self.sealed_form):
            _put(copy, name, getattr(self, name))
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _field_names(type(self))[5:] if name[0] != "_")
        return f"{type(self).__name__}({shown})"


def _field_names(cls: type) -> tuple[str, ...]:
    names = _NAMES.get(cls)
    if names is None:
        names = _NAMES[cls] = tuple(f.name for f in fields(cls))
    return names


_NAMES: dict[type, tuple[str, ...]] = {}


def _sealed_setattr(self: Event, name: str, value: object) -> None:
    cls = type(self).__name__
    if name in self.writable:
        raise AttributeError(
            f"{cls}.{name} cannot be assigned: the event is sealed, its chain of hooks is over. Change it in a hook's "
            "on_event, or make a changed copy with event.replace(...)."
        )
    writable = ", ".join(self.writable) or "none"
    raise AttributeError(f"{cls}.{name} is read-only. Writable fields of {cls}: {writable}.")


def _open_setattr(self: Event, name: str, value: object) -> None:
    check = self.writable.get(name)
    if check is None:
        _sealed_setattr(self, name, value)
    else:
        _put(self, name, check(self, value))


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
def _event(cls: type[_T]) -> type[_T]:
    """Make an event class of a class, in its three forms (see the module's docstring)."""
    made = cast("type[Event]", dataclass(cls, slots=True, kw_only=True, init=False, eq=False, repr=False))
    body = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    open_form = cast("type[Event]", type(cls.__name__, (made,), {**body, "__setattr__": _open_setattr}))
    made.open_form = open_form
    made.sealed_form = made
    made.make, made.make_open = _made_later(made, "make", made), _made_later(made, "make_open", open_form)
    type.__setattr__(made, "__init__", _init_by_hand)
    type.__setattr__(made, "__setattr__", _sealed_setattr)
    return cast("type[_T]", made)


def _init_by_hand(self: Event, **values: Any) -> None:
    """Build an event by hand: it is open only while it is built."""
    made = self.sealed_form
    _put(self, "__class__", draft_class(made))
    for f in fields(made):
        if f.name in values:
            _put(self, f.name, values[f.name])
        elif f.default is not MISSING:
            _put(self, f.name, f.default)
        else:
            raise TypeError(f"{made.__name__}() needs {f.name}=.")
    if unknown := values.keys() - set(_field_names(made)):
        raise TypeError(
            f"{made.__name__}() takes no {', '.join(sorted(unknown))}; fields: {', '.join(_field_names(made)[5:])}."
        )
    _put(self, "__class__", made.open_form)
    for name in values.keys() & made.writable.keys():
        setattr(self, name, values[name])
    _put(self, "__class__", made)


def _made_later(cls: type[Event], name: str, form: type[Event]) -> Callable[..., Any]:
    """A maker that is compiled when it is first called, and then stands in its own place: most are never called."""

    def first(*values: Any) -> Any:
        made = maker(cls, tuple(name for name in _field_names(cls) if name != "decision"), form)
        setattr(cls, name, staticmethod(made))
        return made(*values)

    first.__doc__ = f"Build a `{cls.__name__}` from all its fields but `decision`, by position."
    return cast("Callable[..., Any]", staticmethod(first))


def _wrong(event: Event, field: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{type(event).__name__}.{field} takes {expected}, not {type(value).__name__} ({value!r:.80}).")


def _messages(field: str) -> _Check:
    def check(event: Event, value: object) -> object:
        if isinstance(value, Msg) or not isinstance(value, Sequence) or isinstance(value, str):
            raise _wrong(event, field, "a sequence of Msg", value)
        items = cast("Sequence[object]", value)
        if isinstance(items, MessageView):
            return items
        for item in items:
            if not isinstance(item, Msg):
                raise _wrong(event, field, "a sequence of Msg", item)
        return tuple(items)

    return check


def _input_messages(event: Event, value: object) -> object:
    checked = cast("tuple[Msg, ...]", _messages("input_messages")(event, value))
    for msg in checked:
        if msg.role not in ("user", "assistant") or msg.tool_uses:
            raise TypeError(
                "PreCall.input_messages takes user and assistant messages without tool calls (they are stored); a system "
                f"message belongs into PreReasoning.input_messages or the agent's system=. Got role {msg.role!r}."
            )
    return checked


def _instance(field: str, kind: type, expected: str) -> _Check:
    def check(event: Event, value: object) -> object:
        if not isinstance(value, kind):
            raise _wrong(event, field, expected, value)
        return value

    return check


def _specs(event: Event, value: object) -> object:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _wrong(event, "tools", "a sequence of ToolSpec", value)
    for item in cast("Sequence[object]", value):
        if not isinstance(item, ToolSpec):
            raise _wrong(event, "tools", "a sequence of ToolSpec", item)
    return tuple(cast("Sequence[ToolSpec]", value))


def _assistant(event: Event, value: object) -> object:
    if not isinstance(value, Msg) or value.role != "assistant":
        raise _wrong(event, "reasoning_result", "an assistant's Msg", value)
    frame = event._frame  # pyright: ignore[reportPrivateUsage] - a check of this module's events
    return value if frame is None else frame.context.legal_reply(value)


def _final(event: Event, value: object) -> object:
    if not isinstance(value, Msg) or value.role != "assistant":
        raise _wrong(event, "final_message", "an assistant's Msg", value)
    before = cast("PostCall", event).final_message.tool_uses
    if value.tool_uses != before:
        raise TypeError("PostCall.final_message cannot change its tool calls: they are decided in PostReasoning.")
    return value


def _tool_use(event: Event, value: object) -> object:
    if not isinstance(value, ToolUseBlock):
        raise _wrong(event, "tool_use", "a ToolUseBlock", value)
    expected = cast("PreActing", event).tool_use.id
    if value.id != expected:
        raise TypeError(
            f"PreActing.tool_use keeps its id {expected!r} (the model's call waits for an answer to it); got {value.id!r}. "
            "Use event.tool_use.replace(name=..., input=...)."
        )
    return value


def _tool_result(event: Event, value: object) -> object:
    if not isinstance(value, ToolResultBlock):
        raise _wrong(event, "tool_result", "a ToolResultBlock", value)
    expected = cast("PostActing", event).tool_result.tool_use_id
    if value.tool_use_id != expected:
        raise TypeError(f"PostActing.tool_result answers call {expected!r}; got a result for {value.tool_use_id!r}.")
    return value


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


@_event
class PreCall(CallEvent, Decision):
    """A call was accepted; nothing is stored yet.

    Attributes:
        input_messages: This call's new messages (writable; they are stored).
        history: What the session holds so far (read-only).
    """

    input_messages: Sequence[Msg] = ()
    history: Final[Sequence[Msg]] = ()

    writable = {"input_messages": _input_messages}
    verdicts = (Deny, Answer)


@_event
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
        "input_messages": _messages("input_messages"),
        "tools": _specs,
        "model": _instance("model", str, "a model's name (str)"),
        "options": lambda event, value: _options(cast("PreReasoning", event), value),
    }
    verdicts = (Deny, Answer, Stop)


def _options(event: PreReasoning, value: object) -> ModelOptions:
    if not isinstance(value, ModelOptions):
        raise _wrong(event, "options", "ModelOptions", value)
    return event.options.merge(value)


@_event
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


@_event
class PostReasoning(ReasoningEvent, Decision):
    """The model's reply is complete, and not yet stored.

    Attributes:
        reasoning_result: The reply (writable: it decides what history holds and which tools run).
        usage: What this model call consumed.
        duration_ms: How long it took.
        purpose: As in `PreReasoning`.
        model: The name of the model that answered, after a fallback another than was asked first; empty where a hook
            gave the reply.
    """

    reasoning_result: Msg = Msg("assistant", id="")
    usage: Final[Usage] = Usage()
    duration_ms: Final[float] = 0.0
    purpose: Final[Purpose] = "reason"
    model: Final[str] = ""

    writable = {"reasoning_result": _assistant}
    verdicts = (Again, Stop, Suspend)


@_event
class PreToolRound(ActingEvent, Decision):
    """The model asked for tools; fires once for all of them.

    Attributes:
        tool_uses: The calls, in the model's order.
    """

    tool_uses: Final[tuple[ToolUseBlock, ...]] = ()

    verdicts = (Deny, Stop, Suspend)


@_event
class PreActing(ActingEvent, Decision):
    """A tool is about to run; fires for each call, unknown tools included.

    Attributes:
        tool_use: The call (writable: name and input; validated again).
        approval: The decision that resumes a suspended call, or None.
    """

    tool_use: ToolUseBlock
    approval: Final[Resolution | None] = None

    writable = {"tool_use": _tool_use}
    verdicts = (Deny, Answer, Suspend)


@_event
class ActingChunk(ActingEvent, Notification):
    """A tool has handed out a piece of progress or a value of its stream.

    Attributes:
        tool_use: The call.
        chunk: The piece.
    """

    tool_use: Final[ToolUseBlock]
    chunk: Final[Any] = None


@_event
class PostActing(ActingEvent, Decision):
    """A tool call is over, whatever happened to it.

    Attributes:
        tool_use: The call as it was run.
        original_tool_use: The call as the model made it.
        tool_result: The result (writable: history, model and stream all see this one).
        duration_ms: How long it took.
    """

    tool_use: Final[ToolUseBlock]
    original_tool_use: Final[ToolUseBlock]
    tool_result: ToolResultBlock
    duration_ms: Final[float] = 0.0

    writable = {"tool_result": _tool_result}
    verdicts = (Stop,)


@_event
class PostToolRound(ActingEvent, Decision):
    """All results of a round are recorded.

    Attributes:
        tool_uses: The calls, in the model's order.
        tool_results: Their results, in the same order.
    """

    tool_uses: Final[tuple[ToolUseBlock, ...]] = ()
    tool_results: Final[tuple[ToolResultBlock, ...]] = ()

    verdicts = (Stop, Suspend)


@_event
class PostCall(CallEvent, Decision):
    """The call has a reply.

    Attributes:
        final_message: The reply (writable: returned and stored; its tool calls cannot change).
        outcome: How the call ends.
        usage: What the whole call consumed.
        duration_ms: How long it took.
    """

    final_message: Msg = Msg("assistant", id="")
    outcome: Final[Outcome] = "completed"
    usage: Final[Usage] = Usage()
    duration_ms: Final[float] = 0.0

    writable = {"final_message": _final}


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
        duration_ms: How long that took, a stream's reader included; None while it has not ended.
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


@_event
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

    verdicts = (Recover,)


@_event
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


@_event
class MessagesAdded(CallEvent, Notification):
    """Messages were stored that no other event carries.

    Attributes:
        messages: The messages, as stored.
        origin: Why they exist.
    """

    messages: Final[tuple[Msg, ...]] = ()
    origin: Final[Origin] = "injected"


@_event
class PrePut(TurnEvent, Decision):
    """A turn is about to enter the queue."""

    turn: Final[TurnView]

    verdicts = (Deny,)


@_event
class PostPut(TurnEvent, Notification):
    """A turn has entered the queue."""

    turn: Final[TurnView]


@_event
class PreTurn(TurnEvent, Decision):
    """The queue is about to run a turn."""

    turn: Final[TurnView]


@_event
class TurnValue(TurnEvent, Notification):
    """A turn of the queue has given a value."""

    turn: Final[TurnView]
    value: Final[Any] = None


@_event
class PostTurn(TurnEvent, Decision):
    """A turn of the queue is over; `turn.stop_reason` says how."""

    turn: Final[TurnView]
    error: Final[BaseException | None] = None


@_event
class Paused(TurnEvent, Notification):
    """The queue stopped between two turns."""


@_event
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

EVENT_TYPES: tuple[type[Event], ...] = (
    PreCall,
    PreReasoning,
    ReasoningChunk,
    PostReasoning,
    PreToolRound,
    PreActing,
    ActingChunk,
    PostActing,
    PostToolRound,
    PostCall,
    Error,
    CallEnded,
    MessagesAdded,
    PrePut,
    PostPut,
    PreTurn,
    TurnValue,
    PostTurn,
    Paused,
    Resumed,
)
"""The members of `HookEvent`, in the order in which a run meets them."""
