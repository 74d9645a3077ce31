"""`MCPServer`: the tools of an MCP server, as a toolset of agents.

Rules:

1. It is connected when an agent first needs it, per event loop, and closed with the agents that use it (`LiveToolset`).
2. A server is not trusted: its names are made legal, its texts bounded, its schemas checked; what cannot be used is left out
   and logged. Whatever it does while a tool runs ends in that tool's result.
3. A connection that is lost is opened again, with waits that grow. A call that was running is made again only if the tool is
   idempotent; else the model is told that its outcome is not known.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from functools import partial
from os import PathLike
from typing import Any, Self, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

from agentflow.context import RunContext
from agentflow.errors import ToolError, UsageError
from agentflow.ground.json_schema import JsonSchema, TooCostlyError
from agentflow.ground.logs import logger
from agentflow.ground.shown import without_password
from agentflow.loop.escalation import ToolSuspended
from agentflow.mcp.active import ActiveCall, Progress, here
from agentflow.mcp.config import Entry, read_config
from agentflow.mcp.connection import Connection, ConnectionLost
from agentflow.mcp.http import http_transport
from agentflow.mcp.results import blocks_of, message_of, text_of, value_of
from agentflow.mcp.sdk import MODERN_PROTOCOL_VERSIONS, Client, StdioServerParameters, types
from agentflow.mcp.settings import Link, ServerOptions, Settings, checked
from agentflow.mcp.stdio import stdio_transport
from agentflow.mcp.tools_in import Remote, Runs, ToolMaker, readable
from agentflow.messages import DataBlock, Msg, TextBlock
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.schema_arguments import explain_problems
from agentflow.tools.tool import Tool
from agentflow.tools.tool_context import ToolContext

__all__ = ["MCPServer", "Progress", "ServerOptions", "with_instructions"]

T = TypeVar("T")
_MOST_PAGES = 100
_ABANDONED = 6.0
"""Seconds for the server to be told that a call is cancelled; the SDK's own limit is a little less."""


