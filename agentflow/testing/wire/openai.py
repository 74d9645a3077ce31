"""OpenAI's chat completions wire: a reply as a JSON body or as a list of chunks."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from agentflow.testing.wire.frames import FrameKind, WireFrame
from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, as_object, merged
from agentflow.testing.wire.reply import ReplyPlan, ScriptedCall, WireReply, WireUsage
from agentflow.testing.wire.request import WireRequest
from agentflow.testing.wire.signing import Signer

CREATED = 1_760_000_000
FINISH = {"stop": "stop", "tool_calls": "tool_calls", "length": "length", "refusal": "content_filter"}
UNKNOWN = WireFrame("ping", {"id": "evt", "object": "chat.completion.telemetry", "choices": [], "x_unknown": True})
ERRORS: dict[int, tuple[str, str | None, str]] = {
    400: ("invalid_request_error", None, "Invalid request."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided: sk-test."),
    403: ("insufficient_permissions", None, "You have insufficient permissions for this operation."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
    408: ("timeout", None, "Request timed out."),
    413: ("invalid_request_error", None, "Request too large."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests."),
    500: ("server_error", None, "The server had an error while processing your request. Sorry about that!"),
    503: ("server_error", None, "The server is currently overloaded with other requests. Sorry about that!"),
    529: ("server_error", None, "The server is currently overloaded with other requests. Sorry about that!"),
}
OVERFLOW = (
    "This model's maximum context length is {limit} tokens. However, your messages resulted in {used} tokens. "
    "Please reduce the length of the messages."
)


def error_body(message: str, *, type: str, param: str | None = None, code: str | None = None) -> JsonObject:  # noqa: A002
    """Build an error in OpenAI's format."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def call_id(request: WireRequest, index: int, call: ScriptedCall) -> str:
    """Return the call's own id, or a new one with the request's index, which is unique on this server except in batches."""
    return call.id if call.id is not None else f"call_wire_{request.index}_{index}"


