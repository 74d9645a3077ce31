"""Log an outage: when it starts, once a minute, and when it has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from agentflow._support.logs import ids_of, logger
from agentflow._support.shown import described

_LOG_INTERVAL = 60.0
"""Seconds between two warnings about an outage."""


class Outage:
    """Reports that a resource is unreachable, without a line for each attempt; may be used from any thread.

    Args:
        what: The name of the resource, such as `"the database of worker w1"`.
        now: A monotonic clock, in seconds.

    Attributes:
        failures: The number of failures in a row.

    Example:
        >>> outage = Outage("the database")
        >>> outage.failed(ConnectionError("refused"))
        >>> outage.failures
        1
    """

    def __init__(self, what: str, now: Callable[[], float] = time.monotonic) -> None:
        self.failures = 0
        self._what = what
        self._now = now
        self._lock = threading.Lock()
        self._since = 0.0
        self._logged_at: float | None = None

    def failed(self, error: BaseException, where: object = None) -> None:
        """Record a failure, which is logged if it is the first one, or the last line is a minute old."""
        now = self._now()
        with self._lock:
            self.failures += 1
            first = self._logged_at is None
            if first:
                self._since = now
            elif self._logged_at is not None and now - self._logged_at < _LOG_INTERVAL:
                return
            self._logged_at = now
            failures, lasted = self.failures, now - self._since
        bound = logger.bind(**ids_of(where)).opt(depth=1)
        if first:
            bound.warning(
                "{} cannot be used; it is retried, and this is logged once a minute: {}", self._what, described(error)
            )
        else:
            bound.warning(
                "{} could not be used for {:.0f} s ({} attempts): {}", self._what, lasted, failures, described(error)
            )

    def answered(self) -> None:
        """Record a success, which is logged if it ends an outage."""
        if not self.failures:  # the frequent case; reading one number needs no lock
            return
        with self._lock:
            failures, logged_at, lasted = self.failures, self._logged_at, self._now() - self._since
            self.failures, self._logged_at = 0, None
        if logged_at is not None:
            logger.opt(depth=1).info(
                "{} can be used again, after {:.0f} s ({} attempts failed)", self._what, lasted, failures
            )

    def pause(self, first: float, longest: float) -> float:
        """Return the seconds to wait before the next attempt: `first`, doubled with each failure, up to `longest`."""
        # Without the inner `min`, a long outage would raise OverflowError.
        return min(first * 2.0 ** min(self.failures, 30), max(first, longest))
