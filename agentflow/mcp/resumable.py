"""HTTP streams that a client can continue after a broken connection, with the events of each session in memory.

Rules:

1. The SDK has one store for all sessions, names a stream by the number of its request (each client counts from 1), and
   does not pass the session to the store. So each session has its own events, found through the current HTTP request: a
   client cannot read the events of another client, whatever last event it claims to have seen.
2. A session keeps only its newest events. They are released when the client ends the session, or with the context of the
   session's tasks. (Those of the first session may stay until the server stops: `sse_starlette` starts a task in its context.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from typing_extensions import override

from agentflow._support.logs import logger
from agentflow.errors import UsageError
from agentflow.mcp.sdk import EventCallback, EventMessage, EventStore, types

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_SESSION = b"mcp-session-id"


class _Events:
    """The events sent to a session: number, stream, and message (None: the stream began)."""

    __slots__ = ("__weakref__", "count", "sent")

    def __init__(self, limit: int) -> None:
        self.count = 0
        self.sent: deque[tuple[str, str, types.JSONRPCMessage | None]] = deque(maxlen=limit)


_served: ContextVar[_Events | None] = ContextVar("agentflow_mcp_events", default=None)
"""The events of the current session; the session's tasks inherit them from the request that opened the session."""


class ResumableStreams(EventStore):
    """Lets clients of protocols before 2026 continue a stream after a broken connection; meanwhile the call keeps running.

    Pass it as the application's `event_store`, and wrap the application with `around`. Clients with the
    protocol of 2026 repeat the call instead.

    Args:
        events: The number of events to keep for the streams of a session; a client that missed more cannot continue.

    Raises:
        UsageError: `events` is not an integer above 0.

    Example:
        >>> from agentflow.mcp import agent_server
        >>> streams = ResumableStreams()
        >>> app = streams.around(agent_server(agent).streamable_http_app(event_store=streams, retry_interval=1000))
    """

    def __init__(self, events: int = 256) -> None:
        if type(events) is not int or events < 1:
            raise UsageError(f"ResumableStreams(events={events!r}): events must be an integer of at least 1.")
        self._limit = events
        # Weak: the events live as long as the tasks of their session, which hold them in their context (`_served`).
        self._sessions: WeakValueDictionary[bytes, _Events] = WeakValueDictionary()

    def around(self, app: Application) -> Application:
        """Wrap the application to separate the events of sessions.

        Args:
            app: `server.streamable_http_app(event_store=...)` with this store.
        """

        async def served(scope: Message, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            named = dict(scope["headers"]).get(_SESSION)
            # An unknown session name gets a new, empty record, so it shows no events of another session.
            events = (None if named is None else self._sessions.get(named)) or _Events(self._limit)

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    # A request without a session opens one; its name is in the answer.
                    if named is None:
                        opened = dict(message.get("headers", ())).get(_SESSION)
                        if opened is not None:
                            self._sessions[opened] = events
                    elif scope["method"] == "DELETE" and 200 <= message["status"] < 300:
                        self._sessions.pop(named, None)
                await send(message)

            token = _served.set(events)
            try:
                await app(scope, receive, sending)
            finally:
                _served.reset(token)

        return served

    @override
    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        events = _events()
        events.count += 1
        events.sent.append((str(events.count), stream_id, message))
        return str(events.count)

    @override
    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        sent = list(_events().sent)
        at = next((index for index, (number, _, _) in enumerate(sent) if number == last_event_id), None)
        if at is None:
            return None
        stream = sent[at][1]
        for number, of, message in sent[at + 1 :]:
            # A session has a stream for each request, and a client continues one stream.
            if of == stream and message is not None:
                await send_callback(EventMessage(message, number))
        return stream


def _events() -> _Events:
    found = _served.get()
    if found is None:
        text = "ResumableStreams: the application is not wrapped. Serve streams.around(app) instead of app."
        logger.error(text)
        raise UsageError(text)
    return found
