"""The direct wires read what servers send, as the vendors' own clients do or better; no part of a reply is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import anthropic
import httpx
import httpx2
import msgspec
import openai
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentflow.errors import ModelError
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.openai_wire import OpenAIWire
from agentflow.models.provider_errors import broken_stream, model_error
from agentflow.models.sse import EventReader
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.messages import Msg

from .conformance import CASES, Case, Read, begin, block, calls, chunk, completed, finish, fragment, made, sse

MODELS: dict[str, Any] = {
    "chat": OpenAIWire("m", api_base="http://127.0.0.1/v1", api_key="k"),
    "responses": OpenAIWire("responses/m", api_base="http://127.0.0.1/v1", api_key="k"),
    "messages": AnthropicWire("claude-sonnet-4-5", api_key="k"),
}


def read(wire: str, stream: bytes, size: int = 0) -> Msg:
    """Return the reply in a stream, as the wire reads it from reads of `size` bytes.

    Raises:
        ModelError: There is none.
    """
    model = MODELS[wire]
    reader = model._reader(model._converter())
    events, chunks = EventReader(), list[ModelChunk]()
    parts = [stream] if not size else [stream[at : at + size] for at in range(0, len(stream), size)]
    try:
        for data in (data for part in parts for data in events.feed(part)):
            if not reader.ended:
                chunks += reader.read(data)
        for data in () if reader.ended else events.rest():
            chunks += reader.read(data)
        if reader.finish_reason is None:
            raise broken_stream(model.name)
    except ModelError:
        raise
    except Exception as error:
        raise model_error(error, model.name) from error
    return fold(chunks)


def what(reply: Msg) -> Read:
    called = tuple((use.name, "no object" if use.input_error else dict(use.input)) for use in reply.tool_uses)
    usage = reply.usage
    return Read(reply.text, reply.thinking, called, (usage.input_tokens, usage.output_tokens) if usage else None)


@pytest.mark.parametrize("size", [0, 1], ids=["one part", "bytes"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.wire}: {case.name}")
def test_a_stream_is_read(case: Case, size: int) -> None:
    """In any form: the reply that it contains, or an error that names what was not understood."""
    if isinstance(case.reply, str):
        with pytest.raises(ModelError) as caught:
            read(case.wire, case.stream, size)
        assert case.reply in str(caught.value)
    else:
        assert what(read(case.wire, case.stream, size)) == case.reply


# ---- beside the vendors' clients


async def by_sdk(case: Case) -> Read | str:
    """Return the result of the vendor's own client."""

    package: Any = httpx2 if case.wire == "messages" else httpx  # what each client is built on

    def answer(request: object) -> object:
        return package.Response(200, headers={"content-type": "text/event-stream"}, content=case.stream)

    http = package.AsyncClient(transport=package.MockTransport(answer))
    reading = {"chat": _chat, "messages": _messages, "responses": _responses}[case.wire]
    said, thought, called, usage = "", "", dict[Any, list[str]](), None
    try:
        async with http:
            async for kind, key, value in reading(http):
                match kind:
                    case "text":
                        said += value
                    case "thinking":
                        thought += value
                    case "name":
                        called.setdefault(key, ["", ""])[0] += value
                    case "arguments":
                        called.setdefault(key, ["", ""])[1] += value if isinstance(value, str) else json.dumps(value)
                    case _:
                        usage = value
    except (openai.APIError, anthropic.APIError) as error:
        return f"{error} {error.body}"
    return Read(said, thought, tuple((name, json.loads(text)) for name, text in called.values()), usage)


Piece = tuple[str, Any, Any]


async def _chat(http: Any) -> AsyncIterator[Piece]:
    client = openai.AsyncOpenAI(api_key="k", http_client=http, max_retries=0)
    stream = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
    async for event in stream:
        if event.usage:
            yield "usage", None, (event.usage.prompt_tokens, event.usage.completion_tokens)
        for choice in event.choices or ():
            delta = cast("Any", choice.delta)
            if delta is None:
                continue
            for name, kind in (("content", "text"), ("refusal", "text"), ("reasoning", "thinking")):
                if value := getattr(delta, name, None):
                    yield kind, None, value
            for call in delta.tool_calls or ():
                if call.function and call.function.name:
                    yield "name", call.index, call.function.name
                if call.function and call.function.arguments:
                    yield "arguments", call.index, call.function.arguments


