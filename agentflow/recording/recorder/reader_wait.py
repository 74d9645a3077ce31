"""Record how long a run waits for its reader.

A replay needs this: a slow reader affects the order of parallel tools, and time limits expire while the run waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any

__all__ = ["ReaderWait"]

_NOTICEABLE = 0.001
"""The minimum duration, in seconds, of a wait that is recorded even if nothing else happens meanwhile."""


class ReaderWait:
    """The object that a run awaits after an event, until its reader has requested enough further events.

    Args:
        inner: The awaitable that completes when the reader has done so.
        latest: Returns the latest observation.
        now: The run's clock.
        record: Called after a wait that a replay has to repeat; its argument is whether the wait was cancelled.
    """

    __slots__ = ("_inner", "_latest", "_now", "_record")

    def __init__(
        self,
        inner: Awaitable[None],
        latest: Callable[[], object],
        now: Callable[[], float],
        record: Callable[[bool], None],
    ) -> None:
        self._inner = inner
        self._latest = latest
        self._now = now
        self._record = record

    def __await__(self) -> Generator[Any, Any, None]:
        # Compared by identity after the wait: any other observation means that something happened meanwhile.
        latest, began = self._latest(), self._now()
        try:
            yield from self._inner.__await__()
        except GeneratorExit:  # the event loop was closed
            raise
        except BaseException:  # the wait ended early, by a cancellation or a failure
            self._record(True)
            raise
        if self._latest() is not latest or self._now() - began >= _NOTICEABLE:
            self._record(False)
