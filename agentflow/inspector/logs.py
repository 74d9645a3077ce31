"""Run logs in files, folders and stores: which runs there are, what each came to, and their lines as they grow.

Rules:

1. Every log goes through `LogReader`, each line once: what is handed out has passed it. A log that has not is one row of the
   list, which says why, and hides no other.
2. A run is asked for by an id that was given out; no path comes from outside.
3. Only whole lines are handed out; one that is being written comes later.
"""

from __future__ import annotations

import hashlib
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from agentflow.errors import StoreError, UsageError
from agentflow.inspector.places import LogFile, Place, stored_logs
from agentflow.runlog.entries import CallEntry, Entry, EventEntry, HookEntry
from agentflow.runlog.keeping import LogStore
from agentflow.runlog.log import RunLog, usage_of
from agentflow.runlog.reading import LogReader, RunLogError
from agentflow.stored_runs import is_store, open_named

__all__ = ["Logs", "RunInfo", "Source"]

_SAID: Final = 200
_MOST_TEXT: Final = 4_000_000
"""Characters of a run that can be searched."""
_MOST_READERS: Final = 32
"""Logs that may grow and are read on from where they were; others are read from their beginning when they change."""


@dataclass
class RunInfo:
    """What the list of runs shows of one.

    Attributes:
        id: What it is asked for by.
        run: The run at the top.
        file: The name of its file.
        said: How it began: the user's words.
        outcome: How it ended; empty while it runs, or where its process was killed.
        started: In seconds since the epoch.
        seconds: From its first to its last entry that says a time.
        errors: `Error` events.
        decided: Events on which hooks decided.
        called: The tools that were called, sub-agents' too.
        hooks: The hooks that changed something, decided or failed.
        problem: Why the log cannot be read; empty if it can.
    """

    id: str
    run: str
    file: str
    agent: str = ""
    model: str = ""
    said: str = ""
    outcome: str = ""
    started: float = 0.0
    seconds: float = 0.0
    rounds: int = 0
    tools: int = 0
    tokens: int = 0
    cost: float = 0.0
    errors: int = 0
    decided: int = 0
    called: list[str] = field(default_factory=list[str])
    hooks: list[str] = field(default_factory=list[str])
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass
class Source:
    """Where the lines of a run are.

    Attributes:
        logs: Who reads them.
        place: Where the log is.
        run: The run.
    """

    logs: Logs
    place: Place
    run: RunInfo

    @property
    def problem(self) -> str:
        """Why the log cannot be read; empty if it can."""
        return self.logs.known(self.place).problem

    @property
    def torn(self) -> int:
        """How many lines were left out, since a killed process has left them half written."""
        return self.logs.known(self.place).torn

    def lines(self, begin: int = 0) -> tuple[bytes, int]:
        """The whole lines from a place in the log on that the reader has passed, and where the next ones begin."""
        try:
            data, behind = self.place.read(begin)
        except (OSError, StoreError):
            return b"", begin
        torn = len(data) - data.rfind(b"\n") - 1
        known = self.logs.known(self.place)  # it has read at least what was read here
        if known.problem:
            return b"", begin
        lines = data[: len(data) - torn].splitlines(keepends=True)
        return b"".join(known.passed(lines, self.run)), behind - torn


