"""What a store offers that keeps run logs."""

from __future__ import annotations

from collections.abc import Awaitable
from concurrent.futures import Future
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["KeptLog", "LogStore"]


class KeptLog(NamedTuple):
    """A run log in a store.

    Attributes:
        run_id: The run.
        began: When its first lines were kept, in seconds since the epoch.
        updated: When its last ones were.
        size: Characters.
    """

    run_id: str
    began: float
    updated: float
    size: int


@runtime_checkable
class LogStore(Protocol):
    """A store that keeps run logs."""

    def keep_log(self, run_id: str, writer: str, number: int, lines: str) -> Future[None]:
        """Add lines to a run's log; from any thread.

        Args:
            run_id: The run.
            writer: Who writes.
            number: Which of its writes this is.
            lines: The lines, with newlines between them.
        """
        ...

    def log_lines(self, run_id: str) -> Awaitable[list[str]]:
        """The lines of a run's log, in order; none where there is no such log."""
        ...

    def logs(self) -> Awaitable[list[KeptLog]]:
        """All run logs, the last written first."""
        ...
