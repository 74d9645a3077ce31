"""OpenAI's own client on `/responses`: streams, whole replies, rounds that are given back, what is refused and what breaks."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from agentflow.testing.wire import Cite, Fault, Say, Script, ScriptedCall, UseTool, WireReply, WireServer, WireUsage

ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}, "strict": False}
SEALED: Any = ["reasoning.encrypted_content"]
FULL = WireReply(
    "Sure é",
    thinking="I think",
    calls=(ScriptedCall("add", {"a": 1}), ScriptedCall("now", "", id="mine")),
    usage=WireUsage(input=11, output=5, cache_read=4, cache_write=2, reasoning=3),
    chunk=4,
)


@asynccontextmanager
async def played(script: Script) -> AsyncIterator[tuple[WireServer, openai.AsyncOpenAI]]:
    """A server, and the vendor's client on it."""
    async with (
        WireServer.openai(script) as server,
        openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client,
    ):
        yield server, client


async def events_of(client: openai.AsyncOpenAI, **asked: Any) -> list[Any]:
    return [event async for event in await client.responses.create(model="m", input="hi", stream=True, **asked)]


async def test_a_stream_has_the_vendors_events_and_ends_in_the_whole_reply() -> None:
    """Each item is begun, streamed and done; the last event has the content of a reply that is not streamed."""
    async with played([FULL, FULL]) as (server, client):
        asked: Any = {"tools": [ADD], "reasoning": {"summary": "auto"}, "include": SEALED}
        events = await events_of(client, **asked)
        whole = await client.responses.create(model="m", input="hi", **asked)
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        *["reasoning_summary_text.delta"] * 2,
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 2,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        *["function_call_arguments.delta"] * 2,
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    told = events[-1].response
    assert [item.type for item in told.output] == ["reasoning", "message", "function_call", "function_call"]
    assert (told.output[0].summary[0].text, told.output_text) == ("I think", "Sure é")
    assert [(item.call_id, item.arguments) for item in told.output[2:]] == [("call_wire_0_0", '{"a":1}'), ("mine", "")]
    assert (told.usage.input_tokens, told.usage.input_tokens_details.cached_tokens) == (17, 4)
    assert (told.usage.output_tokens, told.usage.output_tokens_details.reasoning_tokens) == (5, 3)
    assert [item.type for item in whole.output] == [item.type for item in told.output]
    assert [request.wire for request in server.requests] == ["responses"] * 2
    server.assert_done()


async def test_words_and_seals_of_thoughts_come_to_those_who_ask_for_them() -> None:
    """Without a wish for a summary a thought has no words; without its seal it goes back only to where it is kept."""
    async with played([FULL, Say("3")]) as (server, client):
        first = await client.responses.create(model="m", input="1 + 2?")
        thought: Any = first.output[0]
        assert (thought.type, thought.summary, thought.encrypted_content) == ("reasoning", [], None)
        given: Any = [{"role": "user", "content": "1 + 2?"}, *[item.to_dict() for item in first.output]]
        given += [{"type": "function_call_output", "call_id": i, "output": "3"} for i in ("call_wire_0_0", "mine")]
        assert (await client.responses.create(model="m", input=given)).output_text == "3"
        with pytest.raises(openai.NotFoundError, match="Items are not persisted when `store` is set to false"):
            await client.responses.create(model="m", input=given, store=False)
        with pytest.raises(openai.BadRequestError, match="without its required 'reasoning' item: 'rs_wire_0_0'"):
            await client.responses.create(model="m", input=[item for item in given if item.get("type") != "reasoning"])
        with pytest.raises(
            openai.BadRequestError, match="No tool call found for function call output with call_id mine"
        ):
            await client.responses.create(model="m", input=given[-1:])
    assert [request.refused is None for request in server.requests] == [True, True, False, False, False]


async def test_a_reply_that_is_cut_off_or_refused_says_so() -> None:
    """`length` is incomplete for the tokens, `refusal` for the filter; a refusal in words is a part of its own."""
    script = [
        WireReply("So", finish="length"),
        WireReply("So", finish="refusal"),
        WireReply("x", faults=Fault.refusal("No.")),
    ]
    async with played(script) as (_, client):
        length, filtered, refused = [(await events_of(client))[-1].response for _ in script]
    assert (length.status, length.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (filtered.status, filtered.incomplete_details.reason) == ("incomplete", "content_filter")
    assert (refused.status, refused.output[0].content[0].refusal) == ("completed", "No.")


async def test_citations_images_and_calls_in_turns() -> None:
    """Cited text is annotated, an image is an item, and two calls may be streamed at once, after the text."""
    calls = (ScriptedCall("a", {"x": 1}), ScriptedCall("b", {"x": 2}))
    cited = WireReply("Grass.", cites=(Cite("https://e.com", "Grass"),), images=("data:image/png;base64,AAAA",))
    async with played([cited, WireReply("Both.", calls=calls, chunk=4, interleave=True)]) as (_, client):
        first, second = await events_of(client), await events_of(client)
    note = first[-1].response.output[0].content[0].annotations[0]
    assert (note.type, note.url, first[-1].response.output[1].result) == ("url_citation", "https://e.com", "AAAA")
    steps = [(e.type.split(".", 1)[1], e.output_index) for e in second if re.search("item|arguments.delta", e.type)]
    assert steps == [
        ("output_item.added", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("output_item.added", 2),
        *[("function_call_arguments.delta", 1), ("function_call_arguments.delta", 2)] * 2,
        ("output_item.done", 1),
        ("output_item.done", 2),
    ]
    assert [item.arguments for item in second[-1].response.output[1:]] == ['{"x":1}', '{"x":2}']


async def test_what_goes_wrong_reaches_the_client_as_it_does_from_the_vendor() -> None:
    """An HTTP error, an error in the stream, and a stream that is torn."""
    script = [Fault.status(429), WireReply("Hi", faults=Fault.error_event("text", type="server_error")), Fault.html()]
    async with played([*script, UseTool("add", faults=Fault.cut("call"))]) as (server, client):
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model="m", input="hi")
        assert (await events_of(client))[-1].code == "server_error"
        with pytest.raises(openai.InternalServerError):
            await client.responses.create(model="m", input="hi")
        # openai 2 raises httpx's error as it is, openai 3 wraps that of httpx2.
        with pytest.raises(Exception, match=r"peer closed|Connection error") as torn:
            await events_of(client)
        assert type(torn.value.__cause__ or torn.value).__name__ == "RemoteProtocolError"
        server.assert_done()
