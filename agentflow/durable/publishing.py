"""Writes a run's events to the database in batches.

Rules:

1. Events are written every `WRITE_INTERVAL` seconds.
2. Events are written in the order of the run, and a decision is published only after its fact is committed.
3. If `MAX_QUEUED` events are waiting, the run waits too. If the database does not respond, writing is retried, as for facts;
   after other failures the run continues without events.
4. If a process dies, events of stored facts may be missing. The next attempt writes these events first, so that a reader gets
   each reply and each result.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentflow._support.daemon import in_daemon
from agentflow._support.logs import logger
from agentflow.durable.records import events_in
from agentflow.durable.tables import Batch, Tables, TakenOver
from agentflow.errors import StoreError
from agentflow.vocabulary.event_json import Json, event_to_dict
from agentflow.vocabulary.events import HookEvent, PostActing, PostCall, PostReasoning, PreActing, PreReasoning
from agentflow.vocabulary.facts import Fact, Reasoned, ToolDecided, ToolFinished
from agentflow.vocabulary.ports.retry import RetryPolicy
from agentflow.vocabulary.typed_state import state_name

WRITE_INTERVAL = 0.1
MAX_QUEUED = 1000
_MAX_PAUSE = 5.0
_OMITTED = ("input_messages", "history", "tools", "accumulated_message", "seq")
"""Fields that the session or earlier events contain (otherwise events would grow with the square of a run's length), and
`seq`, which counts within the call: written events are numbered within the run."""


class EventPublisher:
    """Writes the events of one attempt at a run.

    Args:
        tables: The tables to write to.
        run_id: The run's id.
        call_id: The id of the run's call.
        worker: The id of the worker that makes the attempt.
        state: Classes of the session's state to write when they change, after the event that changed them.
    """

    def __init__(self, tables: Tables, run_id: str, call_id: str, worker: str, state: Sequence[type] = ()) -> None:
        self._state = [state_name(kind) for kind in state]
        self._values: Mapping[str, Any] | None = None  # the values of the session's state that were written last
        self._tables = tables
        self._run_id = run_id
        self._call_id = call_id
        self._worker = worker
        self._waiting: list[dict[str, Json]] = []
        self._attempt = 0
        self._last = 0
        self._stopped = False
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._caught_up = False

    async def __aenter__(self) -> EventPublisher:
        def body(number: int, attempt: int) -> str:
            return json.dumps([{"type": "RunTaken", "attempt": attempt, "worker": self._worker, "call": self._call_id}])

        # Begun before anything is published: from now on, the events of earlier attempts are refused.
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
        self._caught_up = True
        self._queue(event_to_dict(event))
        # Hooks and tools may have changed the state before these events. Comparing it after every event would be slow.
        if self._state and isinstance(event, PreReasoning | PostActing | PostCall) and not event.source:
            saved, _ = event.context.session_state.saved()
            values = {name: saved[name] for name in self._state if name in saved}
            if values != self._values:
                self._values = values
                self._queue({"type": "SessionState", "values": values})
        # The run waits instead of filling the memory, but not for a task that no longer writes.
        while len(self._waiting) > MAX_QUEUED and not self._stopped:
            self._room.clear()
            await self._room.wait()

    async def catch_up(self, facts: Sequence[Fact]) -> None:
        """Queue the missing events of an earlier attempt's facts; call it before `publish`.

        Raises:
            StoreError: The database failed.
        """
        if self._caught_up:
            return
        self._caught_up = True
        written = await self._written()
        for fact in facts:
            event = _event_of(fact)
            if event is not None and (key := _key_of(data := event_to_dict(event))) not in written:
                written.add(key)
                self._queue({**data, "source": "", "run_id": self._run_id, "call_id": self._call_id})

    async def _written(self) -> set[tuple[str, str] | None]:
        """Return the keys of the events that earlier attempts at this call have written."""
        found: set[tuple[str, str] | None] = set()
        since = 0
        while batches := await in_daemon(self._tables.events, self._run_id, since):
            for batch in batches:
                since = batch.last
                try:
                    events = events_in(self._run_id, *batch)
                except StoreError:  # a damaged batch counts as not written: its events are published again
                    continue
                for event in events:
                    if event.type == "RunTaken" and event.data.get("call") != self._call_id:
                        found.clear()  # these events belong to another call of the run
                    found.add(_key_of(event.data))
        return found

    def _queue(self, data: dict[str, Json]) -> None:
        self._waiting.append({name: value for name, value in data.items() if name not in _OMITTED})
        self._wake.set()

    async def _write_on(self) -> None:
        try:
            await self._write_all()
        finally:  # also after a failure, because the run must not wait for this task
            self._stopped = True
            self._room.set()

    async def _write_all(self) -> None:
        while not self._stopped:
            await self._wake.wait()
            # Events of this interval are written in one transaction; at the end there is no reason to wait.
            if not self._closing:
                await asyncio.sleep(WRITE_INTERVAL)
            # Cleared before the list is taken: an event that is added afterwards sets it again.
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
        policy = RetryPolicy(attempts=None, first_wait=WRITE_INTERVAL, max_wait=_MAX_PAUSE, should_retry=_is_temporary)
        # Retried indefinitely, as facts are: the run cannot continue without the database anyway.
        attempts = policy.start()
        try:
            while True:
                try:
                    await in_daemon(self._tables.add_events, self._run_id, self._attempt, batch)
                    break
                except StoreError as error:
                    if not await attempts.another(error):
                        raise
        except TakenOver:
            logger.bind(run_id=self._run_id).warning(
                "run {!r} was taken over by another worker; the events of this worker are dropped", self._run_id
            )
            self._stopped = True  # the other worker writes the events from now on
        except StoreError as error:
            logger.bind(run_id=self._run_id).warning(
                "the events of run {!r} could not be written; the run continues without them: {}", self._run_id, error
            )
            self._stopped = True
        self._last = batch.last  # only the writing task changes it, so no lock is needed


def _is_temporary(error: BaseException) -> bool:
    return isinstance(error, StoreError) and error.retryable


def _event_of(fact: Fact) -> HookEvent | None:
    """Return the event of a fact, with the fact's fields; None if it has none."""
    match fact:
        case Reasoned(message=message, usage=usage, duration_ms=took, model=model):
            return PostReasoning(reasoning_result=message, usage=usage, duration_ms=took, model=model)
        case ToolDecided(tool_use=use):
            return PreActing(tool_use=use)
        case ToolFinished(tool_use=use, result=result, duration_ms=took):
            return PostActing(tool_use=use, original_tool_use=use, tool_result=result, duration_ms=took)
        case _:
            return None


def _key_of(data: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a key, unique within a call, for a final event of the types of `_event_of`; None for others."""
    match data:
        case {"type": "PostReasoning", "reasoning_result": {"id": str(id_)}}:
            return "PostReasoning", id_
        case {"type": "PreActing", "tool_use": {"id": str(id_)}}:
            return "PreActing", id_
        case {"type": "PostActing", "tool_use": {"id": str(id_)}, "tool_result": {"state": str(state)}}:
            return None if state == "suspended" else ("PostActing", id_)
        case _:
            return None
