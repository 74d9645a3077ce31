"""The limits of a server, and the slots that enforce those on concurrency."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from agentflow.errors import UsageError
from agentflow.serve.refusals import Refusal


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of an `App`; each protects it from one kind of misuse.

    Attributes:
        body: Bytes of a request body; more is refused with 413.
        body_seconds: Seconds in which a body must arrive; a slower one is refused with 408.
        message: Characters of a message; more is refused with 413.
        runs: Runs at a time; a further one is refused with 503.
        runs_per_user: Runs of one user at a time; a further one is refused with 429.
        run_seconds: Seconds that a run may take.
        streams: Open event streams; a further one is refused with 503.
        streams_per_user: Open event streams of one user; a further one is refused with 429.
        heartbeat: Seconds without an event after which a stream sends a comment, so that no proxy closes it.
        idle: Seconds without an event after which a stream is closed; the run is not affected.
        send_seconds: Seconds that a client may take to accept data; then its stream is closed.
        buffer: Events of a run to keep for clients that reconnect.
        buffer_bytes: Bytes of these events.
        finished: Finished runs whose events are kept.
        finished_seconds: Seconds for which they are kept.
        retry_after: Seconds that the `Retry-After` header of a refusal names.

    Raises:
        UsageError: A limit is not above 0.
    """

    body: int = 1_000_000
    body_seconds: float = 30.0
    message: int = 100_000
    runs: int = 100
    runs_per_user: int = 10
    run_seconds: float = 600.0
    streams: int = 1_000
    streams_per_user: int = 20
    heartbeat: float = 15.0
    idle: float = 300.0
    send_seconds: float = 30.0
    buffer: int = 10_000
    buffer_bytes: int = 2_000_000
    finished: int = 200
    finished_seconds: float = 300.0
    retry_after: int = 5

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise UsageError(f"Limits({field.name}={getattr(self, field.name)!r}): it must be above 0.")


class Slots:
    """Counts the units in use, in total and by owner.

    Args:
        units: The name of the units, for refusals.
        total: How many may be in use.
        each: How many one owner may use.
        retry_after: Seconds after which a refused client may try again.
    """

    def __init__(self, units: str, total: int, each: int, retry_after: int) -> None:
        self._units = units
        self._total = total
        self._each = each
        self._retry_after = retry_after
        self._used: Counter[str] = Counter()
        self._released = asyncio.Event()

    async def room(self) -> None:
        """Wait until a slot is free; others may take it first."""
        while self._full():
            self._released.clear()
            await self._released.wait()

    def _full(self) -> bool:
        return self._used.total() >= self._total

    @contextmanager
    def take(self, owner: str) -> Generator[None]:
        """Hold a slot during the block.

        Raises:
            Refusal: No slot is free.
        """
        if self._used[owner] >= self._each:
            text = f"You have {self._each} {self._units} already. Wait until one ends."
            raise Refusal(429, f"too_many_{self._units}", text, retry_after=self._retry_after)
        if self._full():
            text = f"The server has {self._total} {self._units} already. Try again later."
            raise Refusal(503, "overloaded", text, retry_after=self._retry_after)
        self._used[owner] += 1
        try:
            yield
        finally:
            self._used[owner] -= 1
            if not self._used[owner]:
                del self._used[owner]
            self._released.set()
