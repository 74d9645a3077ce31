"""Conversations of chat pages: the part that the AG-UI and AI SDK routes share.

Rules:

1. The session is the server's. Pages send their whole conversation. The server uses only the user's last messages that
   are new, recognised by their ids, and the answers to pending calls.
2. If a page sends its last messages again, without a reply after them, the user retries or has edited them: the call that they
   started is removed from the session, and a new one starts.
3. A page's tools are offered to the model in addition to the agent's own. A call of such a tool suspends the run, and the
   result continues it. A result can only answer such a call; all other calls need a decision.
4. A run has the id that the page chose, for this user and session only. The same id again reads the same run.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from starlette.requests import Request

from agentflow._support.frozen import EMPTY
from agentflow.durable.client_side import ClientSide, is_client_call
from agentflow.errors import AgentFlowError
from agentflow.serve.bodies import DecisionBody, resolution
from agentflow.serve.guard import owner_of
from agentflow.serve.refusals import Refusal
from agentflow.serve.runs import ServedCall, ServedRun, StoredSession
from agentflow.serve.service import Service
from agentflow.serve.streams import EventStreamResponse
from agentflow.vocabulary.messages import DataBlock, Msg, Pending, undecided
from agentflow.vocabulary.specs import ToolSpec
from agentflow.vocabulary.verdicts import Answer, Resolution

_SETTLE_SECONDS: Final = 1.0


@dataclass(kw_only=True)
class ChatRequest:
    """A page's request.

    Attributes:
        run_id: The run's id, chosen by the page.
        messages: The user's messages at the end of the conversation.
        earlier: The ids of the user's messages before them.
        decide: Returns the page's decision about a waiting call; None if it has none.
        results: Results of the page's tools, as they return them, by the calls' ids.
        answers: Whether the request answers pending calls. If so, its last messages are not a retry.
        system: Instructions in addition to the agent's own.
        tools: The page's tools.
    """

    run_id: str
    messages: list[Msg] = field(default_factory=list[Msg])
    earlier: list[str] = field(default_factory=list[str])
    decide: Callable[[Pending], DecisionBody | None] = lambda _: None
    results: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answers: bool = False
    system: str = ""
    tools: list[ToolSpec] = field(default_factory=list[ToolSpec])


@dataclass(frozen=True)
class Chat:
    """A run that a page reads.

    Attributes:
        run: The run.
        history: The conversation at the start of the run, if the page's conversation differs from it.
    """

    run: ServedRun
    history: tuple[Msg, ...] | None

    @property
    def announced(self) -> frozenset[str]:
        """The calls that waited when the run began, which the page knows from the previous run."""
        return frozenset(wait.id for wait in self.run.waited)

    @property
    def answered(self) -> frozenset[str]:
        """The announced calls that the page has answered with a result."""
        return frozenset(wait.id for wait in self.run.waited if is_client_call(wait))

    @property
    def wanted(self) -> frozenset[str]:
        """The calls of the page's tools that wait after the run."""
        reply = self.run.reply
        return frozenset(wait.id for wait in (() if reply is None else reply.pending) if is_client_call(wait))


