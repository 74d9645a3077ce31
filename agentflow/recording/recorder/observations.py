"""The observations of a `Recorder`: references to immutable values, and copies of mutable ones as data.

None of them writes anything, or refers to an event, which would keep a whole run alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from agentflow.hooks.recording import FieldChange
from agentflow.recording.encoding import Line, error_words
from agentflow.recording.fields import End
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import EVENT_TYPES, CallEnded, Error, Event, PostTurn, TurnEvent
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.saving.plain import plain
from agentflow.vocabulary.specs import ModelOptions, ToolSpec
from agentflow.vocabulary.verdicts import Decided

__all__ = [
    "FIELDS_OF",
    "NAMES",
    "Chunk",
    "ErrorText",
    "EventSeen",
    "Facts",
    "HookEffect",
    "Interruption",
    "Mark",
    "Observation",
    "Place",
    "RawChunk",
    "ReplyEnded",
    "RequestSent",
    "ToolChunk",
    "WorkEnded",
    "WorkStarted",
    "piece_of",
]


class Place:
    """The information that a call's entries share.

    Attributes:
        root: The outermost run, in whose log the call is recorded.
        over: Whether its last event was observed.
        streamed: Whether its events have a reader.
        begun: The hooks of all calls of its run that have begun since the last observation.
    """

    __slots__ = (
        "agent",
        "begun",
        "call",
        "description",
        "facts",
        "hooks",
        "interrupted",
        "model",
        "options",
        "over",
        "parent",
        "resumes",
        "root",
        "run",
        "session",
        "source",
        "streamed",
        "time",
        "timeout",
    )

    def __init__(self, call: str = "", run: str = "", session: str = "", source: str = "", time: float = 0.0) -> None:
        self.call = call
        self.run = self.root = run
        self.session = session
        self.source = source
        self.time = time
        self.agent = self.description = self.model = ""
        self.hooks: tuple[str, ...] = ()
        self.parent: tuple[str, str] | None = None
        self.resumes = False
        self.timeout: float | None = None
        self.options: Line | None = None
        self.interrupted = False
        self.over = False
        self.streamed = True
        self.facts = 0
        self.begun: list[Mark] = []


class EventSeen(NamedTuple):
    """An event."""

    place: Place
    kind: type[Event]
    seq: int
    iteration: int
    time: float
    values: tuple[Any, ...]
    decision: Decided | None
    failure: Line | None = None


class Chunk(NamedTuple):
    """A `ReasoningChunk`."""

    place: Place
    seq: int
    iteration: int
    time: float
    chunk: ModelChunk
    attempt: int
    restart: bool
    decision: Decided | None = None
    failure: Line | None = None


class ToolChunk(NamedTuple):
    """An `ActingChunk`."""

    place: Place
    seq: int
    iteration: int
    time: float
    use: ToolUseBlock
    piece: Any
    decision: Decided | None = None
    failure: Line | None = None


class RequestSent(NamedTuple):
    """A request to a model."""

    place: Place
    n: int
    iteration: int
    time: float
    side: str
    model: str
    messages: Sequence[Msg]
    tools: tuple[ToolSpec, ...]
    options: ModelOptions


class RawChunk(NamedTuple):
    """A chunk from a model, before hooks."""

    place: Place
    n: int
    time: float
    chunk: ModelChunk


class ReplyEnded(NamedTuple):
    """The end of a model's reply."""

    place: Place
    n: int
    time: float
    end: End
    error: Line | None
    waited: bool = True


class WorkStarted(NamedTuple):
    """The start of a tool run."""

    place: Place
    n: int
    iteration: int
    time: float
    use: ToolUseBlock


class WorkEnded(NamedTuple):
    """The end of a tool run."""

    place: Place
    n: int
    time: float
    end: End
    result: ToolResultBlock | None
    error: Line | None
    injected: tuple[tuple[tuple[Msg, ...], bool], ...] = ()


class Facts(NamedTuple):
    """New facts."""

    place: Place
    time: float
    facts: tuple[Fact, ...]


class Interruption(NamedTuple):
    """An early end of the call."""

    place: Place
    time: float
    how: str
    reason: str
    by_itself: bool = False
    by_caller: bool = False
    at: tuple[str, ...] = ()
    read: tuple[int, int] | None = None
    work: int | None = None


class Mark(NamedTuple):
    """A hook begins, a hook or a tool injects messages, or a tool decides about concurrent work."""

    place: Place
    time: float
    what: Literal["began", "injected", "decided"]
    n: int | None = None
    seq: int = 0
    hook: str = ""


class HookEffect(NamedTuple):
    """The effect of a hook."""

    place: Place
    hook: str
    priority: float
    event: str
    via: str
    seq: int
    iteration: int
    time: float
    use: ToolUseBlock | None
    duration_ms: float
    changes: tuple[FieldChange, ...] = ()
    verdict: Any = None
    error: Line | None = None
    injected: tuple[tuple[tuple[Msg, ...], bool], ...] = ()


Observation: TypeAlias = (
    EventSeen
    | Chunk
    | ToolChunk
    | RequestSent
    | RawChunk
    | ReplyEnded
    | WorkStarted
    | WorkEnded
    | Facts
    | Interruption
    | HookEffect
    | Mark
)

_COMMON = {"iteration", "seq", "time", "decision"}


def _names(kind: type[Event]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind) if one.name[0] != "_" and one.name not in _COMMON)


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if not names:
        return lambda _: ()
    if len(names) == 1:
        one = attrgetter(*names)
        return lambda event: (one(event),)
    return cast("Callable[[Any], tuple[Any, ...]]", attrgetter(*names))


NAMES: dict[type[Event], tuple[str, ...]] = {kind: _names(kind) for kind in EVENT_TYPES}
"""The own fields of each event."""
_WITH_ERRORS = (Error, CallEnded, PostTurn)
_SCALARS = (str, int, float, bool, type(None))


def _with_error_text(read: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda event: tuple(
        [ErrorText(error_words(one)) if isinstance(one, BaseException) else one for one in read(event)]
    )


def _as_data(read: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda event: tuple([one if type(one) in _SCALARS else plain(one) for one in read(event)])


def _fields_of(kind: type[Event]) -> Callable[[Any], tuple[Any, ...]]:
    read = _reader(NAMES[kind])
    if issubclass(kind, _WITH_ERRORS):
        return _with_error_text(read)
    return _as_data(read) if issubclass(kind, TurnEvent) else read


class ErrorText(NamedTuple):
    """The text of an exception, which itself would keep its frames alive."""

    fields: Line


FIELDS_OF = {kind: _fields_of(kind) for kind in NAMES}
"""Return the values of an event's own fields; exceptions as text, and values that a program may change as data."""


def piece_of(chunk: Any) -> Any:
    """Return a tool's chunk; a mutable one is copied as data, since the program may change it later."""
    return chunk if type(chunk) in _SCALARS else plain(chunk)
