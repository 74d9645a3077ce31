"""The record of provider batches: one SQLite file with the submitted requests and the results.

Rules:

1. A batch is recorded before it is created at the provider, and its id afterwards: if a process ends in between, the batch is
   looked up at the provider.
2. A request has a key, the digest of its URL and body. Within a process each recorded request is claimed once, so two equal
   requests have two answers; the next process claims the same requests again.
3. One model uses the file: it is locked until the model closes it or the process ends.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from agentflow.errors import UsageError

_TABLES = """
create table if not exists batch (name text primary key, id text, at real not null, done integer not null default 0);
create table if not exists request (batch text, place integer, key text, primary key (batch, place));
create index if not exists request_of_key on request (key);
create table if not exists result (batch text, place integer, line blob, primary key (batch, place));
"""


class Slot(NamedTuple):
    """The position of a request in a batch."""

    batch: str
    place: int


class RecordedBatch(NamedTuple):
    """A batch that was submitted, perhaps by an earlier process.

    Attributes:
        name: The batch's name in this file; the ids of its requests are `name-place`.
        id: The batch's id at the provider; None if it is unknown.
        at: The time when the batch was recorded, in seconds since the epoch.
        size: The number of its requests.
    """

    name: str
    id: str | None
    at: float
    size: int


class BatchRecord:
    """The record in a file.

    Attributes:
        close: Closes the file; called when the record is discarded.

    Raises:
        UsageError: The file cannot be opened, or another process or model is using it.
    """

    def __init__(self, path: Path) -> None:
        # Both sets are only in memory: the next process claims all requests again (rule 2).
        self._claimed: set[Slot] = set()
        self._hidden: set[str] = set()
        try:
            # Waiting for the lock is useless: its owner holds it until its process ends. No implicit transactions. A
            # model may be used in one event loop after another, in different threads.
            self._file = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            # A discarded model releases the lock; `finalize` also runs only once.
            self.close = weakref.finalize(self, self._file.close)
            self._file.execute(
                "pragma locking_mode = exclusive"
            )  # the system releases the lock if the process is killed
            self._file.executescript(f"begin exclusive; {_TABLES} commit;")
        except sqlite3.Error as error:
            reason = "another process or model uses it" if "locked" in str(error) else str(error)
            raise UsageError(
                f"The record of batches {str(path)!r} cannot be opened: {reason}. Use another path=, or close() the other "
                "model."
            ) from None

    def claim(self, key: str) -> Slot | None:
        """Claim the first free recorded request with a key; return None if there is none."""
        rows = self._file.execute("select batch, place from request where key = ? order by rowid", (key,))
        free = (slot for row in rows if (slot := Slot(*row)) not in self._claimed and slot.batch not in self._hidden)
        slot = next(free, None)
        if slot is not None:
            self._claimed.add(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """Allow the request to be claimed again."""
        self._claimed.discard(slot)

    def hide(self, name: str) -> None:
        """Prevent the requests of a batch from being claimed while it is cancelled."""
        self._hidden.add(name)

    def show(self, name: str) -> None:
        """Allow the requests of a batch to be claimed again."""
        self._hidden.discard(name)

    def begin(self, name: str, at: float, keys: Mapping[int, str]) -> None:
        """Record a batch that will be submitted, and claim its requests."""
        self._claimed |= {Slot(name, index) for index in keys}
        with self._file:
            self._file.execute("begin")
            self._file.execute("insert into batch (name, at) values (?, ?)", (name, at))
            self._file.executemany("insert into request values (?, ?, ?)", ((name, *item) for item in keys.items()))

    def created(self, name: str, id: str) -> None:  # noqa: A002 - the provider's own name
        """Record the id that the provider gave a batch."""
        self._file.execute("update batch set id = ? where name = ?", (id, name))

    def batch(self, name: str) -> RecordedBatch:
        """Return a recorded batch."""
        query = "select name, id, at, (select count(*) from request where batch = name) from batch where name = ?"
        return RecordedBatch(*self._file.execute(query, (name,)).fetchone())

    def ids(self) -> set[str]:
        """Return the ids of all batches."""
        return {row[0] for row in self._file.execute("select id from batch where id is not null")}

    def store(self, lines: Iterable[tuple[str, int, bytes]]) -> None:
        """Store results. Only the first result of each request is stored; results of unknown requests are skipped."""
        # `insert or ignore`: a file may be read several times. `select`: only known requests.
        query = "insert or ignore into result select batch, place, ? from request where batch = ? and place = ?"
        with self._file:
            self._file.execute("begin")
            self._file.executemany(query, ((line, batch, index) for batch, index, line in lines))

    def results(self, name: str) -> int:
        """Return the number of stored results of a batch."""
        return self._file.execute("select count(*) from result where batch = ?", (name,)).fetchone()[0]

    def finish(self, name: str) -> None:
        """Record that all results of a batch are stored."""
        self._file.execute("update batch set done = 1 where name = ?", (name,))

    def done(self, name: str) -> bool:
        """Return whether all results of a batch are stored."""
        return bool(self._file.execute("select done from batch where name = ?", (name,)).fetchone()[0])

    def result(self, slot: Slot) -> bytes | None:
        """Return the result of a request; None if there is none."""
        found = self._file.execute("select line from result where batch = ? and place = ?", slot).fetchone()
        return None if found is None else found[0]

    def drop(self, slot: Slot) -> None:
        """Remove a request without a reply, so that an equal request is sent again."""
        with self._file:
            self._file.execute("begin")
            self._file.execute("delete from request where batch = ? and place = ?", slot)
            self._file.execute("delete from result where batch = ? and place = ?", slot)

    def forget(self, name: str) -> None:
        """Remove a batch that was not created, or was cancelled."""
        with self._file:
            self._file.execute("begin")
            for table, column in (("request", "batch"), ("result", "batch"), ("batch", "name")):
                self._file.execute(f"delete from {table} where {column} = ?", (name,))
