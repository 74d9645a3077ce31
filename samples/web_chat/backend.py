"""A web backend for an agent: Starlette, server-sent events, one conversation per browser.

    app = make_app(agent, {"search": "Looking it up"})        # then: uvicorn --timeout-graceful-shutdown 30 mine:app

    GET  /history     the conversation, what waits for a decision, and whether a call runs
    POST /chat        {"text": "…"}: begins a call, answers with its events
    POST /go-on       {"decisions": {"t1": true}}: answers what was asked, and goes on
    POST /stop        ends the call that runs

Rules:

1. A browser gets what `of_event`, `of_message` and `of_question` make, field by field. Thoughts, arguments, results, names of
   tools and texts of errors are not among it, so an event or a field that is added later is not sent either.
2. A call lives as long as the response that shows it. Whoever comes back reads the history.
3. One call at a time in a conversation; a second one is refused with 409.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentflow import (
    Agent,
    Approve,
    Deny,
    GracefulShutdown,
    HookEvent,
    Msg,
    PostActing,
    PostReasoning,
    PreActing,
    ReasoningChunk,
    Reply,
)
from agentflow.agent import AgentFlux
from agentflow.errors import ScriptError, ShutdownError
from agentflow.vocabulary import Pending

Data = dict[str, Any]
Labels = Mapping[str, str]
"""What a person reads while a tool runs, by the tool's name."""

COOKIE = "conversation"
LONGEST_TEXT = 8_000  # characters
LARGEST_BODY = 64_000  # bytes
TIME_LIMIT = 300.0  # seconds that a call may take
HEARTBEAT = 15.0  # seconds of silence until a comment is sent, so that no proxy ends the response
WORDS_OF_OURS = {"denied", "stopped", "limited"}
"""Synthetic messages that are meant for the person: the closing texts of `Deny`, `Stop` and limits."""

log = logging.getLogger(__name__)


# ---- what a browser gets


def of_event(event: HookEvent, labels: Labels) -> Data | None:
    """What a browser gets of an event; None: nothing."""
    match event:
        case ReasoningChunk(incremental_chunk=chunk, restart=restart) if chunk.text or restart:
            return {"type": "words", "text": chunk.text, "restart": restart}
        case PostReasoning(reasoning_result=reply) if reply.text:  # as hooks have left it: it replaces the words
            return {"type": "reply", "id": reply.id, "text": reply.text}
        case PreActing(tool_use=use):
            return of_tool(use.id, use.name, "running", labels)
        case PostActing(tool_use=use, tool_result=result):
            return of_tool(use.id, use.name, result.state, labels)
        case _:
            return None


def of_tool(id: str, name: str, state: str, labels: Labels) -> Data:  # noqa: A002
    """What a browser gets of a tool call."""
    return {"type": "tool", "id": id, "label": labels.get(name, "Working"), "state": state}


def of_message(msg: Msg, states: Mapping[str, str], labels: Labels) -> list[Data]:
    """What a browser gets of a stored message."""
    synthetic = msg.metadata.get("synthetic")
    if msg.role == "user" and synthetic is None:
        return [{"type": "user", "id": msg.id, "text": msg.text}]
    if msg.role != "assistant" or synthetic not in {None, *WORDS_OF_OURS}:
        return []
    tools = [of_tool(use.id, use.name, states.get(use.id, "suspended"), labels) for use in msg.tool_uses]
    return [{"type": "reply", "id": msg.id, "text": msg.text}, *tools] if msg.text else tools


def of_question(waits: Pending) -> Data:
    """What a browser gets of a call that waits for a person: the text that the hook wrote for this, and no other."""
    question = str(waits.request.get("question") or "May the assistant go on?")
    return {"id": waits.id, "question": "".join(map(visible, question))}


def visible(character: str) -> str:
    """What cannot be seen, or turns text round, as an escape: a person decides about what they read."""
    return character if character.isprintable() or character == "\n" else ascii(character)[1:-1]


