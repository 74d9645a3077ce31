"""The interface of a store that keeps run logs, and the rule for pruning them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import NamedTuple, Protocol, runtime_checkable

from agentflow.errors import UsageError
from agentflow.recording.log import RunLog
from agentflow.recording.reading import RunLogError, read_lines

__all__ = ["KeptLines", "KeptLog", "LogStore", "check_bounds", "load_from", "logs_to_delete"]

_IN_USE = 60.0
"""Seconds after the last write during which a log counts as being written."""


class KeptLog(NamedTuple):
    """A run log in a store.

    Attributes:
        run_id: The run's id.
        began: Time of the first write, in seconds since the epoch.
        updated: Time of the last write.
        size: The size in bytes.
    """

    run_id: str
    began: float
    updated: float
    size: int


class KeptLines(NamedTuple):
    """Lines of a run log in a store.

    Attributes:
        lines: The lines, unchanged.
        end: The position after these lines, from which to read on.
    """

    lines: list[str]
    end: int


@runtime_checkable
class LogStore(Protocol):
    """A store that keeps run logs. Any thread may call its methods; the caller need not await the returned futures."""

    def keep_log(self, run_id: str, writer: str, number: int, lines: str) -> Future[None]:
        """Add lines to a run's log. A repeated write is ignored.

        Args:
            run_id: The run's id.
            writer: The writer's id.
            number: The number of this write, from 1. If the log was deleted, only a first write creates it again.
            lines: The lines, separated by newlines.
        """
        ...

    def log_lines(self, run_id: str, begin: int = 0) -> Future[KeptLines]:
        """Read the lines of a run's log, in the order of writing; the result is empty if there is no such log.

        Args:
            run_id: The run's id.
            begin: The `end` of the previous read.
        """
        ...

    def logs(self) -> Future[list[KeptLog]]:
        """List all run logs, the most recently written first."""
        ...

    def prune_logs(self, *, max_bytes: int | None = None, max_age: timedelta | None = None) -> Future[list[KeptLog]]:
        """Delete the oldest run logs that exceed the limits, except logs that were written to in the last minute.

        Args:
            max_bytes: Limit of the total size; None means no limit.
            max_age: Limit of the time since the last write; None means no limit.

        Returns:
            The deleted logs.
        """
        ...


async def load_from(store: LogStore, run_id: str) -> RunLog:
    """Read a run log from a store.

    Args:
        store: The store of run logs.
        run_id: The run's id.

    Raises:
        RunLogError: The store has no such log, or a newer agentflow wrote it.
        StoreError: The store cannot be read.
    """
    kept = await asyncio.wrap_future(store.log_lines(run_id))
    if not kept.lines:
        raise RunLogError(f"{store!r} has no log of run {run_id!r:.80}.")
    return read_lines(kept.lines, run_id)


def check_bounds(max_bytes: int | None, max_age: timedelta | None) -> None:
    """Validate the limits of `prune_logs`.

    Raises:
        UsageError: A limit is not above 0.
    """
    if max_bytes is not None and max_bytes < 1:
        raise UsageError(f"max_bytes={max_bytes} is invalid; use a number of bytes above 0, or None.")
    if max_age is not None and not max_age > timedelta(0):
        raise UsageError(f"max_age={max_age!r} is invalid; use a timedelta above 0, or None.")


def logs_to_delete(
    logs: Iterable[KeptLog], now: float, max_bytes: int | None, max_age: timedelta | None
) -> list[KeptLog]:
    """Select the logs to delete, oldest first; logs that are being written are kept."""
    found = sorted(logs, key=lambda log: (log.updated, log.run_id))  # by id too, so that ties are stable
    left = sum(log.size for log in found)
    deleted: list[KeptLog] = []
    for log in found:
        age = now - log.updated
        too_old = max_age is not None and age > max_age.total_seconds()
        too_much = max_bytes is not None and left > max_bytes
        # A log in use is kept even beyond the limits: if it were deleted, its next lines would be lost too.
        if age >= _IN_USE and (too_old or too_much):
            deleted.append(log)
            left -= log.size
    return deleted
