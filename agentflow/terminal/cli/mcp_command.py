"""`agentflow mcp`: serve an agent over MCP, on standard input and output or over HTTP."""

from __future__ import annotations

import asyncio
import socket
import sys

import click
import uvicorn
from loguru import logger
from mcp.server.stdio import stdio_server

from agentflow.agent.agent import Agent
from agentflow.errors import UsageError
from agentflow.mcp.offering import agent_server
from agentflow.models.clients import close_clients
from agentflow.serve.server import Server, open_socket
from agentflow.terminal.cli.failures import CommandError, say
from agentflow.terminal.cli.loading import load_agent


async def _over_stdio(agent: Agent, tools: bool, sessions: bool) -> None:
    server = agent_server(agent, tools=tools, sessions=sessions)
    try:
        async with agent, stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
    finally:
        await close_clients()


async def _over_http(agent: Agent, tools: bool, sessions: bool, listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    server = agent_server(agent, tools=tools, sessions=sessions)
    config = uvicorn.Config(
        server.streamable_http_app(host=host), log_level="warning", lifespan="on", timeout_graceful_shutdown=10
    )
    shown = f"[{host}]" if ":" in host else host
    say(f"agentflow: {agent.name} is served over MCP at http://{shown}:{port}/mcp", err=True)
    try:
        async with agent:
            await Server(config).serve(sockets=[listening])
    finally:
        await close_clients()


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not (port.isdecimal() and int(port) <= 65535):
        raise CommandError(f"--http {address!r}: expected HOST:PORT or PORT, with a port up to 65535.")
    try:
        return open_socket("server", host.strip("[]") or "127.0.0.1", int(port))
    except UsageError as error:
        raise CommandError(f"--http {address!r}: {error}") from error


@click.command()
@click.argument("agent", metavar="MODULE:AGENT")
@click.option("--http", metavar="[HOST:]PORT", help="Serve over HTTP at /mcp instead of standard input and output.")
@click.option("--tools", is_flag=True, help="Also offer the agent's own tools.")
@click.option("--sessions", is_flag=True, help="Let clients name a conversation and continue it.")
def mcp(agent: str, http: str | None, tools: bool, sessions: bool) -> int:
    """Serve an agent over MCP to editors, desktop applications and other agents.

    HTTP has no authentication: anyone who can reach the port can use the agent. The server listens only on this machine
    unless you specify a host.
    """
    listening = None if http is None else _listen(http)
    logger.remove()
    logger.add(sys.stderr, level="WARNING")  # standard output carries the protocol
    logger.enable("agentflow")
    loaded = load_agent(agent)
    try:
        if listening is None:
            asyncio.run(_over_stdio(loaded, tools, sessions))
        else:
            asyncio.run(_over_http(loaded, tools, sessions, listening))
    except KeyboardInterrupt:
        pass
    return 0
