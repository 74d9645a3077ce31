"""What a server gets of this side, and what it provides: roots and instructions."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Annotated, Any

import pytest
from lines import Lines
from mcp.server import MCPServer as Server
from mcp.server import Server as LowLevelServer
from mcp.server.mcpserver import Context, ListRoots, Resolve
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ListRootsResult, ListToolsResult, NotificationParams
from ways import results

from agentflow import Agent, ToolUseBlock
from agentflow.errors import UsageError
from agentflow.mcp import MCPServer, with_instructions
from agentflow.testing import ScriptedModel, run_virtual


async def roots() -> ListRoots:
    return ListRoots()


def finder() -> Server:
    """A server whose tool asks for the roots, by the protocol's version."""
    server = Server("finder", instructions="Search first,\x1b[2J read later.")

    @server.tool()
    async def look(found: Annotated[ListRootsResult, Resolve(roots)]) -> str:
        return "roots " + " ".join(f"{root.name}={root.uri}" for root in found.roots)

    @server.tool()
    async def can(ctx: Context) -> str:
        capabilities = ctx.session.client_capabilities
        return str(capabilities is not None and capabilities.roots is not None)

    return server


async def asked(name: str, **options: Any) -> str:
    """Return the answer of a tool of the server."""
    async with MCPServer.in_memory(finder(), **options) as server:
        agent = Agent("a", ScriptedModel([ToolUseBlock("t1", name), "Done."]), tools=[server])
        await agent.call("Go")
        return results(agent)[0].text


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_a_server_asks_for_the_roots(protocol: str, tmp_path: Path) -> None:
    """Paths and addresses, a single one too; the same from a function, async or not; without them the server gets an
    error.
    """

    async def later() -> list[str]:
        return ["file:///srv/later"]

    here = f"{tmp_path.name}={tmp_path.as_uri()}"
    for given, said in (
        ([tmp_path, "file:///srv/code"], f"{here} code=file:///srv/code"),
        (str(tmp_path), here),
        (lambda: [tmp_path], here),
        (later, "later=file:///srv/later"),
        ([], ""),
    ):
        assert await asked("look", protocol=protocol, roots=given) == f"roots {said}"
        assert await asked("can", protocol=protocol, roots=given) == "True"
    assert await asked("can", protocol=protocol) == "False"


@pytest.mark.parametrize("given", ["https://example.org/x", ["/srv", 3], 7, [b"/srv"], ["file:/\x00"]])
def test_roots_that_are_none(given: Any) -> None:
    """They are refused when the server is made."""
    with pytest.raises(UsageError, match=r"roots.*file://"):
        MCPServer.in_memory(finder(), roots=given)


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_a_function_that_fails(protocol: str, logged: Lines) -> None:
    """The server gets an error without our text; the run continues."""

    def broken() -> list[str]:
        raise OSError("secret place")

    said = await asked("look", protocol=protocol, roots=broken)
    assert ("secret" in said, any("secret place" in line for line in logged)) == (False, True)


async def test_roots_that_change() -> None:
    """An older server is notified; roots that cannot change, and a server that is not connected, have nothing to say."""
    heard = asyncio.Event()

    async def changed(context: Any, params: NotificationParams | None) -> None:
        heard.set()

    with warnings.catch_warnings(action="ignore"):
        made = LowLevelServer("plain", on_roots_list_changed=changed)
    server = MCPServer.in_memory(made, protocol="legacy", roots=lambda: ["/srv"])
    await server.roots_changed()
    async with server:
        assert not heard.is_set()
        await server.roots_changed()
        await asyncio.wait_for(heard.wait(), 20)
    with pytest.raises(UsageError, match="pass a function as roots="):
        await MCPServer.in_memory(made, roots=["/srv"]).roots_changed()
    async with MCPServer.in_memory(finder(), roots=lambda: ["/srv"]) as modern:
        await modern.roots_changed()


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_instructions(protocol: str) -> None:
    """They are available once it is connected, without control characters, and in the system prompt on request."""
    server = MCPServer.in_memory(finder(), protocol=protocol)
    assert server.instructions is None
    system = with_instructions("You help.", server, MCPServer.in_memory(LowLevelServer("silent")))
    model = ScriptedModel(["Hello."])
    async with Agent("a", model, tools=[server], system=system) as agent:
        await agent.call("Hi")
    assert server.instructions == "Search first,[2J read later."
    assert model.requests[0].messages[0].text == (
        "You help.\n\nThe MCP server finder says:\nSearch first,[2J read later."
    )
    assert with_instructions("", server)(None) == "The MCP server finder says:\nSearch first,[2J read later."  # type: ignore[arg-type]


async def test_instructions_that_change_are_followed_like_tools() -> None:
    """With `follow=False` they stay as they were first."""
    for follow, said in ((True, "two"), (False, "one")):
        made = LowLevelServer("plain", instructions="one")
        server = MCPServer.in_memory(made, follow=follow)
        async with server:
            made.instructions = "two"
        async with server:
            assert server.instructions == said


def test_a_server_that_closes_its_reports_is_asked_again() -> None:
    """A graceful end, as before a restart, is no reason to miss later changes: they are followed and listed again."""
    asked: list[float] = []
    lists: list[float] = []
    enough = asyncio.Event()
    handler = ListenHandler(InMemorySubscriptionBus())

    async def listed(context: Any, params: Any) -> ListToolsResult:
        lists.append(asyncio.get_running_loop().time())
        return ListToolsResult(tools=[])

    async def close(context: Any, params: Any) -> Any:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) == 3:
            enough.set()
        asyncio.get_running_loop().call_later(1, handler.close)
        return await handler(context, params)

    async def main() -> None:
        async with MCPServer.in_memory(LowLevelServer("brief", on_list_tools=listed, on_subscriptions_listen=close)):
            await enough.wait()

    run_virtual(main())
    assert asked == [0.0, 1.5, 3.5]
    assert len(lists) > 1


def test_a_server_that_refuses_to_report_changes_is_usable() -> None:
    """It is connected at once, and asked again with waits that double up to a minute."""
    asked: list[float] = []
    enough = asyncio.Event()

    async def listed(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=[])

    async def refuse(context: Any, params: Any) -> Any:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) == 10:
            enough.set()
        raise MCPError(INTERNAL_ERROR, "Subscription limit reached")

    async def main() -> float:
        async with MCPServer.in_memory(LowLevelServer("full", on_list_tools=listed, on_subscriptions_listen=refuse)):
            connected = asyncio.get_running_loop().time()
            await enough.wait()
        return connected

    assert (run_virtual(main()), asked) == (0.0, [0.0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5, 123.5, 183.5])
