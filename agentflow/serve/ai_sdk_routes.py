"""The routes of the AI SDK (`ai` on npm), for its `DefaultChatTransport`: `/agents/{agent}/ai-sdk`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentflow.serve.ai_sdk_stream import HEADERS, ChunkStream
from agentflow.serve.bodies import DecisionBody, SessionId, read_body
from agentflow.serve.chats import ChatRequest, Chats, media, session_of, stream_of
from agentflow.serve.service import Service
from agentflow.vocabulary.messages import DataBlock, Msg, Pending, TextBlock, ToolResultBlock
from agentflow.vocabulary.specs import ToolSpec

Id = Field(min_length=1, max_length=200)


class ChatApproval(BaseModel):
    """A person's answer to an approval."""

    approved: bool | None = None
    reason: str | None = Field(default=None, max_length=2_000)


class ChatPart(BaseModel):
    """A part of a message. Kinds and fields that the server does not use are ignored."""

    type: str
    text: str = ""
    url: str = ""
    mediaType: str | None = None  # noqa: N815 - the protocol's names
    toolCallId: str = ""  # noqa: N815
    state: str = ""
    output: Any = None
    errorText: str = ""  # noqa: N815
    approval: ChatApproval | None = None


class PageMessage(BaseModel):
    """A message of the page."""

    id: str = Id
    role: Literal["system", "user", "assistant"]
    parts: list[ChatPart]


class PageTool(BaseModel):
    """A tool of the page."""

    description: str = ""
    parameters: dict[str, Any] = Field(default={"type": "object", "properties": {}})


class ChatBody(BaseModel):
    """A request of `DefaultChatTransport`; `tools` and `system` come from its `body` option."""

    id: SessionId
    messages: list[PageMessage] = Field(min_length=1)
    tools: dict[str, PageTool] = {}
    system: str = ""


def ai_sdk(service: Service) -> Sequence[BaseRoute]:
    """Return the routes of the AI SDK."""
    routes = _ChatRoutes(service, Chats(service, "ai-sdk"))
    return [
        Route("/agents/{agent}/ai-sdk", routes.send, methods=["POST"]),
        Route("/agents/{agent}/ai-sdk/{chat}/stream", routes.reconnect),
    ]


@dataclass(frozen=True)
class _ChatRoutes:
    service: Service
    chats: Chats

    async def send(self, request: Request) -> Any:
        """Start a run, or continue one with answers, and stream it."""
        body = await read_body(request, ChatBody, self.service.limits)
        owner, ref = session_of(request, self.service, body.id)
        chat = await self.chats.open(owner, ref, _request(body))
        continued = body.messages[-1].id if body.messages[-1].role == "assistant" else None
        return stream_of(request, self.service, chat, ChunkStream(chat, continued).chunks(), HEADERS)

    async def reconnect(self, request: Request) -> Any:
        """Stream a chat's current run, from its beginning; 204 if there is none."""
        _, ref = session_of(request, self.service, request.path_params["chat"])
        chat = await self.chats.running(ref)
        if chat is None:
            return Response(status_code=204)
        return stream_of(request, self.service, chat, ChunkStream(chat, None).chunks(), HEADERS)


def _request(body: ChatBody) -> ChatRequest:
    users = [message for message in body.messages if message.role == "user"]
    begin = max((n for n, message in enumerate(body.messages, 1) if message.role != "user"), default=0)
    new = body.messages[begin:]
    answered = body.messages[begin - 1].parts if begin else []
    calls = {part.toolCallId: part for part in answered if part.toolCallId}
    results: dict[str, Any] = {key: part.output for key, part in calls.items() if part.state == "output-available"}
    results |= {
        key: ToolResultBlock(key, "tool", part.errorText, "error")
        for key, part in calls.items()
        if part.state == "output-error"
    }
    system = [part.text for message in body.messages if message.role == "system" for part in message.parts]
    return ChatRequest(
        run_id=secrets.token_hex(8),
        messages=[Msg.user(_blocks(message.parts), id=message.id) for message in new],
        earlier=[message.id for message in users if message not in new],
        decide=lambda wait: None if (part := calls.get(wait.id)) is None else _decision(part, wait),
        results=results,
        system="\n\n".join([text for text in (body.system, *system) if text]),
        tools=[ToolSpec(name, tool.description, tool.parameters) for name, tool in body.tools.items()],
    )


def _blocks(parts: Sequence[ChatPart]) -> list[TextBlock | DataBlock]:
    found: list[TextBlock | DataBlock] = []
    for part in parts:
        if part.type == "text":
            found.append(TextBlock(part.text))
        elif part.type == "file" and (block := media(part.url, part.mediaType)) is not None:
            found.append(block)
    return found


def _decision(part: ChatPart, wait: Pending) -> DecisionBody | None:
    approval = part.approval
    if wait.kind == "external":
        return DecisionBody(action="answer", value=part.output) if part.state == "output-available" else None
    if part.state != "approval-responded" or approval is None or approval.approved is None:
        return None
    if approval.approved:
        return DecisionBody(action="approve")
    return DecisionBody(action="deny", reason=approval.reason or "denied")
