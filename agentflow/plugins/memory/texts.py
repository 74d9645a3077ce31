"""Memories in a database: `TextMemory`, the base class, and `SqliteMemory`, with full-text search (FTS5) and vectors."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import ClassVar

from agentflow.plugins._texts import C, SqliteTexts, Texts
from agentflow.vocabulary.ports.memory_bank import MemoryEntry


class TextMemory(Texts[C]):
    """A `MemoryBank` in the table of a database."""

    _user: ClassVar[str]
    """The column of the user."""

    async def add(self, user: str, text: str, by: str, at: float) -> MemoryEntry:
        """See `MemoryBank`."""
        insert = f"INSERT INTO NAME({self._user}, text, by, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"

        def work(connection: C) -> MemoryEntry:
            self._change(connection, insert, (user, text, by, at))
            return self._memories(connection, "AND m.text = ?", user, text)[0]

        return await self._run(work)

    async def search(self, user: str, query: str, limit: int) -> Sequence[MemoryEntry]:
        """See `MemoryBank`."""
        if not (ids := await self._ranked(query, limit, f"m.{self._user} = ?", user)):
            return []
        condition = f"AND m.id IN ({', '.join('?' * len(ids))})"
        found = await self._run(lambda connection: self._memories(connection, condition, user, *ids))
        return sorted(found, key=lambda memory: ids.index(int(memory.id)))  # SQL's IN keeps no order

    async def all(self, user: str) -> Sequence[MemoryEntry]:
        """See `MemoryBank`."""
        return await self._run(lambda connection: self._memories(connection, "ORDER BY m.id", user))

    async def forget(self, user: str, id: str | None = None) -> int:  # noqa: A002
        """See `MemoryBank`."""
        # The id comes from the model; 18 digits always fit into the database's 64 bits.
        if id is not None and not (id.isascii() and id.isdecimal() and len(id) < 19):
            return 0
        condition, parameters = ("", ()) if id is None else (" AND id = ?", (int(id),))
        sql = f"DELETE FROM NAME WHERE {self._user} = ?{condition}"

        def work(connection: C) -> int:
            count = self._change(connection, sql, (user, *parameters))
            if count:
                self._overwrite_deleted(connection)
            return count

        return await self._run(work)

    def _memories(self, connection: C, rest: str, *arguments: object) -> list[MemoryEntry]:
        sql = f"SELECT m.id, m.{self._user}, m.text, m.by, m.at FROM NAME m WHERE m.{self._user} = ? {rest}"
        return [MemoryEntry(str(id_), *values) for id_, *values in self._rows(connection, sql, *arguments)]


class SqliteMemory(SqliteTexts, TextMemory[sqlite3.Connection]):
    """A `MemoryBank` in a SQLite file. A full-text search finds memories that share terms with the query, and ranks rare
    terms higher. With an embedder, memories with a similar meaning are found too.

    The file is opened on first use, and closed by `close` or when this object is deleted. Several processes can use it.
    Deleted text is overwritten in the file.

    Args:
        path: The file; created on first use. `":memory:"` keeps all memories in this object.
        embedder: The model for vectors; all vectors of a file must come from one model.

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
    _user = "user"
