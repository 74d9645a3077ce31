"""Run logs in files, folders and stores: which runs there are, what each came to, and their lines as they grow.

Rules:

1. Nothing is parsed that is not asked for: a list of runs reads a few lines of each log, and a log again only if it has
   changed.
2. A run is asked for by an id that was given out; no path comes from outside.
3. Only whole lines are handed out; one that is being written comes later.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from agentflow.errors import StoreError, UsageError
from agentflow.inspector.places import LogFile, Place, stored_logs
from agentflow.runlog.keeping import LogStore
from agentflow.runlog.reading import RunLogError, entry_data, none_in
from agentflow.stored_runs import is_store, open_named

__all__ = ["Logs", "RunInfo", "Source"]

_KIND = re.compile(rb'"kind":\s?"(\w+)"')
_TYPE = re.compile(rb'"type":\s?"(\w+)"')
_CALL = re.compile(rb'"call":\s?"([^"]+)"')
_DECIDED = re.compile(rb'"decision":\s?\{')
_HEAD = 400
_SAID = 200


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
        problem: Why the file cannot be read; empty if it can.
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
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass
class Source:
    """Where the lines of a run are.

    Attributes:
        place: Where the log is.
        calls: The calls of the run, where the log holds others too; None: all lines are its own.
        problem: Why they cannot be read; empty if they can.
    """

    place: Place
    run: str
    calls: set[str] | None = None
    problem: str = ""

    def lines(self, begin: int = 0) -> tuple[bytes, int]:
        """The whole lines from a place in the log on, and the place behind them."""
        try:
            data, behind = self.place.read(begin)
        except (OSError, StoreError):
            return b"", begin
        torn = len(data) - data.rfind(b"\n") - 1
        data = data[: len(data) - torn]
        return (data if self.calls is None else b"".join(self._mine(data, self.calls))), behind - torn

    def _mine(self, data: bytes, calls: set[str]) -> Iterator[bytes]:
        for line in data.splitlines(keepends=True):
            found = _CALL.search(line[:_HEAD])
            if found is None or _kind(line) not in _OF_CALLS:
                yield line
                continue
            if _kind(line) == b"call":
                entry = _parsed(line)
                if entry.get("run") == self.run or _caller(entry) in calls:
                    calls.add(str(entry.get("call")))
            if found[1].decode("utf-8", "replace") in calls:
                yield line


_OF_CALLS = frozenset(b"call event chunks pieces hook request reply answered started finished interrupt fact".split())


@dataclass
class _Scanned:
    """What a log was when it was looked through."""

    stamp: tuple[float, int]
    runs: list[RunInfo] = field(default_factory=list[RunInfo])
    sources: dict[str, Source] = field(default_factory=dict[str, Source])


class Logs:
    """Run logs in files, folders and stores.

    Args:
        runs: Files; folders of `*.jsonl` files, which may come into being later; stores, also by name.

    Raises:
        UsageError: A file is not there.
        StoreError: A database is not there.
    """

    def __init__(self, runs: Sequence[str | Path | LogStore]) -> None:
        self._where = [_where(one) for one in runs]
        self._scanned: dict[Place, _Scanned] = {}

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

    def runs(self) -> list[RunInfo]:
        """All runs, the newest first."""
        found = [run for place in self.places() for run in self._scan(place).runs]
        return sorted(found, key=lambda run: run.started, reverse=True)

    @property
    def problem(self) -> str:
        """Why nothing of it can be shown; empty if something can, or if nothing is there yet."""
        found = self.runs()
        return found[0].problem if all(run.problem for run in found) and found else ""

    def source(self, run_id: str) -> Source | None:
        """Where a run's lines are; None: there is no such run."""
        for place in self.places():
            if run_id in (known := self._scan(place)).sources:
                return known.sources[run_id]
        return None

    def _scan(self, place: Place) -> _Scanned:
        known, stamp = self._scanned.get(place), place.stamp()
        if known is None or known.stamp != stamp:
            known = self._scanned[place] = _scanned(place, stamp)
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


def _kind(line: bytes) -> bytes:
    found = _KIND.search(line[:_HEAD])
    return found[1] if found is not None else b""


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}


def _caller(entry: dict[str, Any]) -> str:
    """Of a sub-agent's call, the call that it is a part of."""
    parent: dict[str, Any] = entry.get("parent") or {}
    return str(parent.get("call", ""))


