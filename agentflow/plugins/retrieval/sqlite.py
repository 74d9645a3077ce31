"""`SqliteIndex`: documents in a SQLite file, with full-text search (FTS5) and, if there is an embedder, vectors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentflow.errors import UsageError
from agentflow.plugins._texts import SqliteTexts, rows
from agentflow.vocabulary.ports.embedder import Embedder
from agentflow.vocabulary.ports.index import Passage

__all__ = ["SqliteIndex", "passages_of"]


class SqliteIndex(SqliteTexts):
    """An `Index` in a SQLite file. A full-text search finds passages by their terms; with an embedder, those with a similar
    meaning are found too, and the two orders are combined.

    The file is opened on first use, and closed by `close`, or with this object. Several processes can use it.

    Args:
        path: The file; created with the first document. `":memory:"` keeps all in this object.
        embedder: The model for vectors; a file has those of one model.
        longest: The maximum length of a passage, in characters.

    Raises:
        UsageError: `longest` is too small.

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

    def __init__(self, path: str | Path, embedder: Embedder | None = None, *, longest: int = 1_500) -> None:
        super().__init__(path, embedder)
        if longest < 50:
            raise UsageError(f"SqliteIndex(longest={longest}): a passage has at least 50 characters.")
        self._longest = longest

    async def add(self, source: str, text: str) -> int:
        """See `Index`. Passages that have not changed keep their vectors; the others are embedded at once."""
        if not source.strip():
            raise UsageError("SqliteIndex.add(source=''): it is the name of the document, which answers cite.")
        new = list(dict.fromkeys(passages_of(text, self._longest)))

        def work(connection: sqlite3.Connection) -> None:
            sql = "SELECT id, line, text FROM passages WHERE source = ?"
            old = {(line, body): id_ for id_, line, body in rows(connection, sql, source)}
            connection.executemany("DELETE FROM passages WHERE id = ?", [(old[one],) for one in old.keys() - set(new)])
            made = [(source, *one) for one in new if one not in old]
            connection.executemany("INSERT OR IGNORE INTO passages(source, line, text) VALUES (?, ?, ?)", made)

        await self._run(work)
        if self._embedder is not None:
            await self._embed(self._embedder, "m.source = ?", source)
        return len(new)

    async def remove(self, source: str) -> int:
        """See `Index`."""
        return await self._run(lambda c: c.execute("DELETE FROM passages WHERE source = ?", (source,)).rowcount)

    async def sources(self) -> Sequence[str]:
        """See `Index`."""
        found = await self._run(lambda c: rows(c, "SELECT DISTINCT source FROM passages ORDER BY source"))
        return [source for (source,) in found]

    async def search(self, query: str, limit: int) -> Sequence[Passage]:
        """See `Index`."""
        ids = await self._ranked(query, limit)
        sql = f"SELECT id, source, line, text FROM passages WHERE id IN ({', '.join('?' * len(ids))})"
        found = {id_: Passage(*rest) for id_, *rest in await self._run(lambda c: rows(c, sql, *ids))}
        return [found[id_] for id_ in ids if id_ in found]


def passages_of(text: str, longest: int) -> Iterator[tuple[int, str]]:
    """Divide a text into passages: at an empty line once one is half full, or in any line at the maximum length.

    Returns:
        The first line of each, from 1, and its text.

    Example:
        >>> list(passages_of("one\\n\\ntwo\\nthree", 8))
        [(1, 'one'), (3, 'two'), (4, 'three')]
    """
    part, size, first = list[str](), 0, 1
    for number, line in enumerate(text.split("\n"), 1):
        for start in range(0, max(len(line), 1), longest):
            chunk = line[start : start + longest]
            full = size + len(chunk) + 1 > longest or (not chunk.strip() and 2 * size > longest)
            if part and full:
                yield first, "\n".join(part).rstrip()
                part, size = [], 0
            if part or chunk.strip():
                first = first if part else number
                part.append(chunk)
                size += len(chunk) + 1
    if part:
        yield first, "\n".join(part).rstrip()
