"""The only module that imports the A2A SDK, with an error if it is missing."""

from __future__ import annotations

import logging

try:
    import httpx
    from a2a import client, helpers, types
    from a2a.auth.user import User
    from a2a.client.errors import AgentCardResolutionError
    from a2a.server import agent_execution, cluster, request_handlers, routes, tasks
    from a2a.server.cluster.database_event_stream import DatabaseTaskEventStream
    from a2a.server.cluster.database_task_store import VersionedDatabaseTaskStore
    from a2a.server.context import ServerCallContext
    from a2a.server.events import EventQueue
    from a2a.server.tasks import TaskStore
    from a2a.utils.errors import A2AError
    from a2a.utils.proto_utils import to_stream_response
    from google.protobuf.json_format import MessageToDict, ParseError
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
    from sse_starlette.event import ServerSentEvent
    from sse_starlette.sse import EventSourceResponse
except ImportError as error:
    raise ImportError("agentflow.serve.a2a needs the A2A SDK: pip install 'agentflow-hooks[a2a]'") from error

__all__ = [
    "A2AError",
    "AgentCardResolutionError",
    "ArgumentError",
    "AsyncEngine",
    "DBAPIError",
    "DatabaseTaskEventStream",
    "EventQueue",
    "EventSourceResponse",
    "MessageToDict",
    "ParseError",
    "SQLAlchemyError",
    "ServerCallContext",
    "ServerSentEvent",
    "TaskStore",
    "User",
    "VersionedDatabaseTaskStore",
    "agent_execution",
    "client",
    "cluster",
    "create_async_engine",
    "helpers",
    "httpx",
    "make_url",
    "request_handlers",
    "routes",
    "tasks",
    "to_stream_response",
    "types",
]

# The SDK logs remote texts. Without a handler, Python would print them to the terminal, control characters included.
logging.getLogger("a2a").addHandler(logging.NullHandler())
