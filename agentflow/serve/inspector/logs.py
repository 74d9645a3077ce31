"""Run logs in files, folders and stores: the list of runs, with a summary of each, and their lines as they grow.

Rules:

1. Every line goes through `LogReader` once before it is served. An invalid log is one row of the list, with the reason, and
   does not affect the others.
2. A run is requested by an id from the list; clients never send a path.
3. Only complete lines are served; a line that is being written is served later.
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
from agentflow.recording.entries import CallEntry, Entry, EventEntry, HookEntry
from agentflow.recording.keeping import LogStore
from agentflow.recording.log import RunLog, usage_of
from agentflow.recording.reading import LogReader, RunLogError
from agentflow.serve.inspector.places import LogFile, LogPlace, stored_logs
from agentflow.serve.inspector.stored_runs import is_store, open_named

_PROMPT: Final = 200
_MAX_TEXT: Final = 4_000_000
"""Size limit of a run's searchable text, in characters."""
_MAX_READERS: Final = 32
"""Number of logs that are read incrementally as they grow; others are read from the start when they change."""


@dataclass
class RunCounts:
    """The totals of a run's entries.

    Attributes:
        rounds: The model replies.
        tools: The tool calls.
        tokens: The tokens of the top-level calls, which include those of sub-agents.
        cost: Their cost, in dollars.
        errors: The number of `Error` events.
        decided: The number of events on which a hook decided.
    """

    rounds: int = 0
    tools: int = 0
    tokens: int = 0
    cost: float = 0.0
    errors: int = 0
    decided: int = 0


