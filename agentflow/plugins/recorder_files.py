"""Where a `Recorder` writes: one file, a folder with a file for each run, or a store.

Rules:

1. Each write is whole lines, added to the end in one piece: several processes may write into one file.
2. What a killed process has left half written is ended by whoever writes next, so that nothing is lost but that line.
3. A folder that is full, or old, loses its oldest logs; those that somebody writes to stay.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from agentflow.ground.logs import logger
from agentflow.runlog.keeping import LogStore

__all__ = ["Bounds", "FileSink", "Sink", "StoreSink", "file_of", "is_folder", "prune_logs"]

_IN_USE = 60.0
"""Seconds since its last change for which a log is taken to be in use."""


class Sink(Protocol):
    """Where lines go."""

    def open(self) -> str:
        """Begin; returns what ends the refs of this writer, empty where nobody else has written."""
        ...

    def write(self, lines: Sequence[str]) -> None:
        """Add lines."""
        ...

    def close(self) -> None:
        """Write no more for now."""
        ...


class FileSink:
    """A file.

    Args:
        path: Which one; it and its folder are made where they are missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def open(self) -> str:
        """Open the file; see `Sink`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        try:
            self._fd = os.open(self._path, flags | os.O_EXCL, 0o644)
        except FileExistsError:
            self._fd = os.open(self._path, flags, 0o644)
            return f"@{secrets.token_hex(3)}"
        return ""

    def write(self, lines: Sequence[str]) -> None:
        """Add lines to the end."""
        assert self._fd is not None
        data = "".join([f"{line}\n" for line in lines]).encode("utf-8", "replace")
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class StoreSink:
    """A run's log in a store.

    Args:
        store: The store.
        run_id: The run.
    """

    def __init__(self, store: LogStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._writer = ""
        self._number = 0

    def open(self) -> str:
        """Begin; see `Sink`."""
        self._writer = secrets.token_hex(5)
        self._number = 0
        return f"@{self._writer[:6]}"

    def write(self, lines: Sequence[str]) -> None:
        """Add lines, and wait until they are kept."""
        self._number += 1
        self._store.keep_log(self._run_id, self._writer, self._number, "\n".join(lines)).result()

    def close(self) -> None:
        """There is nothing to let go of: the store is its owner's."""


class Bounds:
    """How much a folder keeps.

    Args:
        most_bytes: Of all logs together; None: any number.
        most_seconds: How old a log may get; None: any age.
    """

    def __init__(self, most_bytes: int | None, most_seconds: float | None) -> None:
        self.most_bytes = most_bytes
        self.most_seconds = most_seconds


def is_folder(path: str | Path) -> bool:
    """Whether a path names a folder: it is one, ends in a slash, or has no suffix."""
    said = str(path)
    return said.endswith(("/", os.sep)) or Path(said).is_dir() or not Path(said).suffix


def file_of(folder: Path, run_id: str) -> Path:
    """The file of a run's log."""
    return folder / f"{quote(run_id, safe='')[:200] or 'run'}.jsonl"


def prune_logs(folder: Path, bounds: Bounds) -> None:
    """Delete the oldest logs of a folder that holds too much."""
    if bounds.most_bytes is None and bounds.most_seconds is None:
        return
    now = time.time()
    found: list[tuple[float, int, Path]] = []
    for path in folder.glob("*.jsonl"):
        try:
            stat = path.stat()
        except OSError:
            continue  # another process was faster
        found.append((stat.st_mtime, stat.st_size, path))
    left = sum(size for _, size, _ in found)
    for changed, size, path in sorted(found):
        age = now - changed
        too_old = bounds.most_seconds is not None and age > bounds.most_seconds
        too_much = bounds.most_bytes is not None and left > bounds.most_bytes
        if age < _IN_USE or not (too_old or too_much):
            continue
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("the old run log {} cannot be deleted: {}", path, error)
            continue
        left -= size
