"""A database's connection: the URL checked, the tables brought up to date, one transaction at a time.

SQLite runs in WAL mode, so that readers and a writer do not wait for each other, and a writing transaction takes its lock
at once (`BEGIN IMMEDIATE`), so that it never fails half way for want of it. That mode needs two files beside the database:
where none can be made, a database that nobody writes to is opened as one that does not change.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from agentflow.errors import StoreError
from agentflow.ground.shown import printable, without_password
from agentflow.state.explain import database_url, explain, shown_url
from agentflow.state.migrations import SCHEMA_VERSION, migrate, schema_version

__all__ = ["Database"]

_LEGAL = "'sqlite:///agentflow.db' (a file) or 'postgresql+psycopg://user:password@host/database'"
_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
_WRITING = "agentflow_writing"


class Database:
    """One database; used by one thread.

    Args:
        url: Where it is.
        timeout: How many seconds to wait for a connection or a lock.
        power_safe: Whether a commit waits for the disk.

    Raises:
        StoreError: The URL is no database of the two kinds, or its driver is not installed.
    """

    def __init__(self, url: str, timeout: float, power_safe: bool) -> None:
        self._url = _checked(url)
        self.shown = shown_url(self._url)
        self._timeout = timeout
        self._power_safe = power_safe
        self._unchanging = False
        self._engine = self._make()
        self._ready = False

    def _make(self) -> Engine:
        try:
            if self._url.get_backend_name() == "postgresql":
                engine = create_engine(self._url, connect_args=self._postgres_options())
            else:
                engine = create_engine(self._url)
        except ModuleNotFoundError as error:
            raise StoreError(
                f"The driver of {self.shown} is not installed ({error}): pip install 'agentflow-hooks[postgres]'."
            ) from error
        except (SQLAlchemyError, ValueError, TypeError) as error:
            said = without_password(printable(str(error).strip().partition("\n")[0])).rstrip(".:")
            raise StoreError(f"{self.shown} cannot be used as a store: {said}. Legal are {_LEGAL}.") from error
        return self._listening(engine)

    def _listening(self, engine: Engine) -> Engine:
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", self._set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        self._writing = engine.execution_options(**{_WRITING: True})
        return engine

    def _postgres_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if "connect_timeout" not in self._url.query:
            options["connect_timeout"] = max(2, round(self._timeout))
        if "options" not in self._url.query:
            commit = "" if self._power_safe else " -c synchronous_commit=off"
            waits = int(
                self._timeout * 1000
            )  # a process that is frozen in the midst of a transaction keeps no lock for longer
            options["options"] = f"-c lock_timeout={waits} -c idle_in_transaction_session_timeout={waits}{commit}"
        return options

    def _set_up_sqlite(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
        connection.execute(f"PRAGMA busy_timeout = {int(self._timeout * 1000)}")
        connection.execute("PRAGMA foreign_keys = ON")
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.Error:  # a database that can only be read, or is none: reading and writing will tell
            return
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._power_safe else 'NORMAL'}")

    def begin(self, write: bool) -> AbstractContextManager[Connection]:
        """Begin a transaction; it is committed at the end of the `with` block, or taken back where that raises."""
        if not self._ready:
            self._prepare()
        return (self._writing if write else self._engine).begin()

    def _prepare(self) -> None:
        """Bring the tables up to date, if they are not: a database that is can be one that may only be read."""
        try:
            with self._engine.begin() as connection:
                version = schema_version(connection)
            if version < SCHEMA_VERSION:
                with self._writing.begin() as connection:
                    migrate(connection)
        except SQLAlchemyError as error:
            if self._open_unchanging():
                self._prepare()
                return
            raise explain(error, self.shown, "Opening the database") from error
        self._ready = True

    def _open_unchanging(self) -> bool:
        """Open a SQLite file, in a folder where nothing can be made, for reading; whether that could help.

        Each transaction opens it anew, and SQLite refuses it when a writer has come: then there is a file beside it.
        """
        path = self._url.database
        if (
            self._unchanging
            or self._url.get_backend_name() != "sqlite"
            or self._url.query
            or not path
            or not os.path.isfile(path)
        ):
            return False
        if os.access(path, os.W_OK) or os.access(os.path.dirname(os.path.abspath(path)), os.W_OK):
            return False
        name = f"file:{quote(os.path.abspath(path))}?mode=ro"

        def connect() -> sqlite3.Connection:
            alone = not any(os.path.exists(path + end) for end in ("-wal", "-journal"))
            return sqlite3.connect(f"{name}&immutable=1" if alone else name, uri=True)

        self._engine.dispose()
        self._unchanging = True
        self._engine = self._listening(create_engine(self._url, creator=connect, poolclass=NullPool))
        return True

    def dispose(self) -> None:
        """Close the connections."""
        self._engine.dispose()
        self._ready = False

    def forget(self) -> None:
        """Leave the connections to the process that this one was forked from."""
        self._engine.dispose(close=False)


def _checked(url: str) -> URL:
    parsed = database_url(url, _LEGAL)
    driver = _DRIVERS.get(parsed.drivername, parsed.drivername)
    if driver not in _DRIVERS.values():
        raise StoreError(
            f"SqlStore does not know the database {parsed.drivername!r} of {shown_url(parsed)!r}. Legal are {_LEGAL}."
        )
    return parsed.set(drivername=driver)


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get(_WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
