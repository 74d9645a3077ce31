"""The running calls of a server, and the events that clients read.

Routes see a run as a `ServedRun`: a `Run` of this process, or a `DurableRun` of workers (`durable_runs.py`). Rules:

1. `Runs` owns each running call: its task, its slot and its events. Clients only read `Run.read`.
2. A run belongs to one owner; others cannot see it.
3. A run that waits for a decision keeps its events. When it continues, their numbers continue.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentflow.agent.agent import Agent
from agentflow.agent.agent_flux import AgentFlux
from agentflow.durable.client_side import ClientSide
from agentflow.errors import ScriptError, ShutdownError
from agentflow.loop.session import Session
from agentflow.serve.event_history import EventHistory, NumberedEvent
from agentflow.serve.failures import log_failed
from agentflow.serve.limits import Limits, Slots
from agentflow.serve.refusals import Refusal
from agentflow.serve.view import EndEvent, StartEvent, StateEvent, View
from agentflow.vocabulary.events import HookEvent
from agentflow.vocabulary.messages import Msg, Pending, Reply
from agentflow.vocabulary.verdicts import Resolution


@dataclass(frozen=True)
class StoredSession:
    """A session of a user.

    Attributes:
        agent: Its agent.
        public: Its id for the user.
        stored: Its id in the store: the user's key, the agent's name and the public id.
    """

    agent: Agent[Any]
    public: str
    stored: str


@dataclass(frozen=True, kw_only=True)
class ServedCall:
    """A call that a route requests, wherever it runs.

    Attributes:
        owner: The user's key.
        ref: Its session.
        input: The message or messages; if the call continues a run, those that follow the results of the run's last
            round.
        decisions: The decisions with which it continues a run.
        waiting: The calls that the session waits for.
        run_id: The run's id, if the route chose one.
        side: The client's additions to the agent.
    """

    owner: str
    ref: StoredSession
    input: str | Sequence[Msg] = ()
    decisions: Mapping[str, Resolution] | None = None
    waiting: Sequence[Pending] = ()
    run_id: str | None = None
    side: ClientSide | None = None


class ServedRun(Protocol):
    """The interface of runs for routes."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def owner(self) -> str:
        """The user's key."""
        ...

    @property
    def agent(self) -> Agent[Any]:
        """The agent."""
        ...

    @property
    def public_session(self) -> str:
        """The session's id for its owner."""
        ...

    @property
    def number(self) -> int:
        """The number of its last call, from 1."""
        ...

    @property
    def waited(self) -> Sequence[Pending]:
        """The calls that waited when its last call began."""
        ...

    @property
    def end(self) -> EndEvent | None:
        """The end of its last call; None while it is queued or running."""
        ...

    @property
    def reply(self) -> Reply[Any] | None:
        """The reply of its last call, if it has one."""
        ...

    def interrupt(self, reason: str = "interrupted") -> bool:
        """Request the end of its last call; return whether there was one."""
        ...

    async def cancel(self, reason: str) -> bool:
        """End its last call; return whether there was one."""
        ...

    def after(self, last_id: str | None) -> AsyncGenerator[NumberedEvent | None] | None:
        """Return the events after a position, for `Last-Event-ID`; None if the run has ended and no event follows.

        Raises:
            Refusal: The id is not a position.
        """
        ...

    def read(self) -> AsyncGenerator[NumberedEvent | None]:
        """Yield all events until the last call has ended; None after each `heartbeat` without an event."""
        ...

    def read_call(self) -> AsyncGenerator[NumberedEvent | None]:
        """Yield the events of the last call only, like `read`."""
        ...


@dataclass(frozen=True)
class RunRequest:
    """A call to start in this process.

    Attributes:
        owner: The user's key.
        agent: The agent.
        session: The session.
        public_session: The session's id for its owner.
        stream: The call's events.
        run_id: The served run's id; by default that of the call, so that a resumed call continues its run.
        waiting: The calls that the session waits for.
    """

    owner: str
    agent: Agent[Any]
    session: Session
    public_session: str
    stream: AgentFlux[Any]
    run_id: str | None = None
    waiting: Sequence[Pending] = ()


