"""The runs of durable agents: any process submits them, any worker runs them, and any process streams their events.

Rules:

1. A web process stores nothing about a run. Workers write its events to the database, numbered without gaps; a connection reads
   them from there, at the pace of its client.
2. The id of a sent event is a position: the numbers of the call and of the last stored event, and whether the call has
   begun, is running or has ended. Any process can continue from it with the same events.
3. A client sees the end of a call when its result is stored. The end is built from the result, even if the last events are
   missing.
4. When another worker takes over a run, clients discard the text of the current reply; the events of that worker follow.
5. A run belongs to the owner of its session, which is the first part of the session's id. Others cannot see it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, cast, runtime_checkable

from agentflow._support.frozen import EMPTY
from agentflow._support.ids import new_id
from agentflow._support.logs import log_failure
from agentflow._support.validation import adapter_of
from agentflow.agent.agent import Agent
from agentflow.agent.arguments import input_of
from agentflow.durable.records import Request, RunEvent, RunFailedError, events_in, segment_number
from agentflow.errors import AgentFlowError, StoreError, ToolArgumentError, UsageError
from agentflow.loop.session import full_session
from agentflow.serve.bodies import SESSION_ID
from agentflow.serve.event_history import NumberedEvent
from agentflow.serve.limits import Limits
from agentflow.serve.refusals import Refusal
from agentflow.serve.runs import ServedCall, StoredSession
from agentflow.serve.view import EndEvent, GapEvent, Public, StartEvent, TextEvent, View
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import ActingChunk, HookEvent, PostActing, PostReasoning, PreActing, ReasoningChunk
from agentflow.vocabulary.messages import Msg, Pending, Reply, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.saving.codec import msg_from_dict
from agentflow.vocabulary.verdicts import Approve

if TYPE_CHECKING:
    from agentflow.durable.execution import Host
    from agentflow.durable.following import CallRecord, FollowingClient, ListedRun

STORED_SESSION: Final = re.compile(rf"([0-9a-f]{{32}})\.([A-Za-z0-9_-]{{1,64}})\.({SESSION_ID[1:-1]})")
"""The id of a stored session: the owner's key, the agent's name, and the id that the owner uses."""

T = TypeVar("T")

_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_POSITION: Final = re.compile(r"([0-9]{1,6})-([0-9]{1,12})-([012])")
_STARTED, _RUNNING, _ENDED = range(3)
_DAMAGED: Final = "damaged"
_DISMISS_SECONDS: Final = 10.0
_LISTED: Final = 50
_SEARCHED: Final = 1_000


@runtime_checkable
class HasWorkers(Protocol):
    """A `DurableAgent`; its module is not imported here, because it needs an extra."""

    agent: Agent[Any]
    client: FollowingClient
    host: Host


@dataclass
class _Position:
    """A position in the events of a run.

    Attributes:
        call: The number of the call.
        seq: The number of the last stored event.
        stage: The stage of the call.
        passed: Whether the next event belongs to a later call.
        skips: Whether events of an earlier call follow, which are skipped.
    """

    call: int = 0
    seq: int = 0
    stage: int = _ENDED  # with call 0: the next event is the start of the first call
    passed: bool = False
    skips: bool = False

    def __str__(self) -> str:
        return f"{self.call}-{self.seq}-{self.stage}"


class DurableRun:
    """A snapshot of a durable agent's run, taken when the request arrived.

    Args:
        id: Its id.
        calls: Its calls.
        of: The `DurableCalls` to which it belongs.
        number: The number of its last call in this snapshot; by default all calls are included.
    """

    def __init__(self, id: str, calls: Sequence[CallRecord], of: DurableCalls, number: int | None = None) -> None:  # noqa: A002
        self.id = id
        self.session_id = calls[0].session
        self.owner, _, public = calls[0].session.split(".", 2)
        self.public_session = "" if public.startswith("~") else public
        self.agent = of.agents[calls[0].agent].agent
        self.number = number or len(calls)
        self._calls = calls
        self._shared = of
        self._client = of.agents[calls[0].agent].client

    @property
    def end(self) -> EndEvent | None:
        """The end of its last call; None if it is queued or running."""
        return self._end_of(self._calls[self.number - 1])

    @property
    def reply(self) -> Reply[Any] | None:
        """The reply of its last call, if it has one."""
        result = self._calls[self.number - 1].result
        return result if isinstance(result, Reply) else None

    @property
    def waited(self) -> Sequence[Pending]:
        """The decisions that were pending when its last call began."""
        before = None if self.number == 1 else self._calls[self.number - 2].result
        return before.pending if isinstance(before, Reply) else ()

    def with_key(self, key: str) -> DurableRun | None:
        """Return the run up to the call with this key; None if there is no such call."""
        named = [self.id, *[call.key for call in self._calls[1:]]]
        return self.at(str(named.index(key) + 1)) if key in named else None

    def at(self, number: str) -> DurableRun | None:
        """Return the run up to the call with this number; None if there is no such call."""
        numbers = [str(n) for n in range(1, len(self._calls) + 1)]
        return DurableRun(self.id, self._calls, self._shared, int(number)) if number in numbers else None

    def _end_of(self, call: CallRecord) -> EndEvent | None:
        if isinstance(call.result, Reply):
            return self._shared.view.of_reply(call.result)
        return None if call.result is None else EndEvent(outcome="failed", reference=self.id)

    def interrupt(self, reason: str = "interrupted") -> bool:
        """Start cancelling its current call; return whether there was one."""
        if self.end is None:
            self._shared.soon(self._client.cancel(self.id, reason))
        return self.end is None

    async def steer(self, text: str) -> None:
        """Send a message to the running call."""
        await database_work(self._client.send(self.session_id, Msg.user(text)))

    async def cancel(self, reason: str) -> bool:
        """Cancel its current call; return whether there was one."""
        return self.end is None and await database_work(self._client.cancel(self.id, reason))

    def after(self, last_id: str | None) -> AsyncGenerator[NumberedEvent | None] | None:
        """Return the events after a position, for `Last-Event-ID`; None if the position is the run's end.

        Raises:
            Refusal: The id is not a position.
        """
        position = _Position()
        if last_id is not None:
            found = _POSITION.fullmatch(last_id)
            if found is None:
                raise Refusal(400, "wrong_event_id", "Last-Event-ID is not the id of an event of this server.")
            position = _Position(int(found[1]), int(found[2]), int(found[3]))
            if not 1 <= position.call <= len(self._calls):
                return self._read(_Position(), gap=True)
        if position.stage == _ENDED and position.call == len(self._calls):
            return None
        return self._read(position)

    def read(self) -> AsyncGenerator[NumberedEvent | None]:
        """Yield its events from the first one, like `after`."""
        return self._read(_Position())

    def read_call(self) -> AsyncGenerator[NumberedEvent | None]:
        """Yield the events of the last call only, like `read`."""
        return self._read(_Position(self.number - 1), until=self.number)

    async def _read(
        self, position: _Position, *, gap: bool = False, until: int | None = None
    ) -> AsyncGenerator[NumberedEvent | None]:
        if gap:
            yield _numbered("", GapEvent())
        try:
            async for event in self._follow(position, until):
                yield event
        except StoreError as error:  # the client reconnects, here or at another process
            log_failure("WARNING", error, "a stream of run {} ends early: its events cannot be read", self.id)

    async def _follow(self, at: _Position, until: int | None) -> AsyncGenerator[NumberedEvent | None]:
        """Yield the events after a position, to the end of a call (by default the last one), and advance the position."""
        async with self._client.watching(self.id) as watch:
            while not self._shared.closed:
                if at.stage == _ENDED:
                    at.call, at.stage = at.call + 1, _STARTED
                    start = StartEvent(run=self.id, agent=self.agent.name, session=self.public_session)
                    yield _numbered(str(at), start)
                end = self._end_of(self._calls[at.call - 1])
                async for event in self._news(at):
                    yield event
                if end is not None:
                    at.stage = _ENDED
                    last = at.call == (until or len(self._calls))
                    yield _numbered(str(at), end, last=last)
                    if last:
                        return
                elif at.passed or await watch.wait(at.call, at.seq, self._shared.limits.heartbeat):
                    if at.passed or watch.ended:
                        self._calls = await self._client.calls(self.id)
                        at.passed = False
                else:
                    yield None

    async def _news(self, at: _Position) -> AsyncGenerator[NumberedEvent]:
        """Yield the stored events of a call after a position, and advance the position."""
        while batches := await self._client.batches(self.id, at.seq):
            for batch in batches:
                try:
                    events = events_in(self.id, *batch)
                except StoreError as error:
                    log_failure("WARNING", error, "stored events of run {} are skipped", self.id)
                    events = [RunEvent(self.id, batch.last, _DAMAGED, EMPTY)]
                for event in events:
                    if event.seq <= at.seq:  # a batch can begin before the position
                        continue
                    if event.type == "RunTaken":
                        number = segment_number(str(event.data.get("call", self.id)))
                        at.passed, at.skips = number > at.call, number < at.call
                        if at.passed:
                            return
                    shown = None if at.skips else self._shown(event, at)
                    at.seq = event.seq
                    if at.skips:
                        continue
                    if event.type == "RunTaken":
                        at.stage = _RUNNING
                    if shown is not None:
                        yield _numbered("" if isinstance(shown, GapEvent) else str(at), shown)

    def _shown(self, event: RunEvent, at: _Position) -> Public | None:
        if event.type == "RunTaken":
            return TextEvent(text="", restart=True) if at.stage == _RUNNING else None
        if event.type == "SessionState" and self._shared.view.state:
            return self._shared.view.of_saved(dict(cast("Mapping[str, Any]", event.data["values"])))
        try:
            view = None if event.type == _DAMAGED else _hook_event(event)
        except (StoreError, ValueError, TypeError, LookupError) as error:
            log_failure("WARNING", error, "the stored event {} of run {} is skipped", event.seq, self.id)
            return GapEvent()
        return GapEvent() if event.type == _DAMAGED else None if view is None else self._shared.view.of_event(view)


class DurableCalls:
    """Starts the runs of durable agents, and finds them.

    Args:
        agents: The agents, by name.
        limits: The limits; those on runs apply to all processes together.
        view: The data that clients receive.

    Attributes:
        closed: Whether the server is shutting down: no run starts, and streams end, to be continued at another process.
    """

    def __init__(self, agents: Mapping[str, HasWorkers], limits: Limits, view: View) -> None:
        self.agents = agents
        self.limits = limits
        self.view = view
        self.closed = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self, call: ServedCall) -> DurableRun:
        """Submit a call, or decisions for a suspended one. Repeated requests with the same `run_id` start one run.

        Raises:
            Refusal: A limit is reached, the session is busy or does not wait, or the id belongs to another call.
        """
        if self.closed:
            raise Refusal(503, "shutting_down", "The server is shutting down.", retry_after=self.limits.retry_after)
        request = Request("", call.ref.agent.name, call.ref.stored, timeout=self.limits.run_seconds, side=call.side)
        if call.decisions is not None:
            return await self._decide(call, request)
        run_id = call.run_id or f"run_{secrets.token_urlsafe(16)}"
        if call.run_id is None or await self.find(call.owner, run_id) is None:
            waiting = await self._waiting()
            if not any(run.run_id == run_id for run in waiting):  # otherwise a repeated request has just started it
                if call.waiting:
                    raise Refusal(409, "suspended", "The session waits for decisions: resume it.")
                self._check_room(call.owner, request.session, waiting)
        request = request._replace(run_id=run_id, messages=input_of(call.input, new_id))
        try:
            await database_work(self.agents[request.agent].client.start(request))
        except UsageError as error:
            raise Refusal(409, "key_in_use", "This id belongs to another call.") from error
        return await self._reread(run_id)

    def _check_room(self, owner: str, session: str, waiting: Sequence[ListedRun]) -> None:
        limits = self.limits
        if any(run.session == session for run in waiting):
            raise Refusal(409, "session_busy", "A run is working on this session. Wait for it, or interrupt it.")
        if sum(run.session.startswith(f"{owner}.") for run in waiting) >= limits.runs_per_user:
            text = f"You have {limits.runs_per_user} active runs already. Wait until one ends."
            raise Refusal(429, "too_many_runs", text, retry_after=limits.retry_after)
        if len(waiting) >= limits.runs:
            text = f"There are {limits.runs} active runs already. Try again later."
            raise Refusal(503, "overloaded", text, retry_after=limits.retry_after)

    async def _waiting(self) -> list[ListedRun]:
        """Return the runs of all users that are queued or running."""
        found: dict[str, ListedRun] = {}
        for client, names in self._clients():
            found.update((run.run_id, run) for run in await database_work(client.waiting(names, _SEARCHED)))
        return list(found.values())

    def _clients(self) -> list[tuple[FollowingClient, list[str]]]:
        """Return each client with its agents."""
        return [(agent.client, [name]) for name, agent in self.agents.items()]

    async def working(self, session: str) -> DurableRun | None:
        """Return the run that is queued for a session or is working on it."""
        found = next((run.run_id for run in await self._waiting() if run.session == session), None)
        return None if found is None else await self._reread(found)

    async def _decide(self, call: ServedCall, request: Request) -> DurableRun:
        ref = call.ref
        client = self.agents[request.agent].client
        _check_arguments(ref.agent, call)
        run_id = full_session(ref.agent.session(ref.stored)).machine.run_id
        added = [
            msg.id for msg in call.input if isinstance(msg, Msg) and await database_work(client.send(ref.stored, msg))
        ]
        try:
            await database_work(client.answer(request._replace(run_id=run_id, key=call.run_id), call.decisions or {}))
        except BaseException as error:  # even if cancelled: the messages should not arrive without the decisions
            await database_work(client.withdraw(ref.stored, added))
            if isinstance(error, UsageError):
                raise Refusal(409, "not_waiting", "This session does not wait for these decisions.") from error
            raise
        return await self._reread(run_id)

    async def with_key(self, owner: str, ref: StoredSession, key: str) -> DurableRun | None:
        """Return the run that a request with this key has started or continued; the session must be loaded."""
        last = full_session(ref.agent.session(ref.stored)).machine.run_id
        run = await self.find(owner, key) or await self.find(owner, last)
        return None if run is None else run.with_key(key)

    async def find(self, owner: str, run_id: str) -> DurableRun | None:
        """Return a run of an owner, if it exists."""
        if not _RUN_ID.fullmatch(run_id):
            return None
        for client, names in self._clients():
            calls = await database_work(client.calls(run_id))
            if calls and calls[0].agent in names and calls[0].session.startswith(f"{owner}.{calls[0].agent}."):
                return DurableRun(run_id, calls, self)
        return None

    async def _reread(self, run_id: str) -> DurableRun:
        for client, _ in self._clients():
            calls = await database_work(client.calls(run_id))
            if calls and calls[0].agent in self.agents:
                return DurableRun(run_id, calls, self)
        raise Refusal(404, "no_such_run", "The run has been deleted.")

    async def dismiss(self, ref: StoredSession, reason: str) -> None:
        """Close the suspended run of a loaded session, and wait until a worker has done so."""
        run_id = full_session(ref.agent.session(ref.stored)).machine.run_id
        client = self.agents[ref.agent.name].client
        with suppress(UsageError, TimeoutError, RunFailedError):
            await database_work(client.cancel(run_id, reason))
            async with asyncio.timeout(_DISMISS_SECONDS):
                await database_work(client.result(run_id))

    async def withdraw(self, agent: str, session: str) -> None:
        """Delete the undelivered messages to a session, if workers run its agent."""
        if agent in self.agents:
            await database_work(self.agents[agent].client.withdraw(session))

    async def of(self, owner: str) -> list[DurableRun]:
        """Return an owner's runs among the most recent runs of each agent, newest first."""
        found: list[DurableRun] = []
        for client, names in self._clients():
            recent = await database_work(client.recent(names, _SEARCHED))
            own = [run.run_id for run in recent if run.session.startswith(f"{owner}.")][:_LISTED]
            found += [run for run_id in own if (run := await self.find(owner, run_id)) is not None]
        return found

    def end_streams(self) -> None:
        """Stop starting runs, and end the streams: their clients continue at another process."""
        self.closed = True
        for agent in self.agents.values():
            agent.client.release()

    def soon(self, work: Coroutine[Any, Any, object]) -> None:
        """Run work in the background."""

        async def attempt() -> None:
            try:
                await work
            except AgentFlowError as error:
                log_failure("WARNING", error, "a run could not be cancelled")

        task = asyncio.create_task(attempt(), name="agentflow: cancel a durable run")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End the streams, finish the work, and close the connections."""
        self.end_streams()
        await asyncio.gather(*self._tasks)
        for agent in self.agents.values():
            await agent.client.close()


async def database_work(work: Awaitable[T], what: Literal["run", "session"] = "run") -> T:
    """Await an operation of the database.

    Raises:
        Refusal: The database failed.
    """
    try:
        return await work
    except StoreError as error:
        reference = secrets.token_hex(4)
        log_failure("ERROR", error, "the store of a served {} failed (reference {})", what, reference)
        raise Refusal(503, "store_failed", f"The {what} is not available now (reference {reference}).") from error


def digest(*parts: str) -> str:
    """Return a short hash of texts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _check_arguments(agent: Agent[Any], call: ServedCall) -> None:
    """Refuse invalid edited arguments: in a worker they would end the run.

    Raises:
        Refusal: Some are invalid.
    """
    tools = {tool.name: tool for tool in agent.tools}
    for wait in call.waiting:
        use, resolution = wait.tool_use, (call.decisions or {}).get(wait.id)
        if use is None or not isinstance(resolution, Approve) or resolution.input is None:
            continue
        if (tool := tools.get(use.name)) is not None:
            try:
                tool.validate(ToolUseBlock(use.id, use.name, resolution.input))
            except ToolArgumentError as error:
                raise Refusal(422, "wrong_arguments", f"The edited arguments are invalid. {error}") from error


