"""`DurableAgent`: an agent whose calls are run by workers, in this process or others. Needs `agentflow-hooks[dbos]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self

from agentflow.agent.agent import Agent
from agentflow.durable.client import DurableClient
from agentflow.durable.execution import Host
from agentflow.durable.records import Pruned, RunEvent, RunInfo
from agentflow.durable.worker import Limits, Worker
from agentflow.errors import UsageError
from agentflow.messages import Msg, Reply, T_co
from agentflow.output.replying import with_output
from agentflow.ports.store import MemoryStore, SessionStore, Store
from agentflow.reactive import CallMono, Flux
from agentflow.verdicts import Resolution

__all__ = ["DurableAgent"]


class DurableAgent(Generic[T_co]):
    """An agent whose calls outlive this process.

    Calls are submitted to a queue in the database; `worker()` runs them, here or in other processes. Sessions are kept in a
    store that all of them reach, usually in the same database.

    Args:
        agent: The agent; its name names the queue.
        database_url: `"sqlite:///agentflow.db"` (workers on one machine) or `"postgresql+psycopg://user:password@host/db"`.
        store: Where its sessions are, a `SqlStore`; the agent's own store by default.
        deps: What its tools and hooks may ask for by type, in each worker. (What a caller has cannot travel.)
        poll: How often to look for news, in seconds.

    Raises:
        UsageError: There is no store that several processes could share.

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
    ) -> None:
        kept = agent.session(agent.name).store if store is None else store
        if not isinstance(kept, SessionStore) or isinstance(kept, MemoryStore):
            raise UsageError(
                f"Agent {agent.name!r} keeps its sessions in {'the memory of one process' if kept is None else repr(kept)}; a "
                "durable agent needs a store that all workers reach: Agent(..., store=SqlStore(database_url)), or "
                "DurableAgent(agent, database_url, store=SqlStore(database_url))."
            )
        self.agent = agent
        self.client = DurableClient(database_url, poll=poll)
        self._url = database_url
        self.host = Host(agent, kept, deps)

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.agent.name

    def worker(
        self,
        *others: DurableAgent[Any],
        limits: Limits = Limits(),  # noqa: B008 - a frozen value
        lease_seconds: float = 15.0,
        grace: float = 30.0,
        poll: float = 0.25,
    ) -> Worker:
        """A worker for this agent, in this process.

        Args:
            others: More agents that it runs. (There is one worker in a process.)
            limits: How much is done at once.
            lease_seconds: After which silence others take it for dead, and its calls over.
            grace: How many seconds it lets its calls finish when it is stopped; then they go on elsewhere.
            poll: How often it looks for requests.
        """
        hosts = [self.host, *[other.host for other in others]]
        return Worker(hosts, self._url, limits=limits, lease_seconds=lease_seconds, grace=grace, poll=poll)

    # ---- what the client does, for this agent

    async def submit(
        self,
        input: str | Msg | Sequence[Msg],  # noqa: A002 - the contract's word
        *,
        session: str | None = None,
        run_id: str | None = None,
        timeout: float | None = None,
    ) -> str:
        """Hand a call to the workers, and return its run's id; see `DurableClient.submit`."""
        return await self.client.submit(self.name, input, session=session, run_id=run_id, timeout=timeout)

    def call(
        self,
        input: str | Msg | Sequence[Msg],  # noqa: A002
        *,
        session: str | None = None,
        run_id: str | None = None,
        timeout: float | None = None,
    ) -> CallMono[Reply[T_co]]:
        """Submit a call and wait for its reply, with the agent's typed output; see `DurableClient.call`."""

        async def work() -> Reply[T_co]:
            reply = await self.client.call(self.name, input, session=session, run_id=run_id, timeout=timeout)
            return await self._typed(reply)

        return CallMono(work, "durable.call(...)")

    async def _typed(self, reply: Reply[Any]) -> Reply[T_co]:
        output = self.agent.output
        return reply if output is None else await with_output(reply, output)

    def ask(
        self,
        to: str,
        message: str | Msg | Sequence[Msg],
        *,
        session: str | None = None,
        run_id: str | None = None,
        timeout: float | None = None,
    ) -> CallMono[Reply]:
        """Ask another agent that some worker runs, by its name, and wait for its reply.

        In a tool, `run_id=context.idempotency_key` makes sure that a tool that runs again after a crash does not ask twice.
        """
        return self.client.ask(to, message, session=session, run_id=run_id, timeout=timeout)

    def result(self, run_id: str) -> CallMono[Reply[T_co]]:
        """Wait until a run has ended, or waits for a decision; see `DurableClient.result`.

        The output is read from the stored text, and the `validate` of the agent's `Output` runs here again.
        """

        async def work() -> Reply[T_co]:
            return await self._typed(await self.client.result(run_id))

        return CallMono(work, f"durable.result({run_id!r})")

    async def decide(self, run_id: str, decisions: Mapping[str, Resolution], *, timeout: float | None = None) -> None:
        """Answer what a suspended run waits for; see `DurableClient.decide`."""
        await self.client.decide(run_id, decisions, timeout=timeout)

    async def cancel(self, run_id: str, reason: str = "cancelled") -> bool:
        """End a run, wherever it is; see `DurableClient.cancel`."""
        return await self.client.cancel(run_id, reason)

    def stream(self, run_id: str, since: int = 0) -> Flux[RunEvent]:
        """The events of a run, from anywhere; see `DurableClient.stream`."""
        return self.client.stream(run_id, since)

    async def runs(self, limit: int = 100) -> list[RunInfo]:
        """This agent's runs, the newest first."""
        return await self.client.runs(agent=self.name, limit=limit)

    async def prune(self, *, older_than: timedelta) -> Pruned:
        """Delete the runs in this database that ended some time ago, and this agent's sessions; see `DurableClient.prune`."""
        return await self.client.prune(older_than=older_than, store=self.host.store)

    async def close(self) -> None:
        """Close the connections; workers are stopped on their own."""
        await self.client.close()

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
