"""The targets of a `Recorder`: one file, a folder with a file for each run, or a store.

Rules:

1. Each write appends whole lines at once: several processes may write into one file.
2. If a killed process has left an incomplete line, the next writer starts a new line, so that no other line is lost.
3. A write that a store cannot accept yet is repeated later, and stored once.
4. If a folder or a store exceeds its limits, the oldest logs are deleted; logs in use stay.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, cast
from urllib.parse import quote

from agentflow._support.logs import logger
from agentflow._support.shown import without_password
from agentflow.errors import StoreError, UsageError
from agentflow.recording.keeping import KeptLog, LogStore, logs_to_delete

__all__ = ["FileSink", "Sink", "StoreTarget", "file_of", "is_folder", "prune_folder", "prune_store", "target_of"]

_PATIENCE = 60.0
"""Seconds to wait for a store."""
_MAX_WAITING = 16_000_000
"""The maximum number of characters kept in memory for an unreachable store."""
_PAUSE = 5.0
"""Seconds until the next attempt to write to an unreachable store."""


class Sink(Protocol):
    """A destination of lines."""

    def open(self) -> str:
        """Open the destination, and return a suffix for this writer's refs; it is empty if they are unique without one."""
        ...

    def write(self, lines: Sequence[str]) -> None:
        """Add lines."""
        ...

    def close(self) -> None:
        """Release the destination's resources."""
        ...


class FileSink:
    """A file to which lines are appended.

    Args:
        path: The file's path; the file and its folder are created if missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def open(self) -> str:
        """Open the file; see `Sink`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # `O_BINARY`: otherwise Windows converts line ends. `O_RDWR`, since `write` reads the last byte.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        try:
            # Exactly one writer creates the file; only its refs need no suffix.
            self._fd = os.open(self._path, flags | os.O_EXCL, 0o644)
        except FileExistsError:
            self._fd = os.open(self._path, flags, 0o644)
            return f"@{secrets.token_hex(3)}"
        return ""

    def write(self, lines: Sequence[str]) -> None:
        """Add lines to the end."""
        assert self._fd is not None
        # `replace`: a text of a model can contain lone surrogates, which UTF-8 refuses.
        data = "".join([f"{line}\n" for line in lines]).encode("utf-8", "replace")
        if size := os.fstat(self._fd).st_size:
            os.lseek(self._fd, size - 1, os.SEEK_SET)  # Windows lacks `pread`; the position does not affect appends
            if os.read(self._fd, 1) != b"\n":
                data = b"\n" + data
        while data:
            data = data[os.write(self._fd, data) :]  # a write may be partial

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class StoreTarget:
    """A store with a log for each run. While it is unreachable, lines wait, in order, for a later write of any run.

    Args:
        store: The store of the logs.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._waiting: deque[tuple[str, str, int, str]] = deque()
        self._retry_at = 0.0  # 0 while the store is reachable

    def __call__(self, run_id: str) -> Sink:
        """Return the sink of a run's log."""
        return StoreSink(self, run_id)

    def write(self, run_id: str, writer: str, number: int, lines: str) -> None:
        """Add lines to a run's log, and wait until they are stored, or keep them while the store is unreachable.

        Raises:
            StoreError: The failure is permanent, or too many lines are kept.
        """
        self._waiting.append((run_id, writer, number, lines))
        if time.monotonic() < self._retry_at:
            return
        try:
            while self._waiting:
                # Removed only after success: the store ignores a repeated write, by its writer and number.
                self._store.keep_log(*self._waiting[0]).result(_PATIENCE)
                self._waiting.popleft()
        except StoreError as error:
            # The caller stops writing after this error, so the kept lines are discarded to free their memory.
            if not error.retryable or sum(len(batch[-1]) for batch in self._waiting) > _MAX_WAITING:
                self._waiting.clear()
                raise
            if not self._retry_at:
                logger.warning("run logs are kept in memory until the store is reachable again: {}", error)
            self._retry_at = time.monotonic() + _PAUSE
        else:
            self._retry_at = 0.0


class StoreSink:
    """A run's log in a store.

    Args:
        target: The store.
        run_id: The run's id.
    """

    def __init__(self, target: StoreTarget, run_id: str) -> None:
        self._target = target
        self._run_id = run_id
        self._writer = ""
        self._number = 0

    def open(self) -> str:
        """Choose an id for this writer; see `Sink`."""
        self._writer = secrets.token_hex(5)
        return f"@{self._writer[:6]}"

    def write(self, lines: Sequence[str]) -> None:
        """Add lines."""
        self._number += 1
        text = "\n".join(lines).encode("utf-8", "replace").decode()
        self._target.write(self._run_id, self._writer, self._number, text)

    def close(self) -> None:
        """Do nothing: the caller who created the store closes it."""


def is_folder(path: str | Path) -> bool:
    """Return whether a path names a folder: it exists as a folder, ends with a slash, or has no suffix and does not
    exist. (`/dev/null` has no suffix, but it exists as a file.)
    """
    text = str(path)
    path = Path(text)
    return text.endswith(("/", os.sep)) or path.is_dir() or not (path.suffix or path.exists())


def file_of(folder: Path, run_id: str) -> Path:
    """Return the file of a run's log."""
    # A run id may contain slashes, and most file systems limit a name to 255 bytes.
    return folder / f"{quote(run_id, safe='')[:200] or 'run'}.jsonl"


def prune_folder(folder: Path, max_bytes: int | None, max_age: timedelta | None) -> None:
    """Delete the oldest logs of a folder that exceeds its limits."""
    found: list[KeptLog] = []
    for path in folder.glob("*.jsonl"):
        try:
            stat = path.stat()
        except OSError:
            continue  # another process has deleted the log meanwhile
        found.append(KeptLog(path.name, stat.st_mtime, stat.st_mtime, stat.st_size))
    for log in logs_to_delete(found, time.time(), max_bytes, max_age):
        try:
            (folder / log.run_id).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("the old run log {} cannot be deleted: {}", folder / log.run_id, error)


def prune_store(store: LogStore, max_bytes: int | None, max_age: timedelta | None) -> None:
    """Delete the oldest logs of a store that exceeds its limits."""
    try:
        store.prune_logs(max_bytes=max_bytes, max_age=max_age).result(_PATIENCE)
    except (StoreError, TimeoutError) as error:
        logger.warning("old run logs cannot be deleted: {}", error)


Prune: TypeAlias = Callable[[int | None, timedelta | None], None]


def target_of(where: str | Path | LogStore | None) -> tuple[Callable[[str], Sink] | None, Prune | None]:
    """Return the factory of sinks, or None for memory only; if each run has its own log, also the function that deletes the
    oldest logs."""
    if where is None:
        return None, None
    if isinstance(where, str) and "://" in where:
        raise UsageError(f"Recorder({without_password(where)!r}): pass the store itself, Recorder(SqlStore(...)).")
    if isinstance(where, str | Path):
        path = Path(where)
        if is_folder(where):
            return lambda run: FileSink(file_of(path, run)), partial(prune_folder, path)
        return lambda _: FileSink(path), None
    if not isinstance(cast("object", where), LogStore):
        raise UsageError(
            f"Recorder({where!r:.60}): use a folder such as 'runs/', a file such as 'runs.jsonl', a store for run logs (a "
            "SqlStore, or your own LogStore), or None for memory only."
        )
    return StoreTarget(where), partial(prune_store, where)
