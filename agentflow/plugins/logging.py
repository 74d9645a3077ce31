"""`EventLog`: one line for each event of a run, readable or JSON, using loguru.

Rules:

1. One event, one line: line breaks in texts are escaped, long values are shortened.
2. A line is built only if a sink accepts its level.
3. It only observes, and logs secrets too. To keep secrets out of the log, add a hook that redacts them, such as `Redaction`;
   editing hooks run before observers.
"""

from __future__ import annotations

import json as json_lib
import re
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from loguru import logger

from agentflow._support.shown import controls, one_line, printable_json
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.vocabulary.context import own
from agentflow.vocabulary.events import (
    EVENT_TYPES,
    ActingChunk,
    CallEnded,
    Error,
    Event,
    HookEvent,
    MessagesAdded,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
    TurnEvent,
    TurnValue,
)
from agentflow.vocabulary.saving.plain import text_of
from agentflow.vocabulary.text import Fields, error_text, fields_of, rounded_ms

if TYPE_CHECKING:
    from loguru import Logger

__all__ = ["LEVELS", "EventLog"]

LEVELS: Mapping[type[Event], str | None] = {
    Event: "INFO",
    PreReasoning: "DEBUG",
    PreToolRound: "DEBUG",
    PostToolRound: "DEBUG",
    PostCall: "DEBUG",
    MessagesAdded: "DEBUG",
    TurnEvent: "DEBUG",
    ReasoningChunk: None,
    ActingChunk: None,
    TurnValue: None,
}
"""The level of each event; the nearest base class applies, and None means off. Failures are raised to WARNING or ERROR."""

_Write: TypeAlias = "Callable[[str, _LogLine], object]"
"""The bound method `log` of a logger."""
_MAY_REPORT_FAILURE = frozenset({Error, CallEnded, PostActing})
_PLAIN = re.compile(r"[^\s\"=]+")
_NUMBERS = frozenset({int, float})  # exact classes, so that a bool is written as true or false


class _LoggedCall:
    """The common parts of a call's lines, kept because binding a logger for each line would be slow.

    Attributes:
        began: The call's start by the run's clock; None for a resumed call.
        where: The beginning of each line; empty until the first line is written.
        writers: Maps an event class to the method `log` of a logger bound to the call's ids, and the level.
    """

    __slots__ = ("began", "where", "writers")

    def __init__(self) -> None:
        self.began: float | None = None
        self.where = ""
        self.writers: dict[type[Event], tuple[_Write, str | None]] = {}


class EventLog(Hook):
    """Writes one line for each event, with its source, fields, duration and cost.

    A line begins with the agent (for a sub-agent its path), the session if it has a name of its own, and the round:
    `assistant ada#2 PostActing tool=add id=t1 state=success result=3 ms=0.4`. The ids of run, call and session are bound to the
    record (`record["extra"]`), for sinks that need them.

    Priority 900 (output), an observer. It follows the run into sub-agents (`scope="tree"`). One instance serves any number of
    agents and runs.

    Args:
        levels: Levels by event class or base class, which override `LEVELS`; None turns an event off. A level set here is
            final: it is not raised for failures.
        only: Log these events only.
        chunks: Log the chunks of replies and tools too, one line each, as DEBUG.
        json: Write each line as a JSON object, for machines; values are not shortened.
        clip: The maximum number of characters of a value in a readable line.
        scope: `"own"` leaves sub-agents out.
        log: A loguru logger of your own, such as `logger.bind(service="desk")`.

    Example:
        >>> agent = Agent("assistant", "openai/gpt-5", tools=[search], hooks=[EventLog()])
        >>> quiet = EventLog(only=[PreActing, PostActing], levels={PreActing: "TRACE"})
        >>> machine = EventLog(json=True)
    """

    priority = 900
    observer = True
    scope = "tree"

    def __init__(
        self,
        *,
        levels: Mapping[type[Event], str | None] | None = None,
        only: Iterable[type[Event]] | None = None,
        chunks: bool = False,
        json: bool = False,
        clip: int = 200,
        scope: Literal["own", "tree"] = "tree",
        log: Logger = logger,
    ) -> None:
        if clip < 1:
            raise UsageError(f"EventLog(clip={clip}) must be at least 1 character.")
        self.json = json
        self.clip = clip
        self._is_word: Any = re.compile(rf"\w{{1,{min(clip, 1_000)}}}").fullmatch
        self.scope = scope
        self._log = log
        fixed = dict(levels or {})
        chunk_levels = {ReasoningChunk: "DEBUG", ActingChunk: "DEBUG", TurnValue: "DEBUG"} if chunks else {}
        self._final = frozenset([kind for kind in EVENT_TYPES if issubclass(kind, tuple(fixed))])
        levels_of = {
            kind: _nearest(kind, fixed if kind in self._final else {**LEVELS, **chunk_levels}) for kind in EVENT_TYPES
        }
        wanted = tuple(EVENT_TYPES if only is None else only)
        for level in fixed.values():
            _check_level(log, level)
        self._levels = {
            kind: level for kind, level in levels_of.items() if level is not None and issubclass(kind, wanted)
        }
        shown = list(self._levels)
        if CallEnded in shown and PreCall not in shown:  # the last line contains the call's duration
            shown.append(PreCall)
        self.events = tuple(shown)  # events that are not logged are not created

    def on_event(self, event: HookEvent) -> None:
        """Write the line."""
        kind = event.sealed_form
        call = own(event.context, self, _LoggedCall)
        write, level = call.writers.get(kind) or self._begin(event, kind, call)
        if level is None:  # `PreCall`, which is needed only for the duration
            return
        if event.decision is not None or kind in _MAY_REPORT_FAILURE:
            level = level if kind in self._final else _raised(event, level)
        write(level, _LogLine((self, event, level, call)))  # loguru calls `str` only if a sink accepts the level

    def _begin(self, event: HookEvent, kind: type[Event], call: _LoggedCall) -> tuple[_Write, str | None]:
        """Prepare the lines of one event class in a call."""
        if kind is PreCall:
            call.began = event.context.clock.monotonic()
        call.where = call.where or self._where(event)
        write: Any = self._bound(event).log
        found = call.writers[kind] = write, self._levels.get(kind)
        return found

    def _where(self, event: HookEvent) -> str:
        """Return the beginning of a call's lines."""
        frame = event.frame
        where = one_line(frame.source or frame.agent.name)
        if not frame.source and frame.session_id != where:
            where += f" {_shown(frame.session_id, self.clip)}"
        return where

    def _bound(self, event: HookEvent) -> Logger:
        frame = event.frame
        return self._log.bind(
            event=event.sealed_form.__name__,
            agent=frame.agent.name,
            source=frame.source,
            run_id=frame.run_id,
            call_id=frame.call_id,
            session_id=frame.session_id,
        )

    def line_of(self, event: HookEvent, level: str, call: _LoggedCall) -> str:
        """Return the line, readable or as JSON."""
        if self.json:
            return self._json(event, level, call)
        clip, name, is_word = self.clip, event.sealed_form.__name__, self._is_word
        line = f"{call.where}#{event.iteration} {name}" if event.iteration else f"{call.where} {name}"
        for field, value in _fields(event, call).items():
            if (value.__class__ is str and is_word(value)) or value.__class__ in _NUMBERS:
                line += f" {field}={value}"  # nearly all values are numbers or single words
            elif value is not None and value != "":
                line += f" {field}={_shown(value, clip)}"
        return line

    def _json(self, event: HookEvent, level: str, call: _LoggedCall) -> str:
        fields: Fields = {
            "time": event.time,
            "level": level,
            "event": event.sealed_form.__name__,
            "agent": event.agent.name,
            "source": event.source,
            "session_id": event.session_id,
            "run_id": event.run_id,
            "call_id": event.call_id,
            "iteration": event.iteration,
            "seq": event.seq,
            **_fields(event, call),
        }
        return printable_json(json_lib.dumps(fields, ensure_ascii=False, default=text_of))