class _Known:
    """A log as far as it was read.

    Attributes:
        stamp: What the place said then.
        runs: Its runs; one that says why where it cannot be read.
        problem: Why it cannot be read; empty if it can.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.stamp: tuple[float, int] | None = None
        self.runs: list[RunInfo] = []
        self.problem = ""
        self.reader: LogReader | None = None
        self._start()

    def _start(self) -> None:
        self._behind = 0
        self._torn: set[bytes] = set()
        self.reader = LogReader(self.place.name)
        self._summing = _Summing(self.place, self.reader.log)

    def look(self, stamp: tuple[float, int]) -> None:
        """Read what is new."""
        again = self._behind > 0
        if self.reader is None or self.problem:
            self._start()
            again = False
        try:
            self._read()
            if self.problem and again:  # it is another file by now
                self._start()
                self._read()
        except (OSError, StoreError) as error:
            self.problem = f"{self.place.name} cannot be read: {getattr(error, 'strerror', None) or error}"
        self.stamp = stamp
        self.runs = self._summing.runs if not self.problem else [self._damaged(stamp)]

    def _read(self) -> None:
        assert self.reader is not None
        self.problem = ""
        data, behind = self.place.read(self._behind)
        torn = len(data) - data.rfind(b"\n") - 1
        self._behind = behind - torn
        reader, summing = self.reader, self._summing
        try:
            for line in data[: len(data) - torn].split(b"\n"):
                entry = reader.take(line)
                if entry is not None:
                    summing.take(entry)
                elif line.strip():
                    self._torn.add(line)
            if data.strip() and not reader.log.entries:
                reader.end()
            if lost := reader.lost():
                raise RunLogError(f"{self.place.name} is damaged: {lost}")
        except RunLogError as error:
            self.problem = str(error)
        summing.pack()

    def _damaged(self, stamp: tuple[float, int]) -> RunInfo:
        return RunInfo(self._summing.key, "", self.place.name, started=stamp[0] / 1e9, problem=self.problem)

    @property
    def torn(self) -> int:
        """How many lines are half written ones."""
        return len(self._torn)

    @property
    def is_over(self) -> bool:
        """Whether nothing is likely to come."""
        return bool(self.problem) or all(run.outcome for run in self.runs)

    def passed(self, lines: Iterable[bytes], run: RunInfo) -> Iterator[bytes]:
        """Of lines those that are entries, of one run and of all that runs refer to."""
        several = len(self.runs) > 1
        for line in lines:
            if not line.strip() or line.rstrip(b"\n") in self._torn:
                continue
            if several and (call := from_json(line).get("call")) is not None and self._summing.of_call[call] is not run:
                continue
            yield line

    def has(self, run: RunInfo, sought: bytes) -> bool:
        """Whether a text occurs in what a run said."""
        return any(sought in zlib.decompress(text) for text in self._summing.texts.get(run.id, ()))


class Logs:
    """Run logs in files, folders and stores.

    Args:
        runs: Files; folders of `*.jsonl` files, which may come into being later; stores, also by name.

    Attributes:
        left: How many logs the last list did not get to.

    Raises:
        UsageError: A file is not there.
        StoreError: A database is not there.
    """

    def __init__(self, runs: Sequence[str | Path | LogStore]) -> None:
        self._where = [_where(one) for one in runs]
        self._known: dict[Place, _Known] = {}
        self._growing: OrderedDict[Place, _Known] = OrderedDict()
        self._lock = threading.RLock()
        self.left = 0

    def places(self) -> Iterator[Place]:
        """The logs, those in folders and stores included."""
        for where in self._where:
            if isinstance(where, tuple):
                yield from stored_logs(*where)
            elif where.is_dir():
                yield from map(LogFile, sorted(where.glob("*.jsonl")))
            elif where.is_file():
                yield LogFile(where)

    def stamp(self) -> int:
        """A number that changes when a log does."""
        return hash(tuple([(place, *place.stamp()) for place in self.places()]))

    def runs(self, seconds: float | None = None) -> list[RunInfo]:
        """All runs, the newest first.

        Args:
            seconds: How long new logs may be read for, the last written first; None: until all are.
        """
        places = list(self.places())
        until = None if seconds is None else time.monotonic() + seconds
        for place in sorted(places, key=lambda place: place.stamp()[0], reverse=True):
            if until is None or time.monotonic() < until or place in self._known:
                self.known(place)
        read = [place for place in places if place in self._known]
        self.left = len(places) - len(read)
        found = [run for place in read for run in self.known(place).runs]
        return sorted(found, key=lambda run: run.started, reverse=True)

    def search(self, text: str) -> list[str]:
        """The ids of the runs in which a text occurs, in any case: in what people, models and tools said, and in errors."""
        sought = text.casefold().encode("utf-8", "surrogatepass")
        known = [self.known(place) for place in self.places()]
        return [run.id for each in known for run in each.runs if not run.problem and each.has(run, sought)]

    @property
    def problem(self) -> str:
        """Why nothing of it can be shown; empty if something can, or if nothing is there yet."""
        found = self.runs()
        return found[0].problem if all(run.problem for run in found) and found else ""

    def source(self, run_id: str) -> Source | None:
        """Where a run's lines are; None: there is no such run."""
        for place in self.places():
            for run in self.known(place).runs:
                if run.id == run_id:
                    return Source(self, place, run)
        return None

    def known(self, place: Place) -> _Known:
        """A log, read to its end."""
        with self._lock:
            known, stamp = self._known.get(place), place.stamp()
            if known is None:
                known = self._known[place] = _Known(place)
            if known.stamp != stamp:
                known.look(stamp)
                self._growing.pop(place, None)
                if known.is_over:
                    known.reader = None
                else:
                    self._growing[place] = known
                if len(self._growing) > _MOST_READERS:
                    self._growing.popitem(last=False)[1].reader = None
            return known


def _where(given: str | Path | LogStore) -> Path | tuple[LogStore, str | None]:
    """What was given: a path, or a store and a run in it."""
    if not isinstance(given, str | Path):
        return given, None
    if is_store(given):
        return open_named(str(given))
    path = Path(given)
    if path.suffix and not path.exists():
        raise UsageError(f"There is no run log {str(path)!r}. Name a file, or a folder that a Recorder writes to.")
    return path