@dataclass
class RunRow:
    """A row of the list of runs.

    Attributes:
        id: The id for requests.
        run: The top-level run.
        file: The name of its file.
        prompt: The user's first input.
        outcome: The outcome; empty while the run is active, or if its process was killed.
        started: The start, in seconds since the epoch.
        seconds: The time from the first to the last entry with a time.
        counts: The totals of its entries.
        called: The tools called, including those of sub-agents.
        hooks: The hooks that changed something, decided or failed.
        problem: Why the log is unreadable, or an empty string.
    """

    id: str
    run: str
    file: str
    agent: str = ""
    model: str = ""
    prompt: str = ""
    outcome: str = ""
    started: float = 0.0
    seconds: float = 0.0
    counts: RunCounts = field(default_factory=RunCounts)
    called: list[str] = field(default_factory=list[str])
    hooks: list[str] = field(default_factory=list[str])
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON data, with its counts as columns."""
        row = asdict(self)
        row.update(row.pop("counts"))
        return row


@dataclass
class LogSource:
    """The lines of a run.

    Attributes:
        logs: The reader of the logs.
        place: The location of the log.
        run: The run.
    """

    logs: Logs
    place: LogPlace
    run: RunRow

    @property
    def problem(self) -> str:
        """Why the log is unreadable, or an empty string."""
        return self.logs.known(self.place).problem

    @property
    def torn(self) -> int:
        """The number of skipped incomplete lines, left by killed processes."""
        return self.logs.known(self.place).torn

    def lines(self, begin: int = 0) -> tuple[bytes, int]:
        """Return the validated complete lines from a position on, and the end position."""
        try:
            data, end = self.place.read(begin)
        except (OSError, StoreError):
            return b"", begin
        torn = len(data) - data.rfind(b"\n") - 1
        known = self.logs.known(self.place)  # the reader has read at least this much
        if known.problem:
            return b"", begin
        lines = data[: len(data) - torn].splitlines(keepends=True)
        return b"".join(known.passed(lines, self.run)), end - torn


class _ReadLog:
    """A log, up to the position already read.

    Attributes:
        stamp: The stamp of its location when it was read.
        runs: Its runs; if it is unreadable, one row with the reason.
        problem: Why it is unreadable, or an empty string.
    """

    def __init__(self, place: LogPlace) -> None:
        self.place = place
        self.stamp: tuple[float, int] | None = None
        self.runs: list[RunRow] = []
        self.problem = ""
        self.reader: LogReader | None = None
        self._start()

    def _start(self) -> None:
        self._position = 0
        self._torn: set[bytes] = set()
        self.reader = LogReader(self.place.name)
        self._summary = _Summary(self.place, self.reader.log)

    def refresh(self, stamp: tuple[float, int]) -> None:
        """Read new lines."""
        resumed = self._position > 0
        if self.reader is None or self.problem:
            self._start()
            resumed = False
        try:
            self._read()
            if self.problem and resumed:  # the file may have been replaced
                self._start()
                self._read()
        except (OSError, StoreError) as error:
            self.problem = f"{self.place.name} cannot be read: {getattr(error, 'strerror', None) or error}"
        self.stamp = stamp
        self.runs = self._summary.runs if not self.problem else [self._damaged(stamp)]

    def _read(self) -> None:
        assert self.reader is not None
        self.problem = ""
        data, end = self.place.read(self._position)
        torn = len(data) - data.rfind(b"\n") - 1
        self._position = end - torn
        reader, summary = self.reader, self._summary
        try:
            for line in data[: len(data) - torn].split(b"\n"):
                entry = reader.take(line)
                if entry is not None:
                    summary.take(entry)
                elif line.strip():
                    self._torn.add(line)
            if data.strip() and not reader.log.entries:
                reader.end()
            if lost := reader.lost():
                raise RunLogError(f"{self.place.name} is damaged: {lost}")
        except RunLogError as error:
            self.problem = str(error)
        summary.pack()

    def _damaged(self, stamp: tuple[float, int]) -> RunRow:
        return RunRow(self._summary.key, "", self.place.name, started=stamp[0] / 1e9, problem=self.problem)

    @property
    def torn(self) -> int:
        """The number of incomplete lines."""
        return len(self._torn)

    @property
    def is_finished(self) -> bool:
        """Whether no more lines are likely."""
        return bool(self.problem) or all(run.outcome for run in self.runs)

    def passed(self, lines: Iterable[bytes], run: RunRow) -> Iterator[bytes]:
        """Yield the lines with valid entries of one run, and with entries that all runs refer to."""
        several = len(self.runs) > 1
        for line in lines:
            if not line.strip() or line.rstrip(b"\n") in self._torn:
                continue
            if several and (call := from_json(line).get("call")) is not None and self._summary.of_call[call] is not run:
                continue
            yield line

    def has(self, run: RunRow, wanted: bytes) -> bool:
        """Return whether a text occurs in a run."""
        return any(wanted in zlib.decompress(text) for text in self._summary.texts.get(run.id, ()))


class Logs:
    """Run logs in files, folders and stores.

    Args:
        runs: Files; folders of `*.jsonl` files, which may be created later; stores, or their URLs.

    Attributes:
        left: The number of logs that the last list did not include.

    Raises:
        UsageError: A file does not exist.
        StoreError: A database does not exist.
    """

    def __init__(self, runs: Sequence[str | Path | LogStore]) -> None:
        self._locations = [_resolve(run) for run in runs]
        self._known: dict[LogPlace, _ReadLog] = {}
        self._growing: OrderedDict[LogPlace, _ReadLog] = OrderedDict()
        self._lock = threading.RLock()
        self.left = 0

    def places(self) -> Iterator[LogPlace]:
        """Iterate over the logs, including those in folders and stores."""
        for where in self._locations:
            if isinstance(where, tuple):
                yield from stored_logs(*where)
            elif where.is_dir():
                yield from map(LogFile, sorted(where.glob("*.jsonl")))
            elif where.is_file():
                yield LogFile(where)

    @property
    def folders(self) -> list[Path]:
        """The folders, also those that may be created later."""
        return [where for where in self._locations if isinstance(where, Path) and not where.is_file()]

    def stamp(self) -> int:
        """Return a number that changes when any log changes."""
        return hash(tuple([(place, *place.stamp()) for place in self.places()]))

    def runs(self, seconds: float | None = None) -> list[RunRow]:
        """List all runs, the newest first.

        Args:
            seconds: Time limit for reading new logs, starting with the most recent; None means no limit.
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
        """Return the ids of the runs that contain a text, ignoring case: in messages, tool data and errors."""
        needle = text.casefold().encode("utf-8", "surrogatepass")
        known = [self.known(place) for place in self.places()]
        return [run.id for each in known for run in each.runs if not run.problem and each.has(run, needle)]

    @property
    def problem(self) -> str:
        """Why nothing can be shown; empty if something can, or if there is no log yet."""
        found = self.runs()
        return found[0].problem if all(run.problem for run in found) and found else ""

    def source(self, run_id: str) -> LogSource | None:
        """Return the lines of a run, or None if there is no such run."""
        for place in self.places():
            for run in self.known(place).runs:
                if run.id == run_id:
                    return LogSource(self, place, run)
        return None

    def known(self, place: LogPlace) -> _ReadLog:
        """Return a log, read up to its end."""
        with self._lock:
            known, stamp = self._known.get(place), place.stamp()
            if known is None:
                known = self._known[place] = _ReadLog(place)
            if known.stamp != stamp:
                known.refresh(stamp)
                self._growing.pop(place, None)
                if known.is_finished:
                    known.reader = None
                else:
                    self._growing[place] = known
                if len(self._growing) > _MAX_READERS:
                    self._growing.popitem(last=False)[1].reader = None
            return known


