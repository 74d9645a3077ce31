"""`PostgresMemory`: memories in a PostgreSQL database, with full-text search and, if there is an embedder, pgvector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentflow.plugins._postgres import Connection, PostgresTexts, rows
from agentflow.vocabulary.ports.memory_bank import Remembered

__all__ = ["PostgresMemory"]

_SELECT: Final = "SELECT m.id, m.owner, m.text, m.by, m.at FROM agentflow_memories m WHERE m.owner = %s"


class PostgresMemory(PostgresTexts):
    """A `MemoryBank` in a PostgreSQL database, in the table `agentflow_memories`. Vectors need the extension
    [pgvector](https://github.com/pgvector/pgvector) 0.5 or later.

    Args:
        url: The database, such as `"postgresql://user:password@host/database"`.
        embedder: The model for vectors; a database has those of one model.

    Example:
        >>> PostgresMemory("postgresql://localhost/notes")
        PostgresMemory('postgresql://localhost/notes')
    """

    _name = "agentflow_memories"
    _table = """
    CREATE TABLE IF NOT EXISTS NAME (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner text NOT NULL, text text NOT NULL, by text NOT NULL,
        at double precision NOT NULL, words tsvector GENERATED ALWAYS AS (to_tsvector('english', text)) STORED
    );
    CREATE UNIQUE INDEX IF NOT EXISTS NAME_once ON NAME (md5(owner), md5(text));
    CREATE INDEX IF NOT EXISTS NAME_words ON NAME USING gin (words);
    """

    async def add(self, user: str, text: str, by: str, at: float) -> Remembered:
        """See `MemoryBank`."""
        insert = f"INSERT INTO {self._name}(owner, text, by, at) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"

        def work(connection: Connection) -> Remembered:
            connection.execute(insert.encode(), (user, text, by, at))
            return _memories(connection, f"{_SELECT} AND m.text = %s", user, text)[0]

        return await self._run(work)

    async def search(self, user: str, query: str, limit: int) -> Sequence[Remembered]:
        """See `MemoryBank`."""
        ids = await self._ranked(query, limit, "m.owner = %s", user)
        found = await self._run(lambda connection: _memories(connection, f"{_SELECT} AND m.id = ANY(%s)", user, ids))
        return sorted(found, key=lambda one: ids.index(int(one.id)))

    async def all(self, user: str) -> Sequence[Remembered]:
        """See `MemoryBank`."""
        return await self._run(lambda connection: _memories(connection, f"{_SELECT} ORDER BY m.id", user))

    async def forget(self, user: str, id: str | None = None) -> int:  # noqa: A002
        """See `MemoryBank`."""
        if id is not None and not (id.isascii() and id.isdecimal() and len(id) < 19):
            return 0
        condition, given = ("", ()) if id is None else (" AND id = %s", (int(id),))
        sql = f"DELETE FROM {self._name} WHERE owner = %s{condition}".encode()
        return await self._run(lambda connection: connection.execute(sql, (user, *given)).rowcount)


def _memories(connection: Connection, sql: str, *given: object) -> list[Remembered]:
    return [Remembered(str(id_), *rest) for id_, *rest in rows(connection, sql, *given)]
