"""`SqliteMemory`: memories in a SQLite file, with full-text search (FTS5) and, if there is an embedder, vectors."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from agentflow.plugins._texts import SqliteTexts, rows
from agentflow.vocabulary.ports.memory_bank import Remembered

__all__ = ["SqliteMemory"]

_ALL: Final = "SELECT id, user, text, by, at FROM memories m WHERE m.user = ?"


class SqliteMemory(SqliteTexts):
    """A `MemoryBank` in a SQLite file. A full-text search finds them: the rarer the terms that a memory shares with the
    query, the better it is. With an embedder, those with a similar meaning are found too.

    The file is opened on first use, and closed by `close`, or with this object. Several processes can use it. Deleted text
    is overwritten in the file.

    Args:
        path: The file; created with the first memory. `":memory:"` keeps all in this object.
        embedder: The model for vectors; a file has those of one model.

    Example:
        >>> bank = SqliteMemory(":memory:")
        >>> _ = await bank.add("ada", "Ada likes green tea.", "assistant", 0.0)
        >>> [one.text for one in await bank.search("ada", "Which tea?", 5)]
        ['Ada likes green tea.']
    """

    _name = "memories"
    _table = """
    CREATE TABLE IF NOT EXISTS memories (
        id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, text TEXT NOT NULL, by TEXT NOT NULL, at REAL NOT NULL,
        UNIQUE (user, text)
    );
    """

    async def add(self, user: str, text: str, by: str, at: float) -> Remembered:
        """See `MemoryBank`."""

        def work(connection: sqlite3.Connection) -> Remembered:
            given = user, text, by, at
            connection.execute("INSERT OR IGNORE INTO memories(user, text, by, at) VALUES (?, ?, ?, ?)", given)
            return _memories(connection, f"{_ALL} AND m.text = ?", user, text)[0]

        return await self._run(work)

    async def search(self, user: str, query: str, limit: int) -> Sequence[Remembered]:
        """See `MemoryBank`."""
        ids = await self._ranked(query, limit, "m.user = ?", user)
        marks = ", ".join("?" * len(ids))
        found = await self._run(lambda connection: _memories(connection, f"{_ALL} AND m.id IN ({marks})", user, *ids))
        return sorted(found, key=lambda one: ids.index(int(one.id)))

    async def all(self, user: str) -> Sequence[Remembered]:
        """See `MemoryBank`."""
        return await self._run(lambda connection: _memories(connection, f"{_ALL} ORDER BY m.id", user))

    async def forget(self, user: str, id: str | None = None) -> int:  # noqa: A002
        """See `MemoryBank`."""
        if id is not None and not (id.isascii() and id.isdecimal() and len(id) < 19):
            return 0
        sql, given = ("", ()) if id is None else (" AND id = ?", (int(id),))
        return await self._run(
            lambda connection: connection.execute(f"DELETE FROM memories WHERE user = ?{sql}", (user, *given)).rowcount
        )


def _memories(connection: sqlite3.Connection, sql: str, *given: object) -> list[Remembered]:
    return [Remembered(str(id_), user, text, by, at) for id_, user, text, by, at in rows(connection, sql, *given)]
