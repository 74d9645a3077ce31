"""`PostgresMemory`: memories in a PostgreSQL database, with full-text search and, if there is an embedder, pgvector."""

from __future__ import annotations

from agentflow.plugins._postgres import Connection, PostgresTexts
from agentflow.plugins.memory.texts import TextMemory


class PostgresMemory(PostgresTexts, TextMemory[Connection]):
    """A `MemoryBank` in a PostgreSQL database, in the table `agentflow_memories`. Vectors need the extension
    [pgvector](https://github.com/pgvector/pgvector) 0.5 or later.

    Args:
        url: The database, such as `"postgresql://user:password@host/database"`.
        embedder: The model for vectors; all vectors of a database must come from one model.

    Example:
        >>> PostgresMemory("postgresql://localhost/notes")
        PostgresMemory('postgresql://localhost/notes')
    """

    _name = "agentflow_memories"
    # Unique by hashes, because an index of PostgreSQL has no room for long texts.
    _table = """
    CREATE TABLE IF NOT EXISTS NAME (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner text NOT NULL, text text NOT NULL, by text NOT NULL,
        at double precision NOT NULL, words tsvector GENERATED ALWAYS AS (to_tsvector('english', text)) STORED
    );
    CREATE UNIQUE INDEX IF NOT EXISTS NAME_once ON NAME (md5(owner), md5(text));
    CREATE INDEX IF NOT EXISTS NAME_words ON NAME USING gin (words);
    """
    _user = "owner"  # `user` is a reserved word in PostgreSQL
