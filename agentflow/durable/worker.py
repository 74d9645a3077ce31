"""A worker: takes requests from the queues of its agents, runs them, and takes over those of workers that died.

The design, in short. The session's **facts** are the truth: one is committed before it is acted on, so that a call can go on
at the first fact that is missing, in any process. A DBOS **workflow** is the scheduler around it: one workflow for each call
of a run. Its body has no steps of DBOS. It reads the facts and does what they lack (`agentflow.durable.execution`), so it may
be repeated at will: the facts are its steps, under natural keys, which neither parallel tools nor edited code confuse. A second
journal beside them could only disagree.

Rules:

1. One call at a time per session, over all workers: the queue is partitioned by session, and a partition runs one workflow.
   A dead worker's call keeps its place until somebody takes it over, so that nobody overtakes it.
2. A worker says that it is alive (`lease_seconds`, by the database's clock). Each worker looks for calls of workers that do not
   say so any more, and puts them back into their queue; DBOS does that atomically, once for each death.
3. A worker that was only slow, and comes back, is fenced. A call is run under its session's lease in the store, which passes,
   with a higher epoch, to whoever takes the call over; the store looks at it in the transaction of each fact. So it neither
   writes nor begins anything, and a race that it has lost is no failure: the facts tell what came of the call.
4. A call that waits for a decision is no workflow: its workflow has ended, and `decide` makes the next one. It holds no
   process, no place in a queue, and no version of the program.
5. The version of the program is pinned: whatever was submitted before a deploy is run by what is there after it.
6. A stopping worker lets its calls finish for `grace` seconds. What is left then is not ended but dropped, like by a crash,
   and goes on in another worker at once.
7. A database that does not answer keeps no worker from stopping: whatever waits for it is in a daemon thread, and after the
   grace nothing is waited for longer than `_CLOSING` seconds.

Limits: of what was in flight at a crash a tool that is `idempotent=True` runs again, another is told as "outcome unknown"; a
model call is made again. DBOS allows one worker in a process, and no other use of DBOS beside it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Self

from dbos import DBOS, DBOSConfig
from dbos import _dbos as dbos_module  # pyright: ignore[reportPrivateUsage] - see `_stop_retrying`

from agentflow.durable.client import APPLICATION, QUEUE, VERSION, WORKFLOW, connect
from agentflow.durable.connections import PORTABLE, close_engine, dbos_engine
from agentflow.durable.execution import Host
from agentflow.durable.publishing import Publisher
from agentflow.durable.records import Request, error_out
from agentflow.durable.tables import Tables
from agentflow.errors import SessionConflictError, StoreError, UsageError
from agentflow.ground.daemon import in_daemon
from agentflow.ground.ids import new_id
from agentflow.ground.logs import log_failure, logger
from agentflow.ground.outage import Outage
from agentflow.ports.retry import RetryPolicy
from agentflow.ports.store import Claim

__all__ = ["Limits", "Worker"]

_CONNECTIONS = 8

_CLOSING = 5.0
"""Seconds that each step of a stop may take after the grace."""

ATTEMPTS = 3
"""How often a call is tried where the store fails for good."""

CONFLICTS = 20
"""How often a call is tried where somebody else writes into its session."""

LONGEST_PAUSE = 10.0
"""Seconds between two attempts, at most."""

TAKEOVERS = 50
"""How many workers may die with a call before it is given up as lost."""


def _patience() -> Callable[[Exception], bool]:
    """Judges the failures of one call: what may pass is waited for without an end, other things for a while."""
    conflicts = failures = 0

    def should_retry(error: Exception) -> bool:
        nonlocal conflicts, failures
        if isinstance(error, SessionConflictError):
            conflicts += 1
        elif not (isinstance(error, StoreError) and error.retryable):
            failures += 1
        return conflicts < CONFLICTS and failures < ATTEMPTS

    return should_retry


class Limits(NamedTuple):
    """How much is done at once.

    Attributes:
        per_worker: Calls that one worker runs at once, per agent.
        everywhere: Calls that all workers together run at once, per agent; None: any number.
        rate: Calls that are begun within a period, over all workers: `(number, seconds)`; None: any number.
    """

    per_worker: int = 8
    everywhere: int | None = None
    rate: tuple[int, float] | None = None


class _Dropped(BaseException):
    """This worker is done with a call that is not at its end; DBOS must not take that for an outcome."""


class Worker:
    """Runs the calls of agents until it is stopped; an `async with` block, or `run`.

    Args:
        hosts: The agents, each with its store.
        database_url: Where the queues are.
        limits: How much is done at once; the worker that started last says it for all.
        lease_seconds: After which silence others take a worker for dead.
        grace: How many seconds a stopping worker lets its calls finish.
        poll: How often it looks for requests, in seconds.

    Raises:
        StoreError: The database cannot be used.
        UsageError: A number cannot be used, or there is a worker in this process already.
    """

    def __init__(
        self,
        hosts: Iterable[Host],
        database_url: str,
        *,
        limits: Limits = Limits(),  # noqa: B008 - a frozen value
        lease_seconds: float = 15.0,
        grace: float = 30.0,
        poll: float = 0.25,
    ) -> None:
        if not (lease_seconds > 0 and grace >= 0 and poll > 0):
            raise UsageError(
                f"lease_seconds={lease_seconds}, grace={grace}, poll={poll}: these are seconds; the first and the last must be "
                "above 0, grace may be 0."
            )
        self._hosts = {host.name: host for host in hosts}
        self._url = database_url
        self._limits = limits
        self._lease = lease_seconds
        self._grace = grace
        self._poll = poll
        self.id = new_id("worker_")
        places = limits.per_worker if limits.everywhere is None else min(limits.per_worker, limits.everywhere)
        # DBOS counts what it has handed out a moment late.
        self._places = {name: asyncio.Semaphore(places) for name in self._hosts}
        self._tasks: dict[asyncio.Task[None], concurrent.futures.Future[dict[str, Any]]] = {}
        self._stop = asyncio.Event()
        self._over = threading.Event()
        self._watcher: threading.Thread | None = None
        self._outage = Outage(f"the database of worker {self.id}")
        self._stores = {name: Outage(f"the store of agent {name!r}") for name in self._hosts}

    # ---- its life

    async def __aenter__(self) -> Self:
        _claim(self)
        try:
            self._loop = asyncio.get_running_loop()
            self._context = contextvars.copy_context()
            self._tables = await in_daemon(Tables, self._url)
            self._engine = dbos_engine(self._tables.dbos_url, _CONNECTIONS)
            for host in self._hosts.values():
                host.open()
            try:
                self._dbos = await in_daemon(connect, self._tables.dbos_url, self._engine)
                await in_daemon(self._launch)
            except BaseException:
                await in_daemon(DBOS.destroy)
                close_engine(self._engine)
                self._tables.dispose()
                raise
        except BaseException:
            _release(self)
            raise
        self._watcher = threading.Thread(target=self._watch, name=f"agentflow {self.id}", daemon=True)
        self._watcher.start()
        return self

    def _launch(self) -> None:
        self._tables.beat(self.id, self._lease)  # before the first request comes: whoever is not alive is taken over
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
        """Before the launch: a queue that comes later is noticed a second later."""
        per_worker, everywhere, rate = self._limits
        for name in self._hosts:
            self._dbos.register_queue(
                QUEUE + name,
                partition_concurrency=1,
                worker_concurrency=per_worker if everywhere is None else min(per_worker, everywhere),
                global_concurrency=everywhere,
                limiter=None if rate is None else {"limit": rate[0], "period": rate[1]},
                polling_interval_sec=self._poll,
                on_conflict="always_update",
            )

    async def run(self) -> None:
        """Work until `stop` is called."""
        async with self:
            await self._stop.wait()

    def stop(self) -> None:
        """Ask `run` to end; from any thread, or a signal's handler."""
        self._loop.call_soon_threadsafe(self._stop.set)

    async def __aexit__(self, *_: object) -> None:
        """Let the calls finish, drop what does not, and leave."""
        self._stop.set()
        _stop_retrying()
        # DBOS looks once a second whether the calls have ended, and not at all if it is given no time.
        grace = max(1, round(self._grace))
        destroyed = asyncio.ensure_future(in_daemon(DBOS.destroy, workflow_completion_timeout_sec=grace))
        try:
            await asyncio.wait({destroyed}, timeout=grace + _CLOSING)
        finally:
            for host in self._hosts.values():
                host.close()  # from here on nothing is written: what is left is as after a crash
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_CLOSING)
            for done in self._tasks.values():  # one that does not let itself be cancelled must not keep the process
                _answer(done, _Dropped())
            self._over.set()
            await self._leave()
            if destroyed.done() and not destroyed.cancelled() and (error := destroyed.exception()) is not None:
                log_failure("WARNING", error, "worker {}: DBOS did not close", self.id)
            if destroyed.done():
                self._closed()
            else:  # DBOS is one in a process: the next worker has to wait for it
                destroyed.add_done_callback(lambda _: self._closed())

    async def _leave(self) -> None:
        """Say that the worker is gone, if the database takes it; else its lease runs out, and others take over then."""
        try:
            async with asyncio.timeout(_CLOSING):
                if self._watcher is not None:
                    await in_daemon(self._watcher.join)
                await in_daemon(self._tables.leave, self.id)
        except (StoreError, TimeoutError) as error:
            log_failure(
                "WARNING", error, "worker {} could not say that it stops; others take over when its lease ends", self.id
            )

    def _closed(self) -> None:
        self._dbos.destroy()
        close_engine(self._engine)
        self._tables.dispose()
        _release(self)

    # ---- requests

    def serve(self, workflow_id: str, data: object) -> dict[str, Any]:
        """The body of a workflow, in a thread of DBOS: have the request run in the worker's loop."""
        done: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()

        def begin() -> None:
            task = self._loop.create_task(self._serve(workflow_id, data, done), name=f"agentflow: {workflow_id}")
            self._tasks[task] = done
            task.add_done_callback(self._tasks.pop)

        try:
            # In the worker's own context: the agent's code is not a part of DBOS's workflow.
            self._loop.call_soon_threadsafe(begin, context=self._context.copy())
        except RuntimeError as error:  # the loop is closed
            raise _Dropped from error
        return done.result()

    async def _serve(self, workflow_id: str, data: object, done: concurrent.futures.Future[dict[str, Any]]) -> None:
        try:
            request = Request.from_data(workflow_id, data)
            if request.agent not in self._hosts:
                raise StoreError(f"The stored request of run {workflow_id!r} is for another queue: {request.agent!r}.")
            _answer(done, await self._run(workflow_id, request))
        except StoreError as error:  # no request of ours
            _answer(done, error_out(error))
        except (_Dropped, asyncio.CancelledError):
            _answer(done, _Dropped())
        except BaseException as error:
            log_failure("ERROR", error, "request {!r} could not be served", workflow_id)
            _answer(done, error_out(error) if isinstance(error, Exception) else _Dropped())

    async def _run(self, workflow_id: str, request: Request) -> dict[str, Any]:
        host, store = self._hosts[request.agent], self._stores[request.agent]

        def tell(_attempt: int, error: BaseException, _wait: float) -> None:
            passing = isinstance(error, StoreError) and error.retryable
            if passing:
                store.failed(error, request)
            logger.bind(run_id=request.run_id).log(
                "TRACE" if passing else "WARNING",
                "run {!r} is tried again, from its last fact: {}",
                request.run_id,
                error,
            )

        policy = RetryPolicy(attempts=None, first_wait=1.0, max_wait=LONGEST_PAUSE, should_retry=_patience())
        attempts = policy.start(noted=tell)
        while True:
            try:
                async with self._places[host.name]:
                    claim = await self._claim(host, workflow_id, request.session)
                    async with host.holding(claim):
                        ended = await self._attempt(host, workflow_id, request, claim)
                        store.answered()
                        return ended
            except StoreError as error:
                if host.closed or not await self._owns(workflow_id):
                    raise _Dropped from error
                if not await attempts.another(error):
                    return error_out(error)

    async def _claim(self, host: Host, workflow_id: str, session_id: str) -> Claim | None:
        """Wait for the right to write the session, as long as the run is this worker's."""
        claiming = host.claim(session_id, self._lease)
        if claiming is None:
            return None
        waiting = asyncio.ensure_future(claiming)
        try:
            while not (await asyncio.wait({waiting}, timeout=self._lease / 3))[0]:
                await self._check(host, workflow_id)
        except BaseException:
            waiting.add_done_callback(_give_back)
            waiting.cancel()
            raise
        return waiting.result()

    async def _attempt(self, host: Host, workflow_id: str, request: Request, claim: Claim | None) -> dict[str, Any]:
        """Do what is left of a request, under the right to write its session."""
        run_id = request.run_id
        now = await in_daemon(self._tables.now)
        cancelled = (await in_daemon(self._tables.cancelled, [run_id])).get(run_id)
        await self._check(host, workflow_id)  # before anything is begun or told of
        async with Publisher(self._tables, run_id, self.id) as publisher:
            result = await host.run(workflow_id, request, now, cancelled, publisher, claim)
            if result["outcome"] == "suspended":  # it may have been cancelled just before
                cancelled = (await in_daemon(self._tables.cancelled, [run_id])).get(run_id)
                if cancelled is not None:
                    result = await host.run(workflow_id, request, now, cancelled, publisher, claim)
            return result

    async def _check(self, host: Host, workflow_id: str) -> None:
        if host.closed or not await self._owns(workflow_id):
            raise _Dropped

    async def _owns(self, workflow_id: str) -> bool:
        """Whether the run is still this worker's; as far as is known, where the database does not say."""
        try:
            found = await in_daemon(
                self._dbos.list_workflows, workflow_ids=[workflow_id], load_input=False, load_output=False
            )
        except Exception as error:  # any: DBOS has its own, SQLAlchemy's and the drivers'
            self._outage.failed(error)
            return True
        return any(status.status == "PENDING" and status.executor_id == self.id for status in found)

    # ---- watching

    def _watch(self) -> None:
        """Say that this worker is alive, look for dead ones and for cancelled runs; in a thread of its own, so that a busy
        event loop does not pass for a dead one."""
        due = 0.0
        while not self._over.wait(self._outage.pause(self._poll, self._lease / 3)):
            try:
                if time.monotonic() >= due:
                    self._tables.beat(self.id, self._lease)
                    due = time.monotonic() + self._lease / 3
                    self._outage.answered()
                    if not self._stop.is_set():
                        self._take_over()
                for host in self._hosts.values():
                    if host.running:
                        self._loop.call_soon_threadsafe(host.cut_lost)
                        for run_id, reason in self._tables.cancelled(host.running).items():
                            host.cancel(run_id, reason)
            except Exception as error:  # any: the watch goes on, and the database may come back
                if not self._over.is_set():
                    self._outage.failed(error)
                    due = 0.0  # the first thing that it has to hear is that this worker is alive

    def _take_over(self) -> None:
        queues = [QUEUE + name for name in self._hosts]
        running = self._dbos.list_workflows(
            status="PENDING", name=WORKFLOW, queue_name=queues, load_input=False, load_output=False
        )
        owners = {run.executor_id for run in running if run.executor_id is not None}
        dead = sorted(owners - self._tables.alive() - {self.id})
        if dead:
            logger.warning("worker {} takes over the runs of {}, which gave no sign of life", self.id, ", ".join(dead))
            DBOS._recover_pending_workflows(dead)  # pyright: ignore[reportPrivateUsage] - atomic, and keeps queue and partition


