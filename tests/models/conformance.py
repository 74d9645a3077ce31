"""Streams as servers send them, and the reply that each one contains: one row per case, for each direct wire.

A row is a name, the stream, and the reply: a `Read`, or a text of the error. `sdk` is the result of the vendor's own
client for the same bytes, if it differs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["CASES", "Case", "Read"]

WireName = Literal["chat", "messages", "responses"]
Json = dict[str, Any]


@dataclass(frozen=True)
class Read:
    """The content of a stream: its text, its thoughts, and its calls as name and arguments (a text if they are no
    object).
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, Json | str], ...] = ()
    usage: tuple[int, int] | None = (7, 3)


@dataclass(frozen=True)
class Case:
    wire: WireName
    name: str
    stream: bytes
    reply: Read | str
    sdk: str = ""


HELLO = Read("Hello")
THOUGHT = Read("Hello", "hm")
ADD = Read(calls=(("add", {"a": 1}),))
FAILS = Read(calls=(("add", "no object"),))


def sse(events: Iterable[Json | bytes], *, names: bool = False, end: bytes = b"", line: str = "\n") -> bytes:
    """A stream of events; bytes are used unchanged."""
    out: list[bytes] = []
    for event in events:
        if isinstance(event, bytes):
            out.append(event)
            continue
        name = f"event: {event['type']}{line}" if names else ""
        out.append(f"{name}data: {json.dumps(event, ensure_ascii=False)}{line}{line}".encode())
    return b"".join(out) + end


# ---- chat completions

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
USED = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": USAGE}


def chunk(delta: Any = None, finish: str | None = None, **fields: Any) -> Json:
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": finish}
    return {**USED, "choices": [choice], "usage": None, **fields}


def says(text: Any) -> Json:
    return chunk({"content": text})


def calls(*fragments: Any) -> Json:
    return chunk({"tool_calls": list(fragments)})


def fragment(index: Any, id: Any = None, name: Any = None, arguments: Any = None, **more: Any) -> Json:  # noqa: A002
    told = {"id": id, "function": {"name": name, "arguments": arguments}, "index": index, **more}
    return {key: value for key, value in told.items() if value is not None}


STOP, CALLED = [chunk(finish="stop"), USED], [chunk(finish="tool_calls"), USED]
WHOLE = fragment(0, "c1", "add", '{"a": 1}')


def chat(name: str, *events: Json | bytes, reply: Read | str = HELLO, sdk: str = "", last: list[Json] = STOP) -> Case:
    return Case("chat", name, sse([*events, *last], end=DONE), reply, sdk)


def calling(name: str, *events: Json | bytes, reply: Read | str = ADD, sdk: str = "") -> Case:
    return chat(name, *events, reply=reply, sdk=sdk, last=CALLED)


def choice(**fields: Any) -> Json:
    return {**USED, "usage": None, "choices": [fields]}


