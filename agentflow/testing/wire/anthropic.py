"""Anthropic's messages wire: a reply as a JSON body or as a list of events."""

from collections.abc import Iterator
from dataclasses import replace

from agentflow.testing.wire.frames import FrameKind, WireFrame
from agentflow.testing.wire.jsonish import JsonObject, JsonValue, dump, merged
from agentflow.testing.wire.reply import Cite, ReplyPlan, ScriptedCall, WireReply, WireUsage
from agentflow.testing.wire.request import WireRequest
from agentflow.testing.wire.signing import Signer

FINISH = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "refusal": "refusal"}
PING = WireFrame("ping", {"type": "ping"}, "ping")
UNKNOWN = WireFrame("ping", {"type": "telemetry", "x_unknown": True}, "telemetry")
ERRORS: dict[int, tuple[str, str]] = {
    400: ("invalid_request_error", "Invalid request."),
    401: ("authentication_error", "invalid x-api-key"),
    402: ("billing_error", "Your credit balance is too low to access the API."),
    403: ("permission_error", "Your API key does not have permission to use the specified resource."),
    404: ("not_found_error", "The requested resource could not be found."),
    409: ("conflict_error", "The request conflicts with the current state of the resource."),
    413: ("request_too_large", "Request exceeds the maximum size"),
    429: ("rate_limit_error", "This request would exceed your rate limit. Please try again later."),
    500: ("api_error", "Internal server error"),
    503: ("api_error", "Service temporarily unavailable"),
    529: ("overloaded_error", "Overloaded"),
}
OVERFLOW = "prompt is too long: {used} tokens > {limit} maximum"


def error_body(message: str, *, type: str, request_id: str | None, code: str | None = None) -> JsonObject:  # noqa: A002
    """Build an error in Anthropic's format; a code is passed on, for tests of the client."""
    details: JsonObject = {} if code is None else {"details": {"error_code": code}}
    return {"type": "error", "error": {"type": type, "message": message} | details, "request_id": request_id}


def call_id(request: WireRequest, index: int, call: ScriptedCall) -> str:
    """Return the call's own id, or a new one with the request's index, which is unique on this server except in batches."""
    return call.id if call.id is not None else f"toolu_wire_{request.index}_{index}"