def _stop_retrying() -> None:
    """Have DBOS give up on a database that does not answer: it would try again for ever, with pauses of up to a minute."""
    if (instance := getattr(dbos_module, "_dbos_global_instance", None)) is not None:
        instance._sys_db._retry_connection_errors = False


def _give_back(claiming: asyncio.Future[Claim]) -> None:
    """A right that came when nobody waited for it any more."""
    if not claiming.cancelled() and claiming.exception() is None:
        claiming.result().release()


def _answer(done: concurrent.futures.Future[dict[str, Any]], said: dict[str, Any] | _Dropped) -> None:
    """Tell the waiting thread, unless it was told before."""
    with suppress(concurrent.futures.InvalidStateError):
        if isinstance(said, _Dropped):
            done.set_exception(said)
        else:
            done.set_result(said)


# ---- DBOS is one in a process

_current: list[Worker] = []
_registered: list[object] = []


def _claim(worker: Worker) -> None:
    if _current:
        raise UsageError(
            "There is a worker in this process already, and DBOS allows one. Give one worker all the agents: "
            "Worker([...], url); or start another process: `agentflow worker module:agent --database URL`."
        )
    _current.append(worker)


def _release(worker: Worker) -> None:
    if worker in _current:
        _current.remove(worker)


def _serve(data: Any) -> dict[str, Any]:
    """The one workflow."""
    workflow_id = DBOS.workflow_id
    if not _current or workflow_id is None:
        raise _Dropped
    return _current[0].serve(workflow_id, data)


def _one_request(args: tuple[Any, ...], kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Whatever a damaged row gives: what is no request comes to an end that says so."""
    return (args[0] if len(args) == 1 and not kwargs else None,), {}


def _register() -> None:
    if not _registered:
        made = DBOS.workflow(name=WORKFLOW, max_recovery_attempts=TAKEOVERS, validate_args=_one_request)
        _registered.append(made(_serve))
