"""A database connection: checks the URL, migrates the tables, begins transactions.

SQLite runs in WAL mode, so readers and a writer do not block each other. A writing transaction takes its lock when it begins
(`BEGIN IMMEDIATE`), so it cannot fail halfway while waiting for the lock. WAL mode needs two files next to the database: if
they cannot be created, a database without writers is opened as immutable.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from operator import itemgetter
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, ColumnElement, Connection, Engine, Float, create_engine, event, literal_column
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.elements import ClauseElement

from agentflow._support.shown import printable, without_password
from agentflow.errors import StoreError
from agentflow.state.explain import database_url, driver_error, explain, shown_url


class Prepared:
    """A statement that is executed often.

    The values are passed to the driver without conversion, so they must be texts or numbers.

    Args:
        statement: The statement; each value is a `bindparam`.
    """

    __slots__ = ("_built", "_statement")

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        # By dialect: the statement's text, and the function that orders a row's values.
        self._built: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {}

    def execute(self, connection: Connection, *rows: dict[str, Any]) -> Any:
        """Execute the statement; for several rows, with the driver's `executemany`.

        Args:
            connection: The connection, in a transaction.
            rows: Values by name.

        Returns:
            The driver's cursor.
        """
        # Compiled once: SQLAlchemy would look up its cache and convert the values each time.
        built = self._built.get(connection.dialect.name)
        if built is None:
            compiled: Any = self._statement.compile(dialect=connection.dialect)
            built = (str(compiled), _in_order(compiled.positiontup) if compiled.positional else dict)
            self._built[connection.dialect.name] = built
        text, values = built
        ordered: list[Any] = [values(row) for row in rows]
        return _execute(connection, text, ordered if len(ordered) > 1 else ordered[0])


def _execute(connection: Connection, text: str, values: Any = ()) -> Any:
    """Execute a statement with the driver's cursor, which takes a third of the time of `exec_driver_sql`.

    Raises:
        DBAPIError: The driver's error, as `exec_driver_sql` raises it.
    """
    driver = connection.connection
    cursor = driver.cursor()
    try:
        if values.__class__ is list:
            cursor.executemany(text, values)
        else:
            cursor.execute(text, values)
    except connection.dialect.loaded_dbapi.Error as error:
        dialect = connection.dialect
        # As SQLAlchemy does: the pool drops the connection, and `connection_invalidated` makes the error retryable.
        if lost := dialect.is_disconnect(error, driver, cursor):
            connection.invalidate(error)
        kind = dialect.loaded_dbapi.Error
        raise DBAPIError.instance(text, values, error, kind, connection_invalidated=lost, dialect=dialect) from error
    return cursor


def _in_order(names: list[str]) -> Callable[[dict[str, Any]], Any]:
    """Return a function that returns a row's values in the order of the names."""
    return itemgetter(*names) if len(names) > 1 else lambda row: (row[names[0]],)


_LEGAL = "'sqlite:///agentflow.db' (a file) or 'postgresql+psycopg://user:password@host/database'"
_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}