def usage_body(usage: WireUsage) -> JsonObject:
    """Return token counts in OpenAI's format, in which the prompt includes cached tokens."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.output,
        "total_tokens": usage.prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
    }


def body(plan: ReplyPlan, request: WireRequest, signer: Signer) -> JsonObject:
    """Build the reply as a JSON body."""
    del signer  # this wire has no signatures
    reply = plan.reply
    message: JsonObject = {"role": "assistant", "content": reply.text or (None if reply.calls else ""), "refusal": None}
    if reply.thoughts:
        message["reasoning_content"] = "".join(reply.thoughts)
    message |= _extras(reply)
    if reply.calls:
        message["tool_calls"] = [_whole_call(plan, request, n, call) for n, call in enumerate(reply.calls)]
    finish = FINISH.get(reply.stop, reply.stop)
    if plan.refusal is not None:
        message = {"role": "assistant", "content": None, "refusal": plan.refusal}
        finish = "stop"
    logprobs = _logprobs(request, [*reply.pieces(reply.text)])
    choices: list[JsonValue] = [
        {"index": n, "message": message, "logprobs": logprobs, "finish_reason": finish}
        for n in range(_choices(request))
    ]
    answer = merged(_envelope(request, "chat.completion"), {"choices": choices})
    if plan.usage != "none":
        answer["usage"] = usage_body(reply.usage_for(request.body))
    return answer


def frames(plan: ReplyPlan, request: WireRequest, signer: Signer) -> list[WireFrame]:
    """Build the reply as chunks, including the end mark."""
    del signer
    options = as_object(request.body.get("stream_options"))
    requested = options.get("include_usage") is True and plan.usage != "none"
    usage = usage_body(plan.reply.usage_for(request.body))
    chunks = [*_each_choice([*_content(plan, request)], _choices(request))]
    if requested:
        twice = usage if plan.usage == "twice" else None
        chunks = [*(_with_usage(chunk, None) for chunk in chunks[:-1]), _with_usage(chunks[-1], twice)]
        chunks.append(WireFrame("usage", _usage_chunk(plan, request, usage)))
    if plan.end_mark:
        chunks.append(WireFrame("end", "[DONE]"))
    return chunks


def error_frame(type: str | None, message: str | None) -> WireFrame:  # noqa: A002 - the wire's own name
    """Build an error event for the stream."""
    kind, code, text = ERRORS[503]
    return WireFrame("error", error_body(message or text, type=type or kind, code=code))


def _content(plan: ReplyPlan, request: WireRequest) -> Iterator[WireFrame]:
    reply = plan.reply
    refused = plan.refusal is not None
    content = None if refused or (reply.calls and not reply.text) else ""
    yield _chunk(request, "head", {"role": "assistant", "content": content, "refusal": None})
    if plan.refusal is not None:
        for piece in reply.pieces(plan.refusal):
            yield _chunk(request, "text", {"refusal": piece})
        yield _chunk(request, "stop", {}, "stop")
        return
    for piece in reply.pieces("".join(reply.thoughts)):
        yield _chunk(request, "thinking", {"reasoning_content": piece})
    for piece in reply.pieces(reply.text) if reply.audio is None else ():
        yield _chunk(request, "text", {"content": piece}, logprobs=_logprobs(request, [piece]))
    for name, value in _extras(reply).items():
        yield _chunk(request, "text", {name: value})
    for delta in _calls(plan, request):
        yield _chunk(request, "call", {"tool_calls": [delta]})
    yield _chunk(request, "stop", {}, FINISH.get(reply.stop, reply.stop))


def _extras(reply: WireReply) -> JsonObject:
    """Return the citations, images and audio of a reply."""
    extras: JsonObject = {}
    if reply.cites:
        spans: JsonObject = {"start_index": 0, "end_index": len(reply.text)}
        noted = [spans | {"title": cite.title, "url": cite.url} for cite in reply.cites]
        extras["annotations"] = [{"type": "url_citation", "url_citation": note} for note in noted]
    if reply.images:
        extras["images"] = [{"type": "image_url", "image_url": {"url": url}} for url in reply.images]
    if reply.audio is not None:
        extras["audio"] = {"id": "audio_wire", "data": reply.audio, "transcript": reply.text}
    return extras


def _calls(plan: ReplyPlan, request: WireRequest) -> Iterator[JsonObject]:
    per_call = [[*_call_deltas(plan, request, n, call)] for n, call in enumerate(plan.reply.calls)]
    if not plan.reply.interleave:
        for deltas in per_call:
            yield from deltas
        return
    for row in zip_longest(*per_call):
        yield from (delta for delta in row if delta is not None)


def _call_deltas(plan: ReplyPlan, request: WireRequest, index: int, call: ScriptedCall) -> Iterator[JsonObject]:
    name, later = (call.name[:1], call.name[1:]) if plan.split_names else (call.name, "")
    pieces = plan.call_pieces(call)
    yield _delta(plan, request, index, call, name=name, arguments=call.raw if plan.whole_calls else "")
    if later:
        yield merged(_index(plan, index), {"function": {"name": later}})
    for piece in () if plan.whole_calls else pieces:
        if plan.call_ids == "repeat":
            yield _delta(plan, request, index, call, name=name, arguments=piece)
        else:
            yield merged(_index(plan, index), {"function": {"arguments": piece}})


def _delta(
    plan: ReplyPlan, request: WireRequest, index: int, call: ScriptedCall, *, name: str, arguments: str
) -> JsonObject:
    delta = _index(plan, index)
    if plan.call_ids != "none":
        delta["id"] = call_id(request, index, call)
    return merged(delta, {"type": "function", "function": {"name": name, "arguments": arguments}})


def _index(plan: ReplyPlan, index: int) -> JsonObject:
    return {"index": index} if plan.call_index else {}


def _whole_call(plan: ReplyPlan, request: WireRequest, index: int, call: ScriptedCall) -> JsonValue:
    ident: JsonObject = {} if plan.call_ids == "none" else {"id": call_id(request, index, call)}
    return merged(ident, {"type": "function", "function": {"name": call.name, "arguments": call.raw}})


def _choices(request: WireRequest) -> int:
    requested = request.body.get("n")
    return requested if isinstance(requested, int) and requested > 1 else 1


def _each_choice(chunks: list[WireFrame], count: int) -> Iterator[WireFrame]:
    """Yield the chunks of the first choice, then those of each further choice (`n` in the request)."""
    yield from chunks
    for n in range(1, count):
        for chunk in chunks:
            data: JsonObject = chunk.data if isinstance(chunk.data, dict) else {}
            choice = as_object(as_list(data.get("choices"))[0])
            yield replace(chunk, data=merged(data, {"choices": [merged(choice, {"index": n})]}))


def _logprobs(request: WireRequest, pieces: list[str]) -> JsonValue:
    """Return invented probabilities if requested; each chunk counts as one token."""
    if request.body.get("logprobs") is not True:
        return None
    top = request.body.get("top_logprobs")
    content: list[JsonValue] = []
    for piece in pieces:
        token: JsonObject = {"token": piece, "logprob": -0.1, "bytes": [*piece.encode()]}
        likely: list[JsonValue] = [token] * top if isinstance(top, int) else []
        content.append(merged(token, {"top_logprobs": likely}))
    return {"content": content, "refusal": None}


def models_body(request: WireRequest, tokens: int) -> JsonObject:
    """Build the list of models, which has one entry."""
    del request, tokens
    return {"object": "list", "data": [{"id": "wire", "object": "model", "created": CREATED, "owned_by": "agentflow"}]}


def _chunk(
    request: WireRequest, kind: FrameKind, delta: JsonObject, finish: str | None = None, logprobs: JsonValue = None
) -> WireFrame:
    choice: JsonObject = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return WireFrame(kind, merged(_envelope(request, "chat.completion.chunk"), {"choices": [choice]}))


def _with_usage(chunk: WireFrame, usage: JsonObject | None) -> WireFrame:
    data = chunk.data
    return chunk if isinstance(data, str) else replace(chunk, data=merged(data, {"usage": usage}))


def _usage_chunk(plan: ReplyPlan, request: WireRequest, usage: JsonObject) -> JsonObject:
    choices: dict[str, JsonObject] = {"empty": {"choices": []}, "null": {"choices": None}, "absent": {}}
    return merged(_envelope(request, "chat.completion.chunk"), choices[plan.usage_choices], {"usage": usage})


def _envelope(request: WireRequest, kind: str) -> JsonObject:
    return {
        "id": f"chatcmpl-wire-{request.index}",
        "object": kind,
        "created": CREATED + request.index,
        "model": request.model,
        "system_fingerprint": "fp_wire",
    }
