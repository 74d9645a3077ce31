"""`FollowingClient`: follows many runs at once, for a server with its own clients.

Rules:

1. All followed runs are polled together: two queries every `poll` seconds, for any number of readers.
2. A reader has no buffer: when the poll has found new events, it reads those after its position from the database.
3. The status of a call is read before its events. All events are written before a call ends, so none is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from agentflow.durable.client import QUEUED_OR_RUNNING, WORKFLOW, DurableClient
from agentflow.durable.records import Request, RunFailedError, message_out, run_of, segment_id
from agentflow.durable.sdk import WorkflowStatus
from agentflow.durable.tables import Batch, StoredMessage
from agentflow.durable.workflows import QUEUE, agent_of, reply_of, request_of, session_of
from agentflow.errors import AgentFlowError, CallTimeoutError, StoreError
from agentflow.vocabulary.messages import Msg, Reply
from agentflow.vocabulary.verdicts import Resolution

_BATCHES: Final = 4  # batches read at once for a reader; bounds the memory if the reader is slow


class CallRecord(NamedTuple):
    """A call of a run.

    Attributes:
        agent: The agent's name.
        session: The session's id.
        key: The sender's id for the request.
        result: Its reply or failure; None while it is queued or running.
    """

    agent: str
    session: str
    key: str | None
    result: Reply | AgentFlowError | None


class ListedRun(NamedTuple):
    """A run in a list.

    Attributes:
        run_id: The run's id.
        session: The session's id.
    """

    run_id: str
    session: str


class Watch:
    """Notifies one reader of changes of one run.

    Args:
        run_id: The run's id.

    Attributes:
        call_id: The id of the call that the reader waits for.
        ended: Whether the call has ended.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.call_id = run_id
        self.ended = False
        self._last = 0
        self._error: StoreError | None = None
        self._released = False
        self._changed = asyncio.Event()

    async def wait(self, call: int, seq: int, timeout: float) -> bool:
        """Wait until a call has ended or its run has events after `seq`; return False after the timeout or `release`.

        Raises:
            StoreError: The database failed or is unreachable.
        """
        if self.call_id != segment_id(self.run_id, call):
            self.call_id, self.ended = segment_id(self.run_id, call), False
        try:
            async with asyncio.timeout(timeout):
                while not self.ended and self._last <= seq:
                    # Cleared directly before the wait, without an `await` between: an update cannot be missed.
                    self._changed.clear()
                    await self._changed.wait()
                    if self._error is not None:
                        raise self._error
                    if self._released:
                        return False
        except TimeoutError:
            return False
        return True

    def update(self, last: int, ended: Collection[str]) -> None:
        """Pass on the result of a poll: the run's last event, and the ids of ended calls."""
        self.ended = self.ended or self.call_id in ended
        self._last = last
        self._error = None
        self._changed.set()

    def release(self) -> None:
        """End the wait without a change."""
        self._released = True
        self._changed.set()

    def fail(self, error: StoreError) -> None:
        """End the wait with an error."""
        self._error = error
        self._changed.set()


