"""`PostgresTexts`: full-text search in a PostgreSQL database, and if there is an embedder, vector search with pgvector.

The rules of `Texts` apply. Vectors of at most 2,000 numbers get an index (HNSW), used by searches without a condition.
"""

from __future__ import annotations

from array import array
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

from agentflow._support.shown import without_password
from agentflow.plugins._texts import ALL, Texts
from agentflow.vocabulary.ports.embedder import Embedder

try:
    import psycopg
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "PostgresIndex and PostgresMemory need psycopg: pip install 'agentflow-hooks[postgres]'.", name="psycopg"
    ) from error

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# In PostgreSQL, `CREATE ... IF NOT EXISTS` can fail if two connections execute it at the same time.
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('agentflow NAME', 0))"
_VECTORS: Final = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE IF NOT EXISTS NAME_vectors (
    id bigint PRIMARY KEY REFERENCES NAME (id) ON DELETE CASCADE, vector vector NOT NULL
);
CREATE TABLE IF NOT EXISTS NAME_model (one int PRIMARY KEY CHECK (one = 1), model text NOT NULL, size int NOT NULL);
"""
_INDEXED: Final = 2_000  # the limit of pgvector for an index of the type `vector`


class PostgresTexts(Texts[Connection]):
    """Base class for texts in a PostgreSQL database. The table has the columns `id`, `text` and `words`."""

    _by_words = (
        "SELECT m.id FROM NAME m, websearch_to_tsquery('english', ?) q WHERE m.words @@ q AND SCOPE "
        "ORDER BY ts_rank_cd(m.words, q) DESC, m.id DESC LIMIT ?"
    )
    # FOR KEY SHARE: the text must not be deleted before its vector, which refers to it, is stored.
    _put_vector = (
        "INSERT INTO NAME_vectors SELECT id, ?::vector FROM NAME WHERE id = ? FOR KEY SHARE "
        "ON CONFLICT (id) DO UPDATE SET vector = excluded.vector"
    )
    _drop = (*Texts._drop, "DROP INDEX IF EXISTS NAME_nearest")
    _failures = (psycopg.Error,)

    def __init__(self, url: str, embedder: Embedder | None = None) -> None:
        super().__init__(embedder)
        self._url = url.replace("+psycopg", "", 1)  # accepts a URL of SQLAlchemy too

    def __repr__(self) -> str:
        return f"{type(self).__name__}({without_password(self._url)!r})"

    def _sql(self, sql: str) -> bytes:
        # psycopg's types accept a `str` only if it is a literal.
        return sql.replace("NAME", self._name).replace("?", "%s").encode()

    def _connect(self) -> Connection:
        return psycopg.connect(self._url, autocommit=True, connect_timeout=10)

    def _set_up(self, connection: Connection) -> None:
        with connection.transaction():
            for sql in (_LOCK, self._table, _VECTORS if self._embedder is not None else ""):
                connection.execute(self._sql(sql))

    def _is_lost(self, connection: Connection) -> bool:
        return connection.closed

    def _transaction(self, connection: Connection) -> AbstractContextManager[object]:
        return connection.transaction()

    def _nearest(self, scope: str, size: int) -> str:
        # The planner uses the index only for the exact expression that is indexed, and without a condition on the texts.
        column = f"v.vector::vector({size})" if scope == ALL and size <= _INDEXED else "v.vector"
        return (
            f"SELECT v.id FROM NAME_vectors v JOIN NAME m ON m.id = v.id WHERE {scope} "
            f"ORDER BY {column} <=> ?::vector LIMIT ?"
        )

    def _stored(self, vector: array[float]) -> str:
        return f"[{','.join(map(str, vector))}]"

    def _begin_vectors(self, connection: Connection, size: int) -> None:
        if size <= _INDEXED:
            nearest = f"USING hnsw ((vector::vector({size})) vector_cosine_ops)"
            connection.execute(self._sql(f"CREATE INDEX IF NOT EXISTS NAME_nearest ON NAME_vectors {nearest}"))
