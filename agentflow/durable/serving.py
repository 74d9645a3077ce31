"""The requests of a worker: DBOS passes each as a workflow, and the worker's event loop runs it.

Each attempt at a request holds the worker's claim on the session. Temporary failures are retried without limit. A request
that this worker no longer owns is abandoned.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from agentflow._support.daemon import in_daemon
from agentflow._support.logs import log_failure, logger
from agentflow._support.outage import Outage
from agentflow.durable.execution import Host
from agentflow.durable.membership import Membership
from agentflow.durable.publishing import EventPublisher
from agentflow.durable.records import Request, error_out
from agentflow.errors import SessionConflictError, StoreError
from agentflow.vocabulary.ports.retry import RetryPolicy
from agentflow.vocabulary.ports.store import Claim

ATTEMPTS = 3
"""How many times a call is attempted if its failures are not temporary."""

CONFLICTS = 20
"""How many times a call is attempted if another writer changes its session."""

MAX_PAUSE = 10.0
"""The maximum number of seconds between two attempts."""


def _retry_rule() -> Callable[[Exception], bool]:
    """Create the retry rule of one call: temporary failures are retried without limit, others a few times."""
    conflicts = failures = 0

    def should_retry(error: Exception) -> bool:
        nonlocal conflicts, failures
        if isinstance(error, SessionConflictError):
            conflicts += 1
        elif not (isinstance(error, StoreError) and error.retryable):
            failures += 1
        return conflicts < CONFLICTS and failures < ATTEMPTS

    return should_retry


class Abandoned(BaseException):
    """This worker stops running a call that has not ended. Not an `Exception`, so DBOS does not store it as the outcome."""


class RequestRunner:
    """Runs requests in the event loop that created it, each from its last fact, until each has a result or is abandoned.

    Args:
        hosts: The worker's agents, by name.
        member: The worker.
        places: How many calls of each agent may run at once.
    """

    def __init__(self, hosts: Mapping[str, Host], member: Membership, places: int) -> None:
        self._hosts = hosts
        self._member = member
        # Besides DBOS's own limit, because DBOS updates its count of running calls with a delay.
        self._places = {name: asyncio.Semaphore(places) for name in hosts}
        self._stores = {name: Outage(f"the store of agent {name!r}") for name in hosts}
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._tasks: dict[asyncio.Task[None], concurrent.futures.Future[dict[str, Any]]] = {}

    async def close(self, timeout: float) -> None:
        """Cancel the remaining requests, and abandon those that have not ended after the timeout."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        for done in self._tasks.values():  # a call that ignores its cancellation must not keep the process running
            _answer(done, Abandoned())

    def serve(self, workflow_id: str, data: object) -> dict[str, Any]:
        """Run a request in the worker's event loop and wait for it: the body of a workflow, in a thread of DBOS."""
        done: concurrent.futures.Future[dict[str, Any]] = concurrent.futures.Future()

        def begin() -> None:
            task = self._loop.create_task(self._serve(workflow_id, data, done), name=f"agentflow: {workflow_id}")
            self._tasks[task] = done
            task.add_done_callback(self._tasks.pop)

        try:
            # Runs in the worker's own context, because the agent's code is not part of DBOS's workflow.
            self._loop.call_soon_threadsafe(begin, context=self._context.copy())
        except RuntimeError as error:  # the event loop is closed
            raise Abandoned from error
        return done.result()

    async def _serve(self, workflow_id: str, data: object, done: concurrent.futures.Future[dict[str, Any]]) -> None:
        try:
            request = Request.from_data(workflow_id, data)
            if request.agent not in self._hosts:
                raise StoreError(f"The stored request of run {workflow_id!r} is for another queue: {request.agent!r}.")
            _answer(done, await self._run(workflow_id, request))
        except StoreError as error:  # the stored data is not a valid request
            _answer(done, error_out(error))
        # The `finally` answers: the thread of DBOS gets an exception that DBOS does not store.
        except (Abandoned, asyncio.CancelledError):
            pass
        except Exception as error:  # a bug in agentflow; without an answer, the thread of DBOS would wait indefinitely
            log_failure("ERROR", error, "request {!r} could not be served", workflow_id)
            _answer(done, error_out(error))
        finally:
            _answer(done, Abandoned())  # this has no effect if the request was answered already

    async def _run(self, workflow_id: str, request: Request) -> dict[str, Any]:
        host, store = self._hosts[request.agent], self._stores[request.agent]

        def report(_attempt: int, error: BaseException, _wait: float) -> None:
            temporary = isinstance(error, StoreError) and error.retryable
            if temporary:
                store.failed(error, request)
            logger.bind(run_id=request.run_id).log(
                "TRACE" if temporary else "WARNING",
                "retrying run {!r} from its last fact: {}",
                request.run_id,
                error,
            )

        policy = RetryPolicy(attempts=None, first_wait=1.0, max_wait=MAX_PAUSE, should_retry=_retry_rule())
        attempts = policy.start(noted=report)
        while True:
            try:
                async with self._places[host.name]:
                    claim = await self._claim(host, workflow_id, request.session)
                    async with host.holding(claim):
                        ended = await self._attempt(host, workflow_id, request, claim)
                        store.answered()
                        return ended
            except StoreError as error:
                # Another worker has the call or will get it, so the error of this worker is not the call's outcome.
                if host.closed or not await self._member.owns(workflow_id):
                    raise Abandoned from error
                if not await attempts.another(error):
                    return error_out(error)

    async def _claim(self, host: Host, workflow_id: str, session_id: str) -> Claim | None:
        """Wait for the claim on the session while this worker owns the run."""
        claiming = host.claim(session_id, self._member.lease)
        if claiming is None:
            return None
        waiting = asyncio.ensure_future(claiming)
        try:
            # The holder may be the same run in a slow worker, so the wait has no limit; but ownership may change
            # meanwhile.
            while not (await asyncio.wait({waiting}, timeout=self._member.lease / 3))[0]:
                await self._check(host, workflow_id)
        except BaseException:  # including cancellation
            # The store may have granted the claim already, in which case `cancel` has no effect.
            waiting.add_done_callback(_release_late_claim)
            waiting.cancel()
            raise
        return waiting.result()

    async def _attempt(self, host: Host, workflow_id: str, request: Request, claim: Claim | None) -> dict[str, Any]:
        """Continue a request, under the claim on its session."""
        run_id, tables = request.run_id, self._member.tables
        now = await in_daemon(tables.now)
        cancelled = (await in_daemon(tables.cancelled, [run_id])).get(run_id)
        await self._check(host, workflow_id)  # before anything is started or published
        async with EventPublisher(tables, run_id, workflow_id, self._member.id, host.state) as publisher:
            sent = await in_daemon(tables.sent, [request.session])
            result = await host.run(workflow_id, request, now, cancelled, publisher, claim, sent)
            if result["outcome"] == "suspended":  # the run may have been cancelled meanwhile, and must then be closed
                cancelled = (await in_daemon(tables.cancelled, [run_id])).get(run_id)
                if cancelled is not None:
                    result = await host.run(workflow_id, request, now, cancelled, publisher, claim)
            return result

    async def _check(self, host: Host, workflow_id: str) -> None:
        if host.closed or not await self._member.owns(workflow_id):
            raise Abandoned


def _release_late_claim(claiming: asyncio.Future[Claim]) -> None:
    """Release a claim that arrived after the wait for it was cancelled."""
    if not claiming.cancelled() and claiming.exception() is None:
        claiming.result().release()


def _answer(done: concurrent.futures.Future[dict[str, Any]], result: dict[str, Any] | Abandoned) -> None:
    """Pass a result to the waiting thread, unless it has one already."""
    with suppress(concurrent.futures.InvalidStateError):
        if isinstance(result, Abandoned):
            done.set_exception(result)
        else:
            done.set_result(result)
