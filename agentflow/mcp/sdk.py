"""Import the MCP SDK and its dependencies, with a clear error if they are missing; no other module imports them directly."""

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
    from mcp.server.connection import Connection as ServerConnection
    from mcp.server.connection import allowed_log_levels
    from mcp.server.session import ServerSession
    from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
    from mcp.shared.message import SessionMessage
    from mcp.shared.path_security import contains_path_traversal, is_absolute_path
    from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS
except ImportError as error:
    raise ImportError("agentflow.mcp needs the MCP SDK: pip install 'agentflow-hooks[mcp]'") from error

__all__ = [
    "MODERN_PROTOCOL_VERSIONS",
    "Client",
    "ClientRequestContext",
    "EventCallback",
    "EventMessage",
    "EventStore",
    "InvalidUriTemplate",
    "MCPError",
    "Server",
    "ServerConnection",
    "ServerRequestContext",
    "ServerSession",
    "SessionMessage",
    "StdioServerParameters",
    "SubscriptionLost",
    "UriTemplate",
    "allowed_log_levels",
    "anyio",
    "contains_path_traversal",
    "get_default_environment",
    "httpx2",
    "is_absolute_path",
    "stdio_client",
    "streamable_http_client",
    "types",
]

# The SDK logs texts of servers. Without a handler, Python would print them to the terminal, including control characters.
for _name in ("mcp", "client", "server"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
