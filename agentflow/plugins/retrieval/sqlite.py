"""`SqliteIndex`: documents in a SQLite file, with full-text search (FTS5) and, if there is an embedder, vectors."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from agentflow.plugins._texts import SqliteTexts
from agentflow.plugins.retrieval.texts import TextIndex
from agentflow.vocabulary.ports.embedder import Embedder


class SqliteIndex(SqliteTexts, TextIndex[sqlite3.Connection]):
    """An `Index` in a SQLite file. A full-text search finds passages by their terms; with an embedder, those with a similar
    meaning are found too, and the two orders are combined.

    The file is opened on first use, and closed by `close` or when this object is deleted. Several processes can use it.

    Args:
        path: The file; created with the first document. `":memory:"` keeps all in this object.
        embedder: The model for vectors; all vectors of a file must come from one model.
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
        self._set_longest(longest)
