"""Run logs as they come from a file: lines checked, writers told apart, what a crash has cut off left out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from pydantic_core import ValidationError, from_json

from agentflow.errors import StoreError
from agentflow.ground.validation import adapter_of, first_problem
from agentflow.runlog.entries import FORM, VERSION, Entry, WrittenEntry
from agentflow.runlog.log import RunLog

__all__ = ["RunLogError", "entry_data", "load", "none_in", "read_lines"]


class RunLogError(StoreError):
    """A run log cannot be read, or holds no such thing."""


def load(path: str | Path) -> RunLog:
    """Read a run log.

    Args:
        path: The file. A line that a killed process has left half written is left out.

    Raises:
        RunLogError: There is no such file, it is no run log, or one of a newer agentflow.

    Example:
        >>> load("runs/no-such-run.jsonl")
        Traceback (most recent call last):
        agentflow.runlog.reading.RunLogError: The run log runs/no-such-run.jsonl cannot be read: No such file or directory.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise RunLogError(f"The run log {path} cannot be read: {error.strerror or error}.") from error
    return read_lines(data.split(b"\n"), str(path))


def read_lines(lines: Iterable[bytes | str], name: str = "these lines") -> RunLog:
    """Read a run log's lines, from a file or from wherever they were kept.

    Args:
        lines: The lines, in order.
        name: What they are, for errors.

    Raises:
        RunLogError: They are no run log, or one of a newer agentflow.
    """
    form = adapter_of(WrittenEntry)
    entries: list[Entry] = []
    for number, line in enumerate(lines, 1):
        data = entry_data(line, name, number, first=not entries)
        if data is None:
            continue
        try:
            entry = form.validate_python(data)
        except ValidationError as error:
            raise RunLogError(f"{name}, line {number}, is no entry of a run log: {first_problem(error)}.") from error
        entries.append(entry)
    if not entries:
        raise none_in(name)
    return RunLog(entries, name)


def none_in(name: str) -> RunLogError:
    """What is said of that which has no line of a run log."""
    return RunLogError(f"{name} holds no run log: it has no line with form={FORM!r}. A Recorder writes one.")


def entry_data(line: bytes | str, name: str, number: int, *, first: bool) -> dict[str, Any] | None:
    """A line as data.

    Args:
        line: The line.
        name: What it is a line of, for errors.
        number: Which one, likewise.
        first: Whether no entry stands before it.

    Returns:
        The data; None where nothing stands there, or half a line, which a crash has cut off.

    Raises:
        RunLogError: It is that of no run log, or of a newer agentflow's.
    """
    try:
        data: Any = from_json(line)
    except ValueError:
        return None
    if not isinstance(data, dict):
        raise RunLogError(f"{name}, line {number}, is no entry of a run log: it is no JSON object.")
    found = cast("dict[str, Any]", data)
    form, version = found.get("form"), found.get("version")
    if first and form != FORM:
        raise RunLogError(f"{name} is no run log: its first line has no form={FORM!r}. A Recorder writes one.")
    if form == FORM and isinstance(version, int) and version > VERSION:
        raise RunLogError(
            f"{name} is a run log of form {version}; this agentflow reads forms up to {VERSION}. Upgrade agentflow."
        )
    return found