class FollowingClient(DurableClient):
    """A `DurableClient` for a server; it belongs to one event loop.

    Args:
        database_url: As for `DurableClient`.
        poll: Seconds between two polls of the database.
    """

    def __init__(self, database_url: str, *, poll: float = 0.1) -> None:
        super().__init__(database_url, poll=poll)
        self._watches: set[Watch] = set()
        self._polling: asyncio.Task[None] | None = None

    async def calls(self, run_id: str) -> list[CallRecord]:
        """Return the calls of a run, in order; none if there is no such run.

        Raises:
            StoreError: The database failed, or a result is damaged.
        """
        return [_record(run_id, status) for status in await self._calls(run_id)]

    async def start(self, request: Request) -> None:
        """Submit the first call of a run, like `submit`."""
        await self._submit(request)

    async def answer(self, request: Request, decisions: Mapping[str, Resolution]) -> None:
        """Decide the last call of a run, like `decide`; the request's agent and session are ignored."""
        await self._decide(request, decisions)

    async def send(self, session_id: str, message: Msg) -> bool:
        """Send a message to a session's running or next call; return whether it is new."""
        tables, _ = await self._open()
        return await asyncio.to_thread(tables.send, StoredMessage(session_id, message.id, message_out(message)))

    async def withdraw(self, session_id: str, message_ids: Sequence[str] | None = None) -> None:
        """Delete undelivered messages to a session; all of them by default."""
        tables, _ = await self._open()
        await asyncio.to_thread(tables.withdraw, session_id, message_ids)

    async def waiting(self, agents: Sequence[str], limit: int) -> list[ListedRun]:
        """Return runs of agents that are queued or running, at most `limit`."""
        return await self._listed(agents, limit, list(QUEUED_OR_RUNNING))

    async def recent(self, agents: Sequence[str], limit: int) -> list[ListedRun]:
        """Return the last runs of agents, the newest first."""
        return await self._listed(agents, limit, None)

    async def _listed(self, agents: Sequence[str], limit: int, status: list[str] | None) -> list[ListedRun]:
        _, client = await self._open()
        found = await self._in_thread(
            client.list_workflows,
            name=WORKFLOW,
            queue_name=[QUEUE + name for name in agents],
            status=status,
            limit=limit,
            sort_desc=True,
            load_input=False,
            load_output=False,
        )
        sessions = {run_of(status.workflow_id): session_of(status) for status in found}
        return [ListedRun(run_id, session) for run_id, session in sessions.items()]

    async def batches(self, run_id: str, since: int) -> Sequence[Batch]:
        """Return some of the batches with events after `since`, in order."""
        tables, _ = await self._open()
        return await asyncio.to_thread(tables.events, run_id, since, _BATCHES)

    @asynccontextmanager
    async def watching(self, run_id: str) -> AsyncGenerator[Watch]:
        """Watch a run for the duration of the block."""
        watch = Watch(run_id)
        self._watches.add(watch)
        # One task polls for all readers. It ends after the last of them.
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll_all(), name="agentflow: follow runs")
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    async def _poll_all(self) -> None:
        """Poll for all readers as long as there are any."""
        try:
            while self._watches:
                await asyncio.sleep(self._poll)
                # A copy, since readers come and go during the queries.
                watches = tuple(self._watches)
                try:
                    # Read before the events (rule 3).
                    ended = await self._ended({watch.call_id for watch in watches})
                    tables, _ = await self._open()
                    last = await asyncio.to_thread(tables.last_events, {watch.run_id for watch in watches})
                except StoreError as error:
                    for watch in watches:
                        watch.fail(error)
                    continue  # the next poll may succeed, for readers that come later
                for watch in watches:
                    watch.update(last.get(watch.run_id, 0), ended)
        finally:
            self._polling = None

    async def _ended(self, call_ids: set[str]) -> set[str]:
        found = await self._statuses(workflow_ids=list(call_ids), load_input=False, load_output=False)
        # A call that is not found (it was deleted) counts as ended, so that no reader waits for it.
        return call_ids - {status.workflow_id for status in found if status.status in QUEUED_OR_RUNNING}

    def release(self) -> None:
        """End the waits of all readers."""
        for watch in self._watches:
            watch.release()

    async def close(self) -> None:
        """Stop following, and close the connections; the client may be used again."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
        for watch in self._watches:
            watch.fail(StoreError("The client of durable runs was closed."))
        await super().close()


def _record(run_id: str, status: WorkflowStatus) -> CallRecord:
    result: Reply | AgentFlowError | None = None
    if status.status not in QUEUED_OR_RUNNING:
        try:
            result = reply_of(run_id, status)
        except (RunFailedError, CallTimeoutError) as error:
            result = error
    try:
        key = request_of(status).key
    except StoreError:  # the stored data is damaged, which `result` reports
        key = None
    return CallRecord(agent_of(status), session_of(status), key, result)
