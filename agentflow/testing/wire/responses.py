"""OpenAI's `/responses` wire: a reply as a JSON body or as a list of events.

Reasoning is a separate item. Its text is sent if a summary is requested, its encrypted content if the request includes it.
The id of an item names the reasoning that it directly follows, if any, so that this server can require the reasoning in
later requests.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple

from agentflow.testing.wire.frames import FrameKind, WireFrame
from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, as_object, as_text, merged, objects
from agentflow.testing.wire.openai import CREATED, ERRORS, call_id
from agentflow.testing.wire.reply import ReplyPlan, ScriptedCall, WireReply, WireUsage
from agentflow.testing.wire.request import WireRequest
from agentflow.testing.wire.signing import Signer

UNKNOWN = WireFrame("ping", {"type": "response.telemetry", "x_unknown": True}, "response.telemetry")
SEALED = "reasoning.encrypted_content"
_INCOMPLETE = {"length": "max_output_tokens", "refusal": "content_filter"}
_AFTER = re.compile(r"(?:fc|cu|msg)_wire_(\d+)_\d+_after_(\d+)\Z")
_THOUGHT = re.compile(r"rs_wire_\d+_\d+\Z")


class _OutputItem(NamedTuple):
    """An output item of a reply.

    Attributes:
        item: The complete item, as in its last event.
        begin: The item as in its first event.
        events: The events in between.
    """

    item: JsonObject
    begin: JsonObject
    events: list[WireFrame]


def thought_before(ident: str) -> str | None:
    """Return the id of the reasoning item that directly preceded an item of this server, or None."""
    found = _AFTER.match(ident)
    return None if found is None else f"rs_wire_{found[1]}_{found[2]}"


def is_own_reasoning(ident: str) -> bool:
    """Whether an id belongs to a reasoning item of this server."""
    return _THOUGHT.match(ident) is not None


def usage_body(usage: WireUsage) -> JsonObject:
    """Return token counts in this endpoint's format, in which the input includes cached tokens."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.output,
    }


def body(plan: ReplyPlan, request: WireRequest, signer: Signer) -> JsonObject:
    """Build the reply as a JSON body."""
    return _response(plan, request, [item.item for item in _output(plan, request, signer)])


def frames(plan: ReplyPlan, request: WireRequest, signer: Signer) -> list[WireFrame]:
    """Build the reply as events; the last one has the outcome."""
    output = _output(plan, request, signer)
    started = merged(_response(plan, request, []), {"status": "in_progress", "incomplete_details": None})
    if plan.usage != "twice":
        started["usage"] = None
    events = [_event("head", "response.created", {"response": started})]
    events.append(_event("block", "response.in_progress", {"response": started}))
    for group in _groups(output, interleave=plan.reply.interleave):
        events += _frames_of(plan, group)
    ended = _response(plan, request, [item.item for item in output])
    events.append(_event("stop", f"response.{ended['status']}", {"response": ended}))
    return [_numbered(frame, n) for n, frame in enumerate(events)]


def error_frame(type: str | None, message: str | None) -> WireFrame:  # noqa: A002 - the wire's own name
    """Build an error event for the stream."""
    kind, _, text = ERRORS[503]
    error: JsonObject = {"type": "error", "code": type or kind, "message": message or text, "param": None}
    return WireFrame("error", error | {"sequence_number": 0}, "error")


def _output(plan: ReplyPlan, request: WireRequest, signer: Signer) -> list[_OutputItem]:
    reply = plan.reply
    thoughts = [*_reasoning_items(reply, request, signer)]
    after = f"_after_{len(thoughts) - 1}" if thoughts else ""
    items: list[_OutputItem] = []
    if plan.refusal is not None:
        return [_message_item(reply, plan.refusal, f"msg_wire_{request.index}_0", refused=True)]
    for n, work in enumerate(reply.server):
        item: JsonObject = {
            "id": f"ws_wire_{request.index}_{n}",
            "type": f"{work.name}_call",
            "status": "completed",
        }
        items.append(_OutputItem(item | work.input, item | {"status": "in_progress"}, []))
        if work.name == "tool_search":
            found: JsonObject = {
                "id": f"tso_wire_{request.index}_{n}",
                "type": "tool_search_output",
                "execution": "server",
            }
            found |= {"call_id": None, "status": "completed", "tools": work.content}
            items.append(_OutputItem(found, found | {"status": "in_progress"}, []))
    if reply.text or reply.cites or not reply.calls:
        items.append(_message_item(reply, reply.text, f"msg_wire_{request.index}_0{after}", refused=False))
    items += [_image_item(url, f"ig_wire_{request.index}_{n}") for n, url in enumerate(reply.images)]
    for n, call in enumerate(reply.calls):
        ident = f"fc_wire_{request.index}_{n + 1}{'' if items else after}"
        items.append(_call_item(plan, request, call, n, ident))
    return [*thoughts, *items]


