"""A connection to a server in one event loop: a task that opens, holds and closes it, tasks that keep the list of tools
current, and requests, whose failures show that it is lost.

Rules:

1. The SDK's client is entered and exited in a task of its own, in an empty context: it inherits nothing from the first caller.
2. Callers that need the connection while it is being opened wait for the same opening.
3. The connection is closed by `close`, which `MCPServer` calls when the last user closes, or when the event loop cancels its
   tasks.
4. An invalid answer from a server becomes a `ToolError`; the server's texts are shown on one line, without the secrets in the
   settings.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, NoReturn, TypeVar, cast
from weakref import WeakSet

from pydantic import ValidationError

from agentflow._support.logs import log_failure, logger
from agentflow.errors import ToolError
from agentflow.mcp.active import ActiveCall, call_of_question
from agentflow.mcp.roots import listed_roots
from agentflow.mcp.sdk import (
    MODERN_PROTOCOL_VERSIONS,
    Client,
    ClientRequestContext,
    MCPError,
    SubscriptionLost,
    httpx2,
    types,
)
from agentflow.mcp.settings import Link, Settings
from agentflow.vocabulary.ports.retry import RetryPolicy

T = TypeVar("T")

_LEVELS = {"debug": "DEBUG", "info": "INFO", "notice": "INFO", "warning": "WARNING"}
# RFC 5424's order, which MCP uses.
_SEVERITY = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_LINES_PER_SECOND = 20  # of the server's log, per connection
# Limits for servers whose lists never end.
_MAX_PAGES = 100
_MAX_TOOLS = 1000
_SETTLE_SECONDS = 5.0
"""Seconds to wait for an announced list of tools before returning a tool's result, or for the ping after a cancellation."""
_LIST_INTERVAL = 0.05  # seconds; doubled up to the maximum while a server announces changes
_MAX_LIST_INTERVAL = 10.0
_CLOSE_SECONDS = 10.0


class ConnectionLost(ToolError):  # noqa: N818 - the name describes an event
    """The server is unreachable, or the connection ended during a request.

    Args:
        text: A description of the failure.
        temporary: Whether another attempt may succeed.
    """

    def __init__(self, text: str, temporary: bool = True) -> None:
        super().__init__(text)
        self.temporary = temporary