CHAT = [
    chat("plain", says("Hel"), says("lo")),
    chat("comments", b": ping\n\n", says("Hel"), b":\n\n", says("lo")),
    chat("an event without data", says("Hel"), b"event: keepalive\ndata:\n\n", says("lo"), sdk="JSONDecodeError"),
    chat("null", says("Hel"), b"data: null\n\n", says("lo"), sdk="AttributeError"),
    chat("an array", says("Hel"), b"data: []\n\n", says("lo"), sdk="AttributeError"),
    chat("an empty object", says("Hel"), b"data: {}\n\n", says("lo")),
    chat("an event of another kind", says("Hel"), b'data: {"message": "busy"}\n\n', says("lo")),
    Case("chat", "no end mark", sse([says("Hello"), *STOP]), HELLO),
    Case("chat", "no last blank line", sse([says("Hello"), *STOP])[:-1], HELLO, "loses the usage"),
    Case("chat", "CR LF", sse([says("Hello"), *STOP], line="\r\n", end=DONE), HELLO),
    Case("chat", "CR", sse([says("Hello"), *STOP], line="\r", end=DONE), HELLO),
    Case("chat", "text after the end mark", sse([says("Hello"), *STOP, DONE, says("XX")]), HELLO),
    Case("chat", "cut off", sse([says("Hel")], end=DONE), "without a finish reason", "takes half a reply for whole"),
    chat("delta null", choice(index=0, delta=None), says("Hello")),
    chat("no choices", {**USED, "usage": None, "choices": None}, says("Hello")),
    chat("a lone choice", {**says("Hello"), "choices": says("Hello")["choices"][0]}, sdk="AttributeError"),
    chat("the whole message", choice(index=0, message={"role": "assistant", "content": "Hello"}), sdk="loses it"),
    chat("text of the older wire", choice(index=0, text="Hello"), sdk="loses it"),
    chat("a further choice first", {**USED, "usage": None, "choices": [
        {"index": 1, "delta": {"content": "ZZ"}}, {"index": 0, "delta": {"content": "Hello"}}]}, sdk="mixes them"),
    chat("the choice's index as text", choice(index="0", delta={"content": "Hello"})),
    chat("text in parts", says([{"type": "text", "text": "Hel"}]), says([{"type": "text", "text": "lo"}]), sdk="a list"),
    chat("text as an object", says({"type": "text", "text": "Hello"}), sdk="TypeError"),
    chat("a number", says(5), reply=Read("5"), sdk="TypeError"),
    chat("a part of another type", says([{"type": "new"}, {"type": "text", "text": "Hello"}]), sdk="a list"),
    chat("content that nobody can read", says({"x": 1}), reply="content is {'x': 1}", sdk="a dict"),
    chat("thoughts in parts", says([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]), says("Hello"),
         reply=THOUGHT, sdk="a list"),
    chat("reasoning", chunk({"reasoning": "hm"}), says("Hello"), reply=THOUGHT),
    chat("reasoning as an object", chunk({"reasoning": {"text": "hm"}}), says("Hello"), reply=THOUGHT, sdk="a dict"),
    chat("reasoning of another form", chunk({"reasoning": {"x": 1}}), says("Hello"), sdk="a dict"),
    chat("a refusal", chunk({"refusal": "Hello"})),
    chat("half a character", b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n',
         b'data: {"choices":[{"delta":{"content":"\\ude00"}}]}\n\n', reply=Read("😀"), sdk="two halves"),
    chat("usage as text and float", says("Hello"), {**USED, "usage": {"prompt_tokens": 7.0, "completion_tokens": "3"}},
         sdk="as it came", last=STOP[:1]),
    chat("usage of Groq", says("Hello"), chunk(finish="stop", x_groq={"usage": USAGE}), sdk="loses it", last=[]),
    chat("usage of Moonshot", says("Hello"), choice(index=0, delta={}, finish_reason="stop", usage=USAGE), sdk="loses it",
         last=[]),
    chat("usage that is a list", says("Hello"), {**USED, "usage": [1]}, reply=Read("Hello", usage=None), last=STOP[:1],
         sdk="AttributeError"),
    chat("an error", says("Hel"), {"error": {"message": "boom"}}, reply="boom"),
    chat("an error as text", says("Hel"), {"error": "boom"}, reply="boom"),
    chat("an error beside text", {**says("Hel"), "error": {"message": "boom"}}, reply="boom"),
    chat("no error", {**says("Hello"), "error": {}}, {**says(""), "error": None}),
    chat("vLLM's error", {"object": "error", "message": "boom", "code": 400}, reply="boom", sdk="loses it"),
    chat("FastAPI's error", {"detail": "boom"}, reply="boom", sdk="loses it"),
    calling("a call", calls(fragment(0, "c1", "add", "")), calls(fragment(0, None, None, '{"a"')),
            calls(fragment(0, None, None, ": 1}"))),
    calling("a call whole", calls(WHOLE)),
    calling("arguments as an object", calls(fragment(0, "c1", "add", {"a": 1}))),
    calling("arguments as a list", calls(fragment(0, "c1", "add", [1])), reply=FAILS, sdk="a list"),
    calling("arguments twice encoded", calls(fragment(0, "c1", "add", '"{}"')), reply=FAILS,
            sdk="a text"),
    calling("arguments cut", calls(fragment(0, "c1", "add", '{"a": ')), reply=FAILS, sdk="half"),
    calling("arguments null", calls({**fragment(0, "c1"), "function": {"name": "add", "arguments": None}}),
            reply=Read(calls=(("add", {}),)), sdk="a text that is empty"),
    calling("a lone call", chunk({"tool_calls": WHOLE}), sdk="AttributeError"),
    calling("null among calls", calls(None, WHOLE), sdk="AttributeError"),
    calling("calls that are text", chunk({"tool_calls": "add"}), reply="tool_calls is a str", sdk="AttributeError"),
    calling("a call that is text", calls("add"), reply="a member of tool_calls", sdk="AttributeError"),
    calling("index as text", calls(fragment("0", "c1", "add", '{"a"')), calls(fragment("0", None, None, ": 1}"))),
    calling("no index", calls(fragment(None, "c1", "add", '{"a"')), calls(fragment(None, None, None, ": 1}"))),
    calling("no index, the id again", calls(fragment(None, "c1", "add", '{"a"')), calls(fragment(None, "c1", None, ": 1}"))),
    calling("the name again", calls(fragment(0, "c1", "add", '{"a"')), calls(fragment(0, "c1", "add", ": 1}")), sdk="addadd"),
    calling("the name in pieces", calls(fragment(0, "c1", "a", "")), calls(fragment(0, None, "dd", '{"a": 1}'))),
    calling("an id that is a number", calls(fragment(0, 17, "add", '{"a": 1}'))),
    calling("every call has index 0", calls(WHOLE), calls(fragment(0, "c2", "add", '{"a": 2}')),
            reply=Read(calls=(("add", {"a": 1}), ("add", {"a": 2}))), sdk="addadd"),
    calling("of the older wire", chunk({"function_call": {"name": "add", "arguments": '{"a": 1}'}}), sdk="loses it"),
    calling("of the older wire, beside text", chunk({"content": "Hi", "function_call": {"name": "add", "arguments": "{}"}}),
            reply=Read("Hi", calls=(("add", {}),)), sdk="loses it"),
    calling("a tool that takes text", calls({"index": 0, "id": "c1", "custom": {"name": "add", "input": "x"}}),
            reply=FAILS, sdk="loses its text"),
    calling("after the finish reason", chunk(finish="tool_calls"), calls(WHOLE)),
    calling("in the whole message", choice(index=0, message={"content": None, "tool_calls": [WHOLE]}), sdk="loses it"),
    calling("the vendor's own call", calls(fragment(0, "srvtoolu_1", "web_search", "")), calls(fragment(0, None, None, "{}")),
            calls({**WHOLE, "index": 1}), sdk="a call of the client's"),
]  # fmt: skip