async def _messages(http: Any) -> AsyncIterator[Piece]:
    client = anthropic.AsyncAnthropic(api_key="k", http_client=http, max_retries=0)
    hi: Any = [{"role": "user", "content": "hi"}]
    into = out = 0
    whole: dict[int, Any] = {}
    async for told in await client.messages.create(model="m", max_tokens=9, messages=hi, stream=True):
        event: Any = told
        match event.type, getattr(getattr(event, "delta", None), "type", None):
            case "message_start", _:
                into, out = event.message.usage.input_tokens, event.message.usage.output_tokens
            case "content_block_start", _ if event.content_block.type == "tool_use":
                yield "name", event.index, event.content_block.name
                whole[event.index] = event.content_block.input
            case "content_block_start", _ if event.content_block.type == "text":
                yield "text", None, event.content_block.text or ""
            case _, "text_delta":
                yield "text", None, event.delta.text or ""
            case _, "thinking_delta":
                yield "thinking", None, event.delta.thinking
            case _, "input_json_delta":
                whole.pop(event.index, None)
                yield "arguments", event.index, event.delta.partial_json
            case "message_delta", _:
                out = event.usage.output_tokens if event.usage else out
            case _:
                pass
    for index, value in whole.items():
        yield "arguments", index, value
    yield "usage", None, (into, out)


async def _responses(http: Any) -> AsyncIterator[Piece]:
    client = openai.AsyncOpenAI(api_key="k", http_client=http, max_retries=0)
    async for event in await client.responses.create(model="m", input="hi", stream=True):
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                yield "text", None, event.delta
            case "response.reasoning_summary_text.delta":
                yield "thinking", None, event.delta
            case "response.output_item.done" if event.item.type == "function_call":
                yield "name", event.output_index, event.item.name
                yield "arguments", event.output_index, event.item.arguments
            case "response.completed" if event.response.usage:
                yield "usage", None, (event.response.usage.input_tokens, event.response.usage.output_tokens)
            case _:
                pass


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.wire}: {case.name}")
async def test_the_vendors_client_reads_the_same(case: Case) -> None:
    """The same bytes give the same reply, except where the row says that the client loses or mixes something."""
    try:
        theirs = await by_sdk(case)
    except (AttributeError, KeyError, TypeError, ValueError):
        theirs = None
    same = case.reply in theirs if isinstance(case.reply, str) and isinstance(theirs, str) else case.reply == theirs
    if not case.sdk:
        assert same, theirs
    else:
        assert not same, "the row says that they differ"


# ---- a tool never runs with defaults instead of what was said

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), inner)
    ),
    max_leaves=5,
)


def carrying(wire: str, value: Any, place: str) -> bytes:
    """Return a stream in which a call's arguments are this value."""
    if wire == "chat":
        call = fragment(0, "c1", "add")
        return sse([calls({**call, "function": {"name": "add", "arguments": value}}), chunk(finish="tool_calls")])
    if wire == "messages":
        start = block(0, type="tool_use", id="t1", name="add", input=value if place == "start" else {})
        later = {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": value},
        }
        return sse([begin(), start, *([] if place == "start" else [later]), *finish("tool_use")])
    if place == "start":
        return sse([{"type": "response.output_item.added", "output_index": 0, "item": made(value)}, completed()])
    return sse([completed(output=[made(value)])])


@given(wire=st.sampled_from(["chat", "messages", "responses"]), place=st.sampled_from(["start", "later"]), value=values)
@example("chat", "start", {"path": "/tmp/x"})
def test_arguments_are_what_was_said_or_the_call_fails(wire: str, place: str, value: Any) -> None:
    """Arguments of every JSON value, in every place: the same object, the one that the text contains, or no run."""
    try:
        reply = read(wire, carrying(wire, value, place))
    except ModelError:
        return
    [use] = reply.tool_uses
    if isinstance(value, dict):
        assert dict(use.input) == json.loads(json.dumps(value))
    elif use.input_error is None:
        text = value if isinstance(value, str) else ""
        assert not value or dict(use.input) == (msgspec.json.decode(text) if text.strip() else {})
