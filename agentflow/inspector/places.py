"""Where run logs are: files, and stores; read alike, from a place on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentflow.errors import StoreError
from agentflow.runlog.keeping import KeptLog, LogStore

__all__ = ["LogFile", "Place", "StoredLog", "stored_logs"]

_PATIENCE = 60.0


class Place(Protocol):
    """Where a log is; two of the same log are equal."""

    @property
    def name(self) -> str:
        """What it is called in the list of runs."""
        ...

    @property
    def key(self) -> str:
        """What tells it from all others."""
        ...

    def stamp(self) -> tuple[float, int]:
        """Changes when the log does."""
        ...

    def read(self, begin: int = 0) -> tuple[bytes, int]:
        """What stands there from a place on, and the place behind it.

        Raises:
            OSError: It cannot be read.
            StoreError: Likewise.
        """
        ...


@dataclass(frozen=True)
class LogFile:
    """A file."""

    path: Path

    @property
    def name(self) -> str:
        """Its name."""
        return self.path.name

    @property
    def key(self) -> str:
        """Its whole path."""
        return str(self.path.resolve())

    def stamp(self) -> tuple[float, int]:
        """When it was changed, and its size."""
        try:
            found = self.path.stat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_size

    def read(self, begin: int = 0) -> tuple[bytes, int]:
        """What stands there from a byte on; its last line may be one that is being written."""
        with self.path.open("rb") as file:
            file.seek(begin)
            data = file.read()
        return data, begin + len(data)


@dataclass(frozen=True)
class StoredLog:
    """A log in a store; or, with `problem`, the store, which cannot be read."""

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
        """When it was written, and its size."""
        return self.updated, self.size

    def read(self, begin: int = 0) -> tuple[bytes, int]:
        """The lines from a part on."""
        if self.problem:
            raise StoreError(self.problem)
        kept = self.store.log_lines(self.run_id, begin).result(_PATIENCE)
        return "".join([f"{line}\n" for line in kept.lines]).encode("utf-8", "replace"), kept.behind


def stored_logs(store: LogStore, run_id: str | None = None) -> Iterator[StoredLog]:
    """The logs of a store, or of one run in it; where it cannot be read, one that says why."""
    where = str(getattr(store, "url", type(store).__name__))
    try:
        kept: list[KeptLog] = store.logs().result(_PATIENCE)
    except (StoreError, TimeoutError) as error:
        yield StoredLog(store, where, "", problem=str(error))
        return
    for log in kept:
        if run_id is None or run_id == log.run_id:
            yield StoredLog(store, where, log.run_id, log.updated, log.size)
