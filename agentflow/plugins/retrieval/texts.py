"""Documents in a database: `TextIndex`, the base class, and `SqliteIndex`, with full-text search (FTS5) and vectors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from agentflow.errors import UsageError
from agentflow.plugins._texts import C, SqliteTexts, Texts
from agentflow.vocabulary.ports.embedder import Embedder
from agentflow.vocabulary.ports.index import Passage


class TextIndex(Texts[C]):
    """An `Index` in the table of a database."""

    _max_length: int
    _of_source: ClassVar[str] = "source = ?"
    """The condition for the passages of a document; each of its parameters is the source."""

    def _set_max_length(self, max_length: int) -> None:
        if max_length < 50:
            raise UsageError(f"{type(self).__name__}(max_length={max_length}): it must be at least 50 characters.")
        self._max_length = max_length

    async def add(self, source: str, text: str) -> int:
        """See `Index`. Passages that have not changed keep their vectors; the others are embedded immediately."""
        if not source.strip():
            raise UsageError(
                f"{type(self).__name__}.add(source=''): pass the document's name, as answers should cite it."
            )
        new = list(dict.fromkeys(passages_of(text, self._max_length)))

        def work(connection: C) -> None:
            self._begin_add(connection, source)
            found = self._rows(
                connection, f"SELECT id, line, text FROM NAME WHERE {self._of_source}", *self._is(source)
            )
            old = {(line, body): id_ for id_, line, body in found}
            self._change(connection, "DELETE FROM NAME WHERE id = ?", *((old[row],) for row in old.keys() - set(new)))
            added = [(source, *row) for row in new if row not in old]
            self._change(
                connection, "INSERT INTO NAME(source, line, text) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", *added
            )

        await self._run(work)
        if self._embedder is not None:
            await self._embed(self._embedder, "m.source = ?", source)
        return len(new)

    def _begin_add(self, connection: C, source: str) -> None:
        """Lock a document against other writers, for databases where a transaction does not suffice."""

    async def remove(self, source: str) -> int:
        """See `Index`."""
        return await self._run(lambda c: self._change(c, f"DELETE FROM NAME WHERE {self._of_source}", self._is(source)))

    def _is(self, source: str) -> list[str]:
        return [source] * self._of_source.count("?")

    async def sources(self) -> Sequence[str]:
        """See `Index`."""
        found = await self._run(lambda c: self._rows(c, "SELECT DISTINCT source FROM NAME"))
        return sorted(source for (source,) in found)

    async def search(self, query: str, limit: int) -> Sequence[Passage]:
        """See `Index`."""
        if not (ids := await self._ranked(query, limit)):
            return []
        sql = f"SELECT id, source, line, text FROM NAME WHERE id IN ({', '.join('?' * len(ids))})"
        found = {id_: Passage(*rest) for id_, *rest in await self._run(lambda c: self._rows(c, sql, *ids))}
        return [found[id_] for id_ in ids if id_ in found]


def passages_of(text: str, max_length: int) -> Iterator[tuple[int, str]]:
    """Divide a text into passages, at the last line end before the maximum length, or at an empty line if the passage is more
    than half full. A line that is longer than the maximum is split.

    Returns:
        For each passage, the number of its first line (from 1) and its text.

    Example:
        >>> list(passages_of("one\\n\\ntwo\\nthree", 8))
        [(1, 'one'), (3, 'two'), (4, 'three')]
    """
    part, size, first = list[str](), 0, 1
    for number, line in enumerate(text.split("\n"), 1):
        for start in range(0, max(len(line), 1), max_length):  # an empty line is one empty part
            chunk = line[start : start + max_length]
            full = size + len(chunk) + 1 > max_length or (not chunk.strip() and 2 * size > max_length)
            if part and full:
                yield first, "\n".join(part).rstrip()
                part, size = [], 0
            if part or chunk.strip():
                first = first if part else number
                part.append(chunk)
                size += len(chunk) + 1
    if part:
        yield first, "\n".join(part).rstrip()


class SqliteIndex(SqliteTexts, TextIndex[sqlite3.Connection]):
    """An `Index` in a SQLite file. A full-text search finds passages by their terms; with an embedder, those with a similar
    meaning are found too, and the two orders are combined.

    The file is opened on first use, and closed by `close` or when this object is deleted. Several processes can use it.

    Args:
        path: The file; created with the first document. `":memory:"` keeps the data in this object only.
        embedder: The model for vectors; all vectors of a file must come from one model.
        max_length: The maximum length of a passage, in characters.

    Raises:
        UsageError: `max_length` is too small.

    Example:
        >>> index = SqliteIndex(":memory:")
        >>> await index.add("handbook.md", "Holidays: 30 days.\\n\\nLunch is free.")
        1
        >>> [passage.cite for passage in await index.search("free lunch?", 5)]
        ['handbook.md:1']
    """

    _name = "passages"
    _table = """
    CREATE TABLE IF NOT EXISTS passages (
        id INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, line INTEGER NOT NULL, text TEXT NOT NULL,
        UNIQUE (source, line, text)
    );
    """

    def __init__(self, path: str | Path, embedder: Embedder | None = None, *, max_length: int = 1_500) -> None:
        super().__init__(path, embedder)
        self._set_max_length(max_length)
