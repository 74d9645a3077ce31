"""Connections to the database of durable runs: for our own tables, and for DBOS.

Rules:

1. The format field of a row is not trusted: these connections read every row of DBOS as portable JSON. DBOS
   would unpickle a row marked as pickled, so anyone who can write to the database could run code in its readers.
2. A damaged row does not hide the others: invalid text is decoded with replacement characters.
3. On PostgreSQL, a process that hangs in a transaction loses its locks after some seconds.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.pool import NullPool

from agentflow.durable.sdk import DBOSPortableJSONSerializer
from agentflow.errors import StoreError
from agentflow.state.engine import Database, postgres_options

_TIMEOUT = 10.0
"""Seconds to wait for a connection or a lock; on PostgreSQL also the limit for idle transactions."""
_SQLITE_TIMEOUT = 30.0
"""Seconds to wait for SQLite's lock, as DBOS does on the same file."""

_READ_AS: Final = {
    "serialization": DBOSPortableJSONSerializer().name(),
    "authenticated_roles": None,  # DBOS parses these two; agentflow does not use them
    "attributes": None,
}
"""Columns of DBOS's tables that are read as these values, whatever they contain."""

_Row = tuple[Any, ...]


class _Portable(DBOSPortableJSONSerializer):
    """Reads columns that have no format field as None, since agentflow stores nothing in them."""

    def deserialize(self, text: str | None) -> None:
        return None


PORTABLE: Final = _Portable()


# ---- our own tables


def shared_database(url: str, migrate: Callable[[Connection], None]) -> Database:
    """Open the database for our own tables.

    Raises:
        StoreError: The URL is not a database that workers can share, or its driver is not installed.
    """
    sqlite = url.startswith("sqlite")
    database = Database(
        url,
        _SQLITE_TIMEOUT if sqlite else _TIMEOUT,
        power_safe=not sqlite,  # on SQLite a power failure may lose these rows; the facts are in the store
        # Always `migrate`: it is idempotent, and the store's tables in the same file have versions of their own.
        is_current=lambda _: False,
        migrate=migrate,
        text=_text,
    )
    if database.url.get_backend_name() == "sqlite" and database.url.database in (None, "", ":memory:"):
        raise StoreError(
            f"Durable runs cannot be stored in {database.shown!r}, because workers are separate processes. Use a file or a "
            "server: 'sqlite:///agentflow.db' or 'postgresql+psycopg://user:password@host/database'."
        )
    return database


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


# ---- DBOS's tables


def dbos_engine(url: str, size: int) -> Engine:
    """Create the engine for DBOS; the caller closes it with `close_engine`.

    Args:
        url: The database's URL, with its password.
        size: The maximum number of connections (PostgreSQL).
    """
    if url.startswith("sqlite"):
        # Without a pool, a thread of DBOS that ends after `close_engine` leaves no connection open.
        engine = create_engine(url, poolclass=NullPool)
        event.listen(engine, "connect", _set_up_dbos_sqlite)
        return engine
    engine = create_engine(
        url,
        connect_args={**postgres_options(make_url(url), _TIMEOUT), "row_factory": _postgres_rows},
        pool_size=size,
        max_overflow=0,
        pool_pre_ping=True,  # a server may have closed idle connections
    )

    def close_if_late(_connection: object, record: Any) -> None:
        if engine in _closed:
            # `dispose` has closed only idle connections; this one was in use, and would stay open.
            record.invalidate()

    event.listen(engine, "checkin", close_if_late)
    return engine


# Weak references, so that closed engines can be garbage-collected.
_closed: WeakSet[Engine] = WeakSet()


def close_engine(engine: Engine) -> None:
    """Close the connections; one that a thread still uses is closed when the thread returns it."""
    _closed.add(engine)
    engine.dispose()


def _set_up_dbos_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = "IMMEDIATE"  # this and the two pragmas as in DBOS's own engine
    connection.execute("PRAGMA busy_timeout = 30000")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.text_factory = _text
    connection.row_factory = _sqlite_row
    if sys.version_info >= (3, 12) and sqlite3.sqlite_version_info < (3, 42):
        # On Python 3.12 and later, DBOS needs `unixepoch('subsec')`, which SQLite has since 3.42 (Debian 12 has 3.40).
        connection.create_function("unixepoch", 1, _seconds)


def _seconds(_argument: str) -> float:
    return time.time()


def _sqlite_row(cursor: sqlite3.Cursor, row: _Row) -> _Row:
    for n, column in enumerate(cursor.description):
        if column[0] in _READ_AS:
            row = (*row[:n], _READ_AS[column[0]], *row[n + 1 :])
    return row


def _postgres_rows(cursor: Any) -> Callable[[Sequence[Any]], _Row]:
    """Return a function that builds a row, as psycopg's `row_factory`; it replaces the values of `_READ_AS`."""
    fixed = [(n, _READ_AS[column.name]) for n, column in enumerate(cursor.description or ()) if column.name in _READ_AS]
    if not fixed:
        return tuple

    def row(values: Sequence[Any]) -> _Row:
        read = list(values)
        for n, value in fixed:
            read[n] = value
        return tuple(read)

    return row