class Connection:
    """A connection to one server, in one event loop.

    Args:
        settings: The server's settings.
        link: The link to the server.
        take: Receives the server's tools and instructions each time they are listed.

    Attributes:
        users: The users that have opened the connection.
        active: The calls that run on the connection.
    """

    def __init__(self, settings: Settings, link: Link, take: Callable[[list[types.Tool], str | None], None]) -> None:
        # Weak: an agent that is garbage-collected without `close` is no longer a user.
        self.users: WeakSet[Any] = WeakSet()
        self.active: dict[int, ActiveCall] = {}
        self._settings = settings
        self._link = link
        self._take = take
        # The task that opens, holds and closes the connection, and its client; `_closing` is set to close it.
        self._holder: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[Client] | None = None
        self._closing = asyncio.Event()
        self._listing: asyncio.Task[None] | None = None
        self._stale = False  # whether a change was announced since the last listing began
        self._last_stderr = ""
        self._lines: list[float] = []  # the times of the lines that were logged in the last second
        self._policy = RetryPolicy(
            who=f"MCP server {settings.name!r}", attempts=settings.attempts, max_wait=10.0, should_retry=_is_temporary
        )

    # ---- opening and closing

    @property
    def is_open(self) -> bool:
        """Whether the connection is open; a lost one counts as open until a request fails."""
        opened = self._opened
        return opened is not None and opened.done() and not opened.cancelled() and opened.exception() is None

    async def client(self) -> Client:
        """Return the SDK's client, after connecting it if necessary.

        Raises:
            ConnectionLost: The connection failed.
        """
        attempts = self._policy.start()
        while True:
            try:
                return await self._client()
            except ConnectionLost as error:
                if not await attempts.another(error):
                    raise

    async def _client(self) -> Client:
        while (holder := self._holder) is not None and (self._closing.is_set() or holder.done()):
            await asyncio.wait([holder])  # the connection is closing; a new one is opened afterwards
            # Another waiter may have opened a new connection already.
            if self._holder is holder:
                self._holder = self._opened = None
        if self._holder is None or self._opened is None:
            self._closing = asyncio.Event()
            self._opened = asyncio.get_running_loop().create_future()
            self._holder = asyncio.get_running_loop().create_task(
                self._hold(self._opened, self._closing), name=f"mcp: {self._settings.name}", context=Context()
            )
        # A caller that is cancelled must not end the opening for the others.
        return await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Close the connection, and wait until it is closed."""
        holder = self._holder
        if holder is None:
            return
        self._closing.set()
        _, running = await asyncio.wait([holder], timeout=_CLOSE_SECONDS)
        if running:
            # A server that does not answer may delay the orderly end indefinitely.
            holder.cancel()
            await asyncio.wait([holder], timeout=_CLOSE_SECONDS)
        if self._holder is holder:
            self._holder = self._opened = None
            self._closing = asyncio.Event()  # an `asyncio.Event` stays bound to the loop in which it was awaited

    def lose(self, client: Client) -> None:
        """Mark the connection as lost; the next user reconnects."""
        # A late failure of an earlier client does not affect the current connection.
        if self._opened is not None and self.is_open and self._opened.result() is client:
            self._closing.set()

    async def _hold(self, opened: asyncio.Future[Client], closing: asyncio.Event) -> None:
        """Open the connection, hold it, and close it."""
        settings = self._settings
        listener: asyncio.Task[None] | None = None
        try:
            client = Client(
                self._link.connect(self._stderr),
                # The SDK's cache keeps lists as long as the server suggests, so it would return old lists after a change.
                cache=None,
                mode=settings.protocol,
                logging_callback=None if settings.log_level is None else self._log,
                log_level=settings.log_level,
                sampling_callback=self._sample if settings.sampling else None,
                elicitation_callback=None if settings.elicitation == "refuse" else self._elicit,
                list_roots_callback=None if settings.roots is None else self._roots,
                message_handler=self._on_message,
                client_info=types.Implementation(name="agentflow", version="1"),
            )
            entered = False
            try:
                async with asyncio.timeout(settings.connect_timeout):
                    # Entered and exited in this task: anyio's cancel scopes belong to the task that entered them.
                    await client.__aenter__()
                    entered = True
                    client.session.validate_tool_result = _unchecked
                    self._take(await self._listed(client), client.instructions)
                    if settings.follow:
                        # Callers wait for the subscription, because changes before it would be missed.
                        listening = asyncio.Event()
                        listener = asyncio.ensure_future(self._follow(client, listening))
                        # Set also if the server has nothing to subscribe to.
                        listener.add_done_callback(lambda _: listening.set())
                        await listening.wait()
                if not opened.done():
                    opened.set_result(client)
                await closing.wait()
            finally:
                # Both tasks use the client, so they must end before it is closed.
                if listener is not None:
                    listener.cancel()
                    await asyncio.wait([listener])
                if self._listing is not None:
                    self._listing.cancel()
                    await asyncio.wait([self._listing])
                    self._listing = None
                if entered:
                    await client.__aexit__(None, None, None)
        except (Exception, BaseExceptionGroup) as error:  # task groups of the SDK raise groups with cancellations
            if opened.done():
                log_failure("DEBUG", error, "closing the MCP server {} failed", settings.name)
            else:
                opened.set_exception(self._opening_error(error))
        finally:
            if not opened.done():
                ending = f"MCP server {settings.name!r} was not connected, because the event loop is ending."
                opened.set_exception(ConnectionLost(ending, temporary=False))
            if not opened.cancelled():
                opened.exception()  # mark the exception as retrieved, even if no caller waits

    def _opening_error(self, error: BaseException) -> ConnectionLost:
        """Return the error for a connection that could not be opened."""
        error = _single(error)
        if isinstance(error, ConnectionLost):
            return error
        server = f"MCP server {self._settings.name!r} ({self._link.shown})"
        # Not retried: the time that the user allows for connecting has passed.
        if isinstance(error, TimeoutError):
            return ConnectionLost(
                f"{server} was not connected within {self._settings.connect_timeout:g} s.", temporary=False
            )
        if isinstance(error, ValidationError):
            return ConnectionLost(f"{server} sent an invalid answer: {self._first(error)}", temporary=False)
        lasting = isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError)
        text = self._link.clean(str(error))[:1000] or "no message"
        if self._last_stderr:
            text = f"{text}; the process wrote: {self._last_stderr}"
        fix = " Is the command installed?" if isinstance(error, FileNotFoundError) else ""
        return ConnectionLost(
            f"{server} cannot be reached: {type(error).__name__}: {text}.{fix}", temporary=not lasting
        )

    def _first(self, error: ValidationError) -> str:
        """Describe the first problem of an invalid answer."""
        first = error.errors(include_url=False, include_input=False)[0]
        return self._link.clean(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")[:500]

    # ---- requests

    async def ask(self, purpose: str, request: Callable[[Client], Awaitable[T]]) -> T:
        """Send a request to the server.

        Args:
            purpose: The purpose of the request, for errors.
            request: Sends the request with the client.

        Raises:
            ConnectionLost: The server is unreachable, or the connection was lost.
            ToolError: The server refused the request, or sent an invalid answer.
        """
        client = await self.client()
        try:
            return await request(client)
        except Exception as error:
            self._raise_failure(client, purpose, error)

    def _raise_failure(self, client: Client, purpose: str, error: Exception) -> NoReturn:
        error = cast("Exception", _single(error))
        name = self._settings.name
        if isinstance(error, ToolError):
            raise error
        text = self._link.clean(str(error))[:2000]
        if _is_lost(error):
            self.lose(client)
            raise ConnectionLost(
                f"The MCP server {name!r} has ended or can no longer be reached ({purpose})."
            ) from error
        if isinstance(error, ValidationError):
            text = self._first(error)
            raise ToolError(f"The MCP server {name!r} sent an invalid answer ({purpose}): {text}") from error
        raise ToolError(f"The MCP server {name!r} failed ({purpose}): {text or type(error).__name__}") from error

    # ---- its tools

    async def _listed(self, client: Client) -> list[types.Tool]:
        if client.server_capabilities.tools is None:
            return []
        found = await all_pages(client.list_tools, "tools", _MAX_TOOLS)
        if len(found) > _MAX_TOOLS:
            logger.warning("MCP server {}: only its first {} tools are used", self._settings.name, _MAX_TOOLS)
        return found[:_MAX_TOOLS]

    async def settle(self) -> None:
        """Wait, for a limited time, until the announced tools are listed."""
        listing = self._listing
        if listing is not None and not listing.done():
            await asyncio.wait([listing], timeout=_SETTLE_SECONDS)

    async def flush_cancellation(self) -> None:
        """Wait until a server in this event loop has handled a cancellation that was just sent.

        Such a server starts a task for each message. If the event loop ends before that task has started, the task is
        cancelled, and Python warns that its coroutine was never awaited. A ping prevents this, because it is answered after
        all earlier messages. Servers with the protocol of 2026 are called directly, and start no tasks.
        """
        holder, opened = self._holder, self._opened
        # If the holder is being cancelled, the event loop is ending, and the connection no longer answers pings.
        if not self._link.in_process or holder is None or opened is None or holder.cancelling() or not self.is_open:
            return
        client = opened.result()
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return
        with suppress(MCPError, TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await client.session.send_ping()

    def _announced(self) -> None:
        """Handle the server's announcement that its tools have changed."""
        self._stale = True
        # One listing at a time; a running one lists again if `_stale` was set meanwhile.
        if self._settings.follow and (self._listing is None or self._listing.done()) and self.is_open:
            self._listing = asyncio.ensure_future(self._list_again())

    async def _list_again(self) -> None:
        wait = _LIST_INTERVAL
        while self._stale and self._opened is not None:
            self._stale = False
            client = self._opened.result()
            try:
                async with asyncio.timeout(self._settings.connect_timeout):
                    self._take(await self._listed(client), client.instructions)
            except Exception as error:
                log_failure("WARNING", error, "MCP server {}: its tools cannot be listed again", self._settings.name)
                return
            if self._stale:
                await asyncio.sleep(wait)  # a minimum interval, however often the server announces changes
                wait = min(wait * 2, _MAX_LIST_INTERVAL)

    async def _follow(self, client: Client, listening: asyncio.Event) -> None:
        """Listen for changes if the protocol version has a stream for them."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed or client.session.discover_result is None:
            return
        # Seconds; doubled after each attempt without a change.
        wait = 0.5
        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    listening.set()
                    # Ends without an error if the server closes the subscription, for example when it restarts.
                    async for _ in events:
                        wait = 0.5
                        self._announced()
            except (SubscriptionLost, MCPError, httpx2.HTTPError, TimeoutError) as error:
                if _is_lost(error):
                    return
            except Exception as error:
                log_failure("DEBUG", error, "MCP server {}: its changes cannot be followed", self._settings.name)
                return
            listening.set()  # even if the server refuses, it is usable; its tools are listed again after each attempt
            await asyncio.sleep(wait)
            wait = min(wait * 2, 60.0)
            self._announced()

    # ---- the server's messages

    async def _on_message(self, message: types.ServerNotification | Exception) -> None:
        # For protocols before 2026; later ones have the stream of `_follow`.
        if isinstance(message, types.ToolListChangedNotification):
            self._announced()

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        level = self._settings.log_level
        if level is None or _SEVERITY.index(params.level) < _SEVERITY.index(level):
            return
        data = cast("object", params.data)
        self._write(_LEVELS.get(params.level, "ERROR"), data if isinstance(data, str) else repr(data))

    def _stderr(self, line: str) -> None:
        """Log a line of the process's standard error."""
        if line:
            self._last_stderr = self._link.clean(line)[:300]
            self._write("TRACE", line)

    def _write(self, level: str, text: str) -> None:
        """Log a text from the server, up to a maximum rate."""
        now = time.monotonic()
        self._lines = [*[at for at in self._lines if now - at < 1.0], now]
        if len(self._lines) <= _LINES_PER_SECOND:
            logger.log(level, "MCP server {}: {}", self._settings.name, self._link.clean(text[:8000])[:2000])
        else:
            # Lines that are not logged do not count, so a chatty server is never silenced entirely.
            del self._lines[-1]

    async def _sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        call = call_of_question(self.active.values())
        return _ambiguous() if call is None else await call.sample(params)

    async def _elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        call = call_of_question(self.active.values())
        return _ambiguous() if call is None else await call.elicit(params)

    async def _roots(self, context: ClientRequestContext) -> types.ListRootsResult | types.ErrorData:
        try:
            return await listed_roots(self._settings.roots or ())
        except Exception as error:
            log_failure("WARNING", error, "MCP server {}: the requested roots cannot be listed", self._settings.name)
            return types.ErrorData(code=types.INTERNAL_ERROR, message="The roots are not known.")