class Run:
    """A run: a call and its resumes.

    Args:
        id: The run's id.
        call: Its first call.
        limits: The limits of its events.

    Attributes:
        number: The number of its last call, from 1.
        waited: The calls that waited when its last call began.
        reply: The reply of its last call, once it has ended.
        end: The end of its last call; None while it runs.
        state: The last view of the session's state, if it is sent.
        ended_at: The monotonic time of the end.
        events: Its events.
        begin: The number of the first event of its last call.
    """

    def __init__(self, id: str, call: RunRequest, limits: Limits) -> None:  # noqa: A002
        self.id = id
        self.owner = call.owner
        self.agent = call.agent
        self.session = call.session
        self.public_session = call.public_session
        self.number = 0
        self.waited: Sequence[Pending] = ()
        self.reply: Reply[Any] | None = None
        self.end: EndEvent | None = None
        self.state: StateEvent | None = None
        self.ended_at = 0.0
        self.events = EventHistory(limits)
        self.begin = 1

    def start_call(self, event: StartEvent, waiting: Sequence[Pending]) -> None:
        """Begin a call with its first event."""
        self.end = self.reply = None
        self.number += 1
        self.waited = waiting
        self.begin = self.events.next
        self.events.add(event)

    def end_call(self, end: EndEvent, reply: Reply[Any] | None) -> None:
        """End a call with its last event."""
        self.end, self.reply = end, reply
        self.ended_at = time.monotonic()
        self.events.add(end, last=True)

    def interrupt(self, reason: str = "interrupted") -> bool:
        """End the current call; return whether there was one."""
        return self.end is None and self.agent.interrupt(self.session, reason)

    async def cancel(self, reason: str) -> bool:
        """End the current call; return whether there was one."""
        return self.interrupt(reason)

    def after(self, last_id: str | None) -> AsyncGenerator[NumberedEvent | None] | None:
        """Return the events after a position, for `Last-Event-ID`; None if the run has ended and no event follows.

        Raises:
            Refusal: The id is not a position.
        """
        return self.events.after(last_id)

    def read(self) -> AsyncGenerator[NumberedEvent | None]:
        """Yield events, waiting for new ones, until the last call has ended; None after each `heartbeat` without an event."""
        return self.events.read()

    def read_call(self) -> AsyncGenerator[NumberedEvent | None]:
        """Yield the events of the last call only, like `read`."""
        return self.events.read(self.begin)


