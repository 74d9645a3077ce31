"""What a `Recorder` keeps of what it has seen: references to values that nobody can change, and what can, as words.

Nothing here writes or holds an event, which would keep a whole run alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from agentflow.chunks import ModelChunk
from agentflow.events import EVENT_TYPES, CallEnded, Error, Event, PostTurn, TurnEvent
from agentflow.facts import Fact
from agentflow.hooks.recording import FieldChange
from agentflow.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.runlog.encoding import Line, error_words
from agentflow.runlog.fields import End
from agentflow.saving.plain import plain
from agentflow.specs import ModelOptions, ToolSpec
from agentflow.verdicts import Decided

__all__ = [
    "FIELDS_OF",
    "NAMES",
    "Answered",
    "Asked",
    "Chunk",
    "Deed",
    "Facts",
    "Finished",
    "Happened",
    "Interrupted",
    "Mark",
    "Piece",
    "Place",
    "RawChunk",
    "Seen",
    "Started",
    "Words",
    "piece_of",
]


class Place:
    """A call, as its entries share it.

    Attributes:
        root: The run at the top, to whose log it belongs.
        over: Whether its last event was seen.
        streamed: Whether its events have a reader.
        begun: Of all calls of its run: hooks that have begun, and nothing has happened since.
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


class Happened(NamedTuple):
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


class Piece(NamedTuple):
    """An `ActingChunk`."""

    place: Place
    seq: int
    iteration: int
    time: float
    use: ToolUseBlock
    piece: Any
    decision: Decided | None = None
    failure: Line | None = None


class Asked(NamedTuple):
    """A model is asked."""

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
    """A model gives a piece."""

    place: Place
    n: int
    time: float
    chunk: ModelChunk


class Answered(NamedTuple):
    """A model's reply is over."""

    place: Place
    n: int
    time: float
    end: End
    error: Line | None
    waited: bool = True


class Started(NamedTuple):
    """A tool's work begins."""

    place: Place
    n: int
    iteration: int
    time: float
    use: ToolUseBlock


class Finished(NamedTuple):
    """A tool's work is over."""

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


class Interrupted(NamedTuple):
    """Somebody has ended the call."""

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
    """A hook begins, a hook or a tool injects something, or decides over work beside it."""

    place: Place
    time: float
    what: Literal["began", "injected", "decided"]
    n: int | None = None
    seq: int = 0
    hook: str = ""


class Deed(NamedTuple):
    """What a hook did."""

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


Seen: TypeAlias = (
    Happened | Chunk | Piece | Asked | RawChunk | Answered | Started | Finished | Facts | Interrupted | Deed | Mark
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


def _with_words(read: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda event: tuple(
        [Words(error_words(one)) if isinstance(one, BaseException) else one for one in read(event)]
    )


def _as_data(read: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda event: tuple([one if type(one) in _SCALARS else plain(one) for one in read(event)])


def _fields_of(kind: type[Event]) -> Callable[[Any], tuple[Any, ...]]:
    read = _reader(NAMES[kind])
    if issubclass(kind, _WITH_ERRORS):
        return _with_words(read)
    return _as_data(read) if issubclass(kind, TurnEvent) else read


class Words(NamedTuple):
    """An exception, as words: it would hold the frames that it came through."""

    words: Line


FIELDS_OF = {kind: _fields_of(kind) for kind in NAMES}
"""Gives the values of an event's own fields; exceptions as words, and what a program may change as data."""


def piece_of(chunk: Any) -> Any:
    """A tool's piece: the program may change it later, so what can be changed is taken down at once."""
    return chunk if type(chunk) in _SCALARS else plain(chunk)
