"""A route compatible with Anthropic's API: `/v1/messages`. The `model` of a request is an agent's name."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from agentflow.serve.bodies import read_body
from agentflow.serve.guard import owner_of
from agentflow.serve.model_calls import ModelCalls, ModelRequestData, ModelResult, bad_request, image
from agentflow.serve.refusals import Refusal
from agentflow.serve.runs import ServedRun
from agentflow.serve.service import Service
from agentflow.serve.streams import disconnected_or, run_stream
from agentflow.vocabulary.messages import ContentBlock, Msg, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.specs import ModelOptions, ToolSpec, Usage

Json: TypeAlias = dict[str, Any]

_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class _ServedMessage(BaseModel):
    role: Literal["user", "assistant"]
    content: str | list[Json]


class _Tool(BaseModel):
    name: str
    description: str = ""
    input_schema: Json


class _ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class _Body(BaseModel):
    """The fields that are used; others are ignored."""

    model: str
    messages: list[_ServedMessage]
    max_tokens: int | None = None
    system: str | list[Json] = ""
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    stream: bool = False
    tools: list[_Tool] | None = None
    tool_choice: _ToolChoice | None = None


def anthropic(service: Service) -> Sequence[BaseRoute]:
    """Return the Anthropic-compatible route of a server."""
    return [Route("/v1/messages", _AnthropicRoutes(service, ModelCalls(service)).messages, methods=["POST"])]


@dataclass(frozen=True)
class _AnthropicRoutes:
    service: Service
    calls: ModelCalls

    async def messages(self, request: Request) -> Response:
        try:
            body = await read_body(request, _Body, self.service.limits)
            run = await self.calls.open(owner_of(request.scope), _request(body))
            if body.stream:
                return run_stream(self.service.runs, run, self._events(run, body.model))
            text = await disconnected_or(request, run, self.calls.text_of(run))
            result = self.calls.result(run, text)
        except Refusal as refusal:
            return JSONResponse(_error(refusal), refusal.status, refusal.headers)
        content: list[Json] = [{"type": "text", "text": text}] if text else []
        for call in result.calls:
            use = ToolUseBlock.from_json(call.id, call.name, call.arguments)
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": dict(use.input)})
        return JSONResponse(
            {**_message(run, body.model), **_end(result), "content": content, "usage": _usage(result.usage)}
        )

    async def _events(self, run: ServedRun, model: str) -> AsyncGenerator[bytes | None]:
        yield _event("message_start", message=_message(run, model))
        texts: list[str] = []
        async for text in self.calls.deltas(run):
            if text is None:
                yield _event("ping")
                continue
            if not texts:
                yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            texts.append(text)
            yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
        if texts:
            yield _event("content_block_stop", index=0)
        try:
            result = self.calls.result(run, "".join(texts))
        except Refusal as refusal:
            yield _event("error", error=_error(refusal)["error"])
            return
        for index, call in enumerate(result.calls, 1 if texts else 0):  # block 0 is the text, if there is one
            block: Json = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield _event("content_block_start", index=index, content_block=block)
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event("message_delta", delta=_end(result), usage=_usage(result.usage))
        yield _event("message_stop")


def _request(body: _Body) -> ModelRequestData:
    choice = body.tool_choice
    chosen = None if choice is None else choice.name or {"any": "required"}.get(choice.type, choice.type)
    data = ModelRequestData(
        agent=body.model,
        tools=[ToolSpec(tool.name, tool.description, tool.input_schema) for tool in body.tools or ()],
        options=ModelOptions(
            temperature=body.temperature,
            top_p=body.top_p,
            max_tokens=body.max_tokens,
            stop=None if body.stop_sequences is None else tuple(body.stop_sequences),
            tool_choice=chosen,
        ),
        system=body.system
        if isinstance(body.system, str)
        else "\n\n".join(str(block.get("text")) for block in body.system),
    )
    names: dict[str, str] = {}
    results: list[ToolResultBlock] = []
    for message in body.messages:
        text = message.content
        blocks: list[Json] = [{"type": "text", "text": text}] if isinstance(text, str) else text
        content: list[ContentBlock] = []
        # Results before a message are history; results at the end answer the pending calls.
        if results:
            data.messages.append(Msg.tool(results))
            results = []
        for block in blocks:
            match block:
                case {"type": "text", "text": str(text)}:
                    content.append(TextBlock(text))
                case {"type": "image", "source": {"type": "url", "url": str(url)}}:
                    content.append(image(url))
                case {"type": "image", "source": {"type": "base64", "media_type": str(kind), "data": str(raw)}}:
                    content.append(image(f"data:{kind};base64,{raw}"))
                case {"type": "tool_use", "id": str(key), "name": str(name), "input": arguments}:
                    names[key] = name
                    content.append(ToolUseBlock.from_json(key, name, json.dumps(arguments)))
                case {"type": "tool_result", "tool_use_id": str(key)}:
                    results.append(ToolResultBlock(key, names.get(key, "tool"), _text(block.get("content"))))
                case {"type": "thinking" | "redacted_thinking"}:
                    pass
                case _:
                    raise bad_request(
                        "A message contains an unknown block. Use the types text, image, tool_use and tool_result."
                    )
        if content and results:
            data.messages.append(Msg.tool(results))
            results = []
        if content:
            data.messages.append((Msg.user if message.role == "user" else Msg.assistant)(content))
    data.results = {result.tool_use_id: result.text for result in results}
    return data


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = cast("list[Json]", content)
        return "".join(str(part["text"]) for part in parts if isinstance(cast("object", part), dict) and "text" in part)
    return "" if content is None else str(content)


def _message(run: ServedRun, model: str) -> Json:
    return {
        "id": f"msg_{run.id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _end(result: ModelResult) -> Json:
    return {"stop_reason": _REASONS[result.finish], "stop_sequence": None}


def _usage(usage: Usage) -> Json:
    return {
        # Anthropic counts cached tokens separately
        "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())


def _error(refusal: Refusal) -> Json:
    return {"type": "error", "error": {"type": _KINDS.get(refusal.status, "api_error"), "message": refusal.text}}
