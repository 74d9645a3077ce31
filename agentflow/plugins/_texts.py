"""`SqliteTexts`: texts in a SQLite file, found by their terms (FTS5), and by vectors if there is an embedder.

Rules:

1. A table `NAME` (`id`, `text` and others) has a full-text index, `NAME_words`, and vectors, `NAME_vectors`. Triggers keep
   them together.
2. A text without a vector is embedded by the next search, so that an interrupted run or a file without vectors needs no
   repair.
3. All vectors of a file are of one model, whose name is in `NAME_model`. Another one is refused.
4. If there are vectors, the two orders of a search are combined by reciprocal rank fusion.
5. `sqlite-vec` compares the vectors, if it is installed and Python can load extensions of SQLite; otherwise Python does.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from importlib import import_module
from operator import mul
from pathlib import Path
from typing import Any, Final, TypeVar

from agentflow.errors import StoreError
from agentflow.vocabulary.ports.embedder import Embedder, unit_vectors

__all__ = ["SqliteTexts", "fused"]

T = TypeVar("T")

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
_MOST_WORDS: Final = 64
_BATCH: Final = 256
_FUSION: Final = 60  # the constant of reciprocal rank fusion in its first publication, and of most products


class SqliteTexts:
    """The base of what is kept in a SQLite file. Opened on first use, closed by `close` or with the object; deleted text is
    overwritten in the file.
    """

    _name: str
    """The name of the table."""
    _table: str
    """The SQL that creates it."""

    def __init__(self, path: str | Path, embedder: Embedder | None = None) -> None:
        self.path = str(path)
        self._embedder = embedder
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None
        self._closing: Callable[[], object] = lambda: None

    async def close(self) -> None:
        """Close the file. The next use opens it again."""
        await asyncio.to_thread(self._close)

    async def drop_vectors(self) -> None:
        """Delete all vectors, to change to another embedder; the next search makes new ones."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(f"DELETE FROM {self._name}_vectors")
            connection.execute(f"DELETE FROM {self._name}_model")

        await self._run(work)

    async def _ranked(self, query: str, limit: int, scope: str = "1", *given: object) -> list[int]:
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
        words = list(dict.fromkeys(_WORD.findall(query)))[:_MOST_WORDS]
        match = " OR ".join(f'"{word}"' for word in words)  # quoted, so that none is an operator of FTS5
        by_words = (
            f"SELECT m.id FROM {name}_words JOIN {name} m ON m.id = {name}_words.rowid WHERE {name}_words MATCH ? AND {scope} "
            f"ORDER BY bm25({name}_words), m.id DESC LIMIT ?"
        )
        found = await self._run(lambda c: rows(c, by_words, match, *given, most)) if words else []
        first = [id_ for (id_,) in found]
        if self._embedder is None:
            return first
        await self._embed(self._embedder, scope, *given)
        vector = (await unit_vectors(self._embedder, [query]))[0]
        by_vectors = (
            f"SELECT v.id FROM {name}_vectors v JOIN {name} m ON m.id = v.id WHERE {scope} "
            "ORDER BY vec_distance_cosine(v.vector, ?), v.id DESC LIMIT ?"
        )
        nearest = await self._checked(self._embedder, len(vector), by_vectors, *given, vector.tobytes(), most)
        return fused(first, [id_ for (id_,) in nearest])[:limit]

    async def _embed(self, embedder: Embedder, scope: str, *given: object) -> None:
        """Embed the texts that have no vector yet."""
        name = self._name
        missing = (
            f"SELECT m.id, m.text FROM {name} m LEFT JOIN {name}_vectors v ON v.id = m.id "
            f"WHERE v.id IS NULL AND {scope} LIMIT {_BATCH}"
        )
        while found := await self._checked(embedder, None, missing, *given):
            vectors = await unit_vectors(embedder, [text for _, text in found])
            made = [(vector.tobytes(), id_) for vector, (id_, _) in zip(vectors, found, strict=True)]
            await self._run(partial(self._put, embedder, len(vectors[0]), made))

    def _put(
        self, embedder: Embedder, size: int, made: Sequence[tuple[bytes, int]], connection: sqlite3.Connection
    ) -> None:
        name = self._name
        connection.execute(f"INSERT OR IGNORE INTO {name}_model VALUES (1, ?, ?)", (embedder.name, size))
        self._check(connection, embedder, size)
        # A text that was deleted in the meantime gets no vector.
        connection.executemany(f"INSERT OR REPLACE INTO {name}_vectors SELECT id, ? FROM {name} WHERE id = ?", made)

    async def _checked(self, embedder: Embedder, size: int | None, sql: str, *given: object) -> list[Any]:
        """Return the rows of a query, if the vectors of the file are those of the embedder."""

        def work(connection: sqlite3.Connection) -> list[Any]:
            self._check(connection, embedder, size)
            return rows(connection, sql, *given)

        return await self._run(work)

    def _check(self, connection: sqlite3.Connection, embedder: Embedder, size: int | None) -> None:
        for model, numbers in rows(connection, f"SELECT model, size FROM {self._name}_model"):
            if model != embedder.name or size not in (None, numbers):
                raise StoreError(
                    f"{self.path!r} has vectors of {model!r} with {numbers} numbers, but the embedder is "
                    f"{embedder.name!r}{f' with {size}' if size else ''}. Vectors of different models cannot be compared. "
                    "Use the first embedder, or call drop_vectors() to embed all texts again."
                )

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
            raise StoreError(f"The {self._name} in {self.path!r} cannot be used: {error}.") from error

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(self.path, timeout=10, check_same_thread=False)
        try:
            made.execute("PRAGMA secure_delete = ON")
            made.execute("PRAGMA journal_mode = WAL")
            made.executescript(self._table + _TABLES.replace("NAME", self._name))
            if self._embedder is not None:
                _load_distance(made)
        except BaseException:
            made.close()
            raise
        self._closing = weakref.finalize(self, made.close)
        return made


def rows(connection: sqlite3.Connection, sql: str, *given: object) -> list[Any]:
    """Return the rows of a query."""
    with closing(connection.execute(sql, given)) as found:
        return found.fetchall()


def fused(*orders: Sequence[int]) -> list[int]:
    """Combine orders of ids by reciprocal rank fusion.

    Example:
        >>> fused([1, 2, 3], [3, 2])
        [3, 2, 1]
    """
    scores: dict[int, float] = {}
    for order in orders:
        for place, id_ in enumerate(order, 1):
            scores[id_] = scores.get(id_, 0.0) + 1 / (_FUSION + place)
    return sorted(scores, key=lambda id_: -scores[id_])


def _load_distance(connection: sqlite3.Connection) -> None:
    """Load the SQL function `vec_distance_cosine`."""
    try:
        library: Any = import_module("sqlite_vec")
        connection.enable_load_extension(True)  # missing in a Python that was built without it
        library.load(connection)
        connection.enable_load_extension(False)
    except (ImportError, AttributeError, sqlite3.Error):
        connection.create_function("vec_distance_cosine", 2, _distance, deterministic=True)


def _distance(one: bytes, other: bytes) -> float:
    return 1.0 - sum(map(mul, memoryview(one).cast("f"), memoryview(other).cast("f")))
