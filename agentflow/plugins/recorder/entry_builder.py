"""Makes the entries of a run log of what was seen: things in a row are batched, what nobody has changed is written once.

Nothing here runs where agents run: it is work of whoever writes or reads the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never, cast

from agentflow.events import PreReasoning
from agentflow.messages import Msg
from agentflow.plugins.recorder.observations import (
    NAMES,
    Answered,
    Asked,
    Chunk,
    Deed,
    Facts,
    Finished,
    Happened,
    Interrupted,
    Mark,
    Piece,
    Place,
    RawChunk,
    Seen,
    Started,
    Words,
)
from agentflow.runlog.encoding import Clean, Encoder, Line
from agentflow.runlog.log import LISTS
from agentflow.runlog.quiet import Find, Finds, Quiet
from agentflow.saving.plain import plain
from agentflow.verdicts import Decided

__all__ = ["FindsOfRun", "Making"]


class Making:
    """Makes entries, in order. One at a time: whoever calls it holds a lock.

    Args:
        content: Keep texts.
        clean: Takes secrets out of values.
        mark: Ends each ref, where others write into the same log.
        finds: Says where secrets are in a text that is not whole yet, if `clean` can tell.
    """

    def __init__(
        self, content: bool = True, clean: Clean | None = None, mark: str = "", finds: FindsOfRun | None = None
    ) -> None:
        self._encoder = encoder = Encoder(content, clean, mark)
        self._quiet: Quiet | None = None
        if clean is not None:
            self._quiet = Quiet(encoder.cleaned, finds and _finds_now(finds, encoder))
        self._numbers: dict[str, int] = {}
        """Of each call the number of its last entry."""
        self._asked: dict[str, tuple[list[str], list[str], Line]] = {}
        """What the last `PreReasoning` of each call says: refs of its messages and tools, options."""
        self._raw: dict[int, RawChunk] = {}
        """Of each reply the last piece, as long as it may come out as an event."""
        self._works: dict[int, str] = {}
        """The tool call, by its ref, of each work that has begun."""
        self._now: Seen | None = None
        self._batch: Line | None = None
        self._batch_of = Place()
        self._held: list[Line] = []

    def lines(self, seen: Iterable[Seen]) -> list[Line]:
        """The entries of what was seen; of a batch with secrets in it what is settled.

        Args:
            seen: In the order in which it was.
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
            self._let_go(self._quiet)
        made, self._encoder.out = self._encoder.out, []
        return made

    def finish(self) -> list[Line]:
        """What is left: nothing follows."""
        self._now = None
        for n in list(self._raw):
            self._let_out(n)
        self._close()
        made, self._encoder.out = self._encoder.out, []
        return made

    # ---- one thing

    def _one(self, one: Seen) -> None:
        match one:
            case RawChunk():
                self._let_out(one.n)
                self._raw[one.n] = one
            case Chunk():
                self._chunk(one)
            case Piece():
                self._piece(one)
            case Happened():
                self._event(one)
            case Deed():
                self._deed(one)
            case Asked():
                self._request(one)
            case Answered():
                self._let_out(one.n)
                line: Line = {"kind": "answered", "n": one.n, "call": one.place.call, "time": one.time, "end": one.end}
                self._add(
                    line, error=one.error and self._encoder.error(one.error), waited=None if one.waited else False
                )
            case Started():
                use = self._works[one.n] = self._encoder.tool_use(one.use)
                line = {"kind": "started", "n": one.n, "call": one.place.call, "tool_use": use}
                self._add({**line, "iteration": one.iteration, "time": one.time})
            case Finished():
                self._finished(one)
            case Interrupted():
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
        """Write an entry, behind what was batched before it."""
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

    def _event(self, one: Happened) -> None:
        encoder, call, kind = self._encoder, one.place.call, one.kind
        self._close()
        fields: Line = {}
        refs: list[str] = []
        for name, value in zip(NAMES[kind], one.values, strict=True):
            if name in LISTS:
                fields[name], shown = encoder.message_list(call, cast("Sequence[Msg]", value))
                refs = shown if name == "input_messages" else refs
            elif isinstance(value, Words):
                fields[name] = encoder.error(value.words)
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
        said: Line = {"hook": decided.hook}
        if decided.verdict is not None:
            said["verdict"] = self._encoder.verdict(call, decided.verdict)
        if failure is not None:
            said["error"] = self._encoder.error(failure)
        return said

    def _deed(self, one: Deed) -> None:
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

    def _request(self, one: Asked) -> None:
        encoder, call = self._encoder, one.place.call
        self._close()
        if one.side:
            said, refs = {"add": [encoder.message(msg) for msg in one.messages]}, list[str]()
        else:
            said, refs = encoder.message_list(call, one.messages)
        tools, options = encoder.value(call, one.tools), encoder.value(call, one.options)
        line: Line = {"kind": "request", "n": one.n, "call": call, "iteration": one.iteration, "time": one.time}
        line["model"] = one.model
        if one.side:
            line["side"] = one.side
        before = self._asked.get(call)
        if before is None or one.side or refs != before[0]:
            line["messages"] = said
        if before is None or one.side or tools != before[1]:
            line["tools"] = tools
        if before is None or one.side or options != before[2]:
            line["options"] = options
        self._add(line)

    def _finished(self, one: Finished) -> None:
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
        """A piece that hooks have handed on as it came stands once: as an event that names its reply."""
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

    def _piece(self, one: Piece) -> None:
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

    def _judged(self, one: Chunk | Piece, batch: Line) -> None:
        """A piece whose hooks have failed is the last of its batch."""
        if one.decision is not None:
            batch["decision"] = self._decision(one.place.call, one.decision, one.failure)
            self._close()

    def _let_out(self, n: int) -> None:
        """A model's piece that has come out as no event is written as what it is."""
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

    def _let_go(self, quiet: Quiet) -> None:
        """Write of an open batch what is settled."""
        if self._batch is not None:
            self._encoder.run = self._batch_of.run
            front = quiet.settled(self._batch)
            if front is not None:
                self._write(front)
            if not self._batch["pieces"]:
                self._batch = None

    def _is_whole(self, batch: Line) -> bool:
        """Whether a batch's stream ends where it ends: by what comes now, or because it says so."""
        if batch["kind"] != "pieces" and any(
            "finish_reason" in piece for piece in batch["pieces"] if type(piece) is dict
        ):
            return True
        match self._now:
            case None:
                return True
            case Answered(n=n):
                return n == batch.get("reply", batch.get("n"))
            case Finished(n=n):
                return self._works.get(n) == batch.get("tool_use", "")
            case Happened(place=place, kind=kind):
                ends = kind.__name__ == "CallEnded" or (kind.__name__ == "PostReasoning" and batch["kind"] == "chunks")
                return ends and place.call == batch["call"]
            case _:
                return False


FindsOfRun = Callable[[str, int, bool, str], tuple[list[Find], int]]
"""As `Finds`, of a run."""


def _finds_now(finds: FindsOfRun, encoder: Encoder) -> Finds:
    return lambda text, start, whole: finds(text, start, whole, encoder.run)


_NAMED = frozenset({"model", "purpose", "origin", "outcome", "phase", "hook"})
"""Fields that hold a word, and nothing that anybody has said."""


def _after(time: float, batch: Line) -> float:
    return round((time - batch["time"]) * 1000, 3)
