"""The agents of a server, and the work of its routes: start, resume, list, copy and delete."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias

from starlette.routing import BaseRoute

from agentflow._support.logs import log_failure
from agentflow._support.shown import one_line
from agentflow.agent.agent import Agent, FullAgent
from agentflow.agent.arguments import ResumeStream, resolve_store
from agentflow.durable.client_side import ClientSide
from agentflow.errors import (
    AgentFlowError,
    SessionConflictError,
    ShutdownError,
    StoreError,
    SuspendedError,
    ToolArgumentError,
    UsageError,
)
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import full_hooks
from agentflow.loop.session import STATUSES, Session, SessionStatus, full_session
from agentflow.plugins.steering import Steering
from agentflow.serve.bodies import DecisionBody, resolution
from agentflow.serve.durable_runs import STORED_SESSION, DurableCalls, DurableRun, HasWorkers, database_work, digest
from agentflow.serve.limits import Limits
from agentflow.serve.refusals import Refusal
from agentflow.serve.runs import Run, RunRequest, Runs, ServedCall, ServedRun, StoredSession
from agentflow.serve.view import EndEvent, View
from agentflow.vocabulary.events import HookEvent, PreReasoning
from agentflow.vocabulary.facts import CallOpened, Fact, SessionBegan
from agentflow.vocabulary.messages import Msg, undecided
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.store import SessionInfo, SessionStore, Store
from agentflow.vocabulary.verdicts import Deny, Stop

_TITLE: Final = 80
_COPY: Final = "~"
"""The mark in the id of a session's copy during a rewind, which ids of users' sessions do not contain."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Service:
    """The agents of a server with their runs and sessions, which all routes use.

    Args:
        agents: The agents; durable ones use their own stores.
        store: The store of all sessions; each agent's own by default.
        limits: The limits.
        view: The data that clients receive.

    Attributes:
        agents: The agents that run in this process, by name.
        durable: The calls of durable agents, which run in workers.
        closing: Functions of route modules, called when the server stops, to release their resources.

    Raises:
        UsageError: No agents, two of one name, or a name that cannot be part of a URL path.
    """

    def __init__(
        self, agents: Sequence[Agent[Any] | HasWorkers], store: Store | str | None, limits: Limits, view: View
    ) -> None:
        shared = None if store is None else resolve_store(store)
        self.agents = {agent.name: _with_store(agent, shared) for agent in agents if isinstance(agent, Agent)}
        durable = {agent.agent.name: agent for agent in agents if not isinstance(agent, Agent)}
        self.durable = DurableCalls(durable, limits, view)
        self._in_workers = {name: _with_store(agent.agent, agent.host.store) for name, agent in durable.items()}
        self.limits = limits
        self.view = view
        self.runs = Runs(limits, view)
        self.steering = Steering()
        self._rewinding: set[str] = set()
        self.closing: list[Callable[[], Awaitable[object]]] = [self.durable.close]
        names = [*self.agents, *durable]
        if not agents or len(set(names)) < len(agents):
            raise UsageError(f"App(agents): pass at least one agent, and unique names, not {names}.")
        for agent in durable.values():
            if hidden := [kind.__name__ for kind in view.state if kind not in agent.host.state]:
                raise UsageError(
                    f"App: View(state=...) has {hidden}, which agent {agent.agent.name!r} does not publish. Pass the "
                    "same classes to DurableAgent(..., state=[...])."
                )
        for name in names:
            if not _NAME.fullmatch(name):
                raise UsageError(f"App: the agent's name {name!r} is part of paths: use letters, digits, '_' and '-'.")

    @property
    def all_agents(self) -> Sequence[Agent[Any]]:
        """All agents; calls of durable ones run in workers."""
        return (*self.agents.values(), *self._in_workers.values())

    def is_durable(self, ref: StoredSession) -> bool:
        """Return whether a session is of an agent that workers run."""
        return ref.agent.name in self._in_workers

    def agent(self, name: str) -> Agent[Any]:
        """Return an agent.

        Raises:
            Refusal: There is no such agent.
        """
        found = self.agents.get(name) or self._in_workers.get(name)
        if found is None:
            raise Refusal(404, "no_such_agent", "There is no agent of this name.")
        return found

    def check_text(self, text: str) -> None:
        """Refuse a message that is too long or empty."""
        if len(text) > self.limits.message:
            raise Refusal(
                413, "message_too_long", f"The message is too long: {self.limits.message} characters are allowed."
            )
        if not text.strip():
            raise Refusal(422, "invalid_body", "The message is empty.")

    # ---- sessions

    def session(self, owner: str, agent: str, public: str | None = None) -> StoredSession:
        """Return a reference to a user's session; a new one if no id is passed.

        Raises:
            Refusal: There is no such agent, or the id is malformed.
        """
        found = self.agent(agent)
        public = f"s_{secrets.token_urlsafe(12)}" if public is None else public
        if not _NAME.fullmatch(public):
            raise Refusal(404, "no_such_session", "There is no such session.")
        return StoredSession(found, public, f"{owner}.{found.name}.{public}")

    async def load(self, ref: StoredSession) -> tuple[Session, tuple[Msg, ...]]:
        """Load a session and its messages.

        Raises:
            Refusal: It does not exist, or cannot be read.
        """
        session = ref.agent.session(ref.stored)
        messages = await self.history(ref)
        if not messages and self.status(session) == "idle":
            with suppress(UsageError):  # another request reads it
                ref.agent.forget(ref.stored)
            raise Refusal(404, "no_such_session", "There is no such session.")
        return session, messages

    async def history(self, ref: StoredSession) -> tuple[Msg, ...]:
        """Load a session, and return its messages; none if it does not exist.

        Raises:
            Refusal: It cannot be read.
        """
        return await database_work(ref.agent.history(ref.agent.session(ref.stored)), "session")

    def status(self, session: Session) -> SessionStatus:
        """Return the status of a loaded session; a request that reads the session does not count as running."""
        own = full_session(session)
        return "running" if self.runs.busy(session) or own.run else STATUSES.get(own.machine.state, "unfinished")

    async def current_status(self, ref: StoredSession, session: Session) -> SessionStatus:
        """Return the status of a loaded session, including calls that are queued or run in a worker."""
        working = await self.working(ref) is not None
        return "running" if working or ref.stored in self._rewinding else self.status(session)

    async def working(self, ref: StoredSession) -> ServedRun | None:
        """Return the run that is working on a session, or is queued for it."""
        if self.is_durable(ref):
            return await self.durable.working(ref.stored)
        return self.runs.working(ref.stored)

    async def sessions(self, owner: str, agent: str) -> list[tuple[str, SessionInfo]]:
        """Return the sessions of a user with their public ids, the last used first."""
        start = f"{owner}.{self.agent(agent).name}."
        infos = await database_work(_store_of(self.agent(agent)).sessions(start), "session")
        sessions = [(info.id.removeprefix(start), info) for info in infos]
        return [(public, info) for public, info in sessions if _NAME.fullmatch(public)]  # no sub-agents' sessions

    async def title(self, ref: StoredSession) -> str | None:
        """Return the beginning of a session's first user message; this loads the whole session."""
        facts: Sequence[Fact] = await database_work(_as_coroutine(_store_of(ref.agent).load(ref.stored)), "session")
        messages = [msg for fact in facts if isinstance(fact, SessionBegan | CallOpened) for msg in fact.messages]
        texts = [entry.text for entry in self.view.history(messages) if entry.role == "user" and entry.text]
        return one_line(texts[0])[:_TITLE] if texts else None

    async def fork(
        self, ref: StoredSession, copy: StoredSession, after: str | None = None, before: str | None = None
    ) -> None:
        """Copy a session.

        Args:
            ref: The session.
            copy: Its copy, which is not stored if nothing precedes `before`.
            after: The id of the last run to copy.
            before: The id of the first input message not to copy.

        Raises:
            Refusal: The session is busy, the run or message is not part of it, or the copy exists.
        """
        if after is not None and before is not None:
            raise Refusal(422, "invalid_body", "A copy ends after a run or before a message: pass one of them.")
        await self._require_idle(ref)
        existing = await database_work(_as_coroutine(_store_of(copy.agent).load(copy.stored)), "session")
        if existing:
            raise Refusal(409, "session_exists", "The copy's id is in use.")
        point = after if before is None else await self._length_before(ref, before)
        if point == 0:
            return
        try:
            await _store_of(ref.agent).fork(ref.stored, copy.stored, point)
        except StoreError as error:
            raise Refusal(422, "no_such_run", "The session has no run of this id.") from error

    async def import_(self, ref: StoredSession, session: Session) -> None:
        """Store a session."""
        await database_work(_store_of(ref.agent).import_(session.to_dict(), ref.stored), "session")

    async def rewind(self, ref: StoredSession, message: str) -> None:
        """Remove an input message, its call and everything after it from a session without a current run.

        Raises:
            Refusal: No call has this message, or another request reads the session.
        """
        self._refuse_rewinding(ref)
        self._rewinding.add(ref.stored)
        try:
            await self._rewind(ref, await self._length_before(ref, message))
        finally:
            self._rewinding.discard(ref.stored)

    async def _rewind(self, ref: StoredSession, length: int) -> None:
        shortened = f"{ref.stored}{_COPY}{secrets.token_hex(4)}"
        store = _store_of(ref.agent)
        # Stores cannot shorten a session: a copy of its beginning replaces it. After a crash in between, the copy is still
        # in the store, and can be renamed by hand.
        try:
            ref.agent.forget(ref.stored)
        except UsageError as error:
            raise Refusal(409, "session_busy", "Another request reads this session. Try again.") from error
        if length:
            await database_work(store.fork(ref.stored, shortened, length), "session")
        await self._drop(ref.agent, ref.stored)
        if length:
            await database_work(store.rename(shortened, ref.stored), "session")

    def _refuse_rewinding(self, ref: StoredSession) -> None:
        if ref.stored in self._rewinding:
            raise Refusal(409, "session_busy", "Another request shortens this session. Try again.")

    async def _length_before(self, ref: StoredSession, message: str) -> int:
        """Return the number of facts before the call with an input message; 0 if it is the first call."""
        facts: Sequence[Fact] = await database_work(_as_coroutine(_store_of(ref.agent).load(ref.stored)), "session")
        for length, fact in enumerate(facts):
            if isinstance(fact, CallOpened) and any(msg.id == message for msg in fact.messages):
                return length if any(isinstance(fact, CallOpened) for fact in facts[:length]) else 0
        raise Refusal(422, "no_such_message", "The session has no input message of this id.")

    async def delete(self, ref: StoredSession) -> None:
        """Delete a session with the sessions of sub-agents in it, and the events of its runs.

        Raises:
            Refusal: It does not exist, or is busy.
        """
        await self._require_idle(ref)
        await self._drop(ref.agent, ref.stored)
        store = _store_of(ref.agent)
        for copy in await database_work(store.sessions(f"{ref.stored}{_COPY}"), "session"):  # of interrupted rewinds
            await database_work(store.delete(copy.id), "session")
        self.steering.withdraw(ref.stored)
        self.runs.forget_session(ref.stored)

    async def _drop(self, agent: Agent[Any], session: str) -> None:
        """Delete a session, and those of sub-agents in it."""
        store = _store_of(agent)
        await self.durable.withdraw(agent.name, session)
        inner = [info.id for info in await database_work(store.sessions(f"{session}/"), "session")]
        for session_id in (session, *inner):
            with suppress(UsageError):  # another request reads it
                agent.forget(session_id)
        await database_work(store.delete(session), "session")

    async def _require_idle(self, ref: StoredSession) -> None:
        session, _ = await self.load(ref)
        if await self.current_status(ref, session) == "running":
            raise Refusal(409, "session_busy", "A run is working on this session. Wait for it, or interrupt it.")

    # ---- runs

    async def call(self, owner: str, ref: StoredSession, text: str, key: str | None = None) -> ServedRun:
        """Start a call.

        Args:
            owner: The user's key.
            ref: The session.
            text: The message.
            key: For durable agents: the request's `Idempotency-Key`.

        Raises:
            Refusal: It cannot start.
        """
        self.check_text(text)
        call = ServedCall(owner=owner, ref=ref, input=text)
        if self.is_durable(ref):
            await self.history(ref)
            run_id = None if key is None else f"run_{digest(owner, ref.agent.name, key)}"
            call = replace(call, waiting=ref.agent.session(ref.stored).pending, run_id=run_id)
        return await self.open(call)

    async def open(self, call: ServedCall, session: Session | None = None) -> ServedRun:
        """Start a call, or continue a run with decisions, here or in a worker.

        Args:
            call: The call.
            session: A session that is not in the store, if the call runs in this process.

        Raises:
            Refusal: It cannot start.
        """
        ref = call.ref
        self._refuse_rewinding(ref)
        if self.is_durable(ref):
            return await self.durable.start(call)
        session, side = session or ref.agent.session(ref.stored), call.side or ClientSide()
        options: ResumeStream = {"timeout": self.limits.run_seconds, "hooks": [self.steering, side]}
        options["options"] = side.options
        if call.decisions is None:
            messages = call.input if isinstance(call.input, str) else list(call.input)
            stream = ref.agent.stream(messages, session=session, **options)
        else:
            for msg in call.input:
                self.steering.send(msg, session=session)
            stream = ref.agent.resume_stream(session, call.decisions, **options)
        try:
            return await self.start(
                RunRequest(call.owner, ref.agent, session, ref.public, stream, call.run_id, call.waiting)
            )
        except Refusal:
            if call.decisions is not None:
                self.steering.withdraw(session)  # messages that came with the decisions should not reach another call
            raise

    async def find_request(self, owner: str, ref: StoredSession, key: str) -> ServedRun | None:
        """Return the run of an earlier request with this key, if the run still exists."""
        if not self.is_durable(ref):
            return self.runs.of_owner(owner, key)
        await self.history(ref)
        return await self.durable.with_key(owner, ref, key)

    async def resume(self, owner: str, ref: StoredSession, decisions: Mapping[str, DecisionBody]) -> ServedRun:
        """Continue a session that waits for decisions, or that a restart interrupted.

        Raises:
            Refusal: It does not wait, or the decisions are invalid.
        """
        session, _ = await self.load(ref)
        pending = {wait.id: wait for wait in session.pending}
        if self.status(session) not in ("suspended", "unfinished"):
            raise Refusal(409, "not_waiting", "This session does not wait for decisions.")
        resolutions = {key: resolution(key, decision, pending) for key, decision in decisions.items()}
        missing = [wait.id for wait in undecided(pending.values(), resolutions)]
        if missing:
            raise Refusal(422, "decisions_missing", f"Decisions are missing for {missing}.")
        waiting = session.pending
        return await self.open(ServedCall(owner=owner, ref=ref, decisions=resolutions, waiting=waiting))

    async def dismiss(self, ref: StoredSession, reason: str) -> None:
        """End the call of a suspended or unfinished session without a reply, and deny its pending tool calls.

        Raises:
            Refusal: The session does not exist, or cannot be read.
        """
        session, _ = await self.load(ref)
        if self.status(session) not in ("suspended", "unfinished"):
            return
        if self.is_durable(ref):
            await self.durable.dismiss(ref, reason)
            return
        denied = {wait.id: Deny(reason) for wait in session.pending}
        await database_work(ref.agent.resume(session, denied, hooks=[_Dismissal(reason)]), "session")

    async def last_end(self, owner: str, ref: StoredSession, session: Session) -> EndEvent:
        """Return the end of a loaded session's last call. No run may be working on the session."""
        run_id = full_session(session).machine.run_id
        run = await self.durable.find(owner, run_id) if self.is_durable(ref) else self.runs.of_owner(owner, run_id)
        if run is not None and run.end is not None:
            return run.end
        match self.status(session):
            case "suspended":
                return EndEvent(outcome="suspended", questions=self.view.questions(session.pending))
            case "idle" if session.messages and session.messages[-1].role == "assistant":
                return EndEvent(outcome="completed", text=self.view.history(session.messages[-1:])[0].text)
            case _:
                return EndEvent(outcome="parked")

    async def start(self, call: RunRequest) -> Run:
        """Start a call or a resume in this process.

        Raises:
            Refusal: It was refused before its first event.
        """
        try:
            return await self.runs.start(call)
        except SuspendedError as error:
            raise Refusal(409, "suspended", "The session waits for decisions: resume it.") from error
        except SessionConflictError as error:
            raise Refusal(409, "session_busy", "Another process is working on this session.") from error
        except ShutdownError as error:
            raise Refusal(503, "shutting_down", "The server is shutting down.", retry_after=5) from error
        except UsageError as error:
            if isinstance(error.__cause__, ToolArgumentError):
                raise Refusal(422, "wrong_arguments", f"The edited arguments are invalid. {error.__cause__}") from error
            raise self._failed(error) from error
        except AgentFlowError as error:
            raise self._failed(error) from error

    async def find_run(self, owner: str, id: str) -> ServedRun:  # noqa: A002
        """Return a run of an owner.

        Raises:
            Refusal: There is none.
        """
        return self.runs.of_owner(owner, id) or await self.durable.find(owner, id) or self.runs.find(owner, id)

    def _failed(self, error: Exception) -> Refusal:
        reference = secrets.token_hex(4)
        log_failure("ERROR", error, "a served call was refused (reference {})", reference)
        return Refusal(500, "failed", f"The call could not start (reference {reference}).")

    async def steer(self, run: ServedRun, text: str) -> None:
        """Send a message to a running call.

        Raises:
            Refusal: The run has ended.
        """
        self.check_text(text)
        if run.end is not None:
            raise Refusal(409, "run_ended", "The run has ended. Start another one on its session.")
        if isinstance(run, Run):
            self.steering.send(text, session=run.session)
        elif isinstance(run, DurableRun):
            await run.steer(text)

    async def resume_unfinished(self) -> None:
        """Continue the runs that the last process left unfinished, as slots become free."""
        for agent in self.agents.values():
            for info in await self._unfinished_sessions(agent):
                found = STORED_SESSION.fullmatch(info.id)
                if found is None or found[2] != agent.name:
                    continue
                ref = StoredSession(agent, found[3], info.id)
                await self.runs.slots.room()
                try:
                    await self.load(ref)
                    await self.open(ServedCall(owner=found[1], ref=ref, decisions={}))
                except Refusal as refusal:  # a client may have resumed it
                    log_failure("WARNING", refusal, "session {} was not continued", info.id)

    async def _unfinished_sessions(self, agent: Agent[Any]) -> Sequence[SessionInfo]:
        try:
            return await agent.unfinished()
        except StoreError as error:
            log_failure("ERROR", error, "the unfinished sessions of agent {} are not continued", agent.name)
            return ()


class _Dismissal(Hook):
    """Stops a call before its next reply."""

    events = (PreReasoning,)

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def on_event(self, event: HookEvent) -> Stop:
        """Stop the call."""
        return Stop(self._reason)


RouteModule: TypeAlias = Callable[[Service], Sequence[BaseRoute]]
"""Creates the routes of one protocol."""


def _with_store(agent: Agent[Any], store: Store | None) -> Agent[Any]:
    """Return the agent with a store that lists sessions."""
    own = agent.session(agent.name).store
    if store is None and isinstance(own, SessionStore):
        return agent
    assert isinstance(agent, FullAgent)  # always true
    return agent.variant(full_hooks(agent.hooks).own, store=MemoryStore() if store is None else store)


def _store_of(agent: Agent[Any]) -> SessionStore:
    store = agent.session(agent.name).store
    if not isinstance(store, SessionStore):
        raise UsageError(f"The store of agent {agent.name!r} cannot list sessions. Pass App(store=...) a SessionStore.")
    return store


async def _as_coroutine(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value
