"""`PostgresIndex`: documents in a PostgreSQL database, with full-text search and, if there is an embedder, pgvector."""

from __future__ import annotations

from agentflow.plugins._postgres import Connection, PostgresTexts
from agentflow.plugins.retrieval.texts import TextIndex
from agentflow.vocabulary.ports.embedder import Embedder


class PostgresIndex(PostgresTexts, TextIndex[Connection]):
    """An `Index` in a PostgreSQL database, in the table `agentflow_passages`. Arguments and vectors are as in `SqliteIndex`;
    vectors need the extension [pgvector](https://github.com/pgvector/pgvector) 0.5 or later.

    Args:
        url: The database, such as `"postgresql://user:password@host/database"`.
        embedder: The model for vectors; all vectors of a database must come from one model.
        max_length: The maximum length of a passage, in characters.

    Raises:
        UsageError: `max_length` is too small.

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
    _of_source = "md5(source) = md5(?) AND source = ?"  # the hash is indexed; two sources could share one

    def __init__(self, url: str, embedder: Embedder | None = None, *, max_length: int = 1_500) -> None:
        super().__init__(url, embedder)
        self._set_max_length(max_length)

    def _begin_add(self, connection: Connection, source: str) -> None:
        """See `TextIndex`."""
        self._rows(connection, "SELECT pg_advisory_xact_lock(hashtextextended(?, 1))", source)