def _scanned(place: Place, stamp: tuple[float, int]) -> _Scanned:
    made = _Scanned(stamp)
    key = hashlib.sha256(place.key.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    try:
        data, _ = place.read()
    except (OSError, StoreError) as error:
        why = getattr(error, "strerror", None) or error
        made.runs.append(RunInfo(key, "", place.name, problem=f"{place.name} cannot be read: {why}"))
        return made
    scan = _Scan(place.name, key)
    try:
        for number, line in enumerate(data[: data.rfind(b"\n") + 1].split(b"\n"), 1):
            scan.line(line, number)
        if data.strip() and not scan.is_log:
            raise none_in(place.name)
        made.runs = list(scan.runs.values())
    except RunLogError as error:
        made.runs.append(RunInfo(key, "", place.name, started=stamp[0] / 1e9, problem=str(error)))
    several = len(made.runs) > 1
    for run in made.runs:
        calls = {call for call, of in scan.of_call.items() if of is run}
        made.sources[run.id] = Source(place, run.run, calls if several else None, run.problem)
    return made


class _Scan:
    """Looks through the lines of a file."""

    def __init__(self, name: str, key: str) -> None:
        self.runs: dict[str, RunInfo] = {}
        self.of_call: dict[str, RunInfo] = {}
        self.is_log = False
        self._name = name
        self._key = key
        self._words = ""
        self._inner: set[str] = set()  # calls of sub-agents

    def line(self, line: bytes, number: int) -> None:
        kind = _kind(line)
        if kind == b"log" or not self.is_log:
            self.is_log = entry_data(line, self._name, number, first=not self.is_log) is not None or self.is_log
        match kind:
            case b"call":
                self._call(_parsed(line))
            case b"message" if not self._words:
                self._words = _words_of(_parsed(line))
                for run in self.runs.values():
                    run.said = run.said or self._words
            case b"event":
                self._event(line)
            case _:
                pass

    def _call(self, entry: dict[str, Any]) -> None:
        if not isinstance(entry.get("call"), str):
            return
        parent = self.of_call.get(_caller(entry))
        run = str(entry.get("run", ""))
        info = parent or self.runs.get(run)
        if info is None:
            number = f"-{len(self.runs)}" if self.runs else ""
            info = self.runs[run] = RunInfo(f"{self._key}{number}", run, self._name)
            info.agent, info.model = str(entry.get("agent", "")), str(entry.get("model", ""))
            info.started = _number(entry.get("time"))
            self._words = ""
        elif parent is None:
            info.outcome = ""  # it was resumed
        if parent is not None:
            self._inner.add(entry["call"])
        self.of_call[entry["call"]] = info

    def _event(self, line: bytes) -> None:
        kind, call = _TYPE.search(line[:_HEAD]), _CALL.search(line[:_HEAD])
        info = None if call is None else self.of_call.get(call[1].decode("utf-8", "replace"))
        if kind is None or info is None:
            return
        info.decided += _DECIDED.search(line) is not None
        match kind[1]:
            case b"PostReasoning":
                info.rounds += 1
            case b"PostActing":
                info.tools += 1
            case b"Error":
                info.errors += 1
            case b"CallEnded":
                self._ended(info, _parsed(line))
            case _:
                pass

    def _ended(self, info: RunInfo, entry: dict[str, Any]) -> None:
        if not entry:
            return  # it is torn
        fields: dict[str, Any] = entry.get("fields") or {}
        info.seconds = max(info.seconds, _number(entry.get("time")) - info.started)
        if entry.get("call") in self._inner:
            return  # its usage is in that of its caller
        usage: dict[str, Any] = fields.get("usage") or {}
        info.outcome = str(fields.get("outcome", "completed"))
        info.tokens += int(_number(usage.get("input_tokens")) + _number(usage.get("output_tokens")))
        info.cost += _number(usage.get("cost"))


def _words_of(entry: dict[str, Any]) -> str:
    message: dict[str, Any] = entry.get("message") or {}
    if message.get("role") != "user":
        return ""
    content: Iterable[Any] = message.get("content") or ()
    texts = [str(block.get("text", "")) for block in content if isinstance(block, dict)]  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return " ".join(" ".join(texts)[: _SAID * 2].split())[:_SAID]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