# ---- messages

M_STOP = {"type": "message_stop"}


def begin(**fields: Any) -> Json:
    usage = {"input_tokens": 7, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    return {"type": "message_start", "message": {**message, "stop_sequence": None, "usage": usage, **fields}}


def block(index: Any, **fields: Any) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": fields}


def delta(index: Any, **fields: Any) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def close(index: Any) -> Json:
    return {"type": "content_block_stop", "index": index}


def finish(reason: str = "end_turn", **fields: Any) -> list[Json]:
    said = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": said, "usage": {"output_tokens": 3}, **fields}, M_STOP]


def spoken(*texts: Any, index: Any = 0) -> list[Json]:
    return [
        block(index, type="text", text=""), *(delta(index, type="text_delta", text=t) for t in texts), close(index)
    ]  # fmt: skip


def messages(name: str, *events: Json | bytes, reply: Read | str = HELLO, sdk: str = "") -> Case:
    return Case("messages", name, sse(events, names=True), reply, sdk)


def used(*events: Json, **fields: Any) -> tuple[Json, ...]:
    """A stream with one tool call."""
    use = {"type": "tool_use", "id": "t1", "name": "add", "input": {}, **fields}
    return (begin(), block(0, **use), *events, close(0), *finish("tool_use"))


HELLOS = spoken("Hel", "lo")
INPUT = delta(0, type="input_json_delta", partial_json='{"a": 1}')
SEARCH = (
    block(0, type="server_tool_use", id="srvtoolu_1", name="web_search", input={}),
    delta(0, type="input_json_delta", partial_json='{"query": "x"}'),
    close(0),
    block(1, type="web_search_tool_result", tool_use_id="srvtoolu_1", content=[{"type": "web_search_result"}]),
    close(1),
)

MESSAGES = [
    messages("plain", begin(), *HELLOS, *finish()),
    messages("pings", begin(), {"type": "ping"}, *HELLOS, {"type": "ping"}, *finish()),
    messages("a ping without data", begin(), b"event: ping\n\n", b"event: ping\ndata:\n\n", *HELLOS, *finish()),
    messages("null", begin(), b"event: ping\ndata: null\n\n", *HELLOS, *finish()),
    messages("type null", begin(), b'event: x\ndata: {"type": null}\n\n', *HELLOS, *finish()),
    messages("an event of another type", begin(), {"type": "new", "index": "z", "delta": 5}, *HELLOS, *finish()),
    messages("a delta of another type", begin(), *HELLOS[:2], delta(0, type="new", text=5), *HELLOS[2:], *finish()),
    messages("a block of another type", begin(), block(0, type="new", data={"x": 1}), close(0), *spoken("Hello", index=1),
             *finish()),
    messages("a block of another type with text", begin(), block(0, type="new", text=["x"]), close(0),
             *spoken("Hello", index=1), *finish()),
    messages("compaction", begin(), block(0, type="compaction", content=None, signature=None),
             delta(0, type="compaction_delta", content="sum"), close(0), *spoken("Hello", index=1), *finish()),
    messages("the vendor's own tool", begin(), *SEARCH, *spoken("Hello", index=2), *finish(), sdk="a call of the client's"),
    messages("a delta without a type", begin(), delta(0, text="x"), *finish(), reply="has no type", sdk="loses it"),
    messages("text null", begin(), block(0, type="text", text=None), delta(0, type="text_delta", text=None),
             *HELLOS[1:], *finish()),
    messages("text in parts", begin(), *spoken([{"type": "text", "text": "Hello"}]), *finish(), sdk="a list"),
    messages("text that nobody can read", begin(), *spoken({"x": 1}), *finish(), reply="text is {'x': 1}", sdk="a dict"),
    messages("index null", begin(), *spoken("Hello", index=None), *finish()),
    messages("index as text", begin(), *spoken("Hello", index="0"), *finish()),
    messages("index as a float", begin(), *spoken("Hello", index=0.0), *finish()),
    messages("no start of the block", begin(), *HELLOS[1:], *finish()),
    messages("no start", *HELLOS, *finish(), reply=Read("Hello", usage=(0, 3))),
    messages("no end", begin(), *HELLOS, reply="without a finish reason", sdk="takes half a reply for whole"),
    messages("usage at the start alone", begin(), *HELLOS, *finish(usage=None), reply=Read("Hello", usage=(7, 1))),
    messages("usage with a cache",
             begin(usage={"input_tokens": 2, "cache_creation_input_tokens": 4, "cache_read_input_tokens": 1}),
             *HELLOS, *finish(), sdk="without the cache"),
    messages("usage at the end alone", begin(usage=None), *HELLOS, *finish(usage={"input_tokens": 7, "output_tokens": 3}),
             sdk="AttributeError"),
    messages("usage as text", begin(usage={"input_tokens": "7"}), *HELLOS, *finish(usage={"output_tokens": 3.0}),
             sdk="as it came"),
    messages("usage with null", begin(usage={"input_tokens": 7, "cache_creation": None}), *HELLOS, *finish()),
    messages("usage with another form of a detail", begin(usage={"input_tokens": 7, "cache_creation": 5}), *HELLOS, *finish()),
    messages("signature null", begin(), block(0, type="thinking", thinking="", signature=None),
             delta(0, type="thinking_delta", thinking="hm"), close(0), *spoken("Hello", index=1), *finish(),
             reply=THOUGHT),
    messages("whole in the start", begin(content=[{"type": "text", "text": "Hello"}], stop_reason="end_turn"), M_STOP,
             reply=Read("Hello", usage=(7, 1)), sdk="loses it"),
    messages("an error", begin(), {"type": "error", "error": {"type": "api_error", "message": "boom"}}, reply="boom"),
    messages("an error as text", begin(), {"type": "error", "error": "boom"}, reply="boom"),
    messages("a call", *used(INPUT), reply=ADD),
    messages("input whole", *used(input={"a": 1}), reply=ADD),
    messages("input whole, and the block never closed", begin(), block(0, type="tool_use", id="t", name="add", input={"a": 1}),
             *finish("tool_use"), reply=ADD),
    messages("input whole and in fragments", *used(INPUT, input={"a": 1}), reply=ADD),
    messages("input as text", *used(input='{"a": 1}'), reply=ADD),
    messages("input that is a list", *used(input=[1]), reply=FAILS, sdk="a list"),
    messages("fragments that are objects", *used(delta(0, type="input_json_delta", partial_json={"a": 1})), reply=ADD),
    messages("input cut", *used(delta(0, type="input_json_delta", partial_json='{"a": ')),
             reply=FAILS, sdk="half"),
    messages("id null", *used(INPUT, id=None), reply=ADD),
    messages("id a number", *used(INPUT, id=5), reply=ADD),
    messages("a name that nobody can read", *used(INPUT, name={"x": 1}), reply="the name of a tool call", sdk="a dict"),
    messages("every block has the same index", begin(), *(e for n in (1, 2, 3) for e in (
        block(0, type="tool_use", id=f"t{n}", name="add", input={"a": n}),)), *finish("tool_use"),
        reply=Read(calls=tuple(("add", {"a": n}) for n in (1, 2, 3))), sdk="the last"),
]  # fmt: skip


# ---- responses

R_USAGE = {
    "input_tokens": 7, "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 10,
}  # fmt: skip
LOC = {"item_id": "i", "output_index": 0}


def event(kind: str, **fields: Any) -> Json:
    return {"type": f"response.{kind}", "sequence_number": 0, **fields}


def completed(kind: str = "completed", **fields: Any) -> Json:
    told = {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "status": kind,
        "model": "m",
        "output": [],
        "usage": R_USAGE,
    }
    return event(kind, response={**told, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], **fields})


