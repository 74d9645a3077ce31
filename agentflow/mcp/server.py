"""`MCPServer`: the tools of an MCP server, as a toolset of agents.

Rules:

1. In each event loop, the server is connected when an agent first needs it, and closed with the agents that use it
   (`LiveToolset`).
2. A server is not trusted: its names are made legal, its texts limited, its schemas checked; an unusable tool is left out and
   logged. Any misbehaviour while a tool runs is reported in the tool's result.
3. A lost connection is reopened, with increasing waits. A running call is repeated only if the tool is idempotent; otherwise
   the result tells the model that the outcome is unknown.
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

from agentflow._support.json_schema import JsonSchema, TooCostlyError
from agentflow._support.logs import logger
from agentflow._support.shown import without_password
from agentflow.errors import ToolError, UsageError
from agentflow.loop.escalation import ToolSuspended
from agentflow.mcp.active import ActiveCall, current_call
from agentflow.mcp.config import ServerEntry, read_config
from agentflow.mcp.connection import Connection, ConnectionLost, all_pages
from agentflow.mcp.http import http_transport
from agentflow.mcp.results import blocks_of, message_of, text_of, value_of
from agentflow.mcp.sdk import MODERN_PROTOCOL_VERSIONS, Client, StdioServerParameters, types
from agentflow.mcp.settings import Link, ServerOptions, Settings, checked
from agentflow.mcp.stdio import stdio_transport
from agentflow.mcp.tools_in import RemoteTool, ToolFunctions, ToolMaker, readable
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.schema_arguments import explain_problems
from agentflow.tools.tool import Tool
from agentflow.tools.tool_context import ToolContext
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock

T = TypeVar("T")
_CANCEL_SECONDS = 6.0
"""Seconds to notify the server of a cancellation; slightly more than the SDK's own limit."""