def of_end(reply: Reply) -> Data:
    """How a call has ended."""
    said = reply.text if reply.metadata.get("synthetic") in {None, *WORDS_OF_OURS} else ""
    questions = [of_question(waits) for waits in reply.pending]
    return {"type": "end", "outcome": reply.outcome, "id": reply.id, "text": said, "questions": questions}


def shown(messages: list[Data], pending: Iterable[Pending], *, running: bool = False, cut: bool = False) -> Data:
    """A conversation."""
    return {
        "messages": messages,
        "questions": [of_question(waits) for waits in pending],
        "running": running,
        "cut": cut,
    }


# ---- the conversations


class Conversations:
    """An agent's conversations, one for each browser."""

    def __init__(self, agent: Agent, labels: Labels, limit: float) -> None:
        self.agent = agent
        self.labels = labels
        self.limit = limit
        self.running: set[str] = set()
        self.cut: set[str] = set()  # by a crash or a shutdown of the process before this one

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        """When the server is told to end, calls stop where they can be gone on with, and so the responses end."""
        self.cut = {info.id for info in await self.agent.unfinished()}
        async with GracefulShutdown(self.agent, limit=self.limit, in_server=True):
            yield

    async def history(self, request: Request) -> JSONResponse:
        """The conversation."""
        cookie = request.cookies.get(COOKIE, "")
        if known(cookie):
            return JSONResponse(await self._history(session_of(cookie)), headers={"Cache-Control": "no-store"})
        # Nothing is kept for somebody who has said nothing yet.
        response = JSONResponse(shown([], ()), headers={"Cache-Control": "no-store"})
        secure = request.url.scheme == "https"
        made = secrets.token_urlsafe(32)
        response.set_cookie(COOKIE, made, max_age=30 * 86_400, httponly=True, samesite="strict", secure=secure)
        return response

    async def _history(self, session: str) -> Data:
        messages = await self.agent.history(session)
        states = {result.tool_use_id: result.state for msg in messages for result in msg.tool_results}
        said = [data for msg in messages for data in of_message(msg, states, self.labels)]
        pending = self.agent.session(session).pending
        return shown(said, pending, running=session in self.running, cut=session in self.cut)

    async def chat(self, request: Request) -> CallResponse:
        """Begin a call."""
        data, session = await body(request), whose(request)
        text = data.get("text")
        if not isinstance(text, str) or not text.strip():
            raise HTTPException(HTTPStatus.BAD_REQUEST, "text is missing")
        if len(text) > LONGEST_TEXT:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LONGEST_TEXT} characters")
        await self.agent.history(session)  # loads it
        if self.agent.session(session).pending or session in self.cut:
            raise HTTPException(HTTPStatus.CONFLICT, "an earlier call has to go on first")
        return self.response(session, self.agent.stream(text, session=session, timeout=TIME_LIMIT))

    async def go_on(self, request: Request) -> CallResponse:
        """Go on with a call that waits for decisions, or was cut by the end of a process."""
        data, session = await body(request), whose(request)
        await self.agent.history(session)
        waiting = self.agent.session(session).pending
        if not waiting and session not in self.cut:
            raise HTTPException(HTTPStatus.CONFLICT, "nothing waits for a decision")
        said: Any = data.get("decisions", {})
        if not isinstance(said, dict) or cast("Data", said).keys() != {waits.id for waits in waiting}:
            raise HTTPException(HTTPStatus.CONFLICT, "these are not the decisions that are waited for")
        decisions = {
            waits.id: Approve() if cast("Data", said)[waits.id] is True else Deny("the user said no")
            for waits in waiting
        }
        response = self.response(session, self.agent.resume_stream(session, decisions, timeout=TIME_LIMIT))
        self.cut.discard(session)
        return response

    async def stop(self, request: Request) -> JSONResponse:
        """End the call that runs, from whichever tab."""
        await body(request)
        return JSONResponse({"stopped": self.agent.interrupt(whose(request), "the user pressed stop")})

    def response(self, session: str, events: AgentFlux) -> CallResponse:
        """The events of a call. From here to its end the conversation is taken; nothing is awaited in between."""
        if session in self.running:
            raise HTTPException(HTTPStatus.CONFLICT, "a call runs in this conversation")
        return CallResponse(self, session, events)


