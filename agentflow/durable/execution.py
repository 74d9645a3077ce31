"""Runs one request in a worker. A request may be started any number of times, by any worker.

Rules:

1. The session's facts are read before anything runs, and determine the next step: open the call, resume it, or return the reply
   that the facts already contain. The request fixes the ids of run and call, so a fact's ids show its request.
2. Only facts survive between two attempts. A step that has its fact is not repeated; a committed decision is not made again.
3. Everything is written under the session's lease, which passes to the worker that takes over the call. A worker that
   lost the lease neither writes nor reports a result, since the facts determine the result.
4. A call that must end (cancelled, past its deadline) is ended through the agent, so its history stays legal.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

from agentflow._support.cancellation import cancel_requests
from agentflow._support.logs import log_failure
from agentflow._support.tracing import use_trace
from agentflow.agent.agent import Agent
from agentflow.agent.agent_flux import AgentFlux
from agentflow.agent.arguments import ResumeStream
from agentflow.agent.as_tool import full_agent
from agentflow.durable.call_facts import end_of_call, last_reply, message_ids, pending_of, usage_of
from agentflow.durable.records import Request, error_out, message_in
from agentflow.durable.tables import StoredMessage
from agentflow.errors import AgentFlowError, CallTimeoutError, ScriptError, StoreError
from agentflow.hooks.hook import Hook
from agentflow.loop.session import FullSession
from agentflow.plugins.steering import Steering
from agentflow.vocabulary.events import CallEnded, HookEvent, PostCall
from agentflow.vocabulary.facts import (
    CallClosed,
    CallOpened,
    CallResumed,
    Fact,
    Reasoned,
    RoundSuspended,
)
from agentflow.vocabulary.messages import Msg, Outcome, Pending, Reply
from agentflow.vocabulary.ports.store import Claim, SessionStore, lease_lost
from agentflow.vocabulary.ports.store_wrapper import StoreWrapper
from agentflow.vocabulary.saving.codec import decisions_from_dict, reply_to_dict, verdict_to_dict
from agentflow.vocabulary.specs import Usage
from agentflow.vocabulary.verdicts import Deny

# Above 0, which is not a valid limit.
IMMEDIATE = 1e-6
"""The time limit of a call that is resumed only to end it."""


class EventSink(Protocol):
    """Receives the events of a run."""

    async def publish(self, event: HookEvent) -> None:
        """Publish one event; wait if too many are queued."""
        ...

    async def catch_up(self, facts: Sequence[Fact]) -> None:
        """Publish the facts of earlier attempts at the call, before the first event."""
        ...


class _Ids:
    """Creates the ids of an agent's runs and calls; the ids that a request fixes are used first."""

    def __init__(self, usual: Callable[[str], str]) -> None:
        self._usual = usual

    def __call__(self, kind: str) -> str:
        fixed = _fixed_ids.get()
        # The tasks of a call share the dict of the context variable, so each id is used once.
        return (fixed.pop(kind, None) if fixed else None) or self._usual(kind)


_fixed_ids: ContextVar[dict[str, str] | None] = ContextVar("agentflow_durable_ids", default=None)
"""The ids of the call that is about to be opened; each is used once, so nested calls get other ids."""


class _Fence(StoreWrapper):
    """The store of one request: every write, also to sub-agents' sessions, is made under the worker's claim."""

    def __init__(self, inner: SessionStore, claim: Claim | None, closed: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._claim = claim
        self._closed = closed

    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None] | None:
        if self._closed():
            raise StoreError(f"This worker lost its lease: session {session_id!r} was taken over by another worker.")
        return self.inner.append(session_id, facts, expected=expected, claim=self._claim)

    # The worker holds the claim for the whole request, before this store exists.
    def claim(self, session_id: str, *, lease: float | None = None) -> Awaitable[Claim] | None:
        return None


class _Running:
    """An active run."""

    def __init__(self, session: FullSession, claim: Claim | None) -> None:
        self.session = session
        self.claim = claim
        self.call: asyncio.Task[dict[str, Any]] | None = None
        self.known: set[str] = set()  # the ids of its messages

    @property
    def lost(self) -> bool:
        """Whether another worker has taken over its session."""
        return self.claim is not None and self.claim.lost