def item(kind: str, step: str = "done", index: Any = 0, **fields: Any) -> Json:
    return event(f"output_item.{step}", output_index=index, item={"id": "i", "type": kind, **fields})


def made(arguments: Any = '{"a": 1}', **fields: Any) -> Json:
    return {"type": "function_call", "id": "i", "call_id": "c1", "name": "add", "arguments": arguments, **fields}


def said(text: str) -> Json:
    return event("output_text.delta", delta=text, content_index=0, logprobs=[], **LOC)


PART = {"type": "output_text", "text": "Hello", "annotations": []}
MESSAGE = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": [PART]}
ADDED = event("output_item.added", output_index=0, item=made(""))
ARGUMENTS = event("function_call_arguments.delta", delta='{"a": 1}', **LOC)
ARGUMENTS_DONE = event("function_call_arguments.done", arguments='{"a": 1}', name="add", **LOC)
CALL_DONE = event("output_item.done", output_index=0, item=made())
TEXT_DONE = event("output_text.done", text="Hello", content_index=0, logprobs=[], **LOC)
MESSAGE_DONE = event("output_item.done", output_index=0, item=MESSAGE)


def responses(
    name: str, *events: Json | bytes, reply: Read | str = HELLO, sdk: str = "", end: Json | None = None
) -> Case:
    return Case("responses", name, sse([*events, completed() if end is None else end], names=True), reply, sdk)


