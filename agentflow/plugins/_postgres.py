"""`PostgresTexts`: texts in a PostgreSQL database, found by their terms, and with pgvector by vectors if there is an embedder.

The rules of `SqliteTexts` apply: a text without a vector is embedded by the next search, all vectors of a table are of one
model, and the two orders of a search are combined. Vectors of at most 2,000 numbers get an index (HNSW), which searches without
a condition use.
"""

from __future__ import annotations

import asyncio
import re
import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from agentflow._support.shown import without_password
from agentflow.errors import StoreError
from agentflow.plugins._texts import fused
from agentflow.vocabulary.ports.embedder import Embedder, unit_vectors

try:
    import psycopg
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "PostgresIndex and PostgresMemory need psycopg: pip install 'agentflow-hooks[postgres]'.", name="psycopg"
    ) from error

__all__ = ["Connection", "PostgresTexts", "rows"]

T = TypeVar("T")
Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('agentflow NAME', 0))"
_VECTORS: Final = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE IF NOT EXISTS NAME_vectors (
    id bigint PRIMARY KEY REFERENCES NAME (id) ON DELETE CASCADE, vector vector NOT NULL
);
CREATE TABLE IF NOT EXISTS NAME_model (one int PRIMARY KEY CHECK (one = 1), model text NOT NULL, size int NOT NULL);
"""
_WORD: Final = re.compile(r"\w+")
_MOST_WORDS: Final = 64
_LONGEST_WORD: Final = 200
_BATCH: Final = 256
_INDEXED: Final = 2_000
_ALL: Final = "true"


class PostgresTexts:
    """The base of what is kept in a PostgreSQL database, over one connection that is opened on first use."""

    _name: str
    """The name of the table."""
    _table: str
    """The SQL that creates it, with the columns `id`, `text` and `words`."""

    def __init__(self, url: str, embedder: Embedder | None = None) -> None:
        self._url = url.replace("+psycopg", "", 1)
        self._embedder = embedder
        self._lock = threading.Lock()
        self._open: Connection | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({without_password(self._url)!r})"

    async def close(self) -> None:
        """Close the connection. The next use opens it again."""
        await asyncio.to_thread(self._close)

    async def drop_vectors(self) -> None:
        """Delete all vectors, to change to another embedder; the next search makes new ones."""
        name = self._name
        sql = f"DELETE FROM {name}_vectors; DELETE FROM {name}_model; DROP INDEX IF EXISTS {name}_nearest"
        await self._run(lambda connection: connection.execute(sql.encode()))

    async def _ranked(self, query: str, limit: int, scope: str = _ALL, *given: object) -> list[int]:
        """Return the ids of the texts that match a query, the best first.

        Args:
            query: Any text.
            limit: The maximum number.
            scope: An SQL condition on the table, named `m`.
            given: Its parameters.
        """
        if limit < 1 or not query.strip():
            return []
        name, most = self._name, max(4 * limit, 20) if self._embedder else limit
        found = list(dict.fromkeys(word for word in _WORD.findall(query) if len(word) <= _LONGEST_WORD))[:_MOST_WORDS]
        match = " or ".join(f'"{word}"' for word in found)  # quoted, so that none is an operator
        by_words = (
            f"SELECT m.id FROM {name} m, websearch_to_tsquery('english', %s) q WHERE m.words @@ q AND {scope} "
            "ORDER BY ts_rank_cd(m.words, q) DESC, m.id DESC LIMIT %s"
        )
        first = [id_ for (id_,) in await self._run(lambda c: rows(c, by_words, match, *given, most))]
        if self._embedder is None:
            return first
        await self._embed(self._embedder, scope, *given)
        vector = (await unit_vectors(self._embedder, [query]))[0]
        size = len(vector)
        column = f"v.vector::vector({size})" if scope == _ALL and size <= _INDEXED else "v.vector"
        by_vectors = (
            f"SELECT v.id FROM {name}_vectors v JOIN {name} m ON m.id = v.id WHERE {scope} "
            f"ORDER BY {column} <=> %s::vector LIMIT %s"
        )
        nearest = self._checking(self._embedder, size, by_vectors, *given, _shown(vector), most)
        return fused(first, [id_ for (id_,) in await self._run(nearest)])[:limit]

    async def _embed(self, embedder: Embedder, scope: str, *given: object) -> None:
        """Embed the texts that have no vector yet."""
        name = self._name
        missing = (
            f"SELECT m.id, m.text FROM {name} m LEFT JOIN {name}_vectors v ON v.id = m.id "
            f"WHERE v.id IS NULL AND {scope} LIMIT {_BATCH}"
        )
        while found := await self._run(self._checking(embedder, None, missing, *given)):
            vectors = await unit_vectors(embedder, [text for _, text in found])
            made = [(_shown(vector), id_) for vector, (id_, _) in zip(vectors, found, strict=True)]
            await self._run(partial(self._put, embedder, len(vectors[0]), made))

    def _put(self, embedder: Embedder, size: int, made: Sequence[tuple[str, int]], connection: Connection) -> None:
        name = self._name
        model = f"INSERT INTO {name}_model VALUES (1, %s, %s) ON CONFLICT DO NOTHING"
        if connection.execute(model.encode(), (embedder.name, size)).rowcount and size <= _INDEXED:
            nearest = f"USING hnsw ((vector::vector({size})) vector_cosine_ops)"
            connection.execute(f"CREATE INDEX IF NOT EXISTS {name}_nearest ON {name}_vectors {nearest}".encode())
        self._check(connection, embedder, size)
        # A text that was deleted in the meantime gets no vector.
        vector = (
            f"INSERT INTO {name}_vectors SELECT id, %s::vector FROM {name} WHERE id = %s FOR KEY SHARE "
            "ON CONFLICT (id) DO UPDATE SET vector = excluded.vector"
        )
        with connection.cursor() as cursor:
            cursor.executemany(vector.encode(), made)

    def _checking(
        self, embedder: Embedder, size: int | None, sql: str, *given: object
    ) -> Callable[[Connection], list[Any]]:
        """Return the work of a query that is refused if the vectors of the table are not those of the embedder."""

        def work(connection: Connection) -> list[Any]:
            self._check(connection, embedder, size)
            return rows(connection, sql, *given)

        return work

    def _check(self, connection: Connection, embedder: Embedder, size: int | None) -> None:
        for model, numbers in rows(connection, f"SELECT model, size FROM {self._name}_model"):
            if model != embedder.name or size not in (None, numbers):
                raise StoreError(
                    f"{self!r} has vectors of {model!r} with {numbers} numbers, but the embedder is "
                    f"{embedder.name!r}{f' with {size}' if size else ''}. Vectors of different models cannot be compared. "
                    "Use the first embedder, or call drop_vectors() to embed all texts again."
                )

    def _close(self) -> None:
        with self._lock:
            if self._open is not None:
                self._open.close()
                self._open = None

    async def _run(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.to_thread(self._locked, work)

    def _locked(self, work: Callable[[Connection], T]) -> T:
        """Do some work in one transaction; a connection that was lost is opened again by the next one.

        Raises:
            StoreError: The database cannot be used.
        """
        try:
            with self._lock:
                if self._open is None or self._open.closed:
                    self._open = self._connect()
                with self._open.transaction():
                    return work(self._open)
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise StoreError(f"The {self._name} in {self!r} cannot be used: {str(error).strip()}.") from error

    def _connect(self) -> Connection:
        made = psycopg.connect(self._url, autocommit=True, connect_timeout=10)
        try:
            with made.transaction():
                for sql in (_LOCK, self._table, _VECTORS if self._embedder is not None else ""):
                    made.execute(sql.replace("NAME", self._name).encode())
        except BaseException:
            made.close()
            raise
        weakref.finalize(self, made.close)
        return made


def rows(connection: Connection, sql: str, *given: object) -> list[Any]:
    """Return the rows of a query."""
    return connection.execute(sql.encode(), given).fetchall()


def _shown(vector: array[float]) -> str:
    return f"[{','.join(map(str, vector))}]"