async def all_pages(request: Callable[..., Awaitable[Any]], kind: str, limit: int | None = None) -> list[Any]:
    """Collect the pages of a server's list, until there are more than `limit` items."""
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await request(cursor=cursor)
        found += getattr(page, kind)
        cursor = page.next_cursor
        if cursor is None or (limit is not None and len(found) > limit):
            break
    return found


async def _unchecked(name: str, result: types.CallToolResult) -> None:
    """Replace the SDK's check of structured content, which could take hours for a hostile schema.

    `MCPServer` checks the content within limits (`agentflow._support.json_schema`).
    """


def _ambiguous() -> types.ErrorData:
    return types.ErrorData(
        code=types.INVALID_REQUEST, message="Refused: it is unclear which call this request belongs to."
    )


def _single(error: BaseException) -> BaseException:
    """Return the only error inside nested groups that have one member each."""
    while isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        if len(inner) != 1:
            return cast("BaseException", error)
        error = inner[0]
    return error


def _is_temporary(error: Exception) -> bool:
    return isinstance(error, ConnectionLost) and error.temporary


def _is_lost(error: BaseException) -> bool:
    """Return whether an error means that the connection is lost."""
    if isinstance(error, MCPError):
        return error.code == types.CONNECTION_CLOSED
    # anyio's errors of closed streams.
    name = type(error).__name__
    return isinstance(error, OSError | httpx2.TransportError) or name in ("ClosedResourceError", "BrokenResourceError")
