"""Tables for data that DBOS does not store: live workers, cancelled runs, messages to sessions, and the events of runs.

Rules:

1. All times are from the database's clock, because the clocks of the workers may differ.
2. Every function is one transaction, and may be called from any thread.
3. A worker's events carry its attempt. After a later attempt has begun, events of an earlier one are refused: a worker presumed
   dead cannot write to a run that another has taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from agentflow._support.undo import UndoOnFailure
from agentflow.durable.connections import shared_database
from agentflow.errors import StoreError
from agentflow.state.engine import now_in
from agentflow.state.explain import driver_error, explain

T = TypeVar("T")

_SCHEMA_VERSION = 1
_LOCK = 0x61666C6F78  # PostgreSQL's advisory lock; the store's tables in the same database use another number

_metadata = MetaData()

_SCHEMA = Table("agentflow_durable_schema", _metadata, Column("version", BigInteger, nullable=False))

_WORKERS = Table(
    "agentflow_workers",
    _metadata,
    Column("executor", Text, primary_key=True),
    Column("expires", Float(53), nullable=False),  # `double precision`: shorter floats lose seconds since the epoch
)

_POSITIONS = Table(
    "agentflow_lines",  # the name in existing databases
    _metadata,
    Column("session_id", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
)

_CANCELS = Table(
    "agentflow_cancels",
    _metadata,
    Column("run_id", Text, primary_key=True),
    Column("reason", Text, nullable=False),
)

_MESSAGES = Table(
    "agentflow_session_messages",
    _metadata,
    Column("session_id", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("body", Text, nullable=False),  # the message, as JSON
)

_EVENTS = Table(
    "agentflow_run_events",
    _metadata,
    Column("run_id", Text, primary_key=True),
    Column("first", BigInteger, primary_key=True, autoincrement=False),  # otherwise SQLAlchemy makes it a sequence
    Column("last", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("body", Text, nullable=False),  # the events `first` to `last`, a JSON list
)


class Batch(NamedTuple):
    """Events that were written together.

    Attributes:
        first: The number of the first event.
        last: The number of the last event.
        body: The events, as a JSON list.
    """

    first: int
    last: int
    body: str


class StoredMessage(NamedTuple):
    """A message to a session.

    Attributes:
        session_id: The session's id.
        message_id: The message's id.
        body: The message, as JSON.
    """

    session_id: str
    message_id: str
    body: str


class TakenOver(Exception):  # noqa: N818 - a signal to the worker that wrote
    """Another worker has taken over the run."""


class Tables:
    """The tables in one database.

    Args:
        url: `"sqlite:///agentflow.db"` or `"postgresql+psycopg://user:password@host/database"`.

    Raises:
        StoreError: The URL is not a SQLite or PostgreSQL database, its driver is not installed, it is unreachable, or a
            newer agentflow created the tables.
    """

    def __init__(self, url: str) -> None:
        self._database = shared_database(url, self._create_tables)
        self.dbos_url = self._database.url.render_as_string(hide_password=False)
        self.shown = self._database.shown
        with UndoOnFailure(self._database.dispose):
            self._write(lambda _: None)  # opening the database creates the tables

    def _create_tables(self, connection: Connection) -> None:
        # Workers start at the same time, and two concurrent `CREATE TABLE IF NOT EXISTS` can fail in PostgreSQL.
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        _metadata.create_all(connection)
        version = connection.execute(select(_SCHEMA.c.version)).scalar()
        if version is None:
            connection.execute(insert(_SCHEMA).values(version=_SCHEMA_VERSION))
        elif version > _SCHEMA_VERSION:
            raise StoreError(
                f"The tables of durable runs on {self.shown} have version {version}; this agentflow supports versions up to "
                f"{_SCHEMA_VERSION}. A newer agentflow created them: upgrade agentflow here. Nothing was changed."
            )

    def _write(self, work: Callable[[Connection], T]) -> T:
        return self._in(work, write=True)

    def _read(self, work: Callable[[Connection], T]) -> T:
        return self._in(work, write=False)

    def _in(self, work: Callable[[Connection], T], write: bool) -> T:
        try:
            with self._database.begin(write) as connection:
                return work(connection)
        except IntegrityError:  # callers handle conflicts with other writers themselves
            raise
        except SQLAlchemyError as error:
            raise explain(error, self.shown, "Managing durable runs") from driver_error(error)

    # ---- time and workers

    def now(self) -> float:
        """Return the database's time, in seconds since the epoch."""
        return self._read(lambda connection: float(connection.execute(select(now_in(connection))).scalar_one()))

    def beat(self, executor: str, seconds: float) -> None:
        """Mark a worker as alive for some seconds."""

        def work(connection: Connection) -> None:
            until = now_in(connection) + seconds
            condition = _WORKERS.c.executor == executor
            # An upsert is not needed, since no other worker writes this row; SQLAlchemy has upserts only for single dialects.
            if not connection.execute(update(_WORKERS).where(condition).values(expires=until)).rowcount:
                connection.execute(insert(_WORKERS).values(executor=executor, expires=until))
            connection.execute(delete(_WORKERS).where(_WORKERS.c.expires < now_in(connection) - 3600.0))

        self._write(work)

    def leave(self, executor: str) -> None:
        """Remove a worker, so that others take over its runs at once."""
        self._write(lambda connection: connection.execute(delete(_WORKERS).where(_WORKERS.c.executor == executor)))

    def alive(self) -> frozenset[str]:
        """Return the workers that are alive."""

        def work(connection: Connection) -> frozenset[str]:
            query = select(_WORKERS.c.executor).where(_WORKERS.c.expires > now_in(connection))
            return frozenset(connection.execute(query).scalars())

        return self._read(work)

    def next_position(self, session_id: str) -> int:
        """Return the next position in a session's queue, from 1. DBOS's submission times can be too coarse to order calls."""
        condition = _POSITIONS.c.session_id == session_id

        def work(connection: Connection) -> int:
            query = (
                update(_POSITIONS)
                .where(condition)
                .values(number=_POSITIONS.c.number + 1)
                .returning(_POSITIONS.c.number)
            )
            number = connection.execute(query).scalar()
            if number is None:
                number = 1
                connection.execute(insert(_POSITIONS).values(session_id=session_id, number=number))
            return number

        while True:
            try:
                return self._write(work)
            except IntegrityError:  # another client has inserted the first row at the same time
                continue

    # ---- cancelling

    def cancel(self, run_id: str, reason: str) -> None:
        """Request the end of a run; keep the first reason."""
        added = insert(_CANCELS).values(run_id=run_id, reason=reason)
        with suppress(IntegrityError):  # the run was cancelled already
            self._write(lambda connection: connection.execute(added))

    def cancelled(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Return the cancelled runs among these, with the reasons."""
        query = select(_CANCELS.c.run_id, _CANCELS.c.reason).where(_CANCELS.c.run_id.in_(list(run_ids)))
        return self._read(lambda connection: {row.run_id: row.reason for row in connection.execute(query)})

    # ---- messages to sessions

    def send(self, message: StoredMessage) -> bool:
        """Add a message; return whether it is new."""
        of_session = _MESSAGES.c.session_id == message.session_id

        def work(connection: Connection) -> bool:
            same = of_session & (_MESSAGES.c.message_id == message.message_id)
            if connection.execute(select(_MESSAGES.c.number).where(same)).first() is not None:
                return False
            last = connection.execute(select(func.max(_MESSAGES.c.number)).where(of_session)).scalar() or 0
            connection.execute(insert(_MESSAGES).values(number=last + 1, **message._asdict()))
            return True

        try:
            return self._write(work)
        except IntegrityError:  # another attempt at the same request has just added it
            return False

    def sent(self, session_ids: Iterable[str]) -> list[StoredMessage]:
        """Return the messages to sessions, including delivered ones, the oldest first."""
        columns = (_MESSAGES.c.session_id, _MESSAGES.c.message_id, _MESSAGES.c.body)
        query = select(*columns).where(_MESSAGES.c.session_id.in_(list(session_ids))).order_by(_MESSAGES.c.number)
        return self._read(lambda connection: [StoredMessage(*row) for row in connection.execute(query)])

    def withdraw(self, session_id: str, message_ids: Sequence[str] | None = None) -> None:
        """Delete messages to a session; all by default."""
        query = delete(_MESSAGES).where(_MESSAGES.c.session_id == session_id)
        if message_ids is not None:
            query = query.where(_MESSAGES.c.message_id.in_(message_ids))
        self._write(lambda connection: connection.execute(query))

    # ---- events

    def begin_attempt(self, run_id: str, body: Callable[[int, int], str]) -> tuple[int, int]:
        """Begin an attempt to write a run's events; earlier attempts can no longer write.

        Args:
            run_id: The run's id.
            body: Creates the first batch, of one event, from its number and the attempt.

        Returns:
            The attempt, from 1, and the number of that first event.
        """

        def work(connection: Connection) -> tuple[int, int]:
            last, attempt = self._end_of(connection, run_id)
            values = {"run_id": run_id, "first": last + 1, "last": last + 1, "attempt": attempt + 1}
            connection.execute(insert(_EVENTS).values(**values, body=body(last + 1, attempt + 1)))
            return attempt + 1, last + 1

        while True:
            try:
                return self._write(work)
            except IntegrityError:  # the earlier attempt has just written: read again
                continue

    def add_events(self, run_id: str, attempt: int, batch: Batch) -> None:
        """Append events to those of a run; repeating this has no effect.

        Raises:
            TakenOver: A later attempt has begun.
        """

        def work(connection: Connection) -> None:
            last, newest = self._end_of(connection, run_id)
            # Checked in the transaction of the insert: if a later attempt writes meanwhile, the primary key refuses it.
            if newest != attempt:
                raise TakenOver
            if last == batch.last:  # already written: the connection broke after the commit
                return
            connection.execute(insert(_EVENTS).values(run_id=run_id, attempt=attempt, **batch._asdict()))

        try:
            self._write(work)
        # The row of a later attempt, or this batch itself, was inserted meanwhile: the second run finds out which.
        except IntegrityError:
            self._write(work)

    @staticmethod
    def _end_of(connection: Connection, run_id: str) -> tuple[int, int]:
        query = select(func.max(_EVENTS.c.last), func.max(_EVENTS.c.attempt)).where(_EVENTS.c.run_id == run_id)
        last, attempt = connection.execute(query).one()
        return last or 0, attempt or 0

    def events(self, run_id: str, since: int, limit: int = 50) -> Sequence[Batch]:
        """Return the batches with events after `since`, in order."""
        after = (_EVENTS.c.run_id == run_id) & (_EVENTS.c.last > since)
        query = select(_EVENTS.c.first, _EVENTS.c.last, _EVENTS.c.body).where(after).order_by(_EVENTS.c.first)
        return self._read(lambda connection: [Batch(*row) for row in connection.execute(query.limit(limit))])

    def last_events(self, run_ids: Iterable[str]) -> dict[str, int]:
        """Return the numbers of the last events of runs; runs without events are missing."""
        of_these = _EVENTS.c.run_id.in_(list(run_ids))
        query = (
            select(_EVENTS.c.run_id, func.max(_EVENTS.c.last).label("last")).where(of_these).group_by(_EVENTS.c.run_id)
        )
        return self._read(lambda connection: {row.run_id: row.last for row in connection.execute(query)})

    # ---- deletion

    def delete_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the events and cancellations of runs."""

        def work(connection: Connection) -> None:
            connection.execute(delete(_EVENTS).where(_EVENTS.c.run_id.in_(run_ids)))
            connection.execute(delete(_CANCELS).where(_CANCELS.c.run_id.in_(run_ids)))

        self._write(work)

    def delete_positions(self, session_ids: Sequence[str]) -> None:
        """Delete the queue positions of sessions without queued calls, and the messages to them."""

        def work(connection: Connection) -> None:
            for table in (_POSITIONS, _MESSAGES):
                connection.execute(delete(table).where(table.c.session_id.in_(session_ids)))

        self._write(work)

    def dispose(self) -> None:
        """Close the connections."""
        self._database.dispose()