class Chats:
    """Opens the runs of chat pages.

    Args:
        service: Runs the agents.
        protocol: The protocol's name, which differs from those of other routes, because it is part of a run's id.
    """

    def __init__(self, service: Service, protocol: str) -> None:
        self.service = service
        self._protocol = protocol
        # Used when a page reads the same run again; an entry is removed with its run.
        self._histories: WeakKeyDictionary[ServedRun, tuple[Msg, ...]] = WeakKeyDictionary()

    async def open(self, owner: str, ref: StoredSession, request: ChatRequest) -> Chat:
        """Start the run of a request, or continue the session; an existing run is only read.

        Raises:
            Refusal: The request is invalid, or does not match the state of the session.
        """
        name = f"{self._protocol} {ref.stored} {request.run_id}"
        run_id = f"chat_{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        existing = await self.service.find_request(owner, ref, run_id)
        if existing is not None:
            return self._chat(existing)
        session = ref.agent.session(ref.stored)
        await self._settled(ref)
        history = await self.service.history(ref)
        if await self.service.current_status(ref, session) == "running":
            raise Refusal(409, "session_busy", "A run is working on this session. Wait for it, or interrupt it.")
        known = [msg.id for msg in history if msg.role == "user"]
        new = [msg for msg in request.messages if msg.id not in known]
        self._check(ref, new or request.messages, request)
        if not new and request.messages and not request.answers:
            await self.service.rewind(ref, request.messages[-1].id)
            history = await self.service.history(ref)
            known = [msg.id for msg in history if msg.role == "user"]
            new = [msg for msg in request.messages if msg.id not in known]
            session = ref.agent.session(ref.stored)
        idle = self.service.status(session) == "idle"
        if idle and not new:
            raise Refusal(409, "nothing_new", "There is no new message, and nothing waits for an answer.")
        run = await self.service.open(
            ServedCall(
                owner=owner,
                ref=ref,
                input=new,
                decisions=None if idle else _resolutions(session.pending, request),
                waiting=session.pending,
                run_id=run_id,
                side=ClientSide(request.system, request.tools),
            )
        )
        ids = [*request.earlier, *[msg.id for msg in request.messages if msg.id in known]]
        if ids != known:
            self._histories[run] = (*history, *new)
        return self._chat(run)

    def _chat(self, run: ServedRun) -> Chat:
        return Chat(run, self._histories.get(run))

    async def _settled(self, ref: StoredSession) -> None:
        """Wait briefly for a run that the page has just stopped: the page's next request may overtake the disconnect."""
        run = await self.service.working(ref)
        if run is not None and run.end is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE_SECONDS), aclosing(run.read()) as events:
                    async for _ in events:
                        pass

    async def running(self, ref: StoredSession) -> Chat | None:
        """Return a session's current run."""
        run = await self.service.working(ref)
        return None if run is None or run.end is not None else self._chat(run)

    def _check(self, ref: StoredSession, new: Sequence[Msg], request: ChatRequest) -> None:
        limit = self.service.limits.message
        if any(len(text) > limit for text in (request.system, *[msg.text for msg in new])):
            raise Refusal(413, "message_too_long", f"The message is too long: {limit} characters are allowed.")
        if not all(msg.text.strip() or msg.data for msg in new):
            raise Refusal(422, "invalid_body", "The message is empty.")
        own = {tool.name for tool in ref.agent.tools}
        if conflicts := [spec.name for spec in request.tools if spec.name in own]:
            raise Refusal(422, "tool_exists", f"The agent has tools named {conflicts} of its own. Rename yours.")


def _resolutions(waiting: Sequence[Pending], request: ChatRequest) -> dict[str, Resolution]:
    """Return the answers to the waiting calls.

    Raises:
        Refusal: Some are missing.
    """
    pending = {wait.id: wait for wait in waiting}
    found: dict[str, Resolution] = {}
    for key, wait in pending.items():
        if is_client_call(wait):
            if key in request.results:
                found[key] = Answer(request.results[key])
        elif (decision := request.decide(wait)) is not None:
            found[key] = resolution(key, decision, pending)
    missing = [wait.id for wait in undecided(pending.values(), found)]
    if missing:
        raise Refusal(409, "suspended", f"The session waits for answers to {missing}. Send all of them.")
    return found


def media(url: str, media_type: str | None) -> DataBlock | None:
    """Return a file from an address or a data URL; None if it is unusable."""
    try:
        return DataBlock.from_url(url, media_type)
    except (AgentFlowError, ValueError):
        return None


def stream_of(
    request: Request,
    service: Service,
    chat: Chat,
    chunks: AsyncGenerator[bytes | None],
    headers: Mapping[str, str] = EMPTY,
) -> Any:
    """Return the response that streams a run. A disconnect interrupts the run, unless `?on_disconnect=continue` is set."""
    run = chat.run
    continues = request.query_params.get("on_disconnect") == "continue"

    def leave() -> None:
        if not continues:
            run.interrupt("the client disconnected")

    return EventStreamResponse(chunks, service.limits, service.runs.streams.take(run.owner), leave, headers)


def session_of(request: Request, service: Service, public: str) -> tuple[str, StoredSession]:
    """Return the user's key and session."""
    owner = owner_of(request.scope)
    return owner, service.session(owner, request.path_params["agent"], public)
