"""`SqliteMemory`: memories in a SQLite file, with full-text search (FTS5)."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeVar

from agentflow.errors import StoreError
from agentflow.vocabulary.ports.memory_bank import Remembered

__all__ = ["SqliteMemory"]

T = TypeVar("T")

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS memories (
    id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, text TEXT NOT NULL, by TEXT NOT NULL, at REAL NOT NULL,
    UNIQUE (user, text)
);
CREATE VIRTUAL TABLE IF NOT EXISTS memories_words USING fts5(
    text, content='memories', content_rowid='id', tokenize='porter unicode61'
);
CREATE TRIGGER IF NOT EXISTS memories_added AFTER INSERT ON memories BEGIN
    INSERT INTO memories_words(rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER IF NOT EXISTS memories_removed AFTER DELETE ON memories BEGIN
    INSERT INTO memories_words(memories_words, rowid, text) VALUES ('delete', old.id, old.text);
END;
"""
_COLUMNS: Final = "m.id, m.user, m.text, m.by, m.at"
_WORD: Final = re.compile(r"\w+")
_MOST_WORDS: Final = 64


class SqliteMemory:
    """A `MemoryBank` in a SQLite file. A full-text search finds them: the rarer the terms that a memory shares with the
    query, the better it is.

    The file is opened on first use, and closed by `close`, or with this object. Several processes can use it. Deleted text
    is overwritten in the file.

    Args:
        path: The file; created with the first memory. `":memory:"` keeps all in this object.

    Example:
        >>> bank = SqliteMemory(":memory:")
        >>> _ = await bank.add("ada", "Ada likes green tea.", "assistant", 0.0)
        >>> [one.text for one in await bank.search("ada", "Which tea?", 5)]
        ['Ada likes green tea.']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None
        self._closing: Callable[[], object] = lambda: None

    async def add(self, user: str, text: str, by: str, at: float) -> Remembered:
        """See `MemoryBank`."""

        def work(connection: sqlite3.Connection) -> Remembered:
            given = user, text, by, at
            connection.execute("INSERT OR IGNORE INTO memories(user, text, by, at) VALUES (?, ?, ?, ?)", given)
            return _rows(connection, f"SELECT {_COLUMNS} FROM memories m WHERE user = ? AND text = ?", user, text)[0]

        return await self._run(work)

    async def search(self, user: str, query: str, limit: int) -> Sequence[Remembered]:
        """See `MemoryBank`."""
        words = list(dict.fromkeys(_WORD.findall(query)))[:_MOST_WORDS]
        if not words or limit < 1:
            return ()
        match = " OR ".join(f'"{word}"' for word in words)  # quoted, so that none is an operator of FTS5
        sql = (
            f"SELECT {_COLUMNS} FROM memories_words JOIN memories m ON m.id = memories_words.rowid "
            "WHERE memories_words MATCH ? AND m.user = ? ORDER BY bm25(memories_words), m.id DESC LIMIT ?"
        )
        return await self._run(lambda connection: _rows(connection, sql, match, user, limit))

    async def all(self, user: str) -> Sequence[Remembered]:
        """See `MemoryBank`."""
        sql = f"SELECT {_COLUMNS} FROM memories m WHERE user = ? ORDER BY id"
        return await self._run(lambda connection: _rows(connection, sql, user))

    async def forget(self, user: str, id: str | None = None) -> int:  # noqa: A002
        """See `MemoryBank`."""
        if id is not None and not (id.isascii() and id.isdecimal() and len(id) < 19):
            return 0
        sql, given = ("", ()) if id is None else (" AND id = ?", (int(id),))
        return await self._run(
            lambda connection: connection.execute(f"DELETE FROM memories WHERE user = ?{sql}", (user, *given)).rowcount
        )

    async def close(self) -> None:
        """Close the file. The next use opens it again."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            if self._open is not None:
                self._closing()
                self._open = None

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._locked, work)

    def _locked(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do some work in one transaction.

        Raises:
            StoreError: The database cannot be used.
        """
        try:
            with self._lock:
                if self._open is None:
                    self._open = self._connect()
                with self._open:
                    return work(self._open)
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise StoreError(f"The memories in {self.path!r} cannot be used: {error}.") from error

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(self.path, timeout=10, check_same_thread=False)
        try:
            made.execute("PRAGMA secure_delete = ON")
            made.execute("PRAGMA journal_mode = WAL")
            made.executescript(_TABLES)
        except BaseException:
            made.close()
            raise
        self._closing = weakref.finalize(self, made.close)
        return made


def _rows(connection: sqlite3.Connection, sql: str, *given: object) -> list[Remembered]:
    with closing(connection.execute(sql, given)) as found:
        rows: list[tuple[Any, ...]] = found.fetchall()
    return [Remembered(str(id_), user, text, by, at) for id_, user, text, by, at in rows]
