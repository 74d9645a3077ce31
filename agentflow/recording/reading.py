"""The reader of run logs: validates each line once, against the schema and against the earlier lines.

Rules:

1. A `RunLog` consists of typed entries that are all usable: every ref resolves, every message, call and result can be built,
   every list has as many messages as it states. Code that uses a `RunLog` never reads JSON.
2. An invalid line is a `RunLogError` that names the line and the problem.
3. A killed process may leave an incomplete line. It is skipped at the end of the file, before another writer's first line,
   and between the lines of several writers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from pydantic_core import ValidationError, from_json

from agentflow._support.json_text import all_finite
from agentflow._support.validation import adapter_of, first_problem
from agentflow.errors import StoreError, UsageError
from agentflow.recording.entries import (
    FORM,
    VERSION,
    AnsweredEntry,
    CallEntry,
    ChunksEntry,
    Entry,
    EventEntry,
    FactEntry,
    FinishedEntry,
    HookChange,
    HookEntry,
    LogEntry,
    MessageEntry,
    PiecesEntry,
    ReplyEntry,
    RequestEntry,
    StartedEntry,
    ToolEntry,
    ToolResultEntry,
    ToolUseEntry,
    WrittenEntry,
)
from agentflow.recording.fields import CHANGED, REQUIRED, VerdictData
from agentflow.recording.log import LISTS, RunLog

__all__ = ["LogReader", "RunLogError", "load", "read_lines"]

MAX_LINE_BYTES: Final = 256 * 1024 * 1024
"""Size limit of a line in bytes; an image shown to a model is in one line."""
_MAY_OVERFLOW = re.compile(rb"\d[eE]\+?\d{3}|\d{300}")
"""A number that may be too large for a float; the JSON parser would read it as infinite."""


class RunLogError(StoreError):
    """A run log is missing, damaged or too new to be read."""


def load(path: str | Path) -> RunLog:
    """Read a run log.

    Args:
        path: The file. An incomplete last line, as left by a killed process, is skipped.

    Raises:
        RunLogError: The file is missing, is not a run log, is damaged, or was written by a newer agentflow.

    Example:
        >>> load("runs/no-such-run.jsonl")
        Traceback (most recent call last):
        agentflow.recording.reading.RunLogError: The run log runs/no-such-run.jsonl cannot be read: No such file or directory.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # a path with a null character raises a ValueError
        reason = getattr(error, "strerror", None) or error
        raise RunLogError(f"The run log {path} cannot be read: {reason}.") from error
    return read_lines(data.split(b"\n"), str(path))


def read_lines(lines: Iterable[bytes | str], name: str = "these lines") -> RunLog:
    """Read the lines of a run log.

    Args:
        lines: The lines, in order.
        name: Their source, for error messages.

    Raises:
        RunLogError: They are not a run log, are damaged, or were written by a newer agentflow.
    """
    reader = LogReader(name)
    for line in lines:
        reader.take(line)
    return reader.end()


