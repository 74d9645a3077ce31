"""`Texts`: full-text search in a database, and vector search if there is an embedder. `SqliteTexts`: in a SQLite file.

Rules:

1. A table `NAME` (`id`, `text` and others) has a full-text index and vectors, `NAME_vectors`; a text and its vector are deleted
   together.
2. A text without a vector is embedded by the next search, so that an interrupted run or a database without vectors needs no
   repair.
3. All vectors of a table are from one model, named in `NAME_model`. Vectors of any other model are refused.
4. If there are vectors, the two orders of a search are combined by reciprocal rank fusion.
5. SQL is written with `?` for parameters, `NAME` for the table, and `SCOPE` for a condition on it.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import weakref
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from importlib import import_module
from operator import mul
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from agentflow._support.undo import UndoOnFailure
from agentflow.errors import StoreError
from agentflow.vocabulary.ports.embedder import Embedder, unit_vectors

_TABLES: Final = """
CREATE VIRTUAL TABLE IF NOT EXISTS NAME_words USING fts5(
    text, content='NAME', content_rowid='id', tokenize='porter unicode61'
);
CREATE TRIGGER IF NOT EXISTS NAME_added AFTER INSERT ON NAME BEGIN
    INSERT INTO NAME_words(rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER IF NOT EXISTS NAME_removed AFTER DELETE ON NAME BEGIN
    INSERT INTO NAME_words(NAME_words, rowid, text) VALUES ('delete', old.id, old.text);
END;
CREATE TABLE IF NOT EXISTS NAME_vectors (id INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS NAME_model (one INTEGER PRIMARY KEY CHECK (one = 1), model TEXT, size INTEGER);
CREATE TRIGGER IF NOT EXISTS NAME_removed_vector AFTER DELETE ON NAME BEGIN
    DELETE FROM NAME_vectors WHERE id = old.id;
END;
"""
_WORD: Final = re.compile(r"\w+")
_MAX_WORDS: Final = 64  # of a query, which can be a long message of the user
_MAX_WORD_LENGTH: Final = 200
_BATCH: Final = 256  # the maximum number of texts that are embedded at a time
_FUSION: Final = 60  # the constant of reciprocal rank fusion in the original paper, and in most products
ALL: Final = "1 = 1"
_MISSING: Final = (
    "SELECT m.id, m.text FROM NAME m LEFT JOIN NAME_vectors v ON v.id = m.id WHERE v.id IS NULL AND SCOPE LIMIT ?"
)


class DatabaseConnection(Protocol):
    """A connection of the DB-API."""

    def cursor(self) -> Any:
        """Return a new cursor."""

    def close(self) -> None:
        """Close it."""


T = TypeVar("T")
C = TypeVar("C", bound=DatabaseConnection)


class Texts(ABC, Generic[C]):
    """Base class for texts in a database, over one connection that is opened on first use."""

    _name: ClassVar[str]
    """The name of the table."""
    _table: ClassVar[str]
    """The SQL that creates the table."""
    _by_words: ClassVar[str]
    """The SQL of a full-text search."""
    _put_vector: ClassVar[str]
    """The SQL that stores the vector of a text. A text that was deleted in the meantime gets none."""
    _drop: ClassVar[Sequence[str]] = ("DELETE FROM NAME_vectors", "DELETE FROM NAME_model")
    """The SQL that deletes all vectors."""
    _failures: ClassVar[tuple[type[Exception], ...]]
    """The errors of the database."""

    def __init__(self, embedder: Embedder | None) -> None:
        self._embedder = embedder
        self._lock = threading.Lock()  # worker threads share the connection
        self._open: C | None = None
        self._closing: Callable[[], object] = lambda: None

    # -- implemented for each database

    @abstractmethod
    def _connect(self) -> C:
        """Open a connection."""

    @abstractmethod
    def _set_up(self, connection: C) -> None:
        """Create the tables."""

    @abstractmethod
    def _transaction(self, connection: C) -> AbstractContextManager[object]:
        """Return a block that is one transaction."""

    @abstractmethod
    def _nearest(self, scope: str, size: int) -> str:
        """Return the SQL of a search by a vector with `size` numbers."""

    @abstractmethod
    def _stored(self, vector: array[float]) -> object:
        """Return a vector as a parameter of SQL."""

    def _overwrite_deleted(self, connection: C) -> None:
        """Remove the terms of deleted texts from the full-text index, if the database only marks them as deleted."""

    def _is_lost(self, connection: C) -> bool:
        """Return whether the connection has to be reopened."""
        return False

    def _sql(self, sql: str) -> Any:
        """Return a statement in the form that the database's package accepts."""
        return sql.replace("NAME", self._name)

    # -- the connection

    async def close(self) -> None:
        """Close the connection. The next use opens it again."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            self._closing()
            self._open = None

    async def _run(self, work: Callable[[C], T]) -> T:
        return await asyncio.to_thread(self._locked, work)

    def _locked(self, work: Callable[[C], T]) -> T:
        """Do work in one transaction, and open the connection if necessary.

        Raises:
            StoreError: The database cannot be used.
        """
        try:
            with self._lock:
                if self._open is None or self._is_lost(self._open):
                    self._closing()
                    self._open = self._connected()
                    # A finalizer, in case `close` is never called.
                    self._closing = weakref.finalize(self, self._open.close)
                with self._transaction(self._open):
                    return work(self._open)
        except (*self._failures, UnicodeEncodeError) as error:  # a lone surrogate cannot be stored
            raise StoreError(f"The {self._name} in {self!r} cannot be used: {str(error).strip()}.") from error

    def _connected(self) -> C:
        connection = self._connect()
        with UndoOnFailure(connection.close):
            self._set_up(connection)
        return connection

    def _rows(self, connection: C, sql: str, *parameters: object) -> list[Any]:
        """Return the rows of a query."""
        with closing(connection.cursor()) as cursor:
            cursor.execute(self._sql(sql), parameters)
            return cursor.fetchall()

    def _change(self, connection: C, sql: str, *rows: Sequence[object]) -> int:
        """Execute a statement once for each row of parameters, and return how many rows it changed."""
        with closing(connection.cursor()) as cursor:
            cursor.executemany(self._sql(sql), rows)
            return cursor.rowcount

    # -- searches

    async def drop_vectors(self) -> None:
        """Delete all vectors, to change to another embedder; the next search makes new ones."""

        def work(connection: C) -> None:
            for sql in self._drop:
                self._change(connection, sql, ())

        await self._run(work)

    async def _ranked(self, query: str, limit: int, scope: str = ALL, *parameters: object) -> list[int]:
        """Return the ids of the texts that match a query, the best first.

        Args:
            query: Any text.
            limit: The maximum number.
            scope: An SQL condition on the table, named `m`.
            parameters: The parameters of the condition.
        """
        if limit < 1 or not query.strip():
            return []
        # Fusion needs more candidates than it returns: a text can be low in one order, and first in the other.
        most = max(4 * limit, 20) if self._embedder else limit
        words = list(dict.fromkeys(word for word in _WORD.findall(query) if len(word) <= _MAX_WORD_LENGTH))[:_MAX_WORDS]
        match = " OR ".join(f'"{word}"' for word in words)  # terms are quoted, so that none of them is an operator
        by_words = self._by_words.replace("SCOPE", scope)
        found = await self._run(lambda c: self._rows(c, by_words, match, *parameters, most)) if words else []
        first = [id_ for (id_,) in found]
        if self._embedder is None:
            return first
        await self._embed(self._embedder, scope, *parameters)
        vector = (await unit_vectors(self._embedder, [query]))[0]
        size, sql = len(vector), self._nearest(scope, len(vector))
        nearest = await self._checked(self._embedder, size, sql, *parameters, self._stored(vector), most)
        return fused(first, [id_ for (id_,) in nearest])[:limit]

    async def _embed(self, embedder: Embedder, scope: str, *parameters: object) -> None:
        """Embed the texts that have no vector yet."""
        missing = _MISSING.replace("SCOPE", scope)
        while found := await self._checked(embedder, None, missing, *parameters, _BATCH):
            vectors = await unit_vectors(embedder, [text for _, text in found])
            rows = [(self._stored(vector), id_) for vector, (id_, _) in zip(vectors, found, strict=True)]
            await self._run(partial(self._put, embedder, len(vectors[0]), rows))

    def _put(self, embedder: Embedder, size: int, vectors: Sequence[tuple[object, int]], connection: C) -> None:
        model = "INSERT INTO NAME_model VALUES (1, ?, ?) ON CONFLICT DO NOTHING"
        if self._change(connection, model, (embedder.name, size)):  # the row is new: these are the first vectors
            self._begin_vectors(connection, size)
        self._check(connection, embedder, size)
        self._change(connection, self._put_vector, *vectors)

    def _begin_vectors(self, connection: C, size: int) -> None:
        """Prepare the table for its first vectors."""

    async def _checked(self, embedder: Embedder, size: int | None, sql: str, *parameters: object) -> list[Any]:
        """Return the rows of a query; raise an error if the vectors are from another embedder."""

        def work(connection: C) -> list[Any]:
            self._check(connection, embedder, size)
            return self._rows(connection, sql, *parameters)

        return await self._run(work)

    def _check(self, connection: C, embedder: Embedder, size: int | None) -> None:
        for model, numbers in self._rows(connection, "SELECT model, size FROM NAME_model"):
            if model != embedder.name or size not in (None, numbers):
                raise StoreError(
                    f"{self!r} has vectors of {model!r} with {numbers} numbers, but the embedder is "
                    f"{embedder.name!r}{f' with {size}' if size else ''}. Vectors of different models cannot be compared. "
                    "Use the first embedder, or call drop_vectors() to embed all texts again."
                )


class SqliteTexts(Texts[sqlite3.Connection]):
    """Base class for texts in a SQLite file. Deleted rows are overwritten in the file, their terms by `_overwrite_deleted`.

    `sqlite-vec` compares the vectors, if it is installed and Python can load extensions of SQLite; otherwise Python does.
    """

    _by_words = (
        "SELECT m.id FROM NAME_words JOIN NAME m ON m.id = NAME_words.rowid WHERE NAME_words MATCH ? AND SCOPE "
        "ORDER BY bm25(NAME_words), m.id DESC LIMIT ?"
    )
    _put_vector = "INSERT OR REPLACE INTO NAME_vectors SELECT id, ? FROM NAME WHERE id = ?"
    _failures = (sqlite3.Error,)

    def __init__(self, path: str | Path, embedder: Embedder | None = None) -> None:
        super().__init__(embedder)
        self.path = str(path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=10, check_same_thread=False)  # see `_lock`

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(self._sql(self._table + _TABLES))
        if self._embedder is not None:
            _load_distance(connection)

    def _transaction(self, connection: sqlite3.Connection) -> AbstractContextManager[object]:
        return connection

    def _overwrite_deleted(self, connection: sqlite3.Connection) -> None:
        # FTS5 marks the terms as deleted in a new part of the index; merging all parts removes them.
        self._change(connection, "INSERT INTO NAME_words(NAME_words) VALUES (?)", ("optimize",))

    def _nearest(self, scope: str, size: int) -> str:
        return (
            f"SELECT v.id FROM NAME_vectors v JOIN NAME m ON m.id = v.id WHERE {scope} "
            "ORDER BY vec_distance_cosine(v.vector, ?), v.id DESC LIMIT ?"
        )

    def _stored(self, vector: array[float]) -> bytes:
        return vector.tobytes()


def fused(*orders: Sequence[int]) -> list[int]:
    """Combine orders of ids by reciprocal rank fusion.

    Example:
        >>> fused([1, 2, 3], [3, 2])
        [3, 2, 1]
    """
    scores: dict[int, float] = {}
    for order in orders:
        for rank, id_ in enumerate(order, 1):
            scores[id_] = scores.get(id_, 0.0) + 1 / (_FUSION + rank)
    return sorted(scores, key=lambda id_: -scores[id_])


def _load_distance(connection: sqlite3.Connection) -> None:
    """Load the SQL function `vec_distance_cosine`."""
    try:
        library: Any = import_module("sqlite_vec")
        connection.enable_load_extension(True)  # the method is missing if Python was built without extensions
        library.load(connection)
        connection.enable_load_extension(False)  # SQL must not be able to load libraries
    except (ImportError, AttributeError, sqlite3.Error):
        connection.create_function("vec_distance_cosine", 2, _distance, deterministic=True)


def _distance(one: bytes, other: bytes) -> float:
    # vectors are stored with length 1
    return 1.0 - sum(map(mul, memoryview(one).cast("f"), memoryview(other).cast("f")))
