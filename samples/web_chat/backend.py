"""A web backend for an agent: Starlette, server-sent events, one conversation per browser.

    app = make_app(agent, {"search": "Looking it up"})        # then: uvicorn --timeout-graceful-shutdown 30 mine:app

    GET  /history     the conversation, the open questions, and whether a call is running
    POST /chat        {"text": "…"}: starts a call; the response is its events
    POST /resume      {"decisions": {"t1": true}}: answers the questions and resumes the call
    POST /stop        interrupts the running call

Rules:

1. A browser receives only the output of `of_event`, `of_message` and `of_question`, chosen field by field: no thoughts,
   arguments, results, names of tools or error texts. If an event or a field is added later, it is not sent either.
2. A call lives as long as its response. A client that comes back reads the history.
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
"""The text that is shown while a tool runs, by the tool's name."""

COOKIE = "conversation"
LONGEST_TEXT = 8_000  # characters
LARGEST_BODY = 64_000  # bytes
TIME_LIMIT = 300.0  # seconds that a call may take
HEARTBEAT = 15.0  # seconds of silence until a comment is sent, so that no proxy ends the response
CLOSING_TEXTS = {"denied", "stopped", "limited"}
"""Synthetic messages for the user: the closing texts of `Deny`, `Stop` and limits."""

log = logging.getLogger(__name__)


# ---- data for the browser


def of_event(event: HookEvent, labels: Labels) -> Data | None:
    """Return a browser's view of an event; None: nothing is sent."""
    match event:
        case ReasoningChunk(incremental_chunk=chunk, restart=restart) if chunk.text or restart:
            return {"type": "text", "text": chunk.text, "restart": restart}
        case PostReasoning(reasoning_result=reply) if reply.text:  # after all hooks; it replaces the streamed text
            return {"type": "reply", "id": reply.id, "text": reply.text}
        case PreActing(tool_use=use):
            return of_tool(use.id, use.name, "running", labels)
        case PostActing(tool_use=use, tool_result=result):
            return of_tool(use.id, use.name, result.state, labels)
        case _:
            return None


def of_tool(id: str, name: str, state: str, labels: Labels) -> Data:  # noqa: A002
    """Return a browser's view of a tool call."""
    return {"type": "tool", "id": id, "label": labels.get(name, "Working"), "state": state}


def of_message(msg: Msg, states: Mapping[str, str], labels: Labels) -> list[Data]:
    """Return a browser's view of a stored message."""
    synthetic = msg.metadata.get("synthetic")
    if msg.role == "user" and synthetic is None:
        return [{"type": "user", "id": msg.id, "text": msg.text}]
    if msg.role != "assistant" or synthetic not in {None, *CLOSING_TEXTS}:
        return []
    tools = [of_tool(use.id, use.name, states.get(use.id, "suspended"), labels) for use in msg.tool_uses]
    return [{"type": "reply", "id": msg.id, "text": msg.text}, *tools] if msg.text else tools


def of_question(waits: Pending) -> Data:
    """Return a browser's view of a call that waits for a person: only the hook's text for this purpose."""
    question = str(waits.request.get("question") or "May the assistant continue?")
    return {"id": waits.id, "question": "".join(map(visible, question))}


def visible(character: str) -> str:
    """Escape invisible characters and those that reverse text, so that a person decides on the visible text."""
    return character if character.isprintable() or character == "\n" else ascii(character)[1:-1]


def of_end(reply: Reply) -> Data:
    """Return a browser's view of the end of a call."""
    said = reply.text if reply.metadata.get("synthetic") in {None, *CLOSING_TEXTS} else ""
    questions = [of_question(waits) for waits in reply.pending]
    return {"type": "end", "outcome": reply.outcome, "id": reply.id, "text": said, "questions": questions}


def shown(messages: list[Data], pending: Iterable[Pending], *, running: bool = False, unfinished: bool = False) -> Data:
    """Return a browser's view of a conversation."""
    return {
        "messages": messages,
        "questions": [of_question(waits) for waits in pending],
        "running": running,
        "unfinished": unfinished,
    }


# ---- the conversations