class CallResponse:
    """A call as a response. The call ends with the response: when the client is gone, it is interrupted and closed."""

    def __init__(self, conversations: Conversations, session: str, events: AgentFlux) -> None:
        self._running = conversations.running
        self._labels = conversations.labels
        self._session = session
        self._events = events
        self._running.add(session)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the call's events until it ends or nobody is there; how it has ended comes when the next one may begin."""
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        tasks: list[asyncio.Task[Data | None]] = []
        end: Data | None = None
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            tasks = [asyncio.create_task(self._run(send)), asyncio.create_task(gone(receive))]
            while not (await asyncio.wait(tasks, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED))[0]:
                await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
            if tasks[0].done():
                end = tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # a call that is cancelled closes its history first
            self._running.discard(self._session)
        if end is not None:
            await tell(send, end)
            await send({"type": "http.response.body", "body": b""})

    async def _run(self, send: Send) -> Data:
        try:
            async with self._events as events:
                async for event in events:
                    if data := of_event(event, self._labels):
                        await tell(send, data)
                return of_end(await events.reply())
        except ShutdownError:
            return {"type": "end", "outcome": "shutdown"}
        except (Exception, ScriptError):  # the end of a script is no Exception, so that no test overlooks it
            reference = secrets.token_hex(4)  # the browser gets this; what it was stands in the log
            log.exception("Call %s in conversation %s failed", reference, self._session)
            return {"type": "end", "outcome": "failed", "reference": reference}


async def tell(send: Send, data: Data) -> None:
    """Send one server-sent event. JSON has no line feed in it, so no text can forge an event."""
    await send({"type": "http.response.body", "body": f"data: {json.dumps(data)}\n\n".encode(), "more_body": True})


async def gone(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


# ---- requests


def whose(request: Request) -> str:
    """The session of whoever asks. In an application with a login it is the user's id, from there."""
    cookie = request.cookies.get(COOKIE, "")
    if not known(cookie):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, "GET /history gives a conversation")
    return session_of(cookie)


def known(cookie: str) -> bool:
    """Whether it has the form of those that we give."""
    return re.fullmatch(r"[\w-]{43}", cookie) is not None


def session_of(cookie: str) -> str:
    """A session's id: whoever reads the database or a log cannot use it as a cookie."""
    return hashlib.sha256(cookie.encode()).hexdigest()[:32]


async def body(request: Request) -> Data:
    """The JSON object of a request. The content type is asked for: no form of another site can send it."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is application/json")
    raw = b""
    async for piece in request.stream():
        raw += piece
        if len(raw) > LARGEST_BODY:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LARGEST_BODY} bytes")
    try:
        data: Any = json.loads(raw)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the body is a JSON object")
    return cast("Data", data)


async def refused(request: Request, error: Exception) -> JSONResponse:
    """A refusal, as JSON."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


class SafeHeaders:
    """Every response says that nothing but our own files may run, and that nobody may frame or guess it."""

    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    (b"content-security-policy", self.policy.encode()),
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"no-referrer"),
                ]
            await send(message)

        await self._app(scope, receive, send_safely)


def make_app(agent: Agent, labels: Labels, routes: Sequence[BaseRoute] = (), *, limit: float = 20.0) -> Starlette:
    """The application: an agent's conversations, and further routes, such as the page.

    Args:
        agent: With a store whose sessions outlive the process, if calls are to go on behind a restart.
        labels: What a person reads while a tool runs, by the tool's name.
        routes: Further ones.
        limit: Seconds that running calls get when the server is told to end; below its own `--timeout-graceful-shutdown`.
    """
    chats = Conversations(agent, labels, limit)
    return Starlette(
        routes=[
            Route("/history", chats.history),
            Route("/chat", chats.chat, methods=["POST"]),
            Route("/go-on", chats.go_on, methods=["POST"]),
            Route("/stop", chats.stop, methods=["POST"]),
            *routes,
        ],
        lifespan=chats.lifespan,
        middleware=[Middleware(SafeHeaders)],
        exception_handlers={HTTPException: refused},
    )