def called(name: str, *events: Json | bytes, reply: Read | str = ADD, sdk: str = "", end: Json | None = None) -> Case:
    return responses(name, *events, reply=reply, sdk=sdk, end=end)


RESPONSES = [
    responses("plain", said("Hel"), said("lo"), TEXT_DONE, MESSAGE_DONE),
    responses("the whole text alone", TEXT_DONE, sdk="the deltas alone"),
    responses("the whole message alone", MESSAGE_DONE, sdk="the deltas alone"),
    responses("the whole text, then the message", TEXT_DONE, MESSAGE_DONE, sdk="the deltas alone"),
    responses("the last event alone", end=completed(output=[MESSAGE]), sdk="the deltas alone"),
    responses("the last event too", said("Hello"), MESSAGE_DONE, end=completed(output=[MESSAGE])),
    responses("a refusal whole", item("message", content=[{"type": "refusal", "refusal": "Hello"}]), sdk="the deltas alone"),
    responses("delta null", event("output_text.delta", delta=None, **LOC), said("Hello"), sdk="TypeError"),
    responses("delta an object", event("output_text.delta", delta={"text": "Hello"}, **LOC), sdk="TypeError"),
    responses("a delta that nobody can read", event("output_text.delta", delta={"x": 1}, **LOC), reply="delta is {'x': 1}",
              sdk="TypeError"),
    responses("an event of another type", event("new.thing", delta={"x": 1}, item="odd", response=5), said("Hello")),
    responses("an item of another type", item("new", result=[1], content="x"), said("Hello")),
    responses("a server tool", item("web_search_call", "added"), item("web_search_call"), said("Hello")),
    responses("a click", item("computer_call", call_id="c"), reply="'computer_call' requests", sdk="hands it on"),
    responses("index as text", event("output_text.delta", delta="Hello", output_index="0", item_id="i")),
    responses("an error that is none", said("Hello"), end=completed(error="x")),
    responses("details null", said("Hello"), end=completed(usage={**R_USAGE, "input_tokens_details": None})),
    responses("usage as text", said("Hello"), end=completed(usage={"input_tokens": "7", "output_tokens": 3.0}), sdk="text"),
    responses("thoughts", event("reasoning_summary_text.delta", delta="hm", summary_index=0, **LOC), said("Hello"),
              reply=THOUGHT),
    responses("thoughts whole", item("reasoning", summary=[{"type": "summary_text", "text": "hm"}]), said("Hello"),
              reply=THOUGHT, sdk="the deltas alone"),
    responses("thoughts twice", event("reasoning_summary_text.delta", delta="hm", summary_index=0, **LOC),
              item("reasoning", summary=[{"type": "summary_text", "text": "hm"}]), said("Hello"), reply=THOUGHT),
    responses("failed", end=completed("failed", error={"code": "x", "message": "boom"}), reply="boom", sdk="an event"),
    responses("cancelled", end=completed("cancelled"), reply="cancelled", sdk="an event"),
    responses("an error of chat completions", {"error": {"message": "boom"}, "type": ""}, reply="boom"),
    called("a call", ADDED, ARGUMENTS, ARGUMENTS_DONE, CALL_DONE),
    called("no fragments", ADDED, ARGUMENTS_DONE, CALL_DONE),
    called("the arguments whole alone", ADDED, ARGUMENTS_DONE, sdk="items alone"),
    called("the arguments in the start alone", event("output_item.added", output_index=0, item=made()), sdk="items alone"),
    called("no start", ARGUMENTS, ARGUMENTS_DONE, CALL_DONE),
    called("the item alone", CALL_DONE),
    called("the last event alone", end=completed(output=[made()]), sdk="items alone"),
    called("the last event too", ADDED, ARGUMENTS, CALL_DONE, end=completed(output=[made()])),
    called("the last event too, at another place", *({**e, "output_index": 5} for e in (ADDED, ARGUMENTS, CALL_DONE)),
           end=completed(output=[made()])),
    called("arguments as an object", event("output_item.done", output_index=0, item=made({"a": 1}))),
    called("fragments that are objects", ADDED, event("function_call_arguments.delta", delta={"a": 1}, **LOC), sdk="items"),
    called("arguments that are a list", event("output_item.done", output_index=0, item=made([1])),
           reply=FAILS, sdk="a list"),
    called("nothing in the item", ADDED, ARGUMENTS, event("output_item.done", output_index=0, item=made("")), sdk="empty"),
    called("a tool that takes text", item("custom_tool_call", call_id="c1", name="add", input="x"),
           reply=FAILS, sdk="another item"),
]  # fmt: skip

CASES: list[Case] = [*CHAT, *MESSAGES, *RESPONSES]