class Conversations:
    """An agent's conversations, one for each browser."""

    def __init__(self, agent: Agent, labels: Labels, limit: float) -> None:
        self.agent = agent
        self.labels = labels
        self.limit = limit
        self.running: set[str] = set()
        self.unfinished: set[str] = set()  # sessions that a crash or shutdown of the last process interrupted

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        """Stop calls at a safe point when the server shuts down, so that their responses end."""
        self.unfinished = {info.id for info in await self.agent.unfinished()}
        async with GracefulShutdown(self.agent, limit=self.limit, in_server=True):
            yield

    async def history(self, request: Request) -> JSONResponse:
        """Return the conversation."""
        cookie = request.cookies.get(COOKIE, "")
        if known(cookie):
            return JSONResponse(await self._history(session_of(cookie)), headers={"Cache-Control": "no-store"})
        # A new visitor has no stored conversation yet.
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
        return shown(said, pending, running=session in self.running, unfinished=session in self.unfinished)

    async def chat(self, request: Request) -> CallResponse:
        """Start a call."""
        data, session = await body(request), whose(request)
        text = data.get("text")
        if not isinstance(text, str) or not text.strip():
            raise HTTPException(HTTPStatus.BAD_REQUEST, "text is missing")
        if len(text) > LONGEST_TEXT:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LONGEST_TEXT} characters")
        await self.agent.history(session)  # loads it
        if self.agent.session(session).pending or session in self.unfinished:
            raise HTTPException(HTTPStatus.CONFLICT, "an earlier call must be resumed first")
        return self.response(session, self.agent.stream(text, session=session, timeout=TIME_LIMIT))

    async def resume(self, request: Request) -> CallResponse:
        """Resume a call that waits for decisions, or was interrupted by the end of a process."""
        data, session = await body(request), whose(request)
        await self.agent.history(session)
        waiting = self.agent.session(session).pending
        if not waiting and session not in self.unfinished:
            raise HTTPException(HTTPStatus.CONFLICT, "there is nothing to resume")
        said: Any = data.get("decisions", {})
        if not isinstance(said, dict) or cast("Data", said).keys() != {waits.id for waits in waiting}:
            raise HTTPException(HTTPStatus.CONFLICT, "the decisions do not match the open questions")
        decisions = {
            waits.id: Approve() if cast("Data", said)[waits.id] is True else Deny("the user said no")
            for waits in waiting
        }
        response = self.response(session, self.agent.resume_stream(session, decisions, timeout=TIME_LIMIT))
        self.unfinished.discard(session)
        return response

    async def stop(self, request: Request) -> JSONResponse:
        """Interrupt the running call, from any tab."""
        await body(request)
        return JSONResponse({"stopped": self.agent.interrupt(whose(request), "the user pressed stop")})

    def response(self, session: str, events: AgentFlux) -> CallResponse:
        """Return a call's events as a response. The conversation is busy from here on; nothing is awaited in between."""
        if session in self.running:
            raise HTTPException(HTTPStatus.CONFLICT, "a call is running in this conversation")
        return CallResponse(self, session, events)


class CallResponse:
    """A call as a response. If the client disconnects, the call is interrupted and closed."""

    def __init__(self, conversations: Conversations, session: str, events: AgentFlux) -> None:
        self._running = conversations.running
        self._labels = conversations.labels
        self._session = session
        self._events = events
        self._running.add(session)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the call's events until it ends or the client disconnects; then the end, once the next call may start."""
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        tasks: list[asyncio.Task[Data | None]] = []
        end: Data | None = None
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            tasks = [asyncio.create_task(self._run(send)), asyncio.create_task(disconnected(receive))]
            while not (await asyncio.wait(tasks, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED))[0]:
                await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
            if tasks[0].done():
                end = tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # a cancelled call closes its history first
            self._running.discard(self._session)
        if end is not None:
            await send_event(send, end)
            await send({"type": "http.response.body", "body": b""})

    async def _run(self, send: Send) -> Data:
        try:
            async with self._events as events:
                async for event in events:
                    if data := of_event(event, self._labels):
                        await send_event(send, data)
                return of_end(await events.reply())
        except ShutdownError:
            return {"type": "end", "outcome": "shutdown"}
        except (Exception, ScriptError):  # ScriptError is not an Exception
            reference = secrets.token_hex(4)  # the browser gets this; the error is in the log
            log.exception("Call %s in conversation %s failed", reference, self._session)
            return {"type": "end", "outcome": "failed", "reference": reference}


async def send_event(send: Send, data: Data) -> None:
    """Send one server-sent event. JSON contains no line feed, so a text cannot forge an event."""
    await send({"type": "http.response.body", "body": f"data: {json.dumps(data)}\n\n".encode(), "more_body": True})


async def disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


# ---- requests


def whose(request: Request) -> str:
    """Return the session of a request. In an application with a login, use the user's id."""
    cookie = request.cookies.get(COOKIE, "")
    if not known(cookie):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, "GET /history first")
    return session_of(cookie)


def known(cookie: str) -> bool:
    """Return whether a cookie has the form of ours."""
    return re.fullmatch(r"[\w-]{43}", cookie) is not None


def session_of(cookie: str) -> str:
    """Return a session's id, which is useless as a cookie if a database or log leaks."""
    return hashlib.sha256(cookie.encode()).hexdigest()[:32]


async def body(request: Request) -> Data:
    """Return the JSON object of a request. The content type is required: forms of other sites cannot send it."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > LARGEST_BODY:
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {LARGEST_BODY} bytes")
    try:
        data: Any = json.loads(raw)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
    return cast("Data", data)


async def refused(request: Request, error: Exception) -> JSONResponse:
    """Return a refusal as JSON."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


class SafeHeaders:
    """Middleware that adds headers: only our own files may run, framing and content sniffing are forbidden."""

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
    """Make the application: an agent's conversations, and further routes, such as the page.

    Args:
        agent: Its store should outlive the process, so that calls continue after a restart.
        labels: The text that is shown while a tool runs, by the tool's name.
        routes: Further routes.
        limit: Seconds that running calls have at a shutdown; should be below the server's `--timeout-graceful-shutdown`.
    """
    chats = Conversations(agent, labels, limit)
    return Starlette(
        routes=[
            Route("/history", chats.history),
            Route("/chat", chats.chat, methods=["POST"]),
            Route("/resume", chats.resume, methods=["POST"]),
            Route("/stop", chats.stop, methods=["POST"]),
            *routes,
        ],
        lifespan=chats.lifespan,
        middleware=[Middleware(SafeHeaders)],
        exception_handlers={HTTPException: refused},
    )
