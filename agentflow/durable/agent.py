"""`DurableAgent`: an agent whose calls are run by workers, in this process or others. Needs `agentflow-hooks[dbos]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Self, Unpack

from agentflow.agent.agent import Agent
from agentflow.durable.client import SubmitOptions
from agentflow.durable.execution import Host
from agentflow.durable.following import FollowingClient
from agentflow.durable.records import Pruned, RunEvent, RunInfo
from agentflow.durable.worker import QueueLimits, Worker
from agentflow.errors import UsageError
from agentflow.loop.output.replying import with_output
from agentflow.reactive import CallMono, Flux
from agentflow.vocabulary.messages import Msg, Reply, T_co
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.store import SessionStore, Store
from agentflow.vocabulary.verdicts import Resolution

__all__ = ["DurableAgent"]


class DurableAgent(Generic[T_co]):
    """An agent with calls that outlive this process.

    Calls are submitted to a queue in the database; `worker()` runs them, here or in other processes. The sessions are in a
    store that all workers share, usually in the same database.

    Args:
        agent: The agent; its name is the name of the queue.
        database_url: `"sqlite:///agentflow.db"` (workers on one machine) or `"postgresql+psycopg://user:password@host/db"`.
        store: A `SqlStore` for the agent's sessions; the agent's own store by default.
        deps: Dependencies of the agent's tools and hooks, by type, in each worker. (A caller's objects are not sent.)
        poll: Seconds between two polls of the database.
        state: Classes of the session's state; when a value changes, the values are stored with the events, as `SessionState`.

    Attributes:
        agent: The agent.
        database_url: The database of the queues.

    Raises:
        UsageError: The store is not shared between processes.

    Example:
        >>> from agentflow.state.sql import SqlStore
        >>> async with SqlStore("sqlite:///agentflow.db") as store:
        ...     agent = Agent("assistant", ScriptedModel(["Hello!"]), store=store)
        ...     async with DurableAgent(agent, "sqlite:///agentflow.db") as durable, durable.worker():
        ...         reply = await durable.call("Hi", session="ada")
        >>> reply.text
        'Hello!'
    """

    def __init__(
        self,
        agent: Agent[T_co],
        database_url: str,
        *,
        store: Store | None = None,
        deps: object = None,
        poll: float = 0.1,
        state: Sequence[type] = (),
    ) -> None:
        # A session has the agent's store as an attribute. The session itself is not used.
        shared = agent.session(agent.name).store if store is None else store
        if not isinstance(shared, SessionStore) or isinstance(shared, MemoryStore):
            where = "the memory of one process" if shared is None else repr(shared)
            raise UsageError(
                f"Agent {agent.name!r} keeps its sessions in {where}, "
                "but a durable agent needs a store that all workers share. Use Agent(..., store=SqlStore(database_url)) or "
                "DurableAgent(agent, database_url, store=SqlStore(database_url))."
            )
        self.agent = agent
        self.client = FollowingClient(database_url, poll=poll)
        self.database_url = database_url
        self.host = Host(agent, shared, deps, state)

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.agent.name

    def worker(
        self,
        *others: DurableAgent[Any],
        limits: QueueLimits = QueueLimits(),  # noqa: B008 - a frozen value
        lease_seconds: float = 15.0,
        grace: float = 30.0,
        poll: float = 0.25,
    ) -> Worker:
        """Create a worker for this agent in this process.

        Args:
            others: More agents for the same worker. (A process has one worker.)
            limits: Limits on concurrency and rate.
            lease_seconds: Other workers take over the calls of a worker that does not report for this long.
            grace: Seconds in which the calls of a stopping worker may finish; afterwards another worker continues them.
            poll: Seconds between two polls for requests.
        """
        hosts = [self.host, *[other.host for other in others]]
        return Worker(hosts, self.database_url, limits=limits, lease_seconds=lease_seconds, grace=grace, poll=poll)

    # ---- the client's methods, for this agent

    async def submit(
        self,
        input: str | Msg | Sequence[Msg],  # noqa: A002 - as in `Agent.call`
        **options: Unpack[SubmitOptions],
    ) -> str:
        """Submit a call to the workers, and return its run's id; see `DurableClient.submit`."""
        return await self.client.submit(self.name, input, **options)

    def call(
        self,
        input: str | Msg | Sequence[Msg],  # noqa: A002 - as in `Agent.call`
        **options: Unpack[SubmitOptions],
    ) -> CallMono[Reply[T_co]]:
        """Submit a call and wait for its reply, with the agent's typed output; see `DurableClient.call`."""

        async def work() -> Reply[T_co]:
            reply = await self.client.call(self.name, input, **options)
            return await self._typed(reply)

        return CallMono(work, "durable.call(...)")

    async def _typed(self, reply: Reply[Any]) -> Reply[T_co]:
        output = self.agent.output
        return reply if output is None else await with_output(reply, output)

    def ask(
        self,
        to: str,
        message: str | Msg | Sequence[Msg],
        **options: Unpack[SubmitOptions],
    ) -> CallMono[Reply]:
        """Call another agent by name, in any worker, and wait for its reply.

        A tool should pass `run_id=context.idempotency_key`: if it runs again after a crash, it does not submit a second call.
        """
        return self.client.call(to, message, **options)

    def result(self, run_id: str) -> CallMono[Reply[T_co]]:
        """Wait until a run has ended or is suspended; see `DurableClient.result`.

        The output is parsed from the stored text, and the `validate` of the agent's `Output` runs here again.
        """

        async def work() -> Reply[T_co]:
            return await self._typed(await self.client.result(run_id))

        return CallMono(work, f"durable.result({run_id!r})")

    async def decide(self, run_id: str, decisions: Mapping[str, Resolution], *, timeout: float | None = None) -> None:
        """Decide the pending calls of a suspended run; see `DurableClient.decide`."""
        await self.client.decide(run_id, decisions, timeout=timeout)

    async def cancel(self, run_id: str, reason: str = "cancelled") -> bool:
        """End a run in any worker or queue; see `DurableClient.cancel`."""
        return await self.client.cancel(run_id, reason)

    def stream(self, run_id: str, since: int = 0) -> Flux[RunEvent]:
        """Stream the events of a run, from any process; see `DurableClient.stream`."""
        return self.client.stream(run_id, since)

    async def runs(self, limit: int = 100) -> list[RunInfo]:
        """List this agent's runs, the newest first."""
        return await self.client.runs(agent=self.name, limit=limit)

    async def prune(self, *, older_than: timedelta) -> Pruned:
        """Delete old runs in this database, and old sessions of this agent; see `DurableClient.prune`."""
        return await self.client.prune(older_than=older_than, store=self.host.store)

    async def close(self) -> None:
        """Close the connections; workers are stopped separately."""
        await self.client.close()

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
