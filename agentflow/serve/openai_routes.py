"""Routes compatible with OpenAI's API: `/v1/models`, `/v1/chat/completions` and `/v1/responses`. A model is an agent."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from agentflow.serve.bodies import read_body
from agentflow.serve.guard import owner_of
from agentflow.serve.model_calls import ModelCalls, ModelRequestData, ModelResult, bad_request, image, key_of
from agentflow.serve.refusals import Refusal
from agentflow.serve.runs import ServedRun
from agentflow.serve.service import Service
from agentflow.serve.streams import disconnected_or, run_stream
from agentflow.vocabulary.messages import ContentBlock, Msg, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.specs import ModelOptions, ToolSpec, Usage

Json: TypeAlias = dict[str, Any]


class _Options(BaseModel):
    """The fields that both APIs share. Unknown fields are ignored, as most compatible servers do."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None


class _ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Json] | None = None
    tool_calls: list[Json] | None = None
    tool_call_id: str = ""


class _ChatBody(_Options):
    messages: list[_ChatMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    n: int | None = None
    stream_options: Json | None = None
    response_format: Json | None = None


class _ResponsesBody(_Options):
    input: str | list[Json]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    store: bool | None = None
    text: Json | None = None


def openai(service: Service) -> Sequence[BaseRoute]:
    """Return the OpenAI-compatible routes of a server."""
    routes = _OpenAIRoutes(service, ModelCalls(service))
    return [
        Route("/v1/models", routes.models),
        Route("/v1/models/{model}", routes.model),
        Route("/v1/chat/completions", routes.chat, methods=["POST"]),
        Route("/v1/responses", routes.responses, methods=["POST"]),
    ]


@dataclass(frozen=True)
class _OpenAIRoutes:
    service: Service
    calls: ModelCalls

    async def models(self, request: Request) -> Response:
        found = [_model(agent.name) for agent in self.service.all_agents]
        return JSONResponse({"object": "list", "data": found, "has_more": False})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if all(agent.name != name for agent in self.service.all_agents):
            return _refused(Refusal(404, "model_not_found", "There is no such model."))
        return JSONResponse(_model(name))

    async def chat(self, request: Request) -> Response:
        try:
            body = await read_body(request, _ChatBody, self.service.limits)
            if body.n not in (None, 1):
                raise bad_request("n must be 1: an agent returns one answer.")
            run = await self.calls.open(owner_of(request.scope), _chat_request(body))
            base = {"id": f"chatcmpl-{run.id}", "created": int(time.time()), "model": body.model}
            if body.stream:
                usage = bool((body.stream_options or {}).get("include_usage"))
                return run_stream(self.service.runs, run, self._chat_chunks(run, base, usage))
            text = await disconnected_or(request, run, self.calls.text_of(run))
            return JSONResponse(_completion(base, self.calls.result(run, text)))
        except Refusal as refusal:
            return _refused(refusal)

    async def _chat_chunks(self, run: ServedRun, base: Json, usage: bool) -> AsyncGenerator[bytes | None]:
        def chunk(delta: Json, finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return _data({**base, "object": "chat.completion.chunk", "choices": [choice]})

        yield chunk({"role": "assistant", "content": ""})
        texts: list[str] = []
        async for text in self.calls.deltas(run):
            if text is None:
                yield None
                continue
            texts.append(text)
            yield chunk({"content": text})
        try:
            result = self.calls.result(run, "".join(texts))
        except Refusal as refusal:
            yield _data(_error(refusal))
            return
        for index, call in enumerate(_tool_calls(result)):
            yield chunk({"tool_calls": [{"index": index, **call}]})
        yield chunk({}, result.finish)
        if usage:
            counted = _chat_usage(result.usage)
            yield _data({**base, "object": "chat.completion.chunk", "choices": [], "usage": counted})
        yield b"data: [DONE]\n\n"

    async def responses(self, request: Request) -> Response:
        try:
            body = await read_body(request, _ResponsesBody, self.service.limits)
            run = await self.calls.open(owner_of(request.scope), _responses_request(body))
            base = _response(body, f"resp_{key_of(run)}")
            if body.stream:
                return run_stream(self.service.runs, run, self._response_events(run, base, body.store is not False))
            text = await disconnected_or(request, run, self.calls.text_of(run))
            return JSONResponse(self._completed(run, base, text, body.store is not False)[0])
        except Refusal as refusal:
            return _refused(refusal)

    def _completed(self, run: ServedRun, base: Json, text: str, keep: bool) -> tuple[Json, ModelResult]:
        result = self.calls.result(run, text, keep=keep)
        message = _message_item(base["id"], text) if text or not result.calls else None
        calls = [
            {"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id, "name": call.name}
            | {"arguments": call.arguments, "status": "completed"}
            for call in result.calls
        ]
        cut_short = result.finish == "length"
        done = {
            **base,
            "status": "incomplete" if cut_short else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut_short else None,
            "output": [*([] if message is None else [message]), *calls],
            "usage": _response_usage(result.usage),
        }
        return done, result

    async def _response_events(self, run: ServedRun, base: Json, keep: bool) -> AsyncGenerator[bytes | None]:
        number = 0

        def event(kind: str, **fields: object) -> bytes:
            nonlocal number
            data = {"type": kind, "sequence_number": number, **fields}
            number += 1
            return b"event: %s\n%s" % (kind.encode(), _data(data))

        yield event("response.created", response=base)
        yield event("response.in_progress", response=base)
        texts: list[str] = []
        empty: Json = {**_message_item(base["id"], ""), "content": [], "status": "in_progress"}
        ids: Json = {"item_id": empty["id"], "output_index": 0, "content_index": 0}
        async for text in self.calls.deltas(run):
            if text is None:
                yield None
                continue
            if not texts:
                yield event("response.output_item.added", output_index=0, item=empty)
                yield event("response.content_part.added", **ids, part=_text_part(""))
            texts.append(text)
            yield event("response.output_text.delta", **ids, delta=text, logprobs=[])
        whole = "".join(texts)
        try:
            done, result = self._completed(run, base, whole, keep)
        except Refusal as refusal:
            failed = {**base, "status": "failed", "error": {"code": "server_error", "message": refusal.text}}
            yield event("response.failed", response=failed)
            return
        for index, item in enumerate(done["output"]):
            if item["type"] == "message":
                if not texts:
                    yield event("response.output_item.added", output_index=0, item=empty)
                    yield event("response.content_part.added", **ids, part=_text_part(""))
                yield event("response.output_text.done", **ids, text=whole, logprobs=[])
                yield event("response.content_part.done", **ids, part=_text_part(whole))
            else:
                item_started = {**item, "arguments": "", "status": "in_progress"}
                named = {"item_id": item["id"], "output_index": index}
                yield event("response.output_item.added", output_index=index, item=item_started)
                yield event("response.function_call_arguments.delta", **named, delta=item["arguments"])
                yield event(
                    "response.function_call_arguments.done", **named, name=item["name"], arguments=item["arguments"]
                )
            yield event("response.output_item.done", output_index=index, item=item)
        yield event("response.incomplete" if result.finish == "length" else "response.completed", response=done)


# ---- requests


def _chat_request(body: _ChatBody) -> ModelRequestData:
    data = ModelRequestData(agent=body.model, tools=_tools(body.tools, nested=True), options=_options(body))
    names: dict[str, str] = {}
    round_: list[ToolResultBlock] = []
    systems: list[str] = []
    for message in body.messages:
        if message.role != "tool":
            _close_round(data, round_)
        content = _content(message.content)
        match message.role:
            case "system" | "developer":
                systems.append("".join(block.text for block in content if isinstance(block, TextBlock)))
            case "user":
                data.messages.append(Msg.user(content))
            case "assistant":
                uses = [
                    _use(tool_call.get("id"), _object(tool_call.get("function")))
                    for tool_call in message.tool_calls or ()
                ]
                names.update({use.id: use.name for use in uses})
                data.messages.append(Msg.assistant([*content, *uses]))
            case "tool":
                text = "".join(block.text for block in content if isinstance(block, TextBlock))
                round_.append(ToolResultBlock(message.tool_call_id, names.get(message.tool_call_id, "tool"), text))
    data.results = {result.tool_use_id: result.text for result in round_}
    data.system = "\n\n".join(systems)
    return data


def _responses_request(body: _ResponsesBody) -> ModelRequestData:
    data = ModelRequestData(agent=body.model, tools=_tools(body.tools, nested=False), options=_options(body))
    data.previous = body.previous_response_id
    systems = [body.instructions] if body.instructions else []
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    round_: list[ToolResultBlock] = []
    names: dict[str, str] = {}
    calls: list[ToolUseBlock] = []
    for item in items:
        kind = item.get("type", "message")
        if kind != "function_call_output":
            _close_round(data, round_)
        if kind != "function_call" and calls:
            data.messages.append(Msg.assistant(calls))
            calls = []
        if kind == "function_call":
            use = _use(item.get("call_id"), item)
            names[use.id] = use.name
            calls.append(use)
        elif kind == "function_call_output":
            key, output = str(item.get("call_id")), item.get("output")
            text = output if isinstance(output, str) else json.dumps(output)
            round_.append(ToolResultBlock(key, names.get(key, "tool"), text))
        elif kind == "message":
            content = _content(item.get("content"))
            if item.get("role") in ("system", "developer"):
                systems.append("".join(block.text for block in content if isinstance(block, TextBlock)))
            else:
                make = Msg.assistant if item.get("role") == "assistant" else Msg.user
                data.messages.append(make(content))
        elif kind != "reasoning":
            raise bad_request(f"Input items of type {kind!r:.60} are not supported.")
    data.results = {result.tool_use_id: result.text for result in round_}
    data.system = "\n\n".join(systems)
    return data


def _close_round(data: ModelRequestData, results: list[ToolResultBlock]) -> None:
    """Add the results of an earlier round to the conversation."""
    if results:
        data.messages.append(Msg.tool(results))
        results.clear()


def _object(value: object) -> Json:
    """Return a JSON object; an empty one for any other value."""
    return cast("Json", value) if isinstance(value, dict) else {}


def _use(id: object, function: Json) -> ToolUseBlock:  # noqa: A002
    name = function.get("name")
    if not isinstance(id, str) or not isinstance(name, str):
        raise bad_request("A tool call must have an id and the name of a function.")
    return ToolUseBlock.from_json(id, name, str(function.get("arguments") or "{}"))


def _content(content: object) -> list[ContentBlock]:
    if content is None or isinstance(content, str):
        return [TextBlock(content)] if content else []
    if not isinstance(content, list):
        raise bad_request("A message's content must be a text or a list of parts.")
    blocks: list[ContentBlock] = []
    for part in map(_object, cast("list[object]", content)):
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
                blocks.append(TextBlock(text))
            case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)}:
                blocks.append(image(url))
            case _:
                raise bad_request("A part of a message must be a text or an image.")
    return blocks


def _tools(tools: Sequence[Json] | None, *, nested: bool) -> list[ToolSpec]:
    found: list[ToolSpec] = []
    for entry in tools or ():
        data = _object(entry.get("function")) if nested else entry
        name = data.get("name")
        if entry.get("type") != "function" or not isinstance(name, str):
            raise bad_request("A tool must be a function with a name.")
        found.append(ToolSpec(name, str(data.get("description") or ""), _object(data.get("parameters"))))
    return found


def _options(body: _ChatBody | _ResponsesBody) -> ModelOptions:
    chosen = body.tool_choice
    if isinstance(chosen, dict):
        named = _object(chosen.get("function")) or chosen
        chosen = None if named.get("name") is None else str(named["name"])
    shared: Json = {"temperature": body.temperature, "top_p": body.top_p, "tool_choice": chosen}
    form = _object(body.response_format if isinstance(body, _ChatBody) else _object(body.text).get("format"))
    if form.get("type") == "json_schema":
        shared["answer_schema"] = _object((_object(form.get("json_schema")) or form).get("schema"))
    if isinstance(body, _ChatBody):
        stop = (body.stop,) if isinstance(body.stop, str) else None if body.stop is None else tuple(body.stop)
        most = body.max_completion_tokens or body.max_tokens
        shared.update(max_tokens=most, stop=stop, seed=body.seed)
    else:
        shared["max_tokens"] = body.max_output_tokens
    return ModelOptions(**shared)


# ---- responses


def _model(name: str) -> Json:
    # Clients of either provider read the same list, so it has the fields of both.
    created = {"created": 0, "created_at": "1970-01-01T00:00:00Z"}
    return {"id": name, "object": "model", "owned_by": "agentflow", "type": "model", "display_name": name, **created}


def _tool_calls(result: ModelResult) -> list[Json]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in result.calls
    ]


def _completion(base: Json, result: ModelResult) -> Json:
    message: Json = {"role": "assistant", "content": result.text or None, "refusal": None}
    if result.calls:
        message["tool_calls"] = _tool_calls(result)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": result.finish}
    return {**base, "object": "chat.completion", "choices": [choice], "usage": _chat_usage(result.usage)}


def _chat_usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _response_usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "input_tokens_details": {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _response(body: _ResponsesBody, id: str) -> Json:  # noqa: A002
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": body.model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "metadata": {},
        "parallel_tool_calls": False,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "usage": None,
    }


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message_item(id: str, text: str) -> Json:  # noqa: A002
    content = [_text_part(text)]
    return {"type": "message", "id": f"msg_{id}", "role": "assistant", "status": "completed", "content": content}


def _data(data: Json) -> bytes:
    return b"data: %s\n\n" % json.dumps(data).encode()


def _error(refusal: Refusal) -> Json:
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    return {"error": {"message": refusal.text, "type": kind, "param": None, "code": refusal.code}}


def _refused(refusal: Refusal) -> JSONResponse:
    return JSONResponse(_error(refusal), refusal.status, refusal.headers)