def _numbered(id: str, event: Public, *, last: bool = False) -> NumberedEvent:  # noqa: A002
    return NumberedEvent(id, event, event.line(), last)


def _hook_event(event: RunEvent) -> HookEvent | None:
    """Return a stored event as an event of the library; None if its type is not for clients.

    Raises:
        ValueError: It is damaged.
    """
    data: Any = event.data
    match event.type:
        case "ReasoningChunk":
            chunk = data["incremental_chunk"]
            shown = ModelChunk(text=chunk.get("text", ""), thinking=chunk.get("thinking", ""))
            return ReasoningChunk(incremental_chunk=shown, restart=data.get("restart", False))
        case "PostReasoning":
            return PostReasoning(reasoning_result=msg_from_dict(data["reasoning_result"]))
        case "PreActing":
            return PreActing(tool_use=_use(data))
        case "PostActing":
            result = adapter_of(ToolResultBlock).validate_python(data["tool_result"])
            return PostActing(tool_use=_use(data), original_tool_use=_use(data), tool_result=result)
        case "ActingChunk":
            return ActingChunk(tool_use=_use(data), chunk=data["chunk"])
        case _:
            return None


def _use(data: Any) -> ToolUseBlock:
    return adapter_of(ToolUseBlock).validate_python(data["tool_use"])
