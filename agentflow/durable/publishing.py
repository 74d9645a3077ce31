"""Writes a run's events to the database in batches.

Rules:

1. An event is written after `EVERY` seconds, with all events since the last write.
2. Events are written in the order of the run: a decision is published only after its fact is committed.
3. If writing is slower than the run, the run waits (after `MOST` events); if writing fails, the run continues without it.
"""

from __future__ import annotations

import asyncio
import json

from agentflow._support.daemon import in_daemon
from agentflow._support.logs import logger
from agentflow.durable.tables import Batch, Tables, TakenOver
from agentflow.errors import StoreError
from agentflow.vocabulary.event_json import Json, event_to_dict
from agentflow.vocabulary.events import HookEvent

__all__ = ["EventPublisher"]

EVERY = 0.1
MOST = 1000
_LEFT_OUT = ("input_messages", "history", "tools", "accumulated_message", "seq")
"""Fields that the session or earlier events already hold (a run's events would otherwise grow with the square of its length),
and the number within the call: the number within the run replaces it."""


class EventPublisher:
    """Writes the events of one attempt at a run.

    Args:
        tables: The tables to write to.
        run_id: The run.
        worker: The id of the worker that makes the attempt.
    """

    def __init__(self, tables: Tables, run_id: str, worker: str) -> None:
        self._tables = tables
        self._run_id = run_id
        self._worker = worker
        self._waiting: list[dict[str, Json]] = []
        self._attempt = 0
        self._last = 0
        self._stopped = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def __aenter__(self) -> EventPublisher:
        def body(number: int, attempt: int) -> str:
            return json.dumps([{"type": "RunTaken", "attempt": attempt, "worker": self._worker}])

        self._attempt, self._last = await in_daemon(self._tables.begin_attempt, self._run_id, body)
        self._task = asyncio.create_task(self._write_on(), name=f"agentflow: events of {self._run_id}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task

    async def publish(self, event: HookEvent) -> None:
        """Queue one event."""
        if self._stopped:
            return
        data = event_to_dict(event)
        self._waiting.append({name: value for name, value in data.items() if name not in _LEFT_OUT})
        self._wake.set()
        while len(self._waiting) > MOST and not self._stopped:
            self._room.clear()
            await self._room.wait()

    async def _write_on(self) -> None:
        try:
            await self._write_all()
        finally:  # on any failure: the run must not wait for this task
            self._stopped = True
            self._room.set()

    async def _write_all(self) -> None:
        while not self._stopped:
            await self._wake.wait()
            if not self._closing:
                await asyncio.sleep(EVERY)
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            if batch:
                await self._write(batch)
            self._room.set()
            if self._closing and not self._waiting:
                return

    async def _write(self, events: list[dict[str, Json]]) -> None:
        body = json.dumps(events, separators=(",", ":"), allow_nan=False)
        batch = Batch(self._last + 1, self._last + len(events), body)
        try:
            await in_daemon(self._tables.add_events, self._run_id, self._attempt, batch)
        except TakenOver:
            logger.bind(run_id=self._run_id).warning(
                "run {!r} was taken over by another worker; this one's events are dropped", self._run_id
            )
            self._stopped = True
        except StoreError as error:
            logger.bind(run_id=self._run_id).warning(
                "the events of run {!r} could not be written; the run continues without them: {}", self._run_id, error
            )
            self._stopped = True
        self._last = batch.last
