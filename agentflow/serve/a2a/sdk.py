"""The one module that loads the server's part of the A2A SDK, with an error if it is missing."""

from __future__ import annotations

import logging

try:
    from a2a.auth.user import User
    from a2a.helpers import new_data_part, new_task, new_text_part
    from a2a.server.agent_execution import AgentExecutor, RequestContext
    from a2a.server.context import ServerCallContext
    from a2a.server.events import EventQueue
    from a2a.server.request_handlers import DefaultRequestHandlerV2
    from a2a.server.routes import (
        DefaultServerCallContextBuilder,
        create_agent_card_routes,
        create_jsonrpc_routes,
    )
    from a2a.server.tasks import (
        InMemoryPushNotificationConfigStore,
        InMemoryTaskStore,
        PushNotificationEvent,
        PushNotificationSender,
        TaskStore,
        TaskUpdater,
    )
    from a2a.types import (
        AgentCapabilities,
        AgentCard,
        AgentInterface,
        AgentSkill,
        ContentTypeNotSupportedError,
        InvalidParamsError,
        Message,
        Part,
        SendMessageRequest,
        Task,
        TaskPushNotificationConfig,
        TaskState,
        TaskStatusUpdateEvent,
    )
    from a2a.utils.proto_utils import to_stream_response
    from google.protobuf.json_format import MessageToDict, ParseError
    from sse_starlette.event import ServerSentEvent
    from sse_starlette.sse import EventSourceResponse
except ImportError as error:
    raise ImportError("agentflow.serve.a2a needs the A2A SDK: pip install 'agentflow-hooks[serve,a2a]'") from error

__all__ = [
    "AgentCapabilities",
    "AgentCard",
    "AgentExecutor",
    "AgentInterface",
    "AgentSkill",
    "ContentTypeNotSupportedError",
    "DefaultRequestHandlerV2",
    "DefaultServerCallContextBuilder",
    "EventQueue",
    "EventSourceResponse",
    "InMemoryPushNotificationConfigStore",
    "InMemoryTaskStore",
    "InvalidParamsError",
    "Message",
    "MessageToDict",
    "ParseError",
    "Part",
    "PushNotificationEvent",
    "PushNotificationSender",
    "RequestContext",
    "SendMessageRequest",
    "ServerCallContext",
    "ServerSentEvent",
    "Task",
    "TaskPushNotificationConfig",
    "TaskState",
    "TaskStatusUpdateEvent",
    "TaskStore",
    "TaskUpdater",
    "User",
    "create_agent_card_routes",
    "create_jsonrpc_routes",
    "new_data_part",
    "new_task",
    "new_text_part",
    "to_stream_response",
]

# The SDK logs what clients send. Without a handler, Python would print it to the terminal, control characters included.
logging.getLogger("a2a").addHandler(logging.NullHandler())