class _LogLine(tuple["EventLog", HookEvent, str, _LoggedCall]):
    """A message whose text is built only on demand. It is a tuple because creating one runs no Python code."""

    __slots__ = ()

    def __str__(self) -> str:
        log, event, level, call = self
        return log.line_of(event, level, call)


def _fields(event: HookEvent, call: _LoggedCall) -> Fields:
    """Return all fields of an event's line."""
    fields = fields_of(event)
    if isinstance(event, CallEnded) and call.began is not None:
        fields["ms"] = rounded_ms((event.context.clock.monotonic() - call.began) * 1000)
    elif isinstance(event, PostReasoning):
        done = event.frame.context.compaction
        if done is not None and done.iteration == event.iteration:
            fields["compacted"] = str(done)
    if event.decision is not None:
        fields.update(_decision_of(event))
    return fields


def _decision_of(event: Event) -> Fields:
    decided = event.decision
    if decided is None:
        return {}
    if decided.error is not None:
        return {"failed": error_text(decided.error), "by": decided.hook}
    reason = getattr(decided.verdict, "reason", None)
    return {"verdict": type(decided.verdict).__name__, "by": decided.hook, **({"reason": reason} if reason else {})}


def _raised(event: HookEvent, level: str) -> str:
    """Raise the level of failures."""
    match event:
        case PostActing() if event.tool_result.state not in ("success", "suspended"):
            return "WARNING"
        case PostActing() if event.decision is None:
            return level
        case Error():
            return "ERROR" if event.fatal else "WARNING"
        case CallEnded(outcome="failed"):
            return "ERROR"
        case CallEnded(outcome="denied" | "stopped" | "limited" | "interrupted"):
            return "WARNING"
        case _ if event.decision is not None and event.decision.error is not None:
            return "WARNING"
        case _:
            return level


def _shown(value: object, clip: int) -> str:
    """Return a value other than a number for a readable line: bare if it is one word, else quoted, always on one line."""
    text = text_of(value)
    if isinstance(value, bool):
        text = text.lower()
    if len(text) <= clip and text.isalnum():
        return text
    if len(text) > clip:
        text = f"{text[:clip]}… ({len(text)} characters)"
    if _PLAIN.fullmatch(text) and (text.isprintable() or controls().search(text) is None):
        return text
    return printable_json(encode_basestring(text))


def _nearest(kind: type[Event], levels: Mapping[type[Event], str | None]) -> str | None:
    for base in kind.__mro__:
        if base in levels:
            return levels[base]
    return None


def _check_level(log: Logger, level: str | None) -> None:
    if level is None:
        return
    try:
        log.level(level)
    except ValueError as error:
        raise UsageError(
            f"EventLog(levels=...): loguru has no level {level!r}. Use TRACE, DEBUG, INFO, SUCCESS, WARNING, ERROR, CRITICAL, "
            "or a level added with logger.level(name, no=...)."
        ) from error
