"""A worker: takes requests from the queues of its agents, runs them, and takes over those of workers that died.

The design in short: the session's **facts** are the truth. A fact is committed before it is acted on, so any process can resume
a call at the first missing fact. A DBOS **workflow** is the scheduler around it, one workflow for each call of a run. It has no
DBOS steps: it reads the facts and does the missing work (`agentflow.durable.execution`), so it can be repeated. The facts are
its steps, with natural keys that neither parallel tools nor edited code can mix up. A second journal of steps would be
redundant, and could contradict them.

Rules:

1. One call at a time per session, across all workers: the queue is partitioned by session, and a partition runs one workflow. A
   dead worker's call keeps its position until another worker takes it over, so no later call overtakes it.
2. A worker reports that it is alive (`lease_seconds`, by the database's clock). If one stops reporting, another
   puts its calls back into their queue; DBOS does that atomically, once for each death.
3. If a worker that seemed dead was only slow, its writes are refused. A call runs under its session's lease in the store,
   which passes with a higher epoch to the worker that takes over the call; the store checks it in the transaction of
   each fact. So the slow worker cannot write or start anything, and losing the lease is not a failure: the facts
   determine the call's result.
4. A call that waits for a decision is not a workflow: its workflow has ended, and `decide` creates the next one. It occupies no
   process and no queue, and is not bound to a version of the program.
5. The program's version for DBOS never changes, so calls submitted before a deployment run on the new code.
6. The calls of a stopping worker may finish within `grace` seconds. The remaining ones are abandoned, as in a crash, and
   another worker continues them at once.
7. A database that does not respond never prevents a worker from stopping: every wait for it is in a daemon thread, and after
   the grace no wait is longer than `_CLOSING` seconds.

Limits: after a crash, a tool that was running is run again if it has `idempotent=True`, otherwise reported to the model as
"outcome unknown"; a model call is repeated. DBOS allows one worker in a process, and no other use of DBOS in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, Self

from agentflow._support.daemon import in_daemon
from agentflow._support.ids import new_id
from agentflow._support.logs import log_failure
from agentflow._support.outage import Outage
from agentflow.durable.client import APPLICATION, VERSION, WORKFLOW, connect
from agentflow.durable.connections import PORTABLE, close_engine, dbos_engine
from agentflow.durable.execution import Host
from agentflow.durable.membership import Membership
from agentflow.durable.sdk import DBOS, DBOSConfig, stop_retrying
from agentflow.durable.serving import Abandoned, RequestRunner
from agentflow.durable.tables import Tables
from agentflow.durable.watching import Watcher
from agentflow.durable.workflows import QUEUE
from agentflow.errors import StoreError, UsageError

__all__ = ["QueueLimits", "Worker"]

_CONNECTIONS = 8

_CLOSING = 5.0
"""Seconds that each step of stopping may take after the grace."""

TAKEOVERS = 50
"""How many workers may die during a call before it is given up as lost."""


class QueueLimits(NamedTuple):
    """Limits on concurrency and rate.

    Attributes:
        per_worker: Concurrent calls of one worker, per agent.
        everywhere: Concurrent calls of all workers together, per agent; None: no limit.
        rate: Calls started within a period, over all workers: `(number, seconds)`; None: no limit.
    """

    per_worker: int = 8
    everywhere: int | None = None
    rate: tuple[int, float] | None = None


class Worker:
    """Runs the calls of agents until it is stopped; an `async with` block, or `run`.

    Args:
        hosts: The agents, each with its store.
        database_url: The database of the queues.
        limits: Limits on concurrency and rate; the worker that started last sets those of all workers.
        lease_seconds: Other workers take over the calls of a worker that does not report for this long. It should exceed the
            longest pause of a process.
        grace: Seconds in which the calls of a stopping worker may finish.
        poll: Seconds between two polls for requests.

    Raises:
        StoreError: The database failed or is unreachable.
        UsageError: A number is invalid, or this process has a worker already.
    """

    def __init__(
        self,
        hosts: Iterable[Host],
        database_url: str,
        *,
        limits: QueueLimits = QueueLimits(),  # noqa: B008 - a frozen value
        lease_seconds: float = 15.0,
        grace: float = 30.0,
        poll: float = 0.25,
    ) -> None:
        if not (lease_seconds > 0 and grace >= 0 and poll > 0):
            raise UsageError(
                f"lease_seconds={lease_seconds}, grace={grace} and poll={poll} are seconds: lease_seconds and poll must be "
                "above 0, grace must not be negative."
            )
        self._hosts = {host.name: host for host in hosts}
        self._url = database_url
        self._limits = limits
        self._lease = lease_seconds
        self._grace = grace
        self._poll = poll
        self.id = new_id("worker_")
        self._places = limits.per_worker if limits.everywhere is None else min(limits.per_worker, limits.everywhere)
        self._stop = asyncio.Event()

    # ---- starting and stopping

    async def __aenter__(self) -> Self:
        # Claimed before anything is opened, because a second worker would share the process's only DBOS.
        _claim(self)
        async with AsyncExitStack() as undo:
            # Undone last, since the next worker of this process may start at once.
            undo.callback(_release, self)
            self._loop = asyncio.get_running_loop()
            self._stop.clear()
            self._tables = await in_daemon(Tables, self._url)
            undo.callback(self._tables.dispose)
            self._engine = dbos_engine(self._tables.dbos_url, _CONNECTIONS)
            undo.callback(close_engine, self._engine)
            for host in self._hosts.values():
                host.open()
            undo.push_async_callback(in_daemon, DBOS.destroy)
            self._dbos = await in_daemon(connect, self._tables.dbos_url, self._engine)
            outage = Outage(f"the database of worker {self.id}")
            member = Membership(self.id, self._lease, self._tables, self._dbos, outage)
            self._requests = RequestRunner(self._hosts, member, self._places)
            self._watcher = Watcher(self._hosts, member, self._poll, self._stop)
            await in_daemon(self._launch)
            undo.pop_all()  # from here on `__aexit__` closes everything
        self._watcher.start()
        return self

    def _launch(self) -> None:
        # Reported before the first request, because other workers take over the calls of a worker that has not reported.
        self._tables.beat(self.id, self._lease)
        config: DBOSConfig = {
            "name": APPLICATION,
            "system_database_url": self._tables.dbos_url,
            "application_version": VERSION,
            "executor_id": self.id,
            "log_level": "ERROR",
            "system_database_engine": self._engine,
            "serializer": PORTABLE,
            "run_migrations": True,
        }
        self._set_up_queues()
        DBOS(config=config)
        _register()
        DBOS.listen_queues([QUEUE + name for name in self._hosts])
        DBOS.launch()

    def _set_up_queues(self) -> None:
        """Register the queues before the launch: DBOS takes a second to notice a queue registered later."""
        _, everywhere, rate = self._limits
        for name in self._hosts:
            self._dbos.register_queue(
                QUEUE + name,
                partition_concurrency=1,
                worker_concurrency=self._places,
                global_concurrency=everywhere,
                limiter=None if rate is None else {"limit": rate[0], "period": rate[1]},
                polling_interval_sec=self._poll,
                on_conflict="always_update",
            )

    async def run(self) -> None:
        """Run until `stop` is called."""
        async with self:
            await self._stop.wait()

    def stop(self) -> None:
        """Request the end of `run`, from any thread or a signal handler."""
        self._loop.call_soon_threadsafe(self._stop.set)

    async def __aexit__(self, *_: object) -> None:
        """Wait for the calls, abandon the remaining ones, and remove the worker."""
        self._stop.set()
        stop_retrying()
        # DBOS checks once a second whether the calls have ended, and not at all if it is given no time.
        grace = max(1, round(self._grace))
        destroyed = asyncio.ensure_future(in_daemon(DBOS.destroy, workflow_completion_timeout_sec=grace))
        try:
            await asyncio.wait({destroyed}, timeout=grace + _CLOSING)
        finally:
            for host in self._hosts.values():
                host.close()  # nothing is written after this: remaining calls look as after a crash
            # The watcher still reports that this worker is alive, so no other worker takes over a call before it has
            # ended here.
            await self._requests.close(_CLOSING)
            self._watcher.end()
            await self._leave()
            if destroyed.done() and not destroyed.cancelled() and (error := destroyed.exception()) is not None:
                log_failure("WARNING", error, "worker {}: DBOS did not close", self.id)
            if destroyed.done():
                self._closed()
            else:  # a process has one DBOS: the next worker has to wait for it
                destroyed.add_done_callback(lambda _: self._closed())

    async def _leave(self) -> None:
        """Remove the worker from the table. If the database does not respond, others take over its calls later, when its
        lease expires.
        """
        try:
            async with asyncio.timeout(_CLOSING):
                # Ended before `leave`, because a late report would add this worker again.
                await in_daemon(self._watcher.join)
                await in_daemon(self._tables.leave, self.id)
        except (StoreError, TimeoutError) as error:
            log_failure(
                "WARNING",
                error,
                "worker {} could not report that it is stopping; other workers take over its runs when its lease ends",
                self.id,
            )

    def _closed(self) -> None:
        self._dbos.destroy()
        close_engine(self._engine)
        self._tables.dispose()
        _release(self)

    def serve(self, workflow_id: str, data: object) -> dict[str, Any]:
        """Run a request in the worker's event loop and wait for it: the body of a workflow, in a thread of DBOS."""
        return self._requests.serve(workflow_id, data)


# ---- a process has one DBOS

_current: list[Worker] = []
# DBOS keeps its workflows for the life of the process, so later workers find the first registration.
_registered: list[object] = []


def _claim(worker: Worker) -> None:
    if _current:
        raise UsageError(
            "This process has a worker already, and DBOS allows one. Pass all agents to one worker: "
            "Worker([...], url); or start another process: `agentflow worker module:agent --database URL`."
        )
    _current.append(worker)


def _release(worker: Worker) -> None:
    if worker in _current:
        _current.remove(worker)


def _serve(data: Any) -> dict[str, Any]:
    """Run a request: the body of every workflow."""
    workflow_id = DBOS.workflow_id
    # DBOS may still call this after the worker has been released.
    if not _current or workflow_id is None:
        raise Abandoned
    return _current[0].serve(workflow_id, data)


def _one_request(args: tuple[Any, ...], kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a workflow's arguments; for a damaged row the request is None, which `serve` reports as a clear error."""
    return (args[0] if len(args) == 1 and not kwargs else None,), {}


def _register() -> None:
    if not _registered:
        workflow = DBOS.workflow(name=WORKFLOW, max_recovery_attempts=TAKEOVERS, validate_args=_one_request)
        _registered.append(workflow(_serve))