class Database:
    """A database.

    Args:
        url: The database's URL.
        timeout: Seconds to wait for a connection or a lock.
        power_safe: If true, a commit waits for the disk.
        is_current: A function that returns whether the tables are up to date.
        migrate: Creates or migrates the tables.
        text: The function with which SQLite's driver decodes text.

    Attributes:
        url: The parsed URL.
        shown: The URL without its password.

    Raises:
        StoreError: The URL is not a SQLite or PostgreSQL database, or its driver is not installed.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        power_safe: bool,
        is_current: Callable[[Connection], bool],
        migrate: Callable[[Connection], None],
        text: Callable[[bytes], str] = str,
    ) -> None:
        self.url = _checked(url)
        self.shown = shown_url(self.url)
        self._timeout = timeout
        self._power_safe = power_safe
        self._is_current = is_current
        self._migrate = migrate
        self._text = text
        self._unchanging = False  # whether the file is opened as immutable
        self._engine = self._make()
        self._ready = False  # whether the tables are up to date; checked before the first transaction

    def _make(self) -> Engine:
        try:
            if self.url.get_backend_name() == "postgresql":
                commit = "" if self._power_safe else " -c synchronous_commit=off"
                more = f" -c lock_timeout={int(self._timeout * 1000)}{commit}"
                engine = create_engine(self.url, connect_args=postgres_options(self.url, self._timeout, more))
            else:
                engine = create_engine(self.url)
        except ModuleNotFoundError as error:
            raise StoreError(
                f"The driver of {self.shown} is not installed ({error}): pip install 'agentflow-hooks[postgres]'."
            ) from error
        except (SQLAlchemyError, ValueError, TypeError) as error:
            problem = without_password(printable(str(error).strip().partition("\n")[0])).rstrip(".:")
            raise StoreError(f"{self.shown} cannot be used as a store: {problem}. Use {_LEGAL}.") from error
        return self._listening(engine)

    def _listening(self, engine: Engine) -> Engine:
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", self._set_up_sqlite)
        return engine

    def _set_up_sqlite(self, connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver begins no transactions; `_begin` does
        connection.text_factory = self._text
        # Set before the other pragmas, because switching to WAL needs a lock, too.
        connection.execute(f"PRAGMA busy_timeout = {int(self._timeout * 1000)}")
        # Off by default in SQLite; deleting or renaming a session relies on the cascades of its facts.
        connection.execute("PRAGMA foreign_keys = ON")
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.Error:  # read-only, or not a database: the first query reports it
            return
        # In WAL mode, NORMAL survives a crash of the process, FULL also a power failure.
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._power_safe else 'NORMAL'}")

    def begin(self, write: bool) -> AbstractContextManager[Connection]:
        """Begin a transaction, which is committed at the end of the `with` block, or rolled back if the block raises."""
        if not self._ready:
            self._prepare()
        return self._begin(write)

    @contextmanager
    def _begin(self, write: bool) -> Generator[Connection]:
        with self._engine.connect() as connection, connection.begin():
            if connection.dialect.name == "sqlite":  # not in a listener, which would slow down each statement
                _execute(connection, "BEGIN IMMEDIATE" if write else "BEGIN")
            yield connection

    def _prepare(self) -> None:
        """Migrate the tables if they are out of date; otherwise write nothing, since the database may be read-only."""
        try:
            with self._begin(write=False) as connection:
                # Two transactions: in SQLite, a reading transaction that becomes a writing one can fail immediately.
                # `_migrate` checks again under the lock.
                current = self._is_current(connection)
            if not current:
                with self._begin(write=True) as connection:
                    self._migrate(connection)
        except SQLAlchemyError as error:
            if self._open_unchanging():
                self._prepare()
                return
            raise explain(error, self.shown, "Opening the database") from driver_error(error)
        self._ready = True

    def _open_unchanging(self) -> bool:
        """Reopen a SQLite file in a read-only folder for reading; return False if that would not help.

        Each transaction reopens the file. If a writer has created its WAL file by then, SQLite refuses to open the database.
        """
        path = self.url.database
        if (
            self._unchanging
            or self.url.get_backend_name() != "sqlite"
            or self.url.query
            or not path
            or not os.path.isfile(path)
        ):
            return False
        # With write access the failure has another cause.
        if os.access(path, os.W_OK) or os.access(os.path.dirname(os.path.abspath(path)), os.W_OK):
            return False
        name = f"file:{quote(os.path.abspath(path))}?mode=ro"

        def connect() -> sqlite3.Connection:
            # An immutable database ignores its WAL file, and with it the newest transactions.
            unshared = not any(os.path.exists(path + end) for end in ("-wal", "-journal"))
            return sqlite3.connect(f"{name}&immutable=1" if unshared else name, uri=True)

        self._engine.dispose()
        self._unchanging = True
        # No pool: a connection that stays open would not notice that the file has changed.
        self._engine = self._listening(create_engine(self.url, creator=connect, poolclass=NullPool))
        return True

    def dispose(self) -> None:
        """Close the connections."""
        self._engine.dispose()
        self._ready = False

    def forget(self) -> None:
        """Abandon the connections of the parent process after a fork."""
        # Closing them would end the parent's sessions at the server.
        self._engine.dispose(close=False)


def _checked(url: str) -> URL:
    parsed = database_url(url, _LEGAL)
    driver = _DRIVERS.get(parsed.drivername, parsed.drivername)
    if driver not in _DRIVERS.values():
        raise StoreError(
            f"agentflow does not support the database {parsed.drivername!r} of {shown_url(parsed)!r}. Use {_LEGAL}."
        )
    return parsed.set(drivername=driver)


def now_in(connection: Connection) -> ColumnElement[float]:
    """Return the database's time, in seconds since the epoch."""
    clocks = {
        # 2440587.5 is the Julian day of 1970-01-01.
        "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
        "postgresql": "EXTRACT(EPOCH FROM clock_timestamp())::double precision",
    }
    return literal_column(clocks[connection.dialect.name], Float)


def postgres_options(url: URL, timeout: float, more: str = "") -> dict[str, Any]:
    """Return psycopg's options for a connection; options in the URL take precedence.

    Args:
        url: The database's URL.
        timeout: Seconds to wait for a connection, and after which a process that is frozen in a transaction loses its locks.
        more: Additional settings of the server.
    """
    options: dict[str, Any] = {} if "application_name" in url.query else {"application_name": "agentflow"}
    if "connect_timeout" not in url.query:
        # libpq advises against less than two seconds.
        options["connect_timeout"] = max(2, round(timeout))
    if "options" not in url.query:
        options["options"] = f"-c idle_in_transaction_session_timeout={int(timeout * 1000)}{more}"
    return options