class _Summing:
    """Adds up the entries of a log.

    Attributes:
        key: What the ids of its runs begin with.
        of_call: The run of each call.
        texts: What can be searched of each run, by its id, compressed.
    """

    def __init__(self, place: Place, log: RunLog) -> None:
        self.key = hashlib.sha256(place.key.encode("utf-8", "surrogateescape")).hexdigest()[:10]
        self.of_call: dict[str, RunInfo] = {}
        self.texts: dict[str, list[bytes]] = {}
        self._log = log
        self._name = place.name
        self._runs: dict[str, RunInfo] = {}
        self._new: dict[str, list[str]] = {}
        self._length: dict[str, int] = {}
        self._said: dict[str, set[str]] = {}

    @property
    def runs(self) -> list[RunInfo]:
        """The runs at the top."""
        return list(self._runs.values())

    def take(self, entry: Entry) -> None:
        """Add an entry."""
        match entry:
            case CallEntry():
                self._call(entry)
            case EventEntry():
                self._event(entry, self.of_call[entry.call])
            case HookEntry():
                info = self.of_call[entry.call]
                if entry.via != "shadow" and (entry.changes or entry.verdict or entry.error):
                    _note(info.hooks, entry.hook)
            case _:
                pass

    def pack(self) -> None:
        """Compress the text that has come."""
        for run, parts in self._new.items():
            text = "\n".join(parts).casefold().encode("utf-8", "surrogatepass")
            self.texts.setdefault(run, []).append(zlib.compress(text, 1))
        self._new.clear()

    def _call(self, entry: CallEntry) -> None:
        parent = None if entry.parent is None else self.of_call.get(entry.parent.call)
        info = parent or self._runs.get(entry.run)
        if info is None:
            number = f"-{len(self._runs)}" if self._runs else ""
            info = self._runs[entry.run] = RunInfo(f"{self.key}{number}", entry.run, self._name)
            info.agent, info.model, info.started = entry.agent, entry.model, entry.time
        elif parent is None:
            info.outcome = ""  # it was resumed
        self.of_call[entry.call] = info

    def _event(self, entry: EventEntry, info: RunInfo) -> None:
        fields, log = entry.fields, self._log
        if entry.decision is not None:
            info.decided += 1
            _note(info.hooks, entry.decision["hook"])
        info.seconds = max(info.seconds, entry.time - info.started)
        match entry.type:
            case "PreCall" if not info.said:
                words = " ".join([log.message(ref).text for ref in log.messages(entry)])
                info.said = " ".join(words[: _SAID * 2].split())[:_SAID]
            case "PostReasoning":
                info.rounds += 1
            case "PostActing":
                info.tools += 1
            case "Error":
                info.errors += 1
            case "CallEnded":
                self._ended(entry, info)
            case _:
                pass
        if "tool_use" in fields:
            use = log.tool_use(fields["tool_use"])
            _note(info.called, use.name)
            self._add(info, fields["tool_use"], f"{use.name} {use.raw}")
        if "tool_result" in fields:
            self._add(info, f"result {fields['tool_result']}", log.tool_result(fields["tool_result"]).text)
        if "error" in fields:
            self._add(info, "", f"{fields['error']['type']}: {fields['error'].get('message') or ''}")
        for ref in self._messages(entry):
            if ref not in self._said.setdefault(info.id, set()):
                self._add(info, ref, log.message(ref).text)

    def _messages(self, entry: EventEntry) -> Iterator[str]:
        """The messages that an event adds to what was said."""
        fields = entry.fields
        for listed in (fields.get("input_messages"), fields.get("history")):
            yield from () if listed is None else listed.add
        for ref in (fields.get("reasoning_result"), fields.get("final_message"), *fields.get("messages", ())):
            if ref is not None:
                yield ref

    def _add(self, info: RunInfo, ref: str, text: str) -> None:
        """Let a text be found, once."""
        said, length = self._said.setdefault(info.id, set()), self._length.get(info.id, 0)
        if text and length < _MOST_TEXT and not (ref and ref in said):
            said.add(ref)
            self._length[info.id] = length + len(text)
            self._new.setdefault(info.id, []).append(text)

    def _ended(self, entry: EventEntry, info: RunInfo) -> None:
        above = self._log.calls[entry.call].parent
        if above is not None and above.call in self.of_call:
            return  # its usage is in that of its caller
        usage = usage_of(entry.fields.get("usage"))
        info.outcome = entry.fields.get("outcome", "completed")
        info.tokens += usage.total_tokens
        info.cost += usage.cost or 0.0


def _note(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)