def _reasoning_items(reply: WireReply, request: WireRequest, signer: Signer) -> Iterator[_OutputItem]:
    summarised = as_object(request.body.get("reasoning")).get("summary") is not None
    sealed = SEALED in as_list(request.body.get("include"))
    hidden = () if reply.redacted is None else (reply.redacted,)
    total = len(reply.thoughts) + len(hidden)
    for n, text in enumerate((*reply.thoughts, *hidden)):
        summary: list[JsonValue] = (
            [{"type": "summary_text", "text": text}] if summarised and n < len(reply.thoughts) else []
        )
        item: JsonObject = {"id": f"rs_wire_{request.index}_{n}", "type": "reasoning", "summary": summary}
        if sealed:
            item["encrypted_content"] = signer.sign(text, n, total)
        pieces: list[WireFrame] = []
        if summary:
            part: JsonObject = {"summary_index": 0, "part": {"type": "summary_text", "text": ""}}
            pieces.append(_event("block", "response.reasoning_summary_part.added", part))
            for piece in reply.pieces(text):
                delta: JsonObject = {"summary_index": 0, "delta": piece}
                pieces.append(_event("thinking", "response.reasoning_summary_text.delta", delta))
            done: JsonObject = {"summary_index": 0, "text": text}
            pieces.append(_event("block", "response.reasoning_summary_text.done", done))
            part = {"summary_index": 0, "part": summary[0]}
            pieces.append(_event("block", "response.reasoning_summary_part.done", part))
        yield _OutputItem(item, merged(item, {"summary": [], "encrypted_content": None}), pieces)


def _message_item(reply: WireReply, text: str, ident: str, *, refused: bool) -> _OutputItem:
    kind, key = ("refusal", "refusal") if refused else ("output_text", "text")
    noted: list[JsonValue] = [] if refused else [_annotation(n, reply) for n in range(len(reply.cites))]
    part: JsonObject = {"type": kind, key: text}
    empty: JsonObject = {"type": kind, key: ""}
    if not refused:
        part, empty = merged(part, {"annotations": noted, "logprobs": []}), empty | {"annotations": [], "logprobs": []}
    content: list[JsonValue] = [part]
    item: JsonObject = {"id": ident, "type": "message", "role": "assistant", "status": "completed", "content": content}
    ids: JsonObject = {"content_index": 0}
    pieces = [_event("block", "response.content_part.added", merged(ids, {"part": empty}))]
    logs: JsonObject = {} if refused else {"logprobs": []}
    name = f"response.{kind}.delta"
    pieces += [_event("text", name, merged(ids, {"delta": piece}, logs)) for piece in reply.pieces(text)]
    for n, note in enumerate(noted):
        noticed = merged(ids, {"annotation_index": n, "annotation": note})
        pieces.append(_event("text", "response.output_text.annotation.added", noticed))
    pieces.append(_event("block", f"response.{kind}.done", merged(ids, {key: text}, logs)))
    pieces.append(_event("block", "response.content_part.done", merged(ids, {"part": part})))
    return _OutputItem(item, merged(item, {"status": "in_progress", "content": []}), pieces)


def _annotation(n: int, reply: WireReply) -> JsonObject:
    cite = reply.cites[n]
    spans: JsonObject = {"start_index": 0, "end_index": len(reply.text)}
    return {"type": "url_citation", "url": cite.url, "title": cite.title} | spans


def _image_item(url: str, ident: str) -> _OutputItem:
    item: JsonObject = {"id": ident, "type": "image_generation_call", "status": "completed"}
    return _OutputItem(item | {"result": url.partition(",")[2]}, item | {"status": "in_progress", "result": None}, [])


