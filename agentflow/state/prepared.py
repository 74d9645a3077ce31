"""Statements whose SQL text is built once per dialect: a lookup in SQLAlchemy's cache takes longer than SQLite's work."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.sql.elements import ClauseElement


class Prepared:
    """A statement that is executed often.

    The values are passed to the driver without conversion, so they must be texts or numbers.

    Args:
        statement: The statement; each value is a `bindparam`.
    """

    __slots__ = ("_built", "_statement")

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._built: dict[str, tuple[str, list[str] | None]] = {}  # by dialect: the text, and the order of its values

    def execute(self, connection: Connection, *rows: dict[str, Any]) -> CursorResult[Any]:
        """Execute the statement; for several rows, with the driver's `executemany`.

        Args:
            connection: The connection, in a transaction.
            rows: Values by name.
        """
        built = self._built.get(connection.dialect.name)
        if built is None:
            compiled: Any = self._statement.compile(dialect=connection.dialect)
            built = (str(compiled), compiled.positiontup if compiled.positional else None)
            self._built[connection.dialect.name] = built
        text, order = built
        values: list[Any] = list(rows) if order is None else [tuple([row[name] for name in order]) for row in rows]
        return connection.exec_driver_sql(text, values if len(values) > 1 else values[0])
