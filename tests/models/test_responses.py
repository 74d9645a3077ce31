"""OpenAI's `/responses` over the direct wire: the models that use it, requests, replies, and signed thoughts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentflow import Agent, ModelOptions, tool
from agentflow.errors import UnsupportedContentError, UsageError
from agentflow.models.openai_wire import OpenAIWire
from agentflow.models.provider_errors import ProviderError
from agentflow.models.responses_in import ItemsReader
from agentflow.testing.wire import Cite, Dialect, Fault, Script, ScriptedCall, UseTool, WireReply, WireServer, WireUsage
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ToolSpec, Usage

NAME = "openai/responses/gpt-5"
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PIXEL = DataBlock("image/png", data="iVBORw0KGgo=")
SEAL = "rs_1:gAAA"


def wire(server: WireServer, name: str = NAME, **options: Any) -> OpenAIWire:
    given: dict[str, Any] = {"family": "openai", "retries": 0, **options}
    return OpenAIWire(name, api_base=server.base_url, api_key="k", **given)


async def ask(model: OpenAIWire, *messages: Msg, options: ModelOptions | None = None, tools: Any = (ADD,)) -> Msg:
    request = ModelRequest(messages or (Msg.user("hi"),), tools, options or ModelOptions(), model.name)
    return fold([chunk async for chunk in model.stream(request)])


async def played(script: Script, *messages: Msg, options: ModelOptions | None = None, **more: Any) -> tuple[Msg, Any]:
    """Return the reply over a server that plays a script, and the request that it got."""
    async with WireServer.openai(script) as server:
        reply = await ask(wire(server, **more), *messages, options=options)
        server.assert_done()
    return reply, server.requests[-1].body


# ---- who is asked so


@pytest.mark.parametrize(
    ("name", "options", "path"),
    [
        ("openai/gpt-5", {}, "chat/completions"),
        ("openai/responses/gpt-5", {}, "responses"),
        ("openai/gpt-5.4", {}, "responses"),
        ("openai/gpt-5-codex", {}, "responses"),
        ("openai/gpt-5.4", {"api_base": "https://h/v1"}, "chat/completions"),
        ("openai/gpt-5.4", {"api_base": "https://h/v1", "family": "openai"}, "responses"),
        ("openai+https://h/v1#m", {}, "chat/completions"),
        ("openai+https://h/v1#responses/m", {}, "responses"),
    ],
)
def test_which_endpoint_a_model_is_asked_over(
    name: str, options: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name may set it; otherwise it is the endpoint that has the model, and at OpenAI the one with all its
    features.
    """
    for variable in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(variable, raising=False)
    model = OpenAIWire(name, **options)
    assert (model.name, model._url().partition("/v1/")[2]) == (name, path)  # pyright: ignore[reportPrivateUsage]


async def test_a_server_of_others_is_asked_without_what_only_openai_has() -> None:
    """Signatures are not requested if it is unknown whether the model thinks; the name is the server's."""
    async with WireServer.openai(["Hello."]) as server:
        model = OpenAIWire(f"openai+{server.base_url}#responses/small", retries=0)
        assert (await ask(model, tools=())).text == "Hello."
    assert server.requests[0].body == {
        "model": "small",
        "input": [{"role": "user", "content": "hi"}],
        "stream": True,
        "store": False,
    }


# ---- what is sent


async def test_a_conversation_with_everything_in_it() -> None:
    """Items are in the order in which they were made; results hold images; messages have no name field."""
    call = ToolUseBlock("toolu_1", "add", {"a": 1})
    messages = [
        Msg.system("Be kind."),
        Msg.user(["look", PIXEL, DataBlock("application/pdf", data="JVBERi0=", name="a.pdf")], name="ada"),
        Msg.assistant([TextBlock("so"), ThinkingBlock("Hm.", SEAL, model=NAME), call]),
        Msg.tool([ToolResultBlock("toolu_1", "add", (TextBlock("shot"), PIXEL))]),
        Msg.assistant([ThinkingBlock("Else.", "sig", model="another/model"), TextBlock("Done.")]),
        Msg.user("go on"),
    ]
    async with WireServer.openai(["ok"]) as server:  # refuses the seal, which it did not make, and then takes the rest
        await ask(wire(server), *messages, options=ModelOptions(max_tokens=500, thinking="low", tool_choice="add"))
    url = "data:image/png;base64,iVBORw0KGgo="
    image = {"type": "input_image", "image_url": url}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert server.requests[0].body == {
        "model": "gpt-5",
        "instructions": "Be kind.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "look"}, image, file]},
            {"role": "assistant", "content": "so"},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "Hm."}],
                "encrypted_content": "gAAA",
            },
            {"type": "function_call", "call_id": "toolu_1", "name": "add", "arguments": '{"a":1}'},
            {
                "type": "function_call_output",
                "call_id": "toolu_1",
                "output": [{"type": "input_text", "text": "shot"}, image],
            },
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "go on"},
        ],
        "tools": [{"type": "function", "name": "add", "description": "Adds.", "parameters": schema, "strict": False}],
        "tool_choice": {"type": "function", "name": "add"},
        "max_output_tokens": 500,
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "stream": True,
        "store": False,
    }


