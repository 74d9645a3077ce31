"""`SqliteMemory`: memories in a SQLite file, with full-text search (FTS5) and, if there is an embedder, vectors."""

from __future__ import annotations

import sqlite3

from agentflow.plugins._texts import SqliteTexts
from agentflow.plugins.memory.texts import TextMemory


class SqliteMemory(SqliteTexts, TextMemory[sqlite3.Connection]):
    """A `MemoryBank` in a SQLite file. A full-text search finds memories that share terms with the query, and ranks rare
    terms higher. With an embedder, memories with a similar meaning are found too.

    The file is opened on first use, and closed by `close` or when this object is deleted. Several processes can use it.
    Deleted text is overwritten in the file.

    Args:
        path: The file; created with the first memory. `":memory:"` keeps all in this object.
        embedder: The model for vectors; all vectors of a file must come from one model.

    Example:
        >>> bank = SqliteMemory(":memory:")
        >>> _ = await bank.add("ada", "Ada likes green tea.", "assistant", 0.0)
        >>> [one.text for one in await bank.search("ada", "Which tea?", 5)]
        ['Ada likes green tea.']
    """

    _name = "memories"
    _table = """
    CREATE TABLE IF NOT EXISTS memories (
        id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, text TEXT NOT NULL, by TEXT NOT NULL, at REAL NOT NULL,
        UNIQUE (user, text)
    );
    """
    _user = "user"