class LogReader:
    """Reads a run log line by line, also while it grows.

    Args:
        name: The source, for error messages.

    Attributes:
        log: The log so far.
        number: The number of lines read.
    """

    def __init__(self, name: str) -> None:
        self.log = RunLog([], name)
        self.number = 0
        self._form = adapter_of(WrittenEntry)
        self._writers = 0
        self._torn = 0
        self._numbers: dict[str, list[int]] = {}
        """Maps each call to the number of each writer's last entry."""
        self._dropped = 0
        self._open: dict[tuple[str, int], str] = {}
        self._ended: set[str] = set()

    def take(self, line: bytes | str) -> Entry | None:
        """Read the next line.

        Returns:
            Its entry; None if the line is empty or incomplete.

        Raises:
            RunLogError: The line is invalid, does not fit the earlier lines, or was written by a newer agentflow.
        """
        self.number += 1
        # `surrogatepass`: a line with a lone surrogate is then refused as invalid JSON, with its number.
        raw = line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line
        if not raw.strip():
            return None
        data = self._parsed(raw)
        if data is None:
            # Of two incomplete lines, only the last can be the end of the file.
            if self._torn:
                self._check_torn()
            self._torn = self.number
            return None
        self._check_form(data)
        if self._torn and data.get("kind") != "log":
            self._check_torn()
        self._torn = 0
        try:
            entry = cast("Entry", self._form.validate_python(data, context=self.log))
            # Checked and counted before it is added, but built afterwards, since building reads the entry from the log.
            self._check(entry)
            self._count(entry)
            self.log.add(entry)
            self._build(entry)
        except (ValidationError, ValueError, TypeError, StoreError, UsageError) as error:
            problem = first_problem(error) if isinstance(error, ValidationError) else str(error)
            raise self._damaged(problem.rstrip(".")) from error
        self._note(entry)
        return entry

    def end(self) -> RunLog:
        """Return the whole log.

        Raises:
            RunLogError: There was no valid line, or lines are missing.
        """
        if not self.log.entries:
            raise RunLogError(
                f"{self.log.name} is not a run log: it has no line with form={FORM!r}. A Recorder writes one."
            )
        if lost := self.lost():
            raise RunLogError(f"{self.log.name} is damaged: {lost}")
        return self.log

    def lost(self) -> str:
        """Return a description of missing lines, or an empty text: a call has ended, but the end of work in it is missing."""
        for (call, n), what in self._open.items():
            # If the recorder has reported dropped entries, a missing end does not mean that the file is damaged.
            if call in self._ended and not self._dropped:
                return (
                    f"the line with the end of {what} {n} of call {call!r:.80} is missing, although the call has ended. "
                    "Restore it from a backup."
                )
        return ""

    def _check_torn(self) -> None:
        """Refuse an incomplete line if the file has a single writer, since that writer continued after the line."""
        # With several writers, the lines after it may belong to another one.
        if self._writers == 1:
            raise self._damaged("it is not JSON", self._torn)

    def _damaged(self, reason: str, number: int | None = None) -> RunLogError:
        where = f"{self.log.name}, line {self.number if number is None else number},"
        return RunLogError(f"{where} is not a run log entry: {reason}.")

    def _parsed(self, raw: bytes) -> dict[str, Any] | None:
        if len(raw) > MAX_LINE_BYTES:
            raise self._damaged(f"it has {len(raw)} bytes; the limit is {MAX_LINE_BYTES}")
        try:
            data: Any = from_json(raw, allow_inf_nan=False)
        except ValueError:
            return None
        # The search over the bytes is fast, so that only few lines need a check of all their numbers.
        if _MAY_OVERFLOW.search(raw) and not all_finite(data):
            raise self._damaged("it contains a number that is too large")
        if not isinstance(data, dict):
            raise self._damaged("it is not a JSON object")
        return cast("dict[str, Any]", data)

    def _check_form(self, data: Mapping[str, Any]) -> None:
        name, form, version = self.log.name, data.get("form"), data.get("version")
        if not self.log.entries and form != FORM:
            raise RunLogError(f"{name} is not a run log: its first line has no form={FORM!r}. A Recorder writes one.")
        if form == FORM and isinstance(version, int) and version > VERSION:
            raise RunLogError(
                f"{name} is a run log of form {version}; this agentflow reads forms up to {VERSION}. Upgrade agentflow."
            )

    def _count(self, entry: Entry) -> None:
        """Check that no earlier entry of the call is missing."""
        if isinstance(entry, CallEntry):
            self._numbers.setdefault(entry.call, []).append(0)
        elif (
            not isinstance(entry, LogEntry | MessageEntry | ToolUseEntry | ToolResultEntry | ToolEntry) and entry.number
        ):
            last = self._numbers[entry.call]
            if entry.number - 1 not in last:
                raise ValueError(f"a line is missing, entry {last[-1] + 1} of call {entry.call!r:.80}")
            # Several writers may write entries of one call, and each writer numbers its own.
            last[last.index(entry.number - 1)] = entry.number

    # ---- checks against earlier lines

    def _check(self, entry: Entry) -> None:
        """Check the constraints that the schema of one line cannot express."""
        if isinstance(entry, EventEntry | ChunksEntry | PiecesEntry | HookEntry | FactEntry):
            self._check_verdicts(entry)
        match entry:
            case LogEntry():
                if entry.form != FORM:
                    raise ValueError(f"form: must be {FORM!r}, not {entry.form!r:.80}")
            case CallEntry():
                self._check_call(entry)
            case EventEntry():
                for name in REQUIRED.get(entry.type, ()):
                    if name not in entry.fields:
                        raise ValueError(f"fields: {entry.type} needs {name}")
            case ChunksEntry() | PiecesEntry() | ReplyEntry():
                if len(entry.pieces) != len(entry.at):
                    raise ValueError(f"at: {len(entry.at)} times for {len(entry.pieces)} pieces")
            case HookEntry():
                for change in entry.changes:
                    self._check_change(entry, change)
            case _:
                pass

    def _check_verdicts(self, entry: EventEntry | ChunksEntry | PiecesEntry | HookEntry | FactEntry) -> None:
        """Check that the refs of verdicts resolve."""
        found: list[VerdictData | None] = []
        match entry:
            case HookEntry():
                found = [entry.verdict]
            case FactEntry():
                found = [entry.fields.get("verdict"), *entry.fields.get("decisions", {}).values()]
            case EventEntry():
                found = [(entry.decision or {}).get("verdict"), entry.fields.get("approval")]
            case _:
                found = [(entry.decision or {}).get("verdict")]
        for verdict in found:
            for name, value in (verdict or {}).items():
                kind, refs = self.log.carried_refs(value, known=False)
                for ref in refs if entry.number else ():
                    if not self.log.has(kind, ref):
                        raise ValueError(f"{name} of a verdict: no earlier line contains the {kind} {ref!r:.80}")

    def _check_call(self, entry: CallEntry) -> None:
        above = entry.parent
        while above is not None:
            if above.call == entry.call:
                raise ValueError(f"parent: the call {entry.call!r:.80} would run inside itself")
            known = self.log.calls.get(above.call)
            above = None if known is None else known.parent

    def _check_change(self, entry: HookEntry, change: HookChange) -> None:
        form = CHANGED.get(change.field)
        if form is None or (entry.via == "around" and change.field not in LISTS):  # a wrapper may emit any value
            return
        for value in (change.before, change.after):
            if value is None and change.field not in LISTS:
                continue
            try:
                adapter_of(form).validate_python(value, context=self.log)
            except ValidationError as error:
                raise ValueError(f"changes of {change.field}: {first_problem(error)}") from None

    def _build(self, entry: Entry) -> None:
        """Build the object of an entry, so that an invalid one is an error here and not later."""
        match entry:
            case MessageEntry():
                self.log.message(entry.ref)
            case ToolUseEntry():
                self.log.tool_use(entry.ref)
            case ToolResultEntry():
                self.log.tool_result(entry.ref)
            case ToolEntry():
                self.log.tool_spec(entry.ref)
            case FactEntry():
                self.log.decisions(entry)
            case _:
                pass

    def _note(self, entry: Entry) -> None:
        match entry:
            case LogEntry():
                self._writers += 1
                self._dropped += entry.lost
            case RequestEntry():
                self._open[entry.call, entry.n] = "request"
            case StartedEntry():
                self._open[entry.call, entry.n] = "tool call"
            case AnsweredEntry() | FinishedEntry():
                self._open.pop((entry.call, entry.n), None)
            case EventEntry() if entry.type == "CallEnded":
                self._ended.add(entry.call)
            case CallEntry():
                self._ended.discard(entry.call)
            case _:
                pass