async def test_forms_params_and_extra() -> None:
    """A form is a format of the text; further fields are this endpoint's, and the nearer ones override."""
    form = {"title": "Bill", "type": "object", "properties": {"n": {"type": "integer"}}}
    options = ModelOptions(answer_schema=form, extra={"truncation": "auto"})
    _, body = await played(
        ['{"n": 1}'], options=options, params={"text": {"verbosity": "low"}, "truncation": "disabled"}
    )
    assert (body["truncation"], body["text"]["verbosity"]) == ("auto", "low")
    schema = {**form, "additionalProperties": False, "required": ["n"]}
    del schema["title"]
    assert body["text"]["format"] == {"type": "json_schema", "name": "Bill", "schema": schema, "strict": True}


async def test_what_the_endpoint_has_no_word_for_is_refused_before_it_is_sent() -> None:
    """Stop sequences and sounds are errors of the caller; a seed is left out, as for others without one."""
    sound = DataBlock("audio/wav", data="UklGRg==")
    async with WireServer.openai(["Hi"]) as server:
        with pytest.raises(UsageError, match="stop sequences, which /responses does not support"):
            await ask(wire(server), options=ModelOptions(stop=("END",)))
        with pytest.raises(UnsupportedContentError, match="takes no audio"):
            await ask(wire(server), Msg.user([sound]))
        assert (await ask(wire(server), options=ModelOptions(seed=3))).text == "Hi"


@pytest.mark.parametrize(
    "content",
    [
        (ThinkingBlock("Hm.", SEAL, model=NAME),),
        (TextBlock("so"), ThinkingBlock("Hm.", SEAL, model=NAME)),
        (ThinkingBlock("Hm.", None, model=NAME), TextBlock("so")),
        (ThinkingBlock("", None, "sealed", NAME), TextBlock("so")),
    ],
)
async def test_thoughts_that_led_to_nothing_or_lost_their_seal_stay_out(content: Any) -> None:
    """The vendor would refuse them."""
    _, body = await played(["ok"], Msg.user("a"), Msg.assistant(content), Msg.user("b"))
    assert [item["content"] for item in body["input"]] == ["a", "so" if len(content) > 1 else "(empty)", "b"]


async def test_a_thought_that_a_hook_has_doubled_goes_once() -> None:
    """An item may occur only once in a request."""
    made = [ThinkingBlock("", SEAL, model=NAME), TextBlock("so")]
    said = [Msg.user("a"), Msg.assistant(made), Msg.user("b"), Msg.assistant(made), Msg.user("c")]
    async with WireServer.openai(["ok"]) as server:
        await ask(wire(server), *said)
    assert [item.get("id") for item in server.requests[0].messages].count("rs_1") == 1


# ---- what comes back