class Host:
    """Runs an agent's requests.

    Args:
        agent: The agent to run.
        store: The store of the agent's sessions.
        deps: Dependencies of the agent's tools and hooks.
        state: Classes of the session's state to publish.

    Attributes:
        store: The store of the agent's sessions.
        steering: Passes messages to running calls.
        closed: Whether writing has ended.
    """

    def __init__(self, agent: Agent, store: SessionStore, deps: object, state: Sequence[type] = ()) -> None:
        config = full_agent(agent).config
        if not isinstance(config.new_id, _Ids):
            # This changes the agent itself. Its calls outside a worker get the usual ids, as before.
            vars(agent)["_config"] = replace(config, new_id=_Ids(config.new_id))
        self._agent = agent
        self.store = store
        self.state = tuple(state)
        self.steering = Steering()
        self._deps = deps
        self._running: dict[str, _Running] = {}
        self._claims: set[Claim] = set()
        self._cancelled: dict[str, str] = {}
        self.closed = False

    @property
    def name(self) -> str:
        """The agent's name."""
        return self._agent.name

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the active runs."""
        return tuple(self._running)

    def open(self) -> None:
        """Allow facts to be written."""
        self.closed = False

    def close(self) -> None:
        """Stop writing, and release the claims: running calls remain as after a crash."""
        self.closed = True
        for claim in tuple(self._claims):
            claim.release()

    def cancel(self, run_id: str, reason: str) -> None:
        """Cancel an active run, from any thread. Repeat this until the run has ended, since its call might begin later."""
        running = self._running.get(run_id)
        if running is not None:
            # The first reason is kept, as in the database.
            self._agent.interrupt(running.session, self._cancelled.setdefault(run_id, reason))

    @property
    def sessions(self) -> frozenset[str]:
        """The sessions of the active runs."""
        # A copy, since the thread that watches the database reads this while runs begin and end.
        return frozenset(running.session.id for running in tuple(self._running.values()))

    def steer(self, messages: Iterable[StoredMessage]) -> None:
        """Pass messages to the active runs of their sessions, each once."""
        running = {attempt.session.id: attempt for attempt in self._running.values()}
        for stored in messages:
            run = running.get(stored.session_id)
            if run is not None and stored.message_id not in run.known:
                run.known.add(stored.message_id)
                try:
                    self.steering.send(message_in(stored.body), session=run.session)
                except StoreError as error:
                    log_failure("WARNING", error, "a message to session {!r} is skipped", stored.session_id)

    def cancel_lost(self) -> None:
        """Cancel the calls in sessions that other workers have taken over."""
        for running in tuple(self._running.values()):
            if running.lost and running.call is not None:
                running.call.cancel()

    def claim(self, session_id: str, lease: float) -> Awaitable[Claim] | None:
        """Wait for the claim on a session; return None if the store has no claims."""
        return self.store.claim(session_id, lease=lease)

    @asynccontextmanager
    async def holding(self, claim: Claim | None) -> AsyncGenerator[None]:
        """Hold a claim until the end of the block, or until `close`."""
        if claim is not None:
            self._claims.add(claim)
        try:
            yield
        finally:
            if claim is not None:
                self._claims.discard(claim)
                if not self.closed:  # `close` has released it
                    claim.release()

    async def run(
        self,
        workflow_id: str,
        request: Request,
        now: float,
        cancelled: str | None,
        progress: EventSink,
        claim: Claim | None = None,
        sent: Sequence[StoredMessage] = (),
    ) -> dict[str, Any]:
        """Run a request, or continue it.

        Args:
            workflow_id: The id of the run's call.
            request: The request to run.
            now: The time, by the database's clock.
            cancelled: The reason, if the run was cancelled before it began in this worker.
            progress: Receives the events.
            claim: The claim on the run's session.
            sent: The messages to the run's session, including delivered ones.

        Returns:
            The reply or the failure, as data.

        Raises:
            StoreError: The store failed, or another worker has taken the session over; the call can be retried.
        """
        run_id = request.run_id
        store = _Fence(self.store, claim, lambda: self.closed)
        session = FullSession(request.session, store=store)
        # Messages for an earlier attempt in this process are withdrawn: `steer` below sends all of them again.
        self.steering.withdraw(session)
        self._running[run_id] = running = _Running(session, claim)
        if sent:
            # Messages in facts are in the conversation already.
            running.known.update(message_ids(await self.facts(session.id)))
            self.steer(sent)
        if cancelled is not None:
            self._cancelled[run_id] = cancelled
        try:
            call = _RunAttempt(self, workflow_id, request, session, progress)
            with use_trace(request.trace):
                # A task of its own, so that `cancel_lost` cancels the call, but not DBOS's workflow that waits for it.
                running.call = asyncio.ensure_future(call.outcome(now))
            return await running.call
        except asyncio.CancelledError:
            # If cancellation of this task itself was requested (a shutdown), that has precedence.
            if claim is None or not running.lost or cancel_requests():
                raise
            raise lease_lost(request.session, claim) from None
        finally:
            # Another attempt at the same run may have replaced this one.
            if self._running.get(run_id) is running:
                del self._running[run_id]
                self._cancelled.pop(run_id, None)

    def events(self, flux: Callable[[Agent, object], AgentFlux]) -> AgentFlux:
        """Start a call on the agent, and return its events."""
        return flux(self._agent, self._deps)

    def why_cancelled(self, run_id: str) -> str | None:
        """Return the reason if the run was cancelled, or None."""
        return self._cancelled.get(run_id)

    async def facts(self, session_id: str) -> Sequence[Fact]:
        """Return the stored facts of a session."""
        found = self.store.load(session_id)
        return found if isinstance(found, Sequence) else await found


class _RunAttempt:
    """One attempt at a request."""

    def __init__(
        self, host: Host, workflow_id: str, request: Request, session: FullSession, progress: EventSink
    ) -> None:
        self._host = host
        self._workflow_id = workflow_id
        self._request = request
        self._session = session
        self._progress = progress
        self._seen: list[PostCall | CallEnded] = []

    async def outcome(self, now: float) -> dict[str, Any]:
        """Make the attempt, and return the reply or the failure as data."""
        try:
            return reply_to_dict(await self._reply(now))
        except StoreError:
            raise  # the call can be retried, starting from its last fact
        except CallTimeoutError as error:
            return error_out(error)
        except (Exception, ScriptError) as error:
            return await self._result_after_failure(error)

    async def _result_after_failure(self, error: BaseException) -> dict[str, Any]:
        """Return the result according to the facts: the call may have been complete when the error was raised."""
        facts = await self._host.facts(self._request.session)
        call_facts = self._own_facts(facts)
        match None if call_facts is None else end_of_call(call_facts):
            case CallClosed() as end if end.outcome != "failed":
                return reply_to_dict(self._closed_reply(facts, end))
            case RoundSuspended() as end:
                return reply_to_dict(self._suspended_reply(facts, end.pending))
            case _:
                return error_out(error)

    async def _reply(self, now: float) -> Reply:
        request, host = self._request, self._host
        facts = await host.facts(request.session)
        call_facts = self._own_facts(facts)
        end = None if call_facts is None else end_of_call(call_facts)
        # Published before anything else, so that a reader gets the events in order, even if the call has ended already.
        if call_facts is not None:
            await self._progress.catch_up(call_facts)
        # The earlier worker died after the end of the call, but before its result was stored.
        if isinstance(end, CallClosed):
            return self._closed_reply(facts, end)
        remaining = None if request.deadline is None else request.deadline - now
        if host.why_cancelled(request.run_id) is not None:
            return await self._end_at_once(facts, call_facts, end)
        # An earlier attempt at this request was suspended again: the request's decisions are for other calls.
        if end is not None and not self._decides(end.pending):
            return self._suspended_reply(facts, end.pending)
        if remaining is not None and remaining <= 0:
            return await self._end_at_once(facts, call_facts, end)
        if call_facts is not None:
            reply = await self._resume({} if end is None else request.decisions or {}, remaining)
            if reply.outcome == "suspended" and self._decides(reply.pending):  # no fact of the decisions was committed
                reply = await self._resume(request.decisions or {}, remaining)
            return reply
        if request.decisions is None:
            return await self._open(remaining)
        return await self._resume(request.decisions, remaining, first=True)

    def _own_facts(self, facts: Sequence[Fact]) -> Sequence[Fact] | None:
        """Return the facts from the beginning of this request's call; None if it has not begun."""
        for n, fact in enumerate(facts):
            if isinstance(fact, CallOpened | CallResumed) and fact.call_id == self._workflow_id:
                return facts[n:]
        return None

    def _decides(self, pending: Sequence[Pending]) -> bool:
        """Return whether this request decides all of these calls."""
        decisions = self._request.decisions
        return decisions is not None and all(wait.id in decisions for wait in pending)

    # ---- open, resume, end

    async def _open(self, remaining: float | None) -> Reply:
        # These ids in the facts show which request a call belongs to (rule 1).
        _fixed_ids.set({"run_": self._request.run_id, "call_": self._workflow_id})
        messages, session, options = list(self._request.messages), self._session, self._arguments(remaining)
        return await self._read(lambda agent, deps: agent.stream(messages, session=session, **options(deps)), remaining)

    async def _resume(self, decisions: Mapping[str, Any], remaining: float | None, *, first: bool = False) -> Reply:
        # A later attempt has another call id: the facts with the request's id mark the beginning of its call.
        _fixed_ids.set({"call_": self._workflow_id} if first else None)
        decided, session, options = decisions_from_dict(decisions), self._session, self._arguments(remaining)
        return await self._read(lambda agent, deps: agent.resume_stream(session, decided, **options(deps)), remaining)

    def _arguments(self, remaining: float | None) -> Callable[[object], ResumeStream]:
        """Return a function that creates the arguments of a call from its dependencies."""
        side = self._request.side
        hooks: list[Hook] = [self._host.steering]
        if side is None:
            return lambda deps: {"timeout": remaining, "hooks": hooks, "deps": deps}
        return lambda deps: {"timeout": remaining, "hooks": [*hooks, side], "deps": deps, "options": side.options}

    async def _end_at_once(
        self, facts: Sequence[Fact], call_facts: Sequence[Fact] | None, end: RoundSuspended | None
    ) -> Reply:
        """End a call that was cancelled or has no time remaining, without running it."""
        request = self._request
        if call_facts is not None or request.decisions is not None:  # close the open call, so that the history is legal
            # A suspended call can only be resumed with decisions, so each pending call is denied.
            pending = pending_of(facts) if call_facts is None or end is not None else ()
            denied = {wait.id: verdict_to_dict(Deny("cancelled")) for wait in pending}
            try:
                return await self._resume(denied, IMMEDIATE, first=call_facts is None)
            except CallTimeoutError:
                pass
        reason = self._host.why_cancelled(request.run_id)
        if reason is None:
            raise CallTimeoutError(request.timeout or 0.0, self._host.name)
        return _interrupted(request.run_id, reason, Usage())

    async def _read(self, flux: Callable[[Agent, object], AgentFlux], remaining: float | None) -> Reply:
        """Run the call, and publish its events."""
        self._seen = []
        try:
            async with self._host.events(flux) as events:
                async for event in events:
                    if isinstance(event, PostCall | CallEnded) and not event.source:
                        self._seen.append(event)
                    await self._progress.publish(event)
        except CallTimeoutError as error:
            if remaining is None or remaining == IMMEDIATE or self._request.timeout is None:
                raise
            # The message should show the limit as submitted, not the seconds that remained for this attempt.
            raise CallTimeoutError(self._request.timeout, self._host.name) from error
        return self._live_reply()

    # ---- replies

    def _live_reply(self) -> Reply:
        run_id = self._request.run_id
        ended = self._seen[-1]
        assert isinstance(ended, CallEnded)
        outcome = ended.outcome
        final = next((event.final_message for event in self._seen if isinstance(event, PostCall)), None)
        if final is None or outcome == "interrupted":
            reason = self._host.why_cancelled(run_id) or "interrupted"
            final = last_reply(self._session.messages) or _note(reason)
        pending = self._session.pending if outcome == "suspended" else ()
        return Reply.of(final, outcome, run_id, ended.usage, pending)

    def _closed_reply(self, facts: Sequence[Fact], closed: CallClosed) -> Reply:
        """Return the reply of a call that ended before its worker could report it."""
        run_id = self._request.run_id
        if closed.outcome == "failed":
            raise AgentFlowError("The worker died before it could report the error.")
        usage = usage_of(facts, run_id)
        if closed.final is None:
            return _interrupted(run_id, "its worker died after an interrupt", usage)
        return Reply.of(closed.final, closed.outcome, run_id, usage, ())

    def _suspended_reply(self, facts: Sequence[Fact], pending: tuple[Pending, ...]) -> Reply:
        """Return the reply of a call that was suspended before its worker could report it."""
        run_id = self._request.run_id
        replies = [fact.message for fact in facts if isinstance(fact, Reasoned) and fact.run_id == run_id]
        final = replies[-1] if replies else _note("waits for a decision")
        return Reply.of(final, "suspended", run_id, usage_of(facts, run_id), pending)


def _note(reason: str) -> Msg:
    return Msg.assistant(f"(interrupted: {reason})")


def _interrupted(run_id: str, reason: str, usage: Usage) -> Reply:
    outcome: Outcome = "interrupted"
    return Reply.of(_note(reason), outcome, run_id, usage, ())