def _call_item(plan: ReplyPlan, request: WireRequest, call: ScriptedCall, index: int, ident: str) -> _OutputItem:
    if call.name == "computer" and any(tool.get("type") == "computer" for tool in objects(request.body.get("tools"))):
        computer: JsonObject = {"id": f"cu{ident[2:]}", "type": "computer_call", "status": "completed"}
        computer |= {"call_id": call_id(request, index, call), "pending_safety_checks": []} | call.input
        return _OutputItem(computer, computer | {"status": "in_progress", "actions": []}, [])
    item: JsonObject = {"id": ident, "type": "function_call", "status": "completed", "name": call.name}
    if call.name in _loaded(plan, request):
        item["namespace"] = call.name
    if plan.call_ids != "none":
        item["call_id"] = call_id(request, index, call)
    name = "response.function_call_arguments"
    pieces = [] if plan.whole_calls else [_event("call", f"{name}.delta", {"delta": p}) for p in plan.call_pieces(call)]
    pieces.append(_event("block", f"{name}.done", {"name": call.name, "arguments": call.raw}))
    begin = merged(item, {"status": "in_progress", "arguments": ""})
    return _OutputItem(merged(item, {"arguments": call.raw}), begin, pieces)


def _loaded(plan: ReplyPlan, request: WireRequest) -> set[str]:
    """Return the names of the tools that a search has found, in this reply or earlier."""
    before = [
        item.get("tools") for item in objects(request.body.get("input")) if item.get("type") == "tool_search_output"
    ]
    found = [*before, *(work.content for work in plan.reply.server if work.name == "tool_search")]
    return {as_text(tool.get("name")) for tools in found for tool in objects(tools)}


def _groups(output: list[_OutputItem], *, interleave: bool) -> Iterator[list[tuple[int, _OutputItem]]]:
    """Yield groups of items: single items, and the calls, whose events are interleaved."""
    calls: list[tuple[int, _OutputItem]] = []
    for index, entry in enumerate(output):
        if interleave and entry.item["type"] == "function_call":
            calls.append((index, entry))
        else:
            yield [(index, entry)]
    if calls:
        yield calls


def _frames_of(plan: ReplyPlan, group: list[tuple[int, _OutputItem]]) -> Iterator[WireFrame]:
    """Yield the events of a group of items."""
    for index, entry in group:
        kind: FrameKind = "call" if entry.item["type"] == "function_call" else "block"
        yield _with_position(plan, index, entry, _event(kind, "response.output_item.added", {"item": entry.begin}))
    for row in zip_longest(
        *([_with_position(plan, index, entry, piece) for piece in entry.events] for index, entry in group)
    ):
        yield from (frame for frame in row if frame is not None)
    for index, entry in group:
        yield _with_position(plan, index, entry, _event("block", "response.output_item.done", {"item": entry.item}))


def _with_position(plan: ReplyPlan, index: int, entry: _OutputItem, frame: WireFrame) -> WireFrame:
    """Return the event with the position of its item."""
    data = frame.data if isinstance(frame.data, dict) else {}
    where: JsonObject = {} if "item" in data else {"item_id": entry.item["id"]}
    if plan.call_index or entry.item["type"] != "function_call":
        where["output_index"] = index
    return replace(frame, data=data | where)


def _event(kind: FrameKind, name: str, fields: JsonObject) -> WireFrame:
    return WireFrame(kind, {"type": name} | fields, name)


def _numbered(frame: WireFrame, number: int) -> WireFrame:
    data = frame.data if isinstance(frame.data, dict) else {}
    return replace(frame, data=data | {"sequence_number": number})


def _response(plan: ReplyPlan, request: WireRequest, output: list[JsonObject]) -> JsonObject:
    settings, reply = request.body, plan.reply
    incomplete = None if plan.refusal is not None else _INCOMPLETE.get(reply.stop)
    text, choice = as_object(settings.get("text")), settings.get("tool_choice")
    return {
        "id": f"resp_wire_{request.index}",
        "object": "response",
        "created_at": CREATED + request.index,
        "status": "completed" if incomplete is None else "incomplete",
        "error": None,
        "incomplete_details": None if incomplete is None else {"reason": incomplete},
        "instructions": settings.get("instructions"),
        "max_output_tokens": settings.get("max_output_tokens"),
        "metadata": {},
        "model": as_text(settings.get("model")),
        "output": [*output],
        "parallel_tool_calls": settings.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "reasoning": as_object(settings.get("reasoning")),
        "store": settings.get("store") is not False,
        "temperature": settings.get("temperature"),
        "text": merged({"format": {"type": "text"}}, text),
        "tool_choice": "auto" if choice is None else choice,
        "tools": as_list(settings.get("tools")),
        "top_p": settings.get("top_p"),
        "truncation": "disabled",
        "usage": None if plan.usage == "none" else usage_body(reply.usage_for(settings)),
    }
