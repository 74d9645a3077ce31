"""Builds the entries of a run log from observations: consecutive chunks are batched, unchanged values are written once.

Nothing here runs in an agent's task: the writer or reader of the log does this work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never, cast

from agentflow.recording.encoding import Clean, Encoder, Line
from agentflow.recording.log import LISTS
from agentflow.recording.quiet import Find, Finds, Quiet
from agentflow.recording.recorder.observations import (
    NAMES,
    Chunk,
    ErrorText,
    EventSeen,
    Facts,
    HookEffect,
    Interruption,
    Mark,
    Observation,
    Place,
    RawChunk,
    ReplyEnded,
    RequestSent,
    ToolChunk,
    WorkEnded,
    WorkStarted,
)
from agentflow.vocabulary.events import PreReasoning
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.saving.plain import plain
from agentflow.vocabulary.verdicts import Decided

__all__ = ["EntryBuilder", "FindsOfRun"]


class EntryBuilder:
    """Builds entries, in order; its caller holds a lock.

    Args:
        content: Keep texts.
        clean: Removes secrets from values.
        mark: The suffix of each ref, if others write into the same log.
        finds: Finds secrets in a text that is still incomplete, if `clean` can.
    """

    def __init__(
        self, content: bool = True, clean: Clean | None = None, mark: str = "", finds: FindsOfRun | None = None
    ) -> None:
        self._encoder = encoder = Encoder(content, clean, mark)
        self._quiet: Quiet | None = None
        if clean is not None:
            self._quiet = Quiet(encoder.cleaned, finds and _finds_now(finds, encoder))
        self._numbers: dict[str, int] = {}
        """The number of the last entry of each call."""
        self._asked: dict[str, tuple[list[str], list[str], Line]] = {}
        """The last `PreReasoning` of each call: refs of its messages and tools, options."""
        self._raw: dict[int, RawChunk] = {}
        """The last chunk of each reply, as long as it may still become an event."""
        self._works: dict[int, str] = {}
        """The ref of the tool call of each tool run in progress."""
        self._now: Observation | None = None
        self._batch: Line | None = None
        self._batch_of = Place()
        self._held: list[Line] = []

    def lines(self, seen: Iterable[Observation]) -> list[Line]:
        """Return the entries of observations; of a batch that is being redacted, only the part already known to be clean.

        Args:
            seen: The observations, in order.
        """
        for one in seen:
            self._encoder.run = one.place.run
            self._now = one
            if one.place.call not in self._numbers:
                self._begin(one.place)
            self._one(one)
        if self._quiet is None:
            self._close()
        else:
            self._write_settled(self._quiet)
        made, self._encoder.out = self._encoder.out, []
        return made

    def finish(self) -> list[Line]:
        """Return the remaining entries: nothing follows."""
        self._now = None
        for n in list(self._raw):
            self._write_raw(n)
        self._close()
        made, self._encoder.out = self._encoder.out, []
        return made

    # ---- single observations

    def _one(self, one: Observation) -> None:
        match one:
            case RawChunk():
                self._write_raw(one.n)
                self._raw[one.n] = one
            case Chunk():
                self._chunk(one)
            case ToolChunk():
                self._piece(one)
            case EventSeen():
                self._event(one)
            case HookEffect():
                self._effect(one)
            case RequestSent():
                self._request(one)
            case ReplyEnded():
                self._write_raw(one.n)
                line: Line = {"kind": "answered", "n": one.n, "call": one.place.call, "time": one.time, "end": one.end}
                self._add(
                    line, error=one.error and self._encoder.error(one.error), waited=None if one.waited else False
                )
            case WorkStarted():
                use = self._works[one.n] = self._encoder.tool_use(one.use)
                line = {"kind": "started", "n": one.n, "call": one.place.call, "tool_use": use}
                self._add({**line, "iteration": one.iteration, "time": one.time})
            case WorkEnded():
                self._finished(one)
            case Interruption():
                reason = self._encoder.text(one.reason)
                line = {"kind": "interrupt", "call": one.place.call, "time": one.time, "how": one.how, "reason": reason}
                by: Line = {"by_itself": one.by_itself or None, "by_caller": one.by_caller or None, "work": one.work}
                by["read"] = None if one.read is None else [*one.read]
                self._add(line, **by, at=[*one.at] or None, given=[*self._raw] or None)
            case Mark():
                line = {"kind": "mark", "call": one.place.call, "time": one.time, "what": one.what}
                self._add(line, n=one.n, seq=one.seq or None, hook=one.hook or None)
            case Facts():
                for fact in one.facts:
                    self._close()
                    self._add({**self._encoder.fact(fact), "call": one.place.call, "time": one.time})
            case _:
                assert_never(one)

    def _add(self, line: Line, **more: object) -> None:
        """Write an entry, after the batch before it."""
        self._close()
        line.update({name: value for name, value in more.items() if value is not None})
        self._write(line)

    def _write(self, line: Line) -> None:
        if line["kind"] != "call":
            self._numbers[line["call"]] += 1
            line["number"] = self._numbers[line["call"]]
        self._encoder.out.append(line)

    def _begin(self, place: Place) -> None:
        self._numbers[place.call] = 0
        line: Line = {"kind": "call", "call": place.call, "run": place.run, "session": place.session}
        line.update({"agent": place.agent, "model": place.model, "time": place.time, "hooks": list(place.hooks)})
        if place.source:
            line["source"] = place.source
        if place.description:
            line["description"] = place.description
        if place.parent is not None:
            line["parent"] = {"call": place.parent[0], "tool_use": place.parent[1]}
        if place.resumes:
            line["resumes"] = True
        if place.timeout is not None:
            line["timeout"] = place.timeout
        if place.options is not None:
            line["options"] = place.options
        if not place.streamed:
            line["streamed"] = False
        self._add(line)

    def _event(self, one: EventSeen) -> None:
        encoder, call, kind = self._encoder, one.place.call, one.kind
        self._close()
        fields: Line = {}
        refs: list[str] = []
        for name, value in zip(NAMES[kind], one.values, strict=True):
            if name in LISTS:
                fields[name], shown = encoder.message_list(call, cast("Sequence[Msg]", value))
                refs = shown if name == "input_messages" else refs
            elif isinstance(value, ErrorText):
                fields[name] = encoder.error(value.fields)
            elif name in _NAMED:
                fields[name] = value
            elif value is not None and not (value == () or value == ""):
                fields[name] = encoder.value(call, value)
        if kind is PreReasoning:
            self._asked[call] = refs, fields.get("tools", []), fields.get("options", {})
        line: Line = {"kind": "event", "type": kind.__name__, "call": call, "seq": one.seq}
        line.update({"iteration": one.iteration, "time": one.time, "fields": fields})
        if one.decision is not None:
            line["decision"] = self._decision(call, one.decision, one.failure)
        self._add(line)
        if kind.__name__ == "CallEnded":
            encoder.forget(call)
            self._asked.pop(call, None)
            if self._quiet is not None:
                self._quiet.forget(call)

    def _decision(self, call: str, decided: Decided, failure: Line | None) -> Line:
        shown: Line = {"hook": decided.hook}
        if decided.verdict is not None:
            shown["verdict"] = self._encoder.verdict(call, decided.verdict)
        if failure is not None:
            shown["error"] = self._encoder.error(failure)
        return shown

    def _effect(self, one: HookEffect) -> None:
        encoder, call = self._encoder, one.place.call
        self._close()
        changes: list[Line] = []
        for change in one.changes:
            listed = change.field in LISTS
            before, after = (
                encoder.messages(call, value) if listed else encoder.value(call, value)
                for value in (change.before, change.after)
            )
            changes.append({"field": change.field, "before": before, "after": after})
        line: Line = {"kind": "hook", "hook": one.hook, "priority": one.priority, "event": one.event, "via": one.via}
        line.update({"call": call, "seq": one.seq, "iteration": one.iteration, "time": one.time})
        line.update({"changes": changes, "duration_ms": one.duration_ms})
        self._add(
            line,
            tool_use=None if one.use is None else encoder.tool_use(one.use),
            verdict=None if one.verdict is None else encoder.verdict(call, one.verdict),
            error=None if one.error is None else encoder.error(one.error),
            injected=self._injected(one.injected),
        )

    def _request(self, one: RequestSent) -> None:
        encoder, call = self._encoder, one.place.call
        self._close()
        if one.side:
            listed, refs = {"add": [encoder.message(msg) for msg in one.messages]}, list[str]()
        else:
            listed, refs = encoder.message_list(call, one.messages)
        tools, options = encoder.value(call, one.tools), encoder.value(call, one.options)
        line: Line = {"kind": "request", "n": one.n, "call": call, "iteration": one.iteration, "time": one.time}
        line["model"] = one.model
        if one.side:
            line["side"] = one.side
        before = self._asked.get(call)
        if before is None or one.side or refs != before[0]:
            line["messages"] = listed
        if before is None or one.side or tools != before[1]:
            line["tools"] = tools
        if before is None or one.side or options != before[2]:
            line["options"] = options
        self._add(line)

    def _finished(self, one: WorkEnded) -> None:
        encoder = self._encoder
        self._close()
        result = None if one.result is None else encoder.tool_result(one.result)
        line: Line = {"kind": "finished", "n": one.n, "call": one.place.call, "time": one.time, "end": one.end}
        injected = self._injected(one.injected)
        self._add(line, result=result, error=one.error and encoder.error(one.error), injected=injected)
        self._works.pop(one.n, None)

    def _injected(self, injected: tuple[tuple[tuple[Msg, ...], bool], ...]) -> list[Line] | None:
        made = [{"messages": [*map(self._encoder.message, messages)], "keep": keep} for messages, keep in injected]
        return made or None

    # ---- batches

    def _chunk(self, one: Chunk) -> None:
        """Batch a chunk of a reply; if hooks passed it on unchanged, it is written once, as an event that names its reply."""
        reply = next((n for n, raw in self._raw.items() if raw.chunk is one.chunk), None)
        if reply is not None:
            del self._raw[reply]
        piece = self._encoder.piece(one.chunk)
        batch = self._batch
        if (
            batch is None
            or batch["kind"] != "chunks"
            or batch["call"] != one.place.call
            or batch["seq"] + len(batch["pieces"]) != one.seq
            or batch["attempt"] != one.attempt
            or batch.get("reply") != reply
            or one.restart
        ):
            self._close()
            batch = Line(kind="chunks", call=one.place.call, seq=one.seq, iteration=one.iteration)
            batch.update({"time": one.time, "attempt": one.attempt, "pieces": [], "at": []})
            if one.restart:
                batch["restart"] = True
            if reply is not None:
                batch["reply"] = reply
            self._open(batch, one.place)
        batch["pieces"].append(piece)
        batch["at"].append(_after(one.time, batch))
        self._judged(one, batch)

    def _piece(self, one: ToolChunk) -> None:
        batch, use = self._batch, self._encoder.tool_use(one.use)
        if (
            batch is None
            or batch["kind"] != "pieces"
            or batch["call"] != one.place.call
            or batch["seq"] + len(batch["pieces"]) != one.seq
            or batch["tool_use"] != use
        ):
            self._close()
            batch = Line(kind="pieces", call=one.place.call, seq=one.seq, iteration=one.iteration)
            batch.update({"time": one.time, "tool_use": use, "pieces": [], "at": []})
            self._open(batch, one.place)
        alone = self._quiet is None or not self._encoder.content or not isinstance(one.piece, str)
        batch["pieces"].append(self._encoder.value(one.place.call, one.piece) if alone else plain(one.piece))
        batch["at"].append(_after(one.time, batch))
        self._judged(one, batch)

    def _judged(self, one: Chunk | ToolChunk, batch: Line) -> None:
        """End the batch after a chunk if its hooks have failed."""
        if one.decision is not None:
            batch["decision"] = self._decision(one.place.call, one.decision, one.failure)
            self._close()

    def _write_raw(self, n: int) -> None:
        """Write a model's chunk that became no event."""
        raw = self._raw.pop(n, None)
        if raw is None:
            return
        batch = self._batch
        if batch is None or batch["kind"] != "reply" or batch["n"] != n:
            self._close()
            batch = Line(kind="reply", n=n, call=raw.place.call, time=raw.time)
            batch.update({"pieces": [], "at": []})
            self._open(batch, raw.place)
        batch["pieces"].append(self._encoder.piece(raw.chunk))
        batch["at"].append(_after(raw.time, batch))

    def _open(self, batch: Line, place: Place) -> None:
        self._batch, self._batch_of = batch, place
        if self._quiet is not None:
            self._quiet.begin(batch)

    def _close(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            if self._quiet is not None:
                now, self._encoder.run = self._encoder.run, self._batch_of.run
                self._quiet.close(batch, self._is_whole(batch))
                self._encoder.run = now
            self._write(batch)

    def _write_settled(self, quiet: Quiet) -> None:
        """Write the part of an open batch that is known to be clean."""
        if self._batch is not None:
            self._encoder.run = self._batch_of.run
            front = quiet.settled(self._batch)
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
            case ReplyEnded(n=n):
                return n == batch.get("reply", batch.get("n"))
            case WorkEnded(n=n):
                return self._works.get(n) == batch.get("tool_use", "")
            case EventSeen(place=place, kind=kind):
                ends = kind.__name__ == "CallEnded" or (kind.__name__ == "PostReasoning" and batch["kind"] == "chunks")
                return ends and place.call == batch["call"]
            case _:
                return False


FindsOfRun = Callable[[str, int, bool, str], tuple[list[Find], int]]
"""As `Finds`, for a run."""


def _finds_now(finds: FindsOfRun, encoder: Encoder) -> Finds:
    return lambda text, start, whole: finds(text, start, whole, encoder.run)


_NAMED = frozenset({"model", "purpose", "origin", "outcome", "phase", "hook"})
"""Fields with a fixed name rather than content."""


def _after(time: float, batch: Line) -> float:
    return round((time - batch["time"]) * 1000, 3)
