"""`DurableClient`: submits calls to agents that workers run, and follows them, from any process.

Rules:

1. A run id identifies one run: submitting the same request again returns that run, and a different request is refused.
2. A client keeps no state: everything is in the database, so any client can continue the work of another.
3. Waiting means polling, every `poll` seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count, islice
from typing import Final, ParamSpec, Self, TypedDict, TypeVar, Unpack

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from agentflow._support.ids import new_id
from agentflow._support.tracing import current_trace
from agentflow.agent.arguments import check_timeout, input_of
from agentflow.durable.connections import PORTABLE, close_engine, dbos_engine
from agentflow.durable.records import (
    Pruned,
    Request,
    RunEvent,
    RunInfo,
    decisions_out,
    events_in,
    run_of,
    segment_id,
    segment_number,
)
from agentflow.durable.sdk import DBOS, DBOSClient, EnqueueOptions, WorkflowSerializationFormat, WorkflowStatus
from agentflow.durable.tables import Tables
from agentflow.durable.workflows import (
    QUEUE,
    by_run,
    info_of,
    is_suspended,
    last_call,
    number_of,
    pending_of,
    reply_of,
    request_of,
    session_of,
)
from agentflow.errors import AgentFlowError, StoreError, UsageError
from agentflow.reactive import CallMono, Flux
from agentflow.state.explain import database_url as parsed_url
from agentflow.state.explain import driver_error, explain
from agentflow.vocabulary.messages import Msg, Reply
from agentflow.vocabulary.ports.store import SessionStore, length_of
from agentflow.vocabulary.verdicts import Resolution

__all__ = ["APPLICATION", "QUEUED_OR_RUNNING", "VERSION", "WORKFLOW", "DurableClient", "SubmitOptions", "connect"]

P = ParamSpec("P")
T = TypeVar("T")

WORKFLOW: Final = "agentflow.call"
"""The name, for DBOS, of the only workflow."""

VERSION: Final = "agentflow"
"""The program's version, for DBOS. It never changes, so that runs continue after a deployment; stored data has separate
versions.
"""

APPLICATION: Final = "agentflow"
"""The application's name, for DBOS."""

QUEUED_OR_RUNNING: Final = ("ENQUEUED", "DELAYED", "PENDING")
"""The statuses of a call that has not ended, for DBOS."""

_BATCH = 500  # ids in one query; older versions of SQLite allow 999 parameters
_ENDED = ("SUCCESS", "ERROR")
_CONNECTIONS = 5  # of one client; a process may have several, and PostgreSQL allows 100 by default
_MAX_LENGTH = 200
_PAGE_SIZE = 16  # calls of a run read by one query; few runs have more


class _Query(TypedDict, total=False):
    """The filters and columns of a query for workflows."""

    workflow_ids: list[str]
    queue_name: str | None
    limit: int
    sort_desc: bool
    load_input: bool
    load_output: bool


class SubmitOptions(TypedDict, total=False):
    """The keyword arguments of `DurableClient.submit`."""

    session: str | None
    run_id: str | None
    timeout: float | None


