"""What a store offers that keeps run logs, and which of them go where there are too many."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import NamedTuple, Protocol, runtime_checkable

from agentflow.errors import UsageError
from agentflow.runlog.log import RunLog
from agentflow.runlog.reading import RunLogError, read_lines

__all__ = ["KeptLines", "KeptLog", "LogStore", "check_bounds", "load_from", "too_many"]

_IN_USE = 60.0
"""Seconds since its last lines for which a log is taken to be in use."""


class KeptLog(NamedTuple):
    """A run log in a store.

    Attributes:
        run_id: The run.
        began: When its first lines were kept, in seconds since the epoch.
        updated: When its last ones were.
        size: Bytes.
    """

    run_id: str
    began: float
    updated: float
    size: int


class KeptLines(NamedTuple):
    """Lines of a run log in a store.

    Attributes:
        lines: The lines, each as it was given.
        behind: Where the next ones begin.
    """

    lines: list[str]
    behind: int


@runtime_checkable
class LogStore(Protocol):
    """A store that keeps run logs: it is asked from any thread, and answers with futures, which nobody has to wait for."""

    def keep_log(self, run_id: str, writer: str, number: int, lines: str) -> Future[None]:
        """Add lines to a run's log. What is given twice is kept once.

        Args:
            run_id: The run.
            writer: Who writes.
            number: Which of its writes this is; the first one is 1. Later ones to a log that was deleted are dropped.
            lines: The lines, with newlines between them.
        """
        ...

    def log_lines(self, run_id: str, begin: int = 0) -> Future[KeptLines]:
        """The lines of a run's log, in the order in which they were kept; none where there is no such log.

        Args:
            run_id: The run.
            begin: The `behind` of those that are known already.
        """
        ...

    def logs(self) -> Future[list[KeptLog]]:
        """All run logs, the last written first."""
        ...

    def prune_logs(self, *, max_bytes: int | None = None, max_age: timedelta | None = None) -> Future[list[KeptLog]]:
        """Delete the oldest run logs where they are too many; those that were written to within a minute stay.

        Args:
            max_bytes: Of all together; None: any number.
            max_age: Since the last write; None: any age.

        Returns:
            Those that are gone.
        """
        ...


async def load_from(store: LogStore, run_id: str) -> RunLog:
    """Read a run log from a store.

    Args:
        store: The store.
        run_id: The run.

    Raises:
        RunLogError: The store has no such log, or it is one of a newer agentflow.
        StoreError: The store cannot be read.
    """
    kept = await asyncio.wrap_future(store.log_lines(run_id))
    if not kept.lines:
        raise RunLogError(f"{store!r} keeps no log of a run {run_id!r:.80}.")
    return read_lines(kept.lines, run_id)


def check_bounds(max_bytes: int | None, max_age: timedelta | None) -> None:
    """Refuse bounds that are none.

    Raises:
        UsageError: One of them is not above 0.
    """
    if max_bytes is not None and max_bytes < 1:
        raise UsageError(f"max_bytes={max_bytes}: it is a number of bytes above 0, or None.")
    if max_age is not None and not max_age > timedelta(0):
        raise UsageError(f"max_age={max_age!r}: it is a timedelta above 0, or None.")


def too_many(logs: Iterable[KeptLog], now: float, max_bytes: int | None, max_age: timedelta | None) -> list[KeptLog]:
    """Which logs have to go: the oldest first; those that somebody writes to stay."""
    found = sorted(logs, key=lambda log: (log.updated, log.run_id))
    left = sum(log.size for log in found)
    gone: list[KeptLog] = []
    for log in found:
        age = now - log.updated
        too_old = max_age is not None and age > max_age.total_seconds()
        too_much = max_bytes is not None and left > max_bytes
        if age >= _IN_USE and (too_old or too_much):
            gone.append(log)
            left -= log.size
    return gone