async def test_a_reply_with_everything_in_it() -> None:
    """Thoughts with their signature, text with citations, calls, images, usage, and its price."""
    script = [
        WireReply(
            "Grass.",
            thinking="Hm.",
            calls=(ScriptedCall("add", {"a": 1}, "c1"), ScriptedCall("add", "", "c2")),
            cites=(Cite("https://e.com", "Grass"),),
            images=("data:image/png;base64,iVBORw0KGgo=",),
            usage=WireUsage(input=1000, output=500, cache_read=400, reasoning=300),
            interleave=True,
        )
    ]
    reply, _ = await played(script, options=ModelOptions(thinking="low"))
    assert [type(block).__name__ for block in reply.content] == [
        "ThinkingBlock",
        "TextBlock",
        "DataBlock",
        "ToolUseBlock",
        "ToolUseBlock",
    ]
    thought: Any = reply.content[0]
    assert (thought.text, thought.signature.partition(":")[0], thought.model) == ("Hm.", "rs_wire_0_0", NAME)
    assert [cited.url for cited in reply.citations] == ["https://e.com"]
    assert [(use.id, use.arguments) for use in reply.tool_uses] == [("c1", '{"a":1}'), ("c2", "{}")]
    usage = reply.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.reasoning_tokens) == (
        1400,
        500,
        400,
        300,
    )
    assert usage.cost == pytest.approx((1000 * 1.25 + 400 * 0.125 + 500 * 10) / 1e6)
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "fault",
    [
        Fault.no_index(),
        Fault.whole_calls(),
        Fault.crlf(),
        Fault.comments(),
        Fault.unknown_events(),
        Fault.split_bytes(7),
        Fault.one_write(),
        Fault.no_end_mark(),
        Fault.no_usage(),
    ],
    ids=lambda fault: fault.name,
)
async def test_other_forms_of_the_stream_are_the_same_reply(fault: Fault) -> None:
    """Servers that omit optional parts, or split them differently, are understood."""
    calls = (ScriptedCall("add", {"a": 1}, "c1"), ScriptedCall("add", {"a": 2}, "c2"))
    reply, _ = await played([WireReply("Words é", thinking="Hm.", calls=calls, chunk=3, faults=fault)])
    assert (reply.text, [(use.id, use.arguments) for use in reply.tool_uses]) == (
        "Words é",
        [("c1", '{"a":1}'), ("c2", '{"a":2}')],
    )


@pytest.mark.parametrize(
    ("line", "finish"),
    [
        (WireReply("So", finish="length"), "length"),
        (WireReply("So", finish="refusal"), "content_filter"),
        (WireReply("x", faults=Fault.refusal("So")), "content_filter"),
    ],
)
async def test_why_a_reply_ended(line: WireReply, finish: str) -> None:
    """Incomplete for the tokens, or for the filter; the text of a refusal is text, and its reason is the filter's."""
    reply, _ = await played([line])
    assert (reply.text, reply.finish_reason) == ("So", finish)


def failed(code: str, message: str = "It went wrong.") -> bytes:
    return json.dumps({"type": "response.failed", "response": {"error": {"code": code, "message": message}}}).encode()


@pytest.mark.parametrize(
    ("event", "status", "message"),
    [
        (failed("server_error"), None, "It went wrong."),
        (failed("invalid_prompt"), 400, "It went wrong."),
        (b'{"type": "error", "code": "rate_limit_exceeded", "message": "Slow down."}', None, "Slow down."),
        (b'{"type": "error", "error": {"code": "invalid_image", "message": "No image."}}', 400, "No image."),
        (b'{"type": "error", "error": "odd"}', None, "odd"),
        (b'{"type": "response.failed"}', None, "it failed without a reason"),
    ],
)
def test_events_that_end_a_reply_badly(event: bytes, status: int | None, message: str | None) -> None:
    """Whatever the form of the error, its text is reported, and whether the same request may succeed later."""
    with pytest.raises(ProviderError) as caught:
        reader().read(event)
    assert caught.value.status_code == status
    assert message is None or str(caught.value) == message


def reader() -> ItemsReader:
    return ItemsReader(NAME, lambda usage, *_: ModelChunk(usage=usage))


@pytest.mark.parametrize(
    "event",
    [
        b'{"type": "response.telemetry", "item": 3, "delta": {"x": 1}}',
        b'{"type": "response.output_item.done"}',
        b'{"type": "response.output_item.added", "item": {"type": "web_search_call", "id": "ws_1"}}',
        b'{"type": "response.output_item.done", "item": {"type": "image_generation_call", "result": "%%"}}',
        b"{}",
    ],
)
def test_events_that_nobody_knows_say_nothing(event: bytes) -> None:
    """They are skipped."""
    assert not reader().read(event)


