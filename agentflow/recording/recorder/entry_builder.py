"""Builds the entries of a run log from a recorder's observations.

Rules:

1. An observation holds references to immutable values, and copies of mutable ones as data. An observation never refers
   to an event, which would keep a whole run alive.
2. Entries are never built in an agent's task, but by the writer or the reader of the log.
3. Consecutive chunks become one entry, and unchanged values are written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, assert_never, cast

from agentflow.recording.encoding import SCALARS, Clean, Encoder, ErrorText, Line, header_line
from agentflow.recording.log import LISTS
from agentflow.recording.recorder.stream_redactor import FindMatches, Match, StreamRedactor
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import (
    EVENT_TYPES,
    ActingChunk,
    CallEnded,
    Error,
    Event,
    PostReasoning,
    PreReasoning,
    ReasoningChunk,
    TurnEvent,
)
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.saving.plain import plain
from agentflow.vocabulary.verdicts import Decided

__all__ = [
    "NAMES",
    "VALUES_OF",
    "EntryBuilder",
    "EntryValues",
    "EventSeen",
    "FactsSeen",
    "FindMatchesOfRun",
    "Observation",
    "RawChunk",
    "RecordedCall",
]

# ---- observations


class FactsSeen:
    """The number of observed facts of a run, shared by the run's calls."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class RecordedCall:
    """A call, with the data that all its observations share.

    Args:
        line: The call's entry in the log.
        above: The call that contains it, if it runs in a tool of another call.
        facts: The count of the observed facts of its run.

    Attributes:
        root: The outermost run; its log records the call.
        interrupted: Whether the cause of its early end has been observed.
        begun: The starts, not recorded yet, of running hooks of this call and of the calls that contain it or run inside it.
        working: The kind of the entry that will end each running work of a model or tool, by the work's number.
    """

    __slots__ = ("begun", "call", "facts", "interrupted", "line", "parent", "root", "run", "source", "working")

    def __init__(self, line: Line, above: RecordedCall | None = None, facts: FactsSeen | None = None) -> None:
        self.line = line
        self.facts = facts or FactsSeen()
        self.call: str = line["call"]
        self.run: str = line["run"]
        self.source: str = line.get("source", "")
        self.parent: Line | None = line.get("parent")
        self.root: str = self.run if above is None else above.root
        # Shared with sub-agents: whatever happens in a sub-agent happens during the hooks of its callers.
        self.begun: list[EntryValues] = [] if above is None else above.begun
        self.interrupted = False
        self.working: dict[int, str] = {}


class EventSeen(NamedTuple):
    """An event.

    Attributes:
        owner: The call that the event belongs to.
        kind: The event's class.
        values: Its `seq`, `iteration`, `time` and `decision`, then its own fields, as `VALUES_OF` reads them. A decision's
            exception is an `ErrorText`. A chunk of a tool ends with the number of the tool's work.
        facts: The facts of its run since the last event.
    """

    owner: RecordedCall
    kind: type[Event]
    values: tuple[Any, ...]
    facts: Sequence[Fact] = ()


class RawChunk(NamedTuple):
    """A chunk from a model, before hooks; `after` is the number of the last event of its call."""

    owner: RecordedCall
    n: int
    time: float
    chunk: ModelChunk
    after: int


class EntryValues(NamedTuple):
    """Any other observation: the kind and the fields of its entry, with values instead of refs. An observation of kind
    `facts` becomes an entry for each fact."""

    owner: RecordedCall
    kind: str
    fields: Line


Observation: TypeAlias = EventSeen | RawChunk | EntryValues

_COMMON = ("seq", "iteration", "time", "decision")
NAMES: dict[type[Event], tuple[str, ...]] = {
    kind: tuple(field.name for field in fields(kind) if field.name[0] != "_" and field.name not in _COMMON)
    for kind in EVENT_TYPES
}
"""The own fields of each event."""


