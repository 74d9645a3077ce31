"""The ways to the demo server: in memory, over standard input and output, over HTTP; and what tests share."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

import pytest
import uvicorn
from demo_server import make

from agentflow import Agent, ToolResultBlock
from agentflow.mcp import MCPServer, ServerOptions
from agentflow.testing import ScriptedModel

HERE = Path(__file__).parent
STDIO = pytest.param("stdio", marks=pytest.mark.ci)  # a process each; README's command has one in other tests
WAYS = ("memory", "memory-legacy", STDIO, "http")


def demo_over_stdio(*args: str, env: dict[str, str] | None = None, **options: Unpack[ServerOptions]) -> MCPServer:
    """The demo server as a process."""
    return MCPServer.stdio(sys.executable, str(HERE / "demo_server.py"), *args, env=env, **{"name": "demo", **options})


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """A web application on loopback, as its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn has a flag, and no event
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listening.close()


@asynccontextmanager
async def demo(
    way: str, said: Callable[[str], object] = print, **options: Unpack[ServerOptions]
) -> AsyncIterator[MCPServer]:
    """The demo server, reached in some way, and closed."""
    if way == "http":
        async with served(make(said).streamable_http_app()) as address:
            server = MCPServer.http(f"{address}/mcp", **{"name": "demo", **options})
            try:
                yield server
            finally:
                await server.close()
        return
    if way == "stdio":
        server = demo_over_stdio(**options)
    elif way == "memory-legacy":
        server = MCPServer.in_memory(make(said), **{"protocol": "legacy", **options})
    else:
        server = MCPServer.in_memory(make(said), **options)
    try:
        yield server
    finally:
        await server.close()


def results(agent: Agent) -> list[ToolResultBlock]:
    """All tool results of its conversation."""
    return [result for message in agent.session().messages for result in message.tool_results]


async def run(server: MCPServer, *script: Any, **given: Any) -> Agent:
    """An agent with the server that has said its script."""
    agent = Agent("a", ScriptedModel([*script, "Done."]), tools=[server], **given)
    await agent.call("Go")
    return agent
