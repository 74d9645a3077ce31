"""Connections to the database of durable runs: for our own tables, and for DBOS.

Rules:

1. What a row says of itself is not believed: through these connections every row of DBOS is in the portable form, JSON. DBOS
   would unpickle a row that says it is pickled, and whoever may write to the database could run code in its readers.
2. A row that is damaged does not hide the others: text that is none is read with marks in its place.
3. A process that is frozen in the midst of a transaction keeps its locks for some seconds, not forever (PostgreSQL).
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import WeakSet

from dbos import DBOSPortableJSONSerializer
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.pool import NullPool

from agentflow.errors import StoreError
from agentflow.state.explain import database_url, shown_url

__all__ = ["PORTABLE", "WRITING", "close_engine", "dbos_engine", "tables_engine"]

WRITING: Final = "agentflow_writing"
"""The execution option of a transaction that writes."""

_LEGAL = "'sqlite:///agentflow.db' (a file) or 'postgresql+psycopg://user:password@host/database'"
_IDLE = 10_000
"""Milliseconds that a transaction on PostgreSQL may stand still; ours take some."""

_READ_AS: Final = {
    "serialization": DBOSPortableJSONSerializer().name(),
    "authenticated_roles": None,  # these two are parsed by DBOS, and used by nobody here
    "attributes": None,
}
"""Columns of DBOS's tables, and how they are read whatever they hold."""

_Row = tuple[Any, ...]


class _Portable(DBOSPortableJSONSerializer):
    """How DBOS reads what has no column that names its form: not at all. We store nothing of that kind."""

    def deserialize(self, text: str | None) -> None:
        return None


PORTABLE: Final = _Portable()


# ---- our own tables


def tables_engine(url: str) -> tuple[Engine, str]:
    """The engine for our own tables, and the URL as DBOS wants it.

    Raises:
        StoreError: The URL is no database that workers could share, or its driver is not installed.
    """
    parsed = database_url(url, _LEGAL)
    backend = "postgresql" if parsed.drivername == "postgres" else parsed.get_backend_name()
    if backend not in ("sqlite", "postgresql") or (backend == "sqlite" and parsed.database in (None, "", ":memory:")):
        raise StoreError(
            f"Durable runs cannot be kept in {shown_url(parsed)!r}: workers are processes, and share "
            f"a file or a server. Legal are {_LEGAL}."
        )
    if backend == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    try:
        engine = create_engine(parsed, connect_args=_postgres_options(parsed) if backend == "postgresql" else {})
    except ModuleNotFoundError as error:
        raise StoreError(
            f"The driver of that database is not installed ({error}): pip install psycopg[binary]."
        ) from error
    if backend == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine, parsed.render_as_string(hide_password=False)


def _postgres_options(url: URL) -> dict[str, Any]:
    options: dict[str, Any] = {} if "application_name" in url.query else {"application_name": "agentflow"}
    if "connect_timeout" not in url.query:
        options["connect_timeout"] = 10
    if "options" not in url.query:
        options["options"] = f"-c idle_in_transaction_session_timeout={_IDLE}"
    return options


def _set_up_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
    connection.text_factory = _text
    connection.execute("PRAGMA busy_timeout = 30000")
    connection.execute("PRAGMA journal_mode = WAL")  # it stays with the file, so DBOS profits too
    connection.execute("PRAGMA synchronous = NORMAL")  # what is here may be lost in a power cut; facts are not


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


# ---- DBOS's tables


def dbos_engine(url: str, size: int) -> Engine:
    """The engine for DBOS; whoever made it closes it, with `close_engine`.

    Args:
        url: As `tables_engine` returns it.
        size: How many connections it keeps, at most (PostgreSQL).
    """
    if url.startswith("sqlite"):
        engine = create_engine(url, poolclass=NullPool)  # whoever is late when all is closed leaves nothing open
        event.listen(engine, "connect", _set_up_dbos_sqlite)
        return engine
    engine = create_engine(
        url,
        connect_args={**_postgres_options(make_url(url)), "row_factory": _postgres_rows},
        pool_size=size,
        max_overflow=0,
        pool_pre_ping=True,
    )

    @event.listens_for(engine, "checkin")
    def late(_connection: object, record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        if engine in _closed:
            record.invalidate()

    return engine


_closed: WeakSet[Engine] = WeakSet()


def close_engine(engine: Engine) -> None:
    """Close the connections, those that some thread still uses as soon as it gives them back."""
    _closed.add(engine)
    engine.dispose()


def _set_up_dbos_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = "IMMEDIATE"  # this and the next two as in DBOS's own engine
    connection.execute("PRAGMA busy_timeout = 30000")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.text_factory = _text
    connection.row_factory = _sqlite_row
    if sys.version_info >= (3, 12) and sqlite3.sqlite_version_info < (3, 42):
        # From Python 3.12 on DBOS asks for `unixepoch('subsec')`, which SQLite knows from 3.42 on (Debian 12 has 3.40).
        connection.create_function("unixepoch", 1, _seconds)


def _seconds(_what: str) -> float:
    return time.time()


def _sqlite_row(cursor: sqlite3.Cursor, row: _Row) -> _Row:
    for n, column in enumerate(cursor.description):
        if column[0] in _READ_AS:
            row = (*row[:n], _READ_AS[column[0]], *row[n + 1 :])
    return row


def _postgres_rows(cursor: Any) -> Callable[[Sequence[Any]], _Row]:
    """A row factory of psycopg."""
    fixed = [(n, _READ_AS[column.name]) for n, column in enumerate(cursor.description or ()) if column.name in _READ_AS]
    if not fixed:
        return tuple

    def row(values: Sequence[Any]) -> _Row:
        read = list(values)
        for n, value in fixed:
            read[n] = value
        return tuple(read)

    return row
