"""`PostgresIndex`: documents in a PostgreSQL database, with full-text search and, if there is an embedder, pgvector."""

from __future__ import annotations

from collections.abc import Sequence

from agentflow.errors import UsageError
from agentflow.plugins._postgres import Connection, PostgresTexts, rows
from agentflow.plugins.retrieval.sqlite import passages_of
from agentflow.vocabulary.ports.embedder import Embedder
from agentflow.vocabulary.ports.index import Passage

__all__ = ["PostgresIndex"]


class PostgresIndex(PostgresTexts):
    """An `Index` in a PostgreSQL database, in the table `agentflow_passages`. Arguments and vectors are as in `SqliteIndex`;
    vectors need the extension [pgvector](https://github.com/pgvector/pgvector) 0.5 or later.

    Args:
        url: The database, such as `"postgresql://user:password@host/database"`.
        embedder: The model for vectors; a database has those of one model.
        longest: The maximum length of a passage, in characters.

    Raises:
        UsageError: `longest` is too small.

    Example:
        >>> PostgresIndex("postgresql://ada:secret@localhost/docs")
        PostgresIndex('postgresql://ada:***@localhost/docs')
    """

    _name = "agentflow_passages"
    _table = """
    CREATE TABLE IF NOT EXISTS NAME (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, source text NOT NULL, line int NOT NULL, text text NOT NULL,
        words tsvector GENERATED ALWAYS AS (to_tsvector('english', text)) STORED
    );
    CREATE INDEX IF NOT EXISTS NAME_words ON NAME USING gin (words);
    CREATE INDEX IF NOT EXISTS NAME_source ON NAME (md5(source));
    """

    def __init__(self, url: str, embedder: Embedder | None = None, *, longest: int = 1_500) -> None:
        super().__init__(url, embedder)
        if longest < 50:
            raise UsageError(f"PostgresIndex(longest={longest}): a passage has at least 50 characters.")
        self._longest = longest

    async def add(self, source: str, text: str) -> int:
        """See `Index`. Passages that have not changed keep their vectors; the others are embedded at once."""
        if not source.strip():
            raise UsageError("PostgresIndex.add(source=''): it is the name of the document, which answers cite.")
        new = list(dict.fromkeys(passages_of(text, self._longest)))

        def work(connection: Connection) -> None:
            rows(connection, "SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", source)  # one writer per document
            sql = f"SELECT id, line, text FROM {self._name} WHERE md5(source) = md5(%s) AND source = %s"
            old = {(line, body): id_ for id_, line, body in rows(connection, sql, source, source)}
            gone = [old[one] for one in old.keys() - set(new)]
            connection.execute(f"DELETE FROM {self._name} WHERE id = ANY(%s)".encode(), (gone,))
            with connection.cursor() as cursor:
                made = [(source, *one) for one in new if one not in old]
                cursor.executemany(f"INSERT INTO {self._name}(source, line, text) VALUES (%s, %s, %s)".encode(), made)

        await self._run(work)
        if self._embedder is not None:
            await self._embed(self._embedder, "m.source = %s", source)
        return len(new)

    async def remove(self, source: str) -> int:
        """See `Index`."""
        sql = f"DELETE FROM {self._name} WHERE md5(source) = md5(%s) AND source = %s".encode()
        return await self._run(lambda connection: connection.execute(sql, (source, source)).rowcount)

    async def sources(self) -> Sequence[str]:
        """See `Index`."""
        sql = f'SELECT DISTINCT source COLLATE "C" FROM {self._name} ORDER BY 1'
        return [source for (source,) in await self._run(lambda connection: rows(connection, sql))]

    async def search(self, query: str, limit: int) -> Sequence[Passage]:
        """See `Index`."""
        ids = await self._ranked(query, limit)
        sql = f"SELECT id, source, line, text FROM {self._name} WHERE id = ANY(%s)"
        found = {id_: Passage(*rest) for id_, *rest in await self._run(lambda connection: rows(connection, sql, ids))}
        return [found[id_] for id_ in ids if id_ in found]