class Runs:
    """Starts runs, and keeps them for their owners.

    Args:
        limits: The limits.
        view: The data that clients receive.
    """

    def __init__(self, limits: Limits, view: View) -> None:
        self.limits = limits
        self.view = view
        self.slots = Slots("runs", limits.runs, limits.runs_per_user, limits.retry_after)
        self.streams = Slots("streams", limits.streams, limits.streams_per_user, limits.retry_after)
        self._runs: dict[str, Run] = {}
        self._ended: OrderedDict[str, Run] = OrderedDict()  # the oldest first
        self._busy: dict[str, Run | None] = {}  # the runs of sessions; None before their first events
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    def find(self, owner: str, id: str) -> Run:  # noqa: A002
        """Return a run of an owner.

        Raises:
            Refusal: There is none.
        """
        run = self.of_owner(owner, id)
        if run is None:
            raise Refusal(404, "no_such_run", "There is no such run. Its session's history shows what it did.")
        return run

    def of_owner(self, owner: str, id: str) -> Run | None:  # noqa: A002
        """Return a run of an owner, if it exists."""
        self._forget_old()
        run = self._runs.get(id)
        return None if run is None or run.owner != owner else run

    def of(self, owner: str) -> list[Run]:
        """Return the runs of an owner, the oldest first."""
        self._forget_old()
        return [run for run in self._runs.values() if run.owner == owner]

    def busy(self, session: Session) -> bool:
        """Return whether a run is working on a session."""
        return session.id in self._busy

    def working(self, session_id: str) -> Run | None:
        """Return the run that is working on a session."""
        return self._busy.get(session_id)

    async def start(self, call: RunRequest) -> Run:
        """Start or resume a call, and return its run after its first event.

        Raises:
            Refusal: A limit is reached, the session is busy, or the server is shutting down.
            Exception: The call was refused before its first event.
        """
        if self.closed:
            raise self._shutting_down()
        if call.session.id in self._busy:
            raise Refusal(409, "session_busy", "A run is working on this session. Wait for it, or interrupt it.")
        started: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._work(call, started), name="agentflow: served run")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._busy[call.session.id] = None
        try:
            return await asyncio.shield(started)
        except asyncio.CancelledError:  # the client disconnected without learning the run's id
            task.cancel()
            started.cancel()
            raise

    def _shutting_down(self) -> Refusal:
        return Refusal(503, "shutting_down", "The server is shutting down.", retry_after=self.limits.retry_after)

    async def _work(self, call: RunRequest, started: asyncio.Future[Run]) -> None:
        run: Run | None = None
        reply: Reply[Any] | None = None
        error: BaseException | None = None
        try:
            with self.slots.take(call.owner):
                async with call.stream as events:
                    async for event in events:
                        if run is None:
                            run = self._busy[call.session.id] = self._begin(event, call)
                            if not started.done():
                                started.set_result(run)
                        if (shown := self.view.of_event(event)) is not None:
                            run.events.add(shown)
                        if (state := self.view.of_state(event)) is not None and state != run.state:
                            run.state = state
                            run.events.add(state)
                    reply = await events.reply()
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        except (Exception, ScriptError) as failure:  # ScriptError is not an Exception
            error = failure
        finally:
            self._busy.pop(call.session.id, None)
            if run is not None:
                self._finish(run, reply, error)
            elif not started.done():
                started.set_exception(error if isinstance(error, Exception) else self._shutting_down())

    def _begin(self, event: HookEvent, call: RunRequest) -> Run:
        run_id = call.run_id or event.run_id
        run = self._runs.get(run_id)
        if run is None or run.owner != call.owner:
            run = self._runs[run_id] = Run(run_id, call, self.limits)
        self._ended.pop(run.id, None)
        run.start_call(StartEvent(run=run.id, agent=call.agent.name, session=call.public_session), call.waiting)
        return run

    def _finish(self, run: Run, reply: Reply[Any] | None, error: BaseException | None) -> None:
        if reply is not None:
            end = self.view.of_reply(reply)
        elif isinstance(error, ShutdownError):
            end = EndEvent(outcome="parked")
        elif error is None or isinstance(error, asyncio.CancelledError):
            end = EndEvent(outcome="interrupted")
        else:
            reference = secrets.token_hex(4)
            log_failed(f"served run {run.id} failed (reference {reference})", error)
            end = EndEvent(outcome="failed", reference=reference)
        run.end_call(end, reply)
        self._ended[run.id] = run
        self._forget_old()

    def _forget_old(self) -> None:
        oldest = time.monotonic() - self.limits.finished_seconds
        while self._ended and (
            len(self._ended) > self.limits.finished or next(iter(self._ended.values())).ended_at < oldest
        ):
            id, _ = self._ended.popitem(last=False)  # noqa: A001
            self._runs.pop(id, None)

    def forget_session(self, session_id: str) -> None:
        """Delete the events of a deleted session."""
        for run in [run for run in self._ended.values() if run.session.id == session_id]:
            del self._ended[run.id], self._runs[run.id]

    async def close(self) -> None:
        """Refuse new runs, and end those that remain."""
        self.closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