class MCPServer(LiveToolset):
    """An MCP server: `MCPServer.stdio(...)`, `.http(url)`, `.in_memory(server)`, or `.from_file(path)`.

    Pass it to an agent as a toolset; the agent's first call connects it, and `async with agent` closes it.

    Attributes:
        name: The name in logs and errors.
        settings: The options.
        instructions: The server's instructions for its use; None before the first connection, or if it has none. Requests
            contain them only if you add them: see `with_instructions`.

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
        # Agents in event loops of several threads may share the server.
        self._guard = threading.Lock()
        self._connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = WeakKeyDictionary()
        self._tools: tuple[Tool[..., Any], ...] = ()
        self._listed: list[types.Tool] | None = None
        self._maker = ToolMaker(settings, ToolFunctions(self._run, self.resources, self.read))

    # ---- transports

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        **options: Unpack[ServerOptions],
    ) -> Self:
        """Use a server that runs as a child process, over its standard input and output.

        Args:
            command: The program.
            args: The program's arguments; no shell is involved.
            env: Environment variables in addition to the few inherited ones (`PATH`, `HOME` and similar); never logged.
            cwd: The working directory.
            options: See `ServerOptions`.

        Raises:
            UsageError: An option is invalid.
        """
        variables = dict(env or {})
        texts = cast("tuple[object, ...]", (command, *args, *variables, *variables.values()))
        if not command or not all(isinstance(text, str) and "\0" not in text for text in texts):
            raise UsageError(
                "MCPServer.stdio(command, *args, env=...): command, arguments and environment must be strings without NUL, "
                "and the command must not be empty."
            )
        settings = checked(command.rpartition("/")[2], options)
        parameters = StdioServerParameters(
            command=command, args=list(args), env=variables, cwd=None if cwd is None else str(cwd)
        )
        link = Link(
            partial(stdio_transport, parameters, settings.max_size),
            f"stdio: {command}",
            tuple(filter(None, variables.values())),
        )
        return cls(link, settings)

    @classmethod
    def http(
        cls, url: str, *, headers: Mapping[str, str] | None = None, auth: Any = None, **options: Unpack[ServerOptions]
    ) -> Self:
        """Use a server at a URL, over streamable HTTP.

        Args:
            url: The server's URL.
            headers: The headers of each request, such as `{"Authorization": "Bearer ..."}`; their values are never logged.
            auth: Authentication: an OAuth provider of the SDK (`mcp.client.auth`), or any authentication of httpx2.
            options: See `ServerOptions`.

        Raises:
            UsageError: An option is invalid, or the URL is not an HTTP URL.
        """
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"MCPServer.http({without_password(url)!r}): the URL must begin with http:// or https://.")
        sent = dict(headers or {})
        host = url.partition("://")[2].partition("/")[0].rpartition("@")[2].partition("?")[0]
        settings = checked(host, options)
        # Each word of a value too, since a server may show the token without "Bearer".
        secrets = [*sent.values(), *[word for value in sent.values() for word in value.split()], *_secrets_in(url)]

        def connect(_: Callable[[str], None]) -> Any:
            return http_transport(url, sent, auth, settings.connect_timeout, settings.max_size)

        return cls(Link(connect, f"http: {host}", tuple(secrets)), settings)

    @classmethod
    def in_memory(cls, server: Any, **options: Unpack[ServerOptions]) -> Self:
        """Use a server in this process: an `MCPServer` or `Server` of the SDK.

        Args:
            server: The server object of the SDK.
            options: See `ServerOptions`.
        """
        link = Link(lambda _: server, "in memory", in_process=True)
        return cls(link, checked(str(getattr(server, "name", "") or "server"), options))

    @classmethod
    def from_file(cls, path: str | PathLike[str], **options: Unpack[ServerOptions]) -> list[Self]:
        """Return the servers of a JSON file in the usual form: `{"mcpServers": {"git": {"command": "uvx", "args": [...]}}}`.

        The key of each server is its name and, with an underscore, its prefix. `${VAR}` and `${VAR:-default}` are replaced
        with environment variables.

        Args:
            path: The file.
            options: Options for all servers; a `prefix` replaces that of each server.

        Raises:
            UsageError: The file is unreadable, or an entry is invalid; the error names the entry.
        """
        return [cls._of_entry(entry, options) for entry in read_config(path)]

    @classmethod
    def _of_entry(cls, entry: ServerEntry, options: ServerOptions) -> Self:
        named = cast("ServerOptions", {"name": entry.name, "prefix": f"{entry.name}_", **options})
        if entry.url is not None:
            return cls.http(entry.url, headers=entry.headers, **named)
        return cls.stdio(entry.command or "", *entry.args, env=entry.env, cwd=entry.cwd, **named)

    # ---- a toolset

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The selected tools of the server; empty before the first connection."""
        return self._tools

    async def open(self, by: object | None = None) -> None:
        """Connect in this event loop, unless already connected, and stay connected until `close`; see `LiveToolset`.

        If a server was connected before and is now unreachable, no error is raised: its tools stay, and fail when called.

        Raises:
            ToolError: The server is unreachable, and is required.
        """
        connection = self._connection()
        connection.users.add(self if by is None else by)
        if connection.is_open:
            return
        try:
            await connection.client()
        except ConnectionLost as error:
            if self.settings.required and self._listed is None:
                raise
            logger.warning("the call continues without the MCP server {}: {}", self.name, self._link.clean(str(error)))

    async def close(self, by: object | None = None) -> None:
        """Close the connection in this event loop, unless it has other users; without `by`, close it for all users."""
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            return
        if by is not None:
            connection.users.discard(by)
        if by is None or not len(connection.users):
            await connection.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close(self)

    def _connection(self) -> Connection:
        loop = asyncio.get_running_loop()
        with self._guard:
            found = self._connections.get(loop)
            if found is None:
                for other in list(self._connections):
                    if other.is_closed():  # a connection refers to its loop, so a weak key would not remove it
                        del self._connections[other]
                found = self._connections[loop] = Connection(self.settings, self._link, self._take)
            return found

    def _take(self, listed: list[types.Tool], instructions: str | None) -> None:
        """Accept a new list of the server's tools."""
        # A fixed list does not change, not even with a later connection or one in another event loop.
        if self._listed is not None and not self.settings.follow:
            return
        self.instructions = readable(instructions or "") or None
        # If nothing has changed, agents keep their prepared tools.
        if listed == self._listed:
            return
        self._listed = listed
        self._tools = self._maker.tools_of(listed)
        self.changed()

    # ---- resources, prompts and roots

    async def resources(self) -> list[dict[str, Any]]:
        """List the server's resources: `uri`, `name`, and if present `description` and `mime_type`.

        Raises:
            ToolError: The server is unreachable, or refuses.
        """
        return await self._request("its resources", lambda client: _data_of(client, client.list_resources, "resources"))

    async def read(self, uri: str) -> list[TextBlock | DataBlock]:
        """Return the content of a resource as blocks.

        Args:
            uri: The resource's address, such as `"file:///notes.txt"`; the server reads it.

        Raises:
            ToolError: The server is unreachable, or refuses.
        """

        async def ask(client: Client) -> list[TextBlock | DataBlock]:
            found = await client.read_resource(uri)
            content = [types.EmbeddedResource(resource=part) for part in found.contents]
            return blocks_of(content, self.settings.max_size)

        return await self._request("a resource", ask)

    async def prompts(self) -> list[dict[str, Any]]:
        """List the server's prompts: `name`, and if present `description` and `arguments`.

        Raises:
            ToolError: The server is unreachable, or refuses.
        """
        return await self._request("its prompts", lambda client: _data_of(client, client.list_prompts, "prompts"))

    async def prompt(self, name: str, /, **arguments: str) -> tuple[Msg, ...]:
        """Return a prompt with its arguments filled in, as input for `agent.call`.

        Args:
            name: The prompt's name.
            arguments: The prompt's arguments, all strings.

        Raises:
            ToolError: The server is unreachable, or refuses.
        """

        async def ask(client: Client) -> tuple[Msg, ...]:
            found = await client.get_prompt(name, arguments)
            return tuple([message_of(message, self.settings.max_size) for message in found.messages])

        return await self._request("a prompt", ask)

    async def roots_changed(self) -> None:
        """Notify the server that the function passed as `roots=` now returns other roots.

        This does nothing for servers with the protocol of 2026, which ask whenever they need the roots, or if the server is
        not connected.

        Raises:
            UsageError: `roots=` is not a function.
            ToolError: The server can no longer be reached.
        """
        if not callable(self.settings.roots):
            raise UsageError(
                f"MCPServer {self.name!r}: its roots are fixed. To change them, pass a function as roots=."
            )

        async def ask(client: Client) -> None:
            if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                await client.session.send_notification(types.RootsListChangedNotification())

        if self._connection().is_open:
            await self._request("its roots", ask)

    async def _request(self, purpose: str, request: Callable[[Client], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self.settings.timeout):
                return await self._connection().ask(purpose, request)
        except TimeoutError as error:
            raise ToolError(f"The MCP server {self.name!r} did not answer ({purpose}).") from error

    # ---- a call of a tool

    async def _run(self, tool: RemoteTool, arguments: dict[str, Any], context: ToolContext) -> object:
        """Run a tool at the server.

        Raises:
            ToolError: The call failed.
        """
        try:
            return await self._attempt(tool, arguments, context)
        except ConnectionLost as error:
            if not self._repeats(tool, error):
                raise ToolError(
                    f"{error} It is unknown whether {tool.name} took effect: check before you repeat it."
                ) from error
            return await self._attempt(tool, arguments, context, last=True)

    def _repeats(self, tool: RemoteTool, error: Exception) -> bool:
        # Without users, a new connection would never be closed.
        return isinstance(error, ConnectionLost) and tool.repeatable and len(self._connection().users) > 0

    async def _attempt(
        self, tool: RemoteTool, arguments: dict[str, Any], context: ToolContext, last: bool = False
    ) -> object:
        connection = self._connection()
        call = ActiveCall(context, self.settings, self._link)
        finished = False
        connection.active[id(call)] = call
        # With the protocol of 2026, the SDK answers the server's questions in the context of the request (`active.py`, rule 4).
        task_context = copy_context()
        task_context.run(current_call.set, call)
        # In its own task, so that this task can pass on progress and questions meanwhile.
        request = asyncio.get_running_loop().create_task(
            connection.ask(
                tool.name, lambda client: client.call_tool(tool.name, arguments, progress_callback=call.progress)
            ),
            context=task_context,
        )
        request.add_done_callback(lambda _: call.wakeup.set())
        try:
            while not request.done() and not call.waits:
                await call.wakeup.wait()
                # Cleared before the reports are read, so that a report that arrives during `emit` sets the event again.
                call.wakeup.clear()
                while call.reports:
                    await context.emitter.emit(call.reports.popleft())
            if call.waits:
                raise ToolSuspended(self.name, tuple(call.waits.values()))
            result = await request
            # A tool may change the server's tools; the next request to the model should have the new ones.
            await connection.settle()
            finished = True
        except Exception as error:
            finished = not isinstance(error, ToolSuspended) and (last or not self._repeats(tool, error))
            raise
        finally:
            # This comes first: later questions of the server do not belong to this call.
            connection.active.pop(id(call), None)
            abandoned = not request.done()
            if abandoned:
                request.cancel()  # the SDK notifies the server of the cancellation
                await asyncio.wait([request], timeout=_CANCEL_SECONDS)
            if request.done() and not request.cancelled():
                # Mark the error as retrieved: it is raised above, or belongs to an abandoned call.
                request.exception()
            # Ended only after the cancellation, so that the server gets the cancellation instead of answers to its questions
            # (`elicit`).
            await call.end(finished)
            if abandoned:
                await connection.flush_cancellation()
        value = value_of(result, self.settings.max_size)
        if result.is_error:
            raise ToolError(self._link.clean(text_of(value)) if not isinstance(value, str) else value or "no message")
        # Only results are checked, since the schema does not describe errors.
        if tool.output is not None:
            self._check(tool.name, tool.output, result)
        return value

    def _check(self, tool: str, output: JsonSchema, result: types.CallToolResult) -> None:
        """Check structured content against the server's schema."""
        if result.structured_content is None:
            reason = "structured content is missing"
        else:
            try:
                found = explain_problems(output.problems(result.structured_content))
            except TooCostlyError as error:
                reason = f"structured content cannot be checked: {error}"
            else:
                if not found:
                    return
                path, [text, *_] = next(iter(found.items()))
                reason = f"structured content does not match its schema: {path}: {text}"
        raise ToolError(f"The MCP server {self.name!r} sent an invalid answer ({tool}): {self._link.clean(reason)}")

    def __repr__(self) -> str:
        return f"MCPServer({self.name!r}, {self._link.shown}, {len(self._tools)} tools)"


def with_instructions(system: str, *servers: MCPServer) -> Callable[[RunContext], str]:
    """Create a system prompt that ends with the current instructions of servers, for `Agent(..., system=...)`.

    Args:
        system: The beginning of the prompt.
        servers: The servers with the instructions; a server without any adds nothing. Use this only for servers that you
            trust, because they write the texts.

    Example:
        >>> docs = MCPServer.http("https://mcp.example.org/mcp")
        >>> agent = Agent("helper", "openai/gpt-5", system=with_instructions("You help.", docs), tools=[docs])
    """

    def prompt(context: RunContext) -> str:
        texts = [
            f"The MCP server {server.name} says:\n{server.instructions}" for server in servers if server.instructions
        ]
        return "\n\n".join([*([system] if system else []), *texts])

    return prompt


async def _data_of(client: Client, request: Callable[..., Awaitable[Any]], kind: str) -> list[dict[str, Any]]:
    """List a server's resources or prompts as data; empty if it has none."""
    if getattr(client.server_capabilities, kind) is None:
        return []
    fields = {"uri", "name", "description", "mime_type", "arguments"}
    return [item.model_dump(include=fields, exclude_none=True, mode="json") for item in await all_pages(request, kind)]


def _secrets_in(url: str) -> list[str]:
    """Return the secret parts of a URL: the login, and the values of the query."""
    login = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
    query = url.partition("?")[2].partition("#")[0]
    return [
        part for part in (login, *login.split(":"), *[param.partition("=")[2] for param in query.split("&")]) if part
    ]
