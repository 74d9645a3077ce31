"""The one module that loads the A2A SDK, with an error if it is missing."""

from __future__ import annotations

import logging

try:
    import httpx
    from a2a import client, helpers, types
    from a2a.auth.user import User
    from a2a.client.errors import AgentCardResolutionError
    from a2a.server import agent_execution, request_handlers, routes, tasks
    from a2a.server.context import ServerCallContext
    from a2a.server.events import EventQueue
    from a2a.server.tasks import TaskStore
    from a2a.utils.errors import A2AError
    from a2a.utils.proto_utils import to_stream_response
    from google.protobuf.json_format import MessageToDict, ParseError
    from sse_starlette.event import ServerSentEvent
    from sse_starlette.sse import EventSourceResponse
except ImportError as error:
    raise ImportError("agentflow.serve.a2a needs the A2A SDK: pip install 'agentflow-hooks[a2a]'") from error

__all__ = [
    "A2AError",
    "AgentCardResolutionError",
    "EventQueue",
    "EventSourceResponse",
    "MessageToDict",
    "ParseError",
    "ServerCallContext",
    "ServerSentEvent",
    "TaskStore",
    "User",
    "agent_execution",
    "client",
    "helpers",
    "httpx",
    "request_handlers",
    "routes",
    "tasks",
    "to_stream_response",
    "types",
]

# The SDK logs texts of others. Without a handler, Python would print them to the terminal, control characters included.
logging.getLogger("a2a").addHandler(logging.NullHandler())