def _values_of(kind: type[Event]) -> Callable[[Any], tuple[Any, ...]]:
    names = (*_COMMON, *NAMES[kind])
    read: Callable[[Any], tuple[Any, ...]] = attrgetter(*names)
    # Values of tools are the user's objects, which may change before the writer's thread reads them, so they are copied.
    changeable = NAMES[kind] if issubclass(kind, TurnEvent) else ("chunk",) if kind is ActingChunk else ()

    def copied(name: str, value: Any) -> Any:
        if isinstance(value, BaseException):
            return ErrorText.of(value)
        return plain(value) if name in changeable and type(value) not in SCALARS else value

    if not changeable and not issubclass(kind, Error | CallEnded):
        return read  # for nearly all events: a single call, implemented in C
    return lambda event: tuple(map(copied, names, read(event)))


VALUES_OF = {kind: _values_of(kind) for kind in NAMES}
"""Return the values of an event (see `EventSeen`); exceptions as text, and values that a program may change as data."""

# ---- entries


class EntryBuilder:
    """Builds entries, in order. It is not thread-safe; the writer calls it while holding a lock.

    Args:
        content: Whether to keep texts.
        clean: Removes secrets from values.
        finds: Finds secrets in a text that is still incomplete, if `clean` can.
        mark: The suffix of each ref, if there are several writers to the same log.
    """

    def __init__(
        self, content: bool = True, clean: Clean | None = None, finds: FindMatchesOfRun | None = None, mark: str = ""
    ) -> None:
        self._mark = mark
        self._encoder = encoder = Encoder(content, clean, mark)
        self._redactor: StreamRedactor | None = None
        if clean is not None:
            self._redactor = StreamRedactor(encoder.cleaned, finds and _for_current_run(finds, encoder))
        self._numbers: dict[str, int] = {}
        """The number of the last entry of each call."""
        self._last_request: dict[str, tuple[list[str], list[str], Line]] = {}
        """The last `PreReasoning` of each call: the refs of its messages and tools, and its options."""
        self._raw: dict[int, RawChunk] = {}
        """The last chunk of each reply, as long as it may still become an event."""
        self._works: dict[int, str] = {}
        """The ref of the tool call of each running work of a tool."""
        self._now: Observation | None = None
        """The observation that is being handled; None after the last one."""
        self._batch: Line | None = None
        """The entry of the latest consecutive chunks; the next chunk may still belong to it."""
        self._head: tuple[Any, ...] = ()
        """The properties that all chunks of the batch share; see `_HEADS`."""
        self._run_of_batch = ""

    def header(self, lost: int = 0) -> Line:
        """Return the first line of this writer, or the line that reports dropped observations."""
        line = header_line(self._mark, self._encoder.content)
        return {**line, "lost": lost} if lost else line

    def lines(self, observations: Iterable[Observation]) -> list[Line]:
        """Return the entries of observations; of a batch that is being redacted, only the part that is known to be clean.

        Args:
            observations: The observations, in order.
        """
        for observation in observations:
            self._encoder.run = observation.owner.run
            self._now = observation
            # A call's own entry precedes all other entries of the call.
            if observation.owner.call not in self._numbers:
                self._numbers[observation.owner.call] = 0
                self._add(self._call(observation.owner.line))
            self._handle(observation)
        if self._redactor is None:
            self._close()
        else:
            self._write_settled(self._redactor)
        lines, self._encoder.out = self._encoder.out, []
        return lines

    def finish(self) -> list[Line]:
        """Return the remaining entries, after the last observation."""
        self._now = None
        for n in list(self._raw):  # no event will follow
            self._write_raw(n)
        self._close()
        lines, self._encoder.out = self._encoder.out, []
        return lines

    # ---- single observations

    def _handle(self, observation: Observation) -> None:
        # Facts precede the event that was observed with them, since the run stores a fact before it fires the event.
        if isinstance(observation, EventSeen) and observation.facts:
            self._facts(observation.owner.call, observation.facts, observation.values[2])
        match observation:
            case RawChunk():
                self._write_raws(observation.owner)
                # Held back until its event shows whether hooks passed it on unchanged, so that it is written only once.
                self._raw[observation.n] = observation
            case EventSeen(kind=kind) if kind is ReasoningChunk:
                self._chunk(observation)
            case EventSeen(kind=kind) if kind is ActingChunk:
                self._piece(observation)
            case EventSeen():
                self._event(observation)
            case EntryValues(kind="request"):
                self._request(observation.owner.call, observation.fields)
            case EntryValues(kind="facts"):
                self._facts(observation.owner.call, observation.fields["facts"], observation.fields["time"])
            case EntryValues(kind="mark", fields={"what": "read"}) if self._paused(observation):
                pass
            case EntryValues(kind=kind):
                if kind == "answered":
                    self._write_raws(observation.owner)
                self._write_entry(kind, observation.owner.call, observation.fields)
            case _:
                assert_never(observation)

    def _facts(self, call: str, facts: Iterable[Fact], time: float) -> None:
        self._close()
        for fact in facts:
            self._add({**self._encoder.fact(fact), "call": call, "time": time})

    def _call(self, line: Line) -> Line:
        """Encode the entry of a call."""
        encoder, encoded = self._encoder, dict(line)
        if "description" in line:
            encoded["description"] = encoder.cleaned(line["description"])
        if "options" in line:
            encoded["options"] = encoder.value(line["call"], line["options"])
        return encoded

    def _add(self, line: Line) -> None:
        """Write an entry, after the batch before it."""
        self._close()
        self._write(line)

    def _write(self, line: Line) -> None:
        if line["kind"] != "call":
            self._numbers[line["call"]] += 1
            line["number"] = self._numbers[line["call"]]
        self._encoder.out.append(line)

    def _write_entry(self, kind: str, call: str, values: Line) -> None:
        self._close()
        line: Line = {"kind": kind, "call": call}
        for name, value in values.items():
            if value is not None and value != ():
                line[name] = self._encoded(call, name, value) if name in _ENCODED else value
        match kind:
            case "started":
                self._works[values["n"]] = line["tool_use"]
            case "interrupt" | "mark" if self._raw and "at" in values:
                line["given"] = [*self._raw]
            case _:
                pass
        self._add(line)
        if kind == "finished":
            self._works.pop(values["n"], None)

    def _encoded(self, call: str, name: str, value: Any) -> Any:
        encoder = self._encoder
        if name == "reason":
            return encoder.text(value)
        if name != "changes":
            return encoder.value(call, value)
        lines: list[Line] = []
        for change in value:
            encode = encoder.messages if change.field in LISTS else encoder.value
            before, after = encode(call, change.before), encode(call, change.after)
            lines.append({"field": change.field, "before": before, "after": after})
        return lines

    def _event(self, observation: EventSeen) -> None:
        encoder, call, kind = self._encoder, observation.owner.call, observation.kind
        self._close()
        fields: Line = {}
        refs: list[str] = []
        seq, iteration, time, decision, *own = observation.values
        for name, value in zip(NAMES[kind], own, strict=True):
            if name in LISTS:
                fields[name], shown = encoder.message_list(call, cast("Sequence[Msg]", value))
                refs = shown if name == "input_messages" else refs
            elif name in _NAMED:
                fields[name] = value
            elif value is not None and not (value == () or value == ""):
                fields[name] = encoder.value(call, value)
        if kind is PreReasoning:
            self._last_request[call] = refs, fields.get("tools", []), fields.get("options", {})
        line: Line = {"kind": "event", "type": kind.__name__, "call": call, "seq": seq}
        line.update({"iteration": iteration, "time": time, "fields": fields})
        if decision is not None:
            line["decision"] = self._decision(call, decision)
        self._add(line)
        if kind is CallEnded:
            encoder.forget(call)
            self._last_request.pop(call, None)
            if self._redactor is not None:
                self._redactor.forget(call)

    def _decision(self, call: str, decided: Decided) -> Line:
        failure: Any = decided.error
        shown: Line = {"hook": decided.hook}
        if decided.verdict is not None:
            shown["verdict"] = self._encoder.verdict(call, decided.verdict)
        if failure is not None:
            shown["error"] = self._encoder.error(failure)
        return shown

    def _request(self, call: str, sent: Line) -> None:
        """Write a request, without values that equal those of the call's last `PreReasoning`."""
        encoder, side = self._encoder, sent["side"]
        self._close()
        before = self._last_request.get(call)
        if side:
            listed, refs = {"add": [encoder.message(msg) for msg in sent["messages"]]}, list[str]()
        else:
            listed, refs = encoder.message_list(call, sent["messages"], before and before[0])
        tools, options = encoder.value(call, sent["tools"]), encoder.value(call, sent["options"])
        line: Line = {"kind": "request", "call": call, **sent, "messages": listed, "tools": tools, "options": options}
        if before is not None and not side:
            for name, was, now in zip(("messages", "tools", "options"), before, (refs, tools, options), strict=True):
                if was == now:
                    del line[name]
        self._add(line)

    # ---- batches

    def _chunk(self, observation: EventSeen) -> None:
        """Batch a chunk of a reply. A chunk that hooks passed on unchanged is written once, as an event with the reply's
        number."""
        seq, iteration, time, _, chunk, attempt, restart = observation.values
        # Compared by identity: a hook that changes a chunk passes on another object.
        reply = next((n for n, raw in self._raw.items() if raw.chunk is chunk), None)
        if reply is not None:
            del self._raw[reply]
        else:  # the chunks from which hooks created it come first
            for n in [n for n, raw in self._raw.items() if raw.owner.call == observation.owner.call]:
                self._write_raw(n)
        head = ("chunks", observation.owner.call, iteration, attempt, reply)
        self._end_failed(
            observation, self._append(observation.owner, head, time, self._encoder.piece(chunk), seq, restart)
        )

    def _piece(self, observation: EventSeen) -> None:
        call = observation.owner.call
        seq, iteration, time, _, use, value, n = observation.values
        ref = self._encoder.tool_use(use)
        # The number is needed only if a wrapper runs the same tool call twice at once.
        several = sum(known == ref for known in self._works.values()) > 1
        head = ("pieces", call, iteration, ref, n if several else None)
        # A text is not cleaned here, since a secret may continue in the next chunk: the redactor cleans the whole batch.
        clean_here = self._redactor is None or not self._encoder.content or not isinstance(value, str)
        piece = self._encoder.value(call, value) if clean_here else plain(value)
        self._end_failed(observation, self._append(observation.owner, head, time, piece, seq))

    def _paused(self, read: EntryValues) -> bool:
        """Add a wait for the reader to the last chunk of the batch, if the run waited after that chunk."""
        batch = self._batch
        if batch is None or batch["call"] != read.owner.call or "seq" not in batch:
            return False
        last = len(batch["pieces"]) - 1
        if batch["seq"] + last != read.fields["seq"]:
            return False
        paused = batch.setdefault("paused", [])
        paused += [0.0] * (last - len(paused))
        paused.append(round((read.fields["time"] - batch["time"]) * 1000 - batch["at"][-1], 3))
        return True

    def _write_raws(self, owner: RecordedCall) -> None:
        """Write the chunks of the call that have no event: their order matters if a wrapper reads two replies at once."""
        for n in [n for n, raw in self._raw.items() if raw.owner is owner]:
            self._write_raw(n)

    def _write_raw(self, n: int) -> None:
        """Write a model's chunk that has no event."""
        raw = self._raw.pop(n, None)
        if raw is not None:
            self._append(raw.owner, ("reply", raw.owner.call, n, raw.after), raw.time, self._encoder.piece(raw.chunk))

    def _append(
        self,
        owner: RecordedCall,
        head: tuple[Any, ...],
        time: float,
        piece: Any,
        seq: int | None = None,
        restart: bool = False,
    ) -> Line:
        """Add a chunk to the batch, or to a new batch if the chunk does not continue this one."""
        batch = self._batch
        continues = batch is not None and head == self._head and not restart
        # Only the first event's number is written, so the events of a batch must follow each other without a gap.
        if batch is None or not continues or (seq is not None and batch["seq"] + len(batch["pieces"]) != seq):
            self._close()
            batch = {name: value for name, value in zip(_HEADS[head[0]], head, strict=True) if value is not None}
            batch.update({"time": time, "pieces": [], "at": []})
            self._batch = batch
            if seq is not None:
                batch["seq"] = seq
            if restart:
                batch["restart"] = True
            self._head, self._run_of_batch = head, owner.run
            if self._redactor is not None:
                self._redactor.begin(batch)
        batch["pieces"].append(piece)
        # Rounded to microseconds: more digits would be noise, and make the log longer.
        batch["at"].append(round((time - batch["time"]) * 1000, 3))
        return batch

    def _end_failed(self, observation: EventSeen, batch: Line) -> None:
        """End the batch after a chunk whose hooks have failed."""
        decision = observation.values[3]
        if decision is not None:
            batch["decision"] = self._decision(observation.owner.call, decision)
            self._close()

    def _close(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            if self._redactor is not None:
                # The observation that ends a batch may belong to another run, with other values to redact.
                now, self._encoder.run = self._encoder.run, self._run_of_batch
                self._redactor.close(batch, self._is_whole(batch))
                self._encoder.run = now
            self._write(batch)

    def _write_settled(self, redactor: StreamRedactor) -> None:
        """Write the part of an open batch that is known to be clean."""
        if self._batch is not None:
            self._encoder.run = self._run_of_batch
            front = redactor.take_settled(self._batch)
            if front is not None:
                self._write(front)
            if not self._batch["pieces"]:
                self._batch = None

    def _is_whole(self, batch: Line) -> bool:
        """Return whether a batch's stream is complete: because of the next observation, or because it has a finish reason."""
        if batch["kind"] != "pieces" and any(
            "finish_reason" in piece for piece in batch["pieces"] if type(piece) is dict
        ):
            return True
        match self._now:
            case None:
                return True
            case EntryValues(kind="answered", fields=values):
                return values["n"] == batch.get("reply", batch.get("n"))
            case EntryValues(kind="finished", fields=values):
                return self._works.get(values["n"]) == batch.get("tool_use", "")
            case EventSeen(owner=owner, kind=kind):
                ends = kind is CallEnded or (kind is PostReasoning and batch["kind"] == "chunks")
                return ends and owner.call == batch["call"]
            case _:
                return False


FindMatchesOfRun = Callable[[str, int, bool, str], tuple[list[Match], int]]
"""Like `FindMatches`, with the run id as the last argument."""


def _for_current_run(finds: FindMatchesOfRun, encoder: Encoder) -> FindMatches:
    # The run id is read at each call, since one builder handles many runs.
    return lambda text, start, whole: finds(text, start, whole, encoder.run)


_HEADS = {
    "chunks": ("kind", "call", "iteration", "attempt", "reply"),
    "pieces": ("kind", "call", "iteration", "tool_use", "n"),
    "reply": ("kind", "call", "n", "after"),
}
"""The properties that all chunks of a batch share."""
_NAMED = frozenset({"model", "purpose", "origin", "outcome", "phase", "hook"})
"""Fields of events that contain names, not content: they are written as they are."""
_ENCODED = frozenset({"tool_use", "result", "error", "verdict", "injected", "reason", "changes"})
"""The fields of other entries that contain content."""