def _resolve(source: str | Path | LogStore) -> Path | tuple[LogStore, str | None]:
    """Resolve an argument to a path, or a store and optionally a run in it."""
    if not isinstance(source, str | Path):
        return source, None
    if is_store(source):
        return open_named(str(source))
    path = Path(source)
    if path.suffix and not path.exists():
        raise UsageError(f"There is no run log {str(path)!r}. Pass a file, or a folder that a Recorder writes to.")
    return path


class _Summary:
    """Summarises the entries of a log.

    Attributes:
        key: The prefix of the ids of its runs.
        of_call: The run of each call.
        texts: The searchable text of each run, by its id, compressed.
    """

    def __init__(self, place: LogPlace, log: RunLog) -> None:
        self.key = hashlib.sha256(place.key.encode("utf-8", "surrogateescape")).hexdigest()[:10]
        self.of_call: dict[str, RunRow] = {}
        self.texts: dict[str, list[bytes]] = {}
        self._log = log
        self._name = place.name
        self._runs: dict[str, RunRow] = {}
        self._new: dict[str, list[str]] = {}
        self._length: dict[str, int] = {}
        self._added: dict[str, set[str]] = {}

    @property
    def runs(self) -> list[RunRow]:
        """The top-level runs."""
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
        """Compress the text collected so far."""
        for run, parts in self._new.items():
            text = "\n".join(parts).casefold().encode("utf-8", "surrogatepass")
            self.texts.setdefault(run, []).append(zlib.compress(text, 1))
        self._new.clear()

    def _call(self, entry: CallEntry) -> None:
        parent = None if entry.parent is None else self.of_call.get(entry.parent.call)
        info = parent or self._runs.get(entry.run)
        if info is None:
            number = f"-{len(self._runs)}" if self._runs else ""
            info = self._runs[entry.run] = RunRow(f"{self.key}{number}", entry.run, self._name)
            info.agent, info.model, info.started = entry.agent, entry.model, entry.time
        elif parent is None:
            info.outcome = ""  # it was resumed
        self.of_call[entry.call] = info

    def _event(self, entry: EventEntry, info: RunRow) -> None:
        fields, log = entry.fields, self._log
        if entry.decision is not None:
            info.counts.decided += 1
            _note(info.hooks, entry.decision["hook"])
        info.seconds = max(info.seconds, entry.time - info.started)
        match entry.type:
            case "PreCall" if not info.prompt:
                words = " ".join([log.message(ref).text for ref in log.messages(entry)])
                info.prompt = " ".join(words[: _PROMPT * 2].split())[:_PROMPT]
            case "PostReasoning":
                info.counts.rounds += 1
            case "PostActing":
                info.counts.tools += 1
            case "Error":
                info.counts.errors += 1
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
            if ref not in self._added.setdefault(info.id, set()):
                self._add(info, ref, log.message(ref).text)

    def _messages(self, entry: EventEntry) -> Iterator[str]:
        """Yield the refs of the messages that an event adds to the conversation."""
        fields = entry.fields
        for listed in (fields.get("input_messages"), fields.get("history")):
            yield from () if listed is None else listed.add
        for ref in (fields.get("reasoning_result"), fields.get("final_message"), *fields.get("messages", ())):
            if ref is not None:
                yield ref

    def _add(self, info: RunRow, ref: str, text: str) -> None:
        """Add a text to the searchable text, once."""
        added, length = self._added.setdefault(info.id, set()), self._length.get(info.id, 0)
        if text and length < _MAX_TEXT and not (ref and ref in added):
            added.add(ref)
            self._length[info.id] = length + len(text)
            self._new.setdefault(info.id, []).append(text)

    def _ended(self, entry: EventEntry, info: RunRow) -> None:
        above = self._log.calls[entry.call].parent
        if above is not None and above.call in self.of_call:
            return  # its usage is included in its caller's
        usage = usage_of(entry.fields.get("usage"))
        info.outcome = entry.fields.get("outcome", "completed")
        info.counts.tokens += usage.total_tokens
        info.counts.cost += usage.cost or 0.0


def _note(names: list[str], name: str) -> None:
    if name not in names:
        names.append(name)