class MCPServer(LiveToolset):
    """An MCP server: `MCPServer.stdio(...)`, `.http(url)`, `.in_memory(server)`, or `.from_file(path)`.

    An agent takes it as a toolset, and connects it with its first call. `async with agent` closes it.

    Attributes:
        name: What logs and errors call it.
        settings: How it is used.
        instructions: How to use it, in the server's own words; None before it was first connected, or where it says nothing.
            They are in no request by themselves: see `with_instructions`.

    Example:
        >>> server = MCPServer.stdio("uvx", "mcp-server-git", prefix="git_", allow=["git_log", "git_diff"])
        >>> agent = Agent("reviewer", "openai/gpt-5", tools=[server])
        >>> server
        MCPServer('uvx', stdio: uvx, 0 tools)
    """

    def __init__(self, link: Link, settings: Settings) -> None:
        self.name = settings.name
        self.settings = settings
        self.instructions: str | None = None
        self._link = link
        self._guard = threading.Lock()
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()
        self._tools: tuple[Tool[..., Any], ...] = ()
        self._listed: list[types.Tool] | None = None
        self._maker = ToolMaker(settings, Runs(self._run, self.resources, self.read))

    # ---- ways to a server

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        **options: Unpack[ServerOptions],
    ) -> Self:
        """A server that is started as a process of ours, and spoken to over its input and output.

        Args:
            command: The program.
            args: Its arguments; no shell reads them.
            env: Environment variables, besides the few that it inherits (`PATH`, `HOME` and such); never logged.
            cwd: Where it runs.
            options: See `ServerOptions`.

        Raises:
            UsageError: An option cannot be used.
        """
        given = dict(env or {})
        texts = cast("tuple[object, ...]", (command, *args, *given, *given.values()))
        if not command or not all(isinstance(one, str) and "\0" not in one for one in texts):
            raise UsageError(
                "MCPServer.stdio(command, *args, env=...): command, arguments and environment are texts without NUL, and "
                "the command is not empty."
            )
        settings = checked(command.rpartition("/")[2], options)
        parameters = StdioServerParameters(
            command=command, args=list(args), env=given, cwd=None if cwd is None else str(cwd)
        )
        link = Link(
            partial(stdio_transport, parameters, settings.max_size),
            f"stdio: {command}",
            tuple(filter(None, given.values())),
        )
        return cls(link, settings)

    @classmethod
    def http(
        cls, url: str, *, headers: Mapping[str, str] | None = None, auth: Any = None, **options: Unpack[ServerOptions]
    ) -> Self:
        """A server at an address, spoken to over streamable HTTP.

        Args:
            url: Where it is.
            headers: Sent with each request, such as `{"Authorization": "Bearer ..."}`. Their values are never logged.
            auth: Authentication: the SDK's OAuth providers (`mcp.client.auth`), or any of httpx2.
            options: See `ServerOptions`.

        Raises:
            UsageError: An option cannot be used, or the address is none of HTTP.
        """
        if not url.startswith(("http://", "https://")):
            raise UsageError(
                f"MCPServer.http({without_password(url)!r}): it is an address that begins with http:// or https://."
            )
        sent = dict(headers or {})
        host = url.partition("://")[2].partition("/")[0].rpartition("@")[2].partition("?")[0]
        settings = checked(host, options)
        secrets = [*sent.values(), *[word for value in sent.values() for word in value.split()], *_secrets_in(url)]

        def connect(_: Callable[[str], None]) -> Any:
            return http_transport(url, sent, auth, settings.connect_timeout, settings.max_size)

        return cls(Link(connect, f"http: {host}", tuple(secrets)), settings)

    @classmethod
    def in_memory(cls, server: Any, **options: Unpack[ServerOptions]) -> Self:
        """A server in this process: an `MCPServer` or `Server` of the SDK.

        Args:
            server: The server.
            options: See `ServerOptions`.
        """
        link = Link(lambda _: server, "in memory", in_process=True)
        return cls(link, checked(str(getattr(server, "name", "") or "server"), options))

    @classmethod
    def from_file(cls, path: str | PathLike[str], **options: Unpack[ServerOptions]) -> list[Self]:
        """The servers of a JSON file in the usual form: `{"mcpServers": {"git": {"command": "uvx", "args": [...]}}}`.

        Each has its name there, and the name with an underscore as its prefix. `${VAR}` and `${VAR:-default}` are read from the
        environment.

        Args:
            path: The file.
            options: For each of them; a `prefix` here replaces theirs.

        Raises:
            UsageError: The file cannot be read, or says what cannot be meant; the text says where.
        """
        return [cls._of_entry(entry, options) for entry in read_config(path)]

    @classmethod
    def _of_entry(cls, entry: Entry, options: ServerOptions) -> Self:
        named = cast("ServerOptions", {"name": entry.name, "prefix": f"{entry.name}_", **options})
        if entry.url is not None:
            return cls.http(entry.url, headers=entry.headers, **named)
        return cls.stdio(entry.command or "", *entry.args, env=entry.env, cwd=entry.cwd, **named)

    # ---- a toolset

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The server's tools, as far as they are taken; none before it was first connected."""
        return self._tools

    async def open(self, by: object) -> None:
        """Connect, where it is not connected in this event loop; see `LiveToolset`.

        A server that was connected before and is not there now is no error: its tools stay, and say so when they are called.

        Raises:
            ToolError: It cannot be reached, and is required.
        """
        connection = self._here()
        connection.users.add(by)
        if connection.is_open:
            return
        try:
            await connection.client()
        except ConnectionLost as error:
            if self.settings.required and self._listed is None:
                raise
            logger.warning("the call goes on without the MCP server {}: {}", self.name, self._link.clean(str(error)))

    async def close(self, by: object | None = None) -> None:
        """Close the connection of this event loop, if nobody else uses it; see `LiveToolset`."""
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            return
        if by is not None:
            connection.users.discard(by)
        if by is None or not len(connection.users):
            await connection.close()

    async def __aenter__(self) -> Self:
        await self.open(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(self)

    def _here(self) -> Connection:
        loop = asyncio.get_running_loop()
        with self._guard:
            found = self._connections.get(loop)
            if found is None:
                for other in list(self._connections):
                    if other.is_closed():  # what was open there holds on to it
                        del self._connections[other]
                found = self._connections[loop] = Connection(self.settings, self._link, self._take)
            return found

    def _take(self, listed: list[types.Tool], instructions: str | None) -> None:
        """The server's tools have been listed."""
        if self._listed is not None and not self.settings.follow:
            return
        self.instructions = readable(instructions or "") or None
        if listed == self._listed:
            return
        self._listed = listed
        self._tools = self._maker.tools_of(listed)
        self.changed()

    # ---- what else a server has

    async def resources(self) -> list[dict[str, Any]]:
        """The resources that it names: `uri`, `name`, and where given `description` and `mime_type`.

        Raises:
            ToolError: The server is not there, or says no.
        """

        async def ask(client: Client) -> list[dict[str, Any]]:
            if client.server_capabilities.resources is None:
                return []
            return [_data(one) for one in await _pages(client.list_resources, "resources")]

        return await self._asked("its resources", ask)

    async def read(self, uri: str) -> list[TextBlock | DataBlock]:
        """What a resource holds, as blocks.

        Args:
            uri: Which, such as `"file:///notes.txt"`. The server reads it, not we.

        Raises:
            ToolError: The server is not there, or says no.
        """

        async def ask(client: Client) -> list[TextBlock | DataBlock]:
            found = await client.read_resource(uri)
            content = [types.EmbeddedResource(resource=one) for one in found.contents]
            return blocks_of(content, self.settings.max_size)

        return await self._asked("a resource", ask)

    async def prompts(self) -> list[dict[str, Any]]:
        """The prompts that it offers: `name`, and where given `description` and `arguments`.

        Raises:
            ToolError: The server is not there, or says no.
        """

        async def ask(client: Client) -> list[dict[str, Any]]:
            if client.server_capabilities.prompts is None:
                return []
            return [_data(one) for one in await _pages(client.list_prompts, "prompts")]

        return await self._asked("its prompts", ask)

    async def prompt(self, name: str, /, **arguments: str) -> tuple[Msg, ...]:
        """A prompt, filled in: what `agent.call` takes as its input.

        Args:
            name: Which.
            arguments: Its arguments, texts all.

        Raises:
            ToolError: The server is not there, or says no.
        """

        async def ask(client: Client) -> tuple[Msg, ...]:
            found = await client.get_prompt(name, arguments)
            return tuple([message_of(message, self.settings.max_size) for message in found.messages])

        return await self._asked("a prompt", ask)

    async def roots_changed(self) -> None:
        """Notify the server that the function given as `roots=` gives others now.

        A server that speaks the protocol of 2026 asks whenever it needs them, and one that is not connected will ask: they are
        not notified.

        Raises:
            UsageError: `roots=` is no function.
            ToolError: The server is not there any more.
        """
        if not callable(self.settings.roots):
            raise UsageError(f"MCPServer {self.name!r}: its roots never change; give a function as roots= for that.")

        async def ask(client: Client) -> None:
            if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                await client.session.send_notification(types.RootsListChangedNotification())

        if self._here().is_open:
            await self._asked("its roots", ask)

    async def _asked(self, what: str, request: Callable[[Client], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await self._here().ask(what, request)
        except TimeoutError as error:
            raise ToolError(f"The MCP server {self.name!r} gave no answer ({what}).") from error

    # ---- a call of a tool

    async def _run(self, tool: Remote, arguments: dict[str, Any], context: ToolContext) -> object:
        """Run a tool at the server.

        Raises:
            ToolError: Whatever went wrong there.
        """
        try:
            return await self._once(tool, arguments, context)
        except ConnectionLost as error:
            if not tool.repeatable or not len(self._here().users):  # closed meanwhile: nobody would close it again
                raise ToolError(
                    f"{error} Whether {tool.name} took effect is not known: check before you repeat it."
                ) from error
            return await self._once(tool, arguments, context)

    async def _once(self, tool: Remote, arguments: dict[str, Any], context: ToolContext) -> object:
        connection = self._here()
        call = ActiveCall(context, self.settings, self._link)
        over = False
        connection.active[id(call)] = call
        place = copy_context()
        place.run(here.set, call)
        asked = asyncio.get_running_loop().create_task(
            connection.ask(
                tool.name, lambda client: client.call_tool(tool.name, arguments, progress_callback=call.progress)
            ),
            context=place,
        )
        asked.add_done_callback(lambda _: call.bell.set())
        try:
            while not asked.done() and not call.waits:
                await call.bell.wait()
                call.bell.clear()
                while call.pieces:
                    await context.emitter.emit(call.pieces.popleft())
            if call.waits:
                raise ToolSuspended(self.name, tuple(call.waits.values()))
            result = await asked
            await connection.settle()
            over = True
        finally:
            connection.active.pop(id(call), None)
            abandoned = not asked.done()
            if abandoned:
                asked.cancel()  # the SDK tells the server
                await asyncio.wait([asked], timeout=_ABANDONED)
            if asked.done() and not asked.cancelled():
                asked.exception()
            await call.end(over)
            if abandoned:
                await connection.delivered()
        value = value_of(result, self.settings.max_size)
        if result.is_error:
            raise ToolError(
                self._link.clean(text_of(value)) if not isinstance(value, str) else value or "it said nothing"
            )
        if tool.output is not None:
            self._check(tool.name, tool.output, result)
        return value

    def _check(self, tool: str, output: JsonSchema, result: types.CallToolResult) -> None:
        """Check structured content against what the server says of it."""
        if result.structured_content is None:
            why = "structured content is missing"
        else:
            try:
                found = explain_problems(output.problems(result.structured_content))
            except TooCostlyError as error:
                why = f"structured content cannot be checked: {error}"
            else:
                if not found:
                    return
                path, [text, *_] = next(iter(found.items()))
                why = f"structured content does not fit: {path}: {text}"
        raise ToolError(
            f"The MCP server {self.name!r} answered with what is not legal ({tool}): {self._link.clean(why)}"
        )

    def __repr__(self) -> str:
        return f"MCPServer({self.name!r}, {self._link.shown}, {len(self._tools)} tools)"


def with_instructions(system: str, *servers: MCPServer) -> Callable[[RunContext], str]:
    """A system prompt that ends in the instructions of servers, as they are when a call begins: for `Agent(..., system=...)`.

    Args:
        system: What it begins with.
        servers: Whose instructions follow; one without any adds nothing. They are the servers' own words: trust them as far as
            you trust the servers.

    Example:
        >>> docs = MCPServer.http("https://mcp.example.org/mcp")
        >>> agent = Agent("helper", "openai/gpt-5", system=with_instructions("You help.", docs), tools=[docs])
    """

    def prompt(context: RunContext) -> str:
        said = [
            f"The MCP server {server.name} says:\n{server.instructions}" for server in servers if server.instructions
        ]
        return "\n\n".join([*([system] if system else []), *said])

    return prompt


async def _pages(ask: Callable[..., Awaitable[Any]], kind: str) -> list[Any]:
    """What a server lists, page by page."""
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await ask(cursor=cursor)
        found += getattr(page, kind)
        cursor = page.next_cursor
        if cursor is None:
            break
    return found


def _data(named: types.Resource | types.Prompt) -> dict[str, Any]:
    keep = {"uri", "name", "description", "mime_type", "arguments"}
    return named.model_dump(include=keep, exclude_none=True, mode="json")


def _secrets_in(url: str) -> list[str]:
    """What in an address is not to be shown: who logs in, and the query's values."""
    login = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
    query = url.partition("?")[2].partition("#")[0]
    return [part for part in (login, *login.split(":"), *[one.partition("=")[2] for one in query.split("&")]) if part]