class DurableClient:
    """Calls agents that run in workers.

    Args:
        database_url: `"sqlite:///agentflow.db"` (workers on one machine) or `"postgresql+psycopg://user:password@host/db"`.
        poll: Seconds between two polls of the database.

    Raises:
        UsageError: `poll` is not above 0.
        StoreError: `database_url` is not the URL of a supported database.

    Example:
        >>> async with DurableClient("sqlite:///agentflow.db") as client:
        ...     run_id = await client.submit("assistant", "Tidy up", session="ada", run_id="tidy-1")
        ...     print(run_id, [info.status for info in await client.runs()])
        tidy-1 ['queued']
    """

    def __init__(self, database_url: str, *, poll: float = 0.1) -> None:
        if not poll > 0:
            raise UsageError(f"poll={poll} must be above 0 seconds.")
        parsed_url(
            database_url, "'sqlite:///agentflow.db' (a file) or 'postgresql+psycopg://user:password@host/database'"
        )
        self._url = database_url
        self._poll = poll
        self._tables: Tables | None = None
        self._dbos: DBOSClient | None = None
        self._engine: Engine | None = None
        # Several calls may open the client at once; only one creates the connections.
        self._opening = asyncio.Lock()

    # ---- submitting

    async def submit(
        self,
        agent: str,
        input: str | Msg | Sequence[Msg],  # noqa: A002 - as in `Agent.call`
        *,
        session: str | None = None,
        run_id: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """Submit a call to the workers, and return without waiting for it.

        Args:
            agent: The agent's name.
            input: The user's message or messages.
            session: The session's id; calls on one session run one at a time, in order. A new session by default.
            run_id: The run's id; a call that is submitted again with the same id does not run again.
            timeout: Seconds from now, time in the queue included; if the call has not ended by then, it ends with a
                `CallTimeoutError`.

        Returns:
            The run's id.

        Raises:
            UsageError: An argument is invalid, or the id belongs to another run.
            StoreError: The database failed or is unreachable.
        """
        check_timeout(timeout)
        name = new_id("run_") if run_id is None else _checked(run_id, "run_id")
        session_id = name if session is None else _checked(session, "session")
        await self._submit(Request(name, agent, session_id, input_of(input, new_id), timeout=timeout))
        return name

    async def _submit(self, request: Request) -> None:
        """Submit the first call of a run."""
        tables, _ = await self._open()
        # Incremented even if this request was submitted before: a gap in the positions does no harm.
        position = await asyncio.to_thread(tables.next_position, request.session)
        await self._enqueue(request.run_id, await self._with_deadline(request), position=position)

    async def _with_deadline(self, request: Request) -> Request:
        """Return the request with its deadline and trace."""
        tables, _ = await self._open()
        seconds = request.timeout
        # By the database's clock: the clocks of client and worker may differ.
        deadline = None if seconds is None else await asyncio.to_thread(tables.now) + seconds
        return request._replace(deadline=deadline, trace=current_trace())

    def call(
        self,
        agent: str,
        input: str | Msg | Sequence[Msg],  # noqa: A002 - as in `Agent.call`
        **options: Unpack[SubmitOptions],
    ) -> CallMono[Reply]:
        """Call `submit`, then wait for the `result`. Cancelling the wait does not cancel the run: see `cancel`."""

        async def work() -> Reply:
            return await self.result(await self.submit(agent, input, **options))

        return CallMono(work, f"client.call({agent!r}, ...)")

    async def decide(self, run_id: str, decisions: Mapping[str, Resolution], *, timeout: float | None = None) -> None:
        """Decide the pending calls of a suspended run; a worker resumes it, and `result` waits for its next reply.

        Args:
            run_id: The run's id.
            decisions: `Approve()`, `Deny(reason)` or `Answer(value)`, by the keys of `reply.pending`.
            timeout: Seconds from now, as in `submit`.

        Raises:
            UsageError: The run is not suspended, the decisions do not match, or other decisions were submitted first.
        """
        check_timeout(timeout)
        await self._decide(Request(run_id, "", "", timeout=timeout), decisions)

    async def _decide(self, request: Request, decisions: Mapping[str, Resolution]) -> None:
        """Submit a call that resumes the run's last suspended call with decisions, by the same agent and session."""
        run_id = request.run_id
        segments = await self._segments(run_id)
        # Not always the run's last call: if decisions were submitted before, their call follows. `_enqueue` then checks that
        # the decisions are the same.
        waiting = next((segment for segment in reversed(segments) if pending_of(segment) is not None), None)
        if waiting is None or (waiting is not segments[-1] and segments[-1].status not in QUEUED_OR_RUNNING):
            raise UsageError(f"Run {run_id!r} does not wait for a decision: it is {info_of(segments).status}.")
        suspended = request_of(waiting)
        data = decisions_out(run_id, decisions, pending_of(waiting) or ())
        request = request._replace(agent=suspended.agent, session=suspended.session, decisions=data)
        number = segment_number(waiting.workflow_id) + 1
        await self._enqueue(segment_id(run_id, number), await self._with_deadline(request))

    async def cancel(self, run_id: str, reason: str = "cancelled") -> bool:
        """End a run in any worker or queue: its reply's outcome is `interrupted`.

        A running call is interrupted at its worker's next poll. A queued call ends when it is dequeued, without running; a
        suspended one is closed.

        Returns:
            Whether the run could still be ended.

        Raises:
            UsageError: There is no such run.
        """
        newest = await self._newest(run_id)
        pending = pending_of(newest)
        if newest.status not in QUEUED_OR_RUNNING and pending is None:
            return False
        tables, _ = await self._open()
        # Stored before the request below, which closes a suspended run: the worker that runs the request reads it.
        await asyncio.to_thread(tables.cancel, run_id, reason)
        if pending is not None:
            last = request_of(newest)
            request = Request(run_id, last.agent, last.session, (), {})
            # Refused if decisions were submitted meanwhile: the worker that runs their call reads the cancellation instead.
            with suppress(UsageError):
                await self._enqueue(segment_id(run_id, segment_number(newest.workflow_id) + 1), request)
        return True

    async def resume(self, run_id: str) -> bool:
        """Put a lost run back into its queue: too many workers died while they ran it, or it was cancelled in DBOS itself.

        Returns:
            Whether the run was lost.
        """
        newest = await self._newest(run_id)
        if newest.status not in ("MAX_RECOVERY_ATTEMPTS_EXCEEDED", "CANCELLED"):
            return False
        _, client = await self._open()
        queue = QUEUE + request_of(newest).agent
        await self._in_thread(client.resume_workflow, newest.workflow_id, queue_name=queue)
        return True

    # ---- following

    def result(self, run_id: str) -> CallMono[Reply]:
        """Wait until a run has ended or is suspended.

        Raises:
            UsageError: There is no such run.
            CallTimeoutError: The run reached its time limit.
            RunFailedError: The run failed in its worker.
        """

        async def work() -> Reply:
            newest = await self._newest(run_id)
            while newest.status in QUEUED_OR_RUNNING:
                await asyncio.sleep(self._poll)
                newest = await self._newest(run_id)
            return reply_of(run_id, newest)

        return CallMono(work, f"client.result({run_id!r})")

    def stream(self, run_id: str, since: int = 0) -> Flux[RunEvent]:
        """Stream the events of a run, past events included, until the run has ended or is suspended.

        Args:
            run_id: The run's id.
            since: Skip the events up to this `seq`.

        Raises:
            UsageError: There is no such run.
        """
        return Flux(lambda: self._events(run_id, since))

    async def _events(self, run_id: str, since: int) -> AsyncIterator[RunEvent]:
        tables, _ = await self._open()
        last = since
        while True:
            # The status is read before the events, so that no event is missed.
            ended = (await self._newest(run_id)).status not in QUEUED_OR_RUNNING
            while batches := await asyncio.to_thread(tables.events, run_id, last):
                for batch in batches:
                    for event in events_in(run_id, batch.first, batch.last, batch.body):
                        if event.seq > last:
                            last = event.seq
                            yield event
            if ended:
                return
            await asyncio.sleep(self._poll)

    async def runs(self, *, agent: str | None = None, limit: int = 100) -> list[RunInfo]:
        """List the runs, the newest first.

        Args:
            agent: List only this agent's runs; None: all.
            limit: The maximum number of runs.
        """
        queue = None if agent is None else QUEUE + agent
        calls = limit * 2
        while True:
            found = await self._statuses(
                queue_name=queue, limit=calls, sort_desc=True, load_input=False, load_output=False
            )
            newest = {run_id: last_call(segments).workflow_id for run_id, segments in by_run(found).items()}
            if len(newest) >= limit or len(found) < calls:
                break
            calls *= 2  # resumed runs have several calls
        listed = list(newest)[:limit]
        # The first call has the time of the submission, the last one the status.
        loaded: list[WorkflowStatus] = []
        for ids in _batches(dict.fromkeys([*listed, *(newest[run_id] for run_id in listed)])):
            loaded += await self._statuses(workflow_ids=ids)
        runs = by_run(loaded)
        return [info_of(runs[run_id]) for run_id in listed if run_id in runs]  # others were deleted meanwhile

    async def run(self, run_id: str) -> RunInfo:
        """Return one run.

        Raises:
            UsageError: There is no such run.
        """
        return info_of(await self._segments(run_id))

    async def prune(self, *, older_than: timedelta, store: SessionStore | None = None) -> Pruned:
        """Delete the runs that ended longer than `older_than` ago, with their events.

        Queued, running, suspended and lost runs are kept. The id of a deleted run can be used again.

        Args:
            older_than: The minimum time since the end of a run.
            store: Delete old sessions in this store too, with their facts (`SessionStore.prune`), unless a remaining run uses
                them.

        Returns:
            The deleted runs and sessions.
        """
        seconds = length_of(older_than)
        tables, client = await self._open()
        before = await asyncio.to_thread(tables.now) - seconds
        of = by_run(await self._statuses(load_input=False, load_output=False))
        ended = {
            run_id: segments
            for run_id, segments in of.items()
            if all(segment.status in _ENDED and number_of(segment.updated_at) / 1000 <= before for segment in segments)
        }
        # Results can be large, so they are loaded in a second step, and only for old runs.
        for batch in _batches([last_call(segments).workflow_id for segments in ended.values()]):
            for status in await self._statuses(workflow_ids=batch, load_input=False):
                if is_suspended(status):
                    del ended[run_of(status.workflow_id)]
        for run_ids in _batches(ended):
            ids = [status.workflow_id for run_id in run_ids for status in ended[run_id]]
            await self._in_thread(client.delete_workflows, ids)
            await asyncio.to_thread(tables.delete_runs, run_ids)
        used = {session_of(segment) for run_id, segments in of.items() if run_id not in ended for segment in segments}
        for sessions in _batches({session_of(segment) for segments in ended.values() for segment in segments} - used):
            await asyncio.to_thread(tables.delete_positions, sessions)
        waiting = {
            session_of(segment)
            for run_id, segments in of.items()
            for segment in segments
            if run_id not in ended and last_call(segments).status != "SUCCESS"
        }
        pruned = [] if store is None else await store.prune(older_than=older_than, keep=waiting)
        return Pruned(list(ended), pruned)

    # ---- the database

    async def _enqueue(self, workflow_id: str, request: Request, *, position: int = 0) -> None:
        _, client = await self._open()
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE + request.agent,
            "workflow_id": workflow_id,
            "queue_partition_key": request.session,
            "priority": position + 1,  # a resumed call has position 0, so it is first
            "app_version": VERSION,
            "application_name": APPLICATION,
            "serialization_type": WorkflowSerializationFormat.PORTABLE,
        }
        await self._in_thread(client.enqueue, options, request.to_dict())
        # DBOS ignores a second workflow with the same id, so the stored request shows which request was accepted.
        (stored,) = await self._statuses(workflow_ids=[workflow_id])
        if not request.same_as(request_of(stored)):
            run = f"Run {request.run_id!r}"
            if segment_number(workflow_id) == 1:
                raise UsageError(f"{run} was already submitted with other arguments. Use another run_id for a new run.")
            raise UsageError(
                f"{run} was already resumed with other decisions or another timeout, or cancelled. These decisions have no "
                "effect."
            )

    async def _segments(self, run_id: str) -> list[WorkflowStatus]:
        found = await self._calls(run_id)
        if not found:
            raise UsageError(f"There is no run {run_id!r} in this database; client.runs() lists them.")
        return found

    async def _calls(self, run_id: str) -> list[WorkflowStatus]:
        """Return the calls of a run, in order; none if there is no such run."""
        found: list[WorkflowStatus] = []
        for first in count(1, _PAGE_SIZE):
            ids = [segment_id(run_id, number) for number in range(first, first + _PAGE_SIZE)]
            found += await self._statuses(workflow_ids=ids)
            # Calls are numbered without gaps, so a page that is not full is the last one.
            if len(found) < first + _PAGE_SIZE - 1:
                break
        return sorted(found, key=lambda status: segment_number(status.workflow_id))

    async def _newest(self, run_id: str) -> WorkflowStatus:
        return (await self._segments(run_id))[-1]

    async def _statuses(self, **query: Unpack[_Query]) -> list[WorkflowStatus]:
        _, client = await self._open()
        return await self._in_thread(client.list_workflows, name=WORKFLOW, **query)

    async def _open(self) -> tuple[Tables, DBOSClient]:
        async with self._opening:
            if self._tables is None or self._dbos is None:
                self._tables = await asyncio.to_thread(Tables, self._url)
                self._engine = dbos_engine(self._tables.dbos_url, _CONNECTIONS)
                self._dbos = await self._in_thread(connect, self._tables.dbos_url, self._engine)
            return self._tables, self._dbos

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(partial(work, *args, **kwargs))
        except AgentFlowError:
            raise
        except SQLAlchemyError as error:
            shown = "the database of durable runs" if self._tables is None else self._tables.shown
            raise explain(error, shown, "Managing durable runs") from driver_error(error)
        except Exception as error:  # DBOS and the drivers have their own exceptions
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise StoreError(
                f"The database of durable runs failed: {lines[0].rstrip('.')}. Check that it can be reached and written to."
            ) from error

    async def close(self) -> None:
        """Close the connections; the client may be used again."""
        tables, client, engine = self._tables, self._dbos, self._engine
        # Cleared before anything is awaited, so that a call that follows opens new connections.
        self._tables = self._dbos = self._engine = None
        if client is not None:
            await asyncio.to_thread(client.destroy)
        if engine is not None:
            await asyncio.to_thread(close_engine, engine)
        if tables is not None:
            await asyncio.to_thread(tables.dispose)

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def connect(url: str, engine: Engine) -> DBOSClient:
    """Create a DBOS client, and DBOS's tables if they do not exist."""
    DBOS.migrate(url)
    return DBOSClient(
        system_database_url=url,
        system_database_engine=engine,
        serializer=PORTABLE,
        application_name=APPLICATION,
        retry_connection_errors=False,
    )


def _checked(name: str, what: str) -> str:
    if not name or len(name) > _MAX_LENGTH or not name.isprintable() or (what == "run_id" and "/" in name):
        raise UsageError(
            f"{what}={name!r:.80}: use 1 to {_MAX_LENGTH} printable characters{', and no slash' if what == 'run_id' else ''}."
        )
    return name


def _batches(ids: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(ids)
    while batch := list(islice(remaining, _BATCH)):
        yield batch
