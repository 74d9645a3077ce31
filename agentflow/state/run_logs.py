"""The part of `SqlStore` that stores run logs: each write adds a row, in the store's thread.

Rules:

1. The parts of a log are numbered in the transaction that adds them, under a lock on the log's row: several processes may
   write to one log, and readers always get complete parts.
2. A part that is sent twice (because a connection broke before the answer) is stored once.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from agentflow.recording.keeping import KeptLines, KeptLog, check_bounds, logs_to_delete
from agentflow.state.session_tables import LOG_PARTS, LOGS
from agentflow.state.statements import column_text
from agentflow.state.thread import Queued

T = TypeVar("T")


class KeepsLogs(ABC):
    """Stores run logs; implements `LogStore`."""

    @abstractmethod
    def _ask(self, work: Callable[[], T]) -> Queued[T]: ...

    @abstractmethod
    def _transact(
        self, work: Callable[[Connection], T], doing: str, *, write: bool = True, retry: bool = False
    ) -> T: ...

    def keep_log(self, run_id: str, writer: str, number: int, lines: str) -> Future[None]:
        """Add lines to a run's log; see `LogStore.keep_log`."""
        name = str(column_text(run_id))

        def work() -> None:
            try:
                self._transact(
                    lambda connection: _add_part(connection, name, writer, number, lines),
                    f"Writing the log of run {run_id!r:.80}",
                    retry=True,
                )
            except IntegrityError:  # an earlier attempt has stored these lines, but its answer was lost
                return

        return self._ask(work).future

    def log_lines(self, run_id: str, begin: int = 0) -> Future[KeptLines]:
        """Return the lines of a run's log; see `LogStore.log_lines`."""
        wanted = (LOG_PARTS.c.run_id == column_text(run_id)) & (LOG_PARTS.c.place > begin)
        query = select(LOG_PARTS.c.place, LOG_PARTS.c.lines).where(wanted).order_by(LOG_PARTS.c.place)

        def work() -> KeptLines:
            doing = f"Reading the log of run {run_id!r:.80}"
            parts = self._transact(lambda connection: connection.execute(query).all(), doing, write=False)
            lines = [line for part in parts for line in part.lines.split("\n")]
            return KeptLines(lines, parts[-1].place if parts else begin)

        return self._ask(work).future

    def logs(self) -> Future[list[KeptLog]]:
        """List all run logs, last written first."""
        return self._ask(lambda: self._transact(_list_logs, "Listing the run logs", write=False)).future

    def prune_logs(self, *, max_bytes: int | None = None, max_age: timedelta | None = None) -> Future[list[KeptLog]]:
        """Delete the oldest run logs if they exceed a limit; see `LogStore.prune_logs`.

        Raises:
            UsageError: A limit is not above 0.
        """
        check_bounds(max_bytes, max_age)

        def prune(connection: Connection) -> list[KeptLog]:
            excess = logs_to_delete(_list_logs(connection), time.time(), max_bytes, max_age)
            return [log for log in excess if _delete_log(connection, log)]

        return self._ask(lambda: self._transact(prune, "Deleting old run logs")).future


def _add_part(connection: Connection, run_id: str, writer: str, number: int, lines: str) -> None:
    # One byte more, for the line feed after the lines.
    now, size = time.time(), len(lines.encode()) + 1
    grown: dict[str, Any] = {"updated": now, "size": LOGS.c.size + size, "parts": LOGS.c.parts + 1}
    # Several writers may begin the same log, each with its own number 1.
    if number == 1:
        statement: Any = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(LOGS)
        statement = statement.values(run_id=run_id, began=now, updated=now, size=size, parts=1)
        statement = statement.on_conflict_do_update(index_elements=["run_id"], set_=grown)
    else:  # a log that was deleted meanwhile stays deleted: it would not be readable without its first part
        statement = update(LOGS).where(LOGS.c.run_id == run_id).values(**grown)
    # The update holds the lock on the log's row until the commit, so the number is unique (rule 1).
    part_number = connection.execute(statement.returning(LOGS.c.parts)).scalar()
    if part_number is not None:
        part = {"run_id": run_id, "place": part_number, "writer": writer, "number": number, "lines": lines}
        connection.execute(insert(LOG_PARTS).values(**part))


def _list_logs(connection: Connection) -> list[KeptLog]:
    columns = [LOGS.c.run_id, LOGS.c.began, LOGS.c.updated, LOGS.c.size]
    query = select(*columns).order_by(LOGS.c.updated.desc(), LOGS.c.run_id)
    return [KeptLog(*row) for row in connection.execute(query)]


def _delete_log(connection: Connection, log: KeptLog) -> bool:
    """Delete a log unless it has been written to meanwhile."""
    same = (LOGS.c.run_id == log.run_id) & (LOGS.c.updated == log.updated) & (LOGS.c.size == log.size)
    return connection.execute(delete(LOGS).where(same)).rowcount > 0
