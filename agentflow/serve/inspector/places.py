"""Locations of run logs: files and stores, with the same interface for incremental reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentflow.errors import StoreError
from agentflow.recording.keeping import KeptLog, LogStore

_PATIENCE = 60.0


class LogPlace(Protocol):
    """The location of a log; two locations of the same log are equal."""

    @property
    def name(self) -> str:
        """Its name in the list of runs."""
        ...

    @property
    def key(self) -> str:
        """A unique key."""
        ...

    def stamp(self) -> tuple[float, int]:
        """Return a value that changes with the log."""
        ...

    def read(self, begin: int = 0) -> tuple[bytes, int]:
        """Return the content from a position on, and the end position.

        Raises:
            OSError: Reading fails.
            StoreError: Reading fails.
        """
        ...


@dataclass(frozen=True)
class LogFile:
    """A log in a file."""

    path: Path

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @property
    def key(self) -> str:
        """The file's full path."""
        return str(self.path.resolve())

    def stamp(self) -> tuple[float, int]:
        """Return the time of the last change, and the size."""
        try:
            found = self.path.stat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_size

    def read(self, begin: int = 0) -> tuple[bytes, int]:
        """Read from a byte offset on; the last line may be incomplete."""
        with self.path.open("rb") as file:
            file.seek(begin)
            data = file.read()
        return data, begin + len(data)


@dataclass(frozen=True)
class StoredLog:
    """A log in a store; with `problem`, an unreadable store."""

    store: LogStore
    where: str
    run_id: str
    updated: float = field(default=0.0, compare=False)
    size: int = field(default=0, compare=False)
    problem: str = ""

    @property
    def name(self) -> str:
        """The database's name, and the run's."""
        where = Path(self.where).name
        return f"{where}#{self.run_id}" if self.run_id else where

    @property
    def key(self) -> str:
        """The database and the run."""
        return f"{self.where}#{self.run_id}"

    def stamp(self) -> tuple[float, int]:
        """Return the time of the last write, and the size."""
        return self.updated, self.size

    def read(self, begin: int = 0) -> tuple[bytes, int]:
        """Read the lines from a position on."""
        if self.problem:
            raise StoreError(self.problem)
        log = self.store.log_lines(self.run_id, begin).result(_PATIENCE)
        return "".join([f"{line}\n" for line in log.lines]).encode("utf-8", "replace"), log.end


def stored_logs(store: LogStore, run_id: str | None = None) -> Iterator[StoredLog]:
    """Yield the logs of a store, or of one run in it; for an unreadable store, yield one log with the reason."""
    where = str(getattr(store, "url", type(store).__name__))
    try:
        logs: list[KeptLog] = store.logs().result(_PATIENCE)
    except (StoreError, TimeoutError) as error:
        yield StoredLog(store, where, "", problem=str(error))
        return
    for log in logs:
        if run_id is None or run_id == log.run_id:
            yield StoredLog(store, where, log.run_id, log.updated, log.size)