@pytest.mark.parametrize("odd", [{"incomplete_details": "none"}, {"output": 7}])
def test_usage_is_counted_if_other_fields_have_unexpected_types(odd: dict[str, Any]) -> None:
    """The end of such a reply is that of one without them."""
    details = {"input_tokens_details": {"cached_tokens": 2}, "output_tokens_details": {"reasoning_tokens": 1}}
    response = {"usage": {"input_tokens": 7, "output_tokens": 3, **details}, "output": []}
    usual, unusual = (
        reader().read(json.dumps({"type": "response.completed", "response": response | more}).encode())
        for more in ({}, odd)
    )
    assert (fold(unusual).usage, unusual) == (Usage(7, 3, 2, 0, 1, model_calls=1), usual)


def test_a_character_that_is_cut_in_two_is_whole_in_the_reply() -> None:
    """Its halves come in two events, from servers that split within a character."""
    read = reader().read
    halves = [rb'{"type": "response.output_text.delta", "delta": "%s"}' % half for half in (rb"\ud83d", rb"\ude00")]
    assert fold([chunk for half in halves for chunk in read(half)]).text == "\U0001f600"


@pytest.mark.parametrize("repeats", [0, 1, 2, 3])
def test_a_text_is_read_once_however_many_events_repeat_it(repeats: int) -> None:
    """Servers leave out the ends of parts and items."""
    item = {"type": "message", "content": [{"type": "output_text", "text": "Hello."}]}
    events = [
        {"type": "response.output_text.delta", "delta": "Hello."},
        {"type": "response.output_text.done", "text": "Hello."},
        {"type": "response.output_item.done", "item": item},
    ][:repeats]
    read = reader().read
    last = {"type": "response.completed", "response": {"output": [item]}}
    assert fold([chunk for event in (*events, last) for chunk in read(json.dumps(event).encode())]).text == "Hello."


async def test_errors_of_the_stream_are_retried_where_they_may_pass() -> None:
    """The reply starts again, with restart."""
    async with WireServer.openai([WireReply("Hel", faults=Fault.error_event("text")), "Hello."]) as server:
        model = wire(server, retries=1, sleep=_no_wait)
        request = ModelRequest((Msg.user("hi"),), (), ModelOptions(), model.name)
        chunks = [chunk async for chunk in model.stream(request)]
    assert ([chunk.restart for chunk in chunks].count(True), fold(chunks).text) == (1, "Hello.")


async def _no_wait(seconds: float) -> None:
    del seconds


# ---- thoughts under seal


@tool
async def add(a: int) -> int:
    """Add one."""
    return a + 1


async def test_a_round_gives_its_thoughts_back_under_seal() -> None:
    """The server accepts its own signatures, across rounds and calls; nothing is stored there."""
    script = [
        UseTool("add", {"a": 1}, thinking="One more."),
        UseTool("add", {"a": 2}, thinking=("And", "again.")),
        WireReply("4", thinking="Done."),
        "Bye.",
    ]
    async with WireServer.openai(script, dialect=Dialect.reasoning()) as server:
        agent = Agent("adder", wire(server), tools=[add], options=ModelOptions(thinking="high"))
        assert (await agent.call("1?")).text == "4"
        assert (await agent.call("Thanks.")).text == "Bye."
        server.assert_done()
    kinds = [item.get("type") or item["role"] for item in server.requests[-1].messages]
    step = ["reasoning", "function_call", "function_call_output"]
    assert kinds == ["user", *step, "reasoning", *step, "reasoning", "assistant", "user"]
    assert {request.body["store"] for request in server.requests} == {False}


async def test_seals_that_the_server_cannot_open_are_left_out() -> None:
    """A session that moves to another account continues, without its thoughts."""
    before = (Msg.user("a"), Msg.assistant([ThinkingBlock("Hm.", SEAL, model=NAME), TextBlock("so")]), Msg.user("b"))
    async with WireServer.openai(["Well."]) as server:
        assert (await ask(wire(server), *before)).text == "Well."
    assert [request.rule for request in server.requests] == ["responses.seal", None]


@pytest.mark.parametrize("last", ["response.completed", "response.incomplete"])
def test_a_reply_ends_with_its_last_event(last: str) -> None:
    """The connection is read no further: some servers leave it open."""
    reading = reader()
    assert not reading.ended
    reading.read(json.dumps({"type": last, "response": {"status": last.partition(".")[2]}}).encode())
    assert reading.ended
