"""The time limits of one run: of the whole run, and of its cleanup after a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["CLEANUP_TIMEOUT", "RunLimits"]

CLEANUP_TIMEOUT: Final = 5.0
"""The default limit for cleanup after a cancellation, in seconds."""


class RunLimits:
    """The time limits of one run, with one timer: for the run until it is cancelled, then for its cleanup.

    Args:
        timeout: The limit for the whole run in seconds; None: no limit.
        cleanup_timeout: The limit for cleanup after a cancellation, in seconds.

    Attributes:
        cancellations: How often the run's tasks were cancelled: more than once only if cleanup has exceeded its limit.
    """

    # Class attributes, since most runs have no limit and are not cancelled.
    _timer: asyncio.TimerHandle | None = None
    cancellations: int = 0

    def __init__(self, timeout: float | None, cleanup_timeout: float) -> None:
        self.timeout = timeout
        self.cleanup_timeout = cleanup_timeout

    @property
    def late(self) -> bool:
        """Whether cleanup has exceeded its limit."""
        return self.cancellations > 1

    def start(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], None]) -> None:
        """Start the limit of the run, if it has one and was not cancelled.

        Args:
            loop: The run's event loop.
            expire: Called if the limit passes.
        """
        if self.timeout is not None and not self.cancellations:
            self.stop()
            self._timer = loop.call_later(self.timeout, expire)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def start_cleanup(
        self, loop: asyncio.AbstractEventLoop, cancel_again: Callable[[], None], share: float = 1.0
    ) -> None:
        """Start the limit of cleanup, because the run's tasks are being cancelled.

        Args:
            loop: The run's event loop.
            cancel_again: Called if the limit passes.
            share: The part of `cleanup_timeout` to allow.
        """
        self.cancellations = 1
        self.call_after(loop, cancel_again, share)

    def call_after(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None], share: float) -> None:
        """Call a function after a part of `cleanup_timeout`, instead of what the timer would have called."""
        self.stop()
        self._timer = loop.call_later(self.cleanup_timeout * share, function)