def usage_body(usage: WireUsage) -> JsonObject:
    """Return token counts in Anthropic's format, in which the input excludes cached tokens."""
    body: JsonObject = {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
    }
    if usage.reasoning:
        body["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    if usage.searches:
        body["server_tool_use"] = {"web_search_requests": usage.searches}
    return body


def body(plan: ReplyPlan, request: WireRequest, signer: Signer) -> JsonObject:
    """Build the reply as a JSON body."""
    adapted = _adapted(plan, request)
    content = [
        *_thinking_blocks(adapted, signer),
        *_server_blocks(adapted, request),
        *_text_blocks(adapted),
        *_call_blocks(plan, adapted, request),
    ]
    answer = merged(_message(request), {"content": [*content], "stop_reason": FINISH.get(adapted.stop, adapted.stop)})
    if plan.usage != "none":
        answer["usage"] = usage_body(adapted.usage_for(request.body))
    return answer


def frames(plan: ReplyPlan, request: WireRequest, signer: Signer) -> list[WireFrame]:
    """Build the reply as events, including the end mark."""
    adapted = _adapted(plan, request)
    usage = adapted.usage_for(request.body)
    counted = plan.usage != "none"
    first = usage_body(replace(usage, output=1, reasoning=0, searches=0))  # the final counts come with the stop reason
    head = merged(_message(request), {"usage": first} if counted else {})
    events = [_event("head", "message_start", {"message": head})]
    for index, block in enumerate(_blocks(plan, adapted, request, signer)):
        events += _numbered(index, block)
    if len(events) > 1:
        events.insert(2, PING)  # after the first block has begun
    if plan.usage == "twice":
        events.append(_event("usage", "message_delta", {"delta": {"stop_reason": None, "stop_sequence": None}}, usage))
    delta: JsonObject = {"stop_reason": FINISH.get(adapted.stop, adapted.stop), "stop_sequence": None}
    events.append(_event("stop", "message_delta", {"delta": delta}, usage if counted else None))
    if plan.end_mark:
        events.append(_event("end", "message_stop", {}))
    return events


def models_body(request: WireRequest, tokens: int) -> JsonObject:
    """Build the list of models, which has one entry."""
    del request, tokens
    model: JsonObject = {"type": "model", "id": "wire", "display_name": "Wire", "created_at": "2026-01-01T00:00:00Z"}
    return {"data": [model], "has_more": False, "first_id": "wire", "last_id": "wire"}


def tokens_body(request: WireRequest, tokens: int) -> JsonObject:
    """Build the answer with the estimated size of a request."""
    del request
    return {"input_tokens": tokens}


def error_frame(type: str | None, message: str | None) -> WireFrame:  # noqa: A002 - the wire's own word
    """Build an error event for the stream."""
    kind, text = ERRORS[529]
    error: JsonObject = {"type": "error", "error": {"type": type or kind, "message": message or text}}
    return WireFrame("error", error, "error")


def _adapted(plan: ReplyPlan, request: WireRequest) -> WireReply:
    """Adapt the reply to the vendor: without thinking unless requested, and with a refusal instead of the answer."""
    reply = plan.reply if request.thinking_on else replace(plan.reply, thinking=None, redacted=None)
    if plan.refusal is None:
        return reply
    return replace(reply, text=plan.refusal, thinking=None, redacted=None, calls=(), finish="refusal")


def _message(request: WireRequest) -> JsonObject:
    return {
        "id": f"msg_wire_{request.index}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _thinking_blocks(adapted: WireReply, signer: Signer) -> Iterator[JsonObject]:
    total = len(adapted.thoughts) + (adapted.redacted is not None)
    for index, text in enumerate(adapted.thoughts):
        yield {"type": "thinking", "thinking": text, "signature": signer.sign(text, index, total)}
    if adapted.redacted is not None:
        yield {"type": "redacted_thinking", "data": signer.sign(adapted.redacted, total - 1, total)}


def _server_blocks(adapted: WireReply, request: WireRequest) -> Iterator[JsonObject]:
    for index, call in enumerate(adapted.server):
        if call.server is not None:
            ident = f"mcptoolu_wire_{request.index}_{index}"
            yield {
                "type": "mcp_tool_use",
                "id": ident,
                "name": call.name,
                "server_name": call.server,
                "input": call.input,
            }
            if call.result is not None:
                yield {"type": "mcp_tool_result", "tool_use_id": ident, "is_error": False, "content": call.content}
            continue
        ident = f"srvtoolu_wire_{request.index}_{index}"
        yield {"type": "server_tool_use", "id": ident, "name": call.name, "input": call.input}
        if call.result is not None:
            kind = "tool_search" if call.name.startswith("tool_search_tool") else call.name
            yield {"type": f"{kind}_tool_result", "tool_use_id": ident, "content": call.content}


def _text_blocks(adapted: WireReply) -> Iterator[JsonObject]:
    if adapted.text:
        citations: list[JsonValue] = [_citation(cite) for cite in adapted.cites]
        block: JsonObject = {"type": "text", "text": adapted.text}
        if citations:
            block["citations"] = citations
        yield block


def _citation(cite: Cite) -> JsonObject:
    found: JsonObject = {"type": "web_search_result_location", "url": cite.url, "title": cite.title}
    return found | {"cited_text": cite.text, "encrypted_index": f"enc_{cite.title}"}


def _call_blocks(plan: ReplyPlan, adapted: WireReply, request: WireRequest) -> Iterator[JsonObject]:
    for index, call in enumerate(adapted.calls):
        ident = "" if plan.call_ids == "none" else call_id(request, index, call)
        yield {"type": "tool_use", "id": ident, "name": call.name, "input": call.input}


def _blocks(plan: ReplyPlan, adapted: WireReply, request: WireRequest, signer: Signer) -> Iterator[list[WireFrame]]:
    """Yield the events of each block, without their index."""
    for block in _thinking_blocks(adapted, signer):
        yield [*_thinking_events(adapted, block)]
    for block in _server_blocks(adapted, request):
        if "input" not in block:  # results are sent as a whole
            yield [_start(block), _stop()]
            continue
        pieces = adapted.pieces(dump(block["input"]))
        yield [
            _start(block | {"input": {}}),
            *[_delta("block", "input_json_delta", {"partial_json": piece}) for piece in pieces],
            _stop(),
        ]
    for block in _text_blocks(adapted):
        deltas = [_delta("text", "text_delta", {"text": piece}) for piece in adapted.pieces(adapted.text)]
        deltas += [_delta("text", "citations_delta", {"citation": _citation(cite)}) for cite in adapted.cites]
        empty: JsonObject = {"text": "", "citations": []} if adapted.cites else {"text": ""}
        yield [_start(block | empty), *deltas, _stop()]
    for call, block in zip(adapted.calls, _call_blocks(plan, adapted, request), strict=True):
        pieces = plan.call_pieces(call) if call.arguments else []
        pieces = pieces if plan.whole_calls and pieces else ["", *pieces]  # the vendor's first delta is empty
        deltas = [_delta("call", "input_json_delta", {"partial_json": piece}) for piece in pieces]
        yield [_start(block | {"input": {}}), *deltas, _stop()]


def _thinking_events(adapted: WireReply, block: JsonObject) -> Iterator[WireFrame]:
    text, signature = block.get("thinking"), block.get("signature")
    if not isinstance(text, str) or not isinstance(signature, str):
        yield _start(block)
        yield _stop()
        return
    yield _start(block | {"thinking": "", "signature": ""})
    for piece in adapted.pieces(text):
        yield _delta("thinking", "thinking_delta", {"thinking": piece})
    yield _delta("thinking", "signature_delta", {"signature": signature})
    yield _stop()


def _start(block: JsonObject) -> WireFrame:
    return _event("block", "content_block_start", {"content_block": block})


def _stop() -> WireFrame:
    return _event("block", "content_block_stop", {})


def _delta(kind: FrameKind, name: str, fields: JsonObject) -> WireFrame:
    return _event(kind, "content_block_delta", {"delta": {"type": name} | fields})


def _event(kind: FrameKind, name: str, fields: JsonObject, usage: WireUsage | None = None) -> WireFrame:
    counts: JsonObject = {} if usage is None else {"usage": usage_body(usage)}
    return WireFrame(kind, {"type": name} | fields | counts, name)


def _numbered(index: int, events: list[WireFrame]) -> Iterator[WireFrame]:
    for frame in events:
        data: JsonObject = dict(frame.data) if isinstance(frame.data, dict) else {}
        yield replace(frame, data={"type": data.pop("type"), "index": index} | data)
