"""The one place that loads the MCP SDK and what it stands on, and what is said where it is missing."""

from __future__ import annotations

import logging

try:
    import anyio
    import httpx2
    import mcp_types as types
    from mcp import Client, MCPError
    from mcp.client.context import ClientRequestContext
    from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.client.subscriptions import SubscriptionLost
    from mcp.server import Server, ServerRequestContext
    from mcp.server.session import ServerSession
    from mcp.shared.message import SessionMessage
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS
except ImportError as error:
    raise ImportError("agentflow.mcp needs the MCP SDK: pip install 'agentflow-hooks[mcp]'") from error

__all__ = [
    "MODERN_PROTOCOL_VERSIONS",
    "Client",
    "ClientRequestContext",
    "MCPError",
    "Server",
    "ServerRequestContext",
    "ServerSession",
    "SessionMessage",
    "StdioServerParameters",
    "SubscriptionLost",
    "anyio",
    "get_default_environment",
    "httpx2",
    "stdio_client",
    "streamable_http_client",
    "types",
]

# The SDK logs what servers send. Without a handler Python prints that to the terminal as it is, control characters included.
for _name in ("mcp", "client", "server"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
