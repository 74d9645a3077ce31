"""The direct wires compared with LiteLLM: the same requests, keys for their own host only, and closed connections."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentflow import Agent
from agentflow.errors import ModelError, UnsupportedContentError, UsageError
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.clients import close_clients
from agentflow.models.listing import listed, price
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.litellm_library import library
from agentflow.models.openai_wire import OpenAIWire
from agentflow.testing.wire import Fault, Say, ScriptedCall, WireReply, WireServer
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import Model, ModelRequest
from agentflow.vocabulary.specs import ModelOptions, ToolSpec, Usage

from .catcher import Catcher, KeepAlive
from .conftest import DIRECT

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PIXEL = DataBlock("image/png", data="iVBORw0KGgo=")
PAGE = DataBlock("application/pdf", data="JVBERi0=", name="a.pdf")
FAR = DataBlock("image/png", url="https://example.org/a.png")
FORM = {"title": "Bill", "type": "object", "properties": {"n": {"type": "integer"}}}
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_COMPATIBLE_API_KEY", "ANTHROPIC_COMPATIBLE_API_KEY")
BASES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE")

wires = pytest.mark.parametrize("wire", ["openai", "anthropic"])


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and addresses of the environment have no effect."""
    for name in (*KEYS, *BASES):
        monkeypatch.delenv(name, raising=False)


def history(name: str) -> list[Msg]:
    """Return a conversation with every kind of content."""
    call = ToolUseBlock("toolu_1", "add", {"a": 1})
    return [
        Msg.system("Be kind."),
        Msg.user(["hi", PIXEL, PAGE, FAR]),
        Msg.assistant([ThinkingBlock("Hm.", "seal", model=name), TextBlock("so"), call]),
        Msg.tool([ToolResultBlock("toolu_1", "add", (TextBlock("shot"), PIXEL))]),
        Msg.user("go on"),
    ]


async def sent(build: Callable[..., Model], name: str, options: ModelOptions) -> dict[str, Any]:
    """Return what an adapter sends."""
    async with Catcher() as server:
        base, family = (f"{server.url}/v1", "openai") if name.startswith("openai") else (server.url, None)
        model = build(name, api_base=base, api_key="k", retries=0, family=family)
        with pytest.raises(ModelError):
            await anext(aiter(model.stream(ModelRequest(history(name), (ADD,), options, name))))
        return json.loads(json.dumps(server.bodies[0]))


OPTIONS = [
    ModelOptions(),
    ModelOptions(max_tokens=4000, thinking="low"),
    ModelOptions(max_tokens=4000, thinking=2000),
    ModelOptions(tool_choice="add"),
    ModelOptions(tool_choice="required", thinking="high"),
    ModelOptions(tool_choice="none", seed=3),
    ModelOptions(thinking=False, max_tokens=10),
    ModelOptions(answer_schema=FORM),
]


@pytest.mark.parametrize(
    "options",
    OPTIONS,
    ids=lambda o: ",".join(
        k for k in ("max_tokens", "thinking", "tool_choice", "answer_schema") if getattr(o, k) is not None
    ),
)
@pytest.mark.parametrize(
    "name",
    [
        "openai/gpt-4o",
        "openai/gpt-5",
        "anthropic/claude-sonnet-4-5",
        "anthropic/claude-opus-4-6",
        "anthropic/claude-opus-4-8",
    ],
)
async def test_what_is_sent_is_what_litellm_sends(name: str, options: ModelOptions) -> None:
    """Media, calls, thoughts, choices and forms become the same request on both paths, except for the listed
    differences.
    """
    theirs = await sent(LiteLLMModel, name, options)
    ours = await sent(DIRECT[name.partition("/")[0]], name, options)
    if name.startswith("anthropic"):
        assert ours["messages"][0]["content"][2].pop("title") == "a.pdf"  # LiteLLM leaves the file's name out
        for tool in theirs["tools"]:
            tool.pop("type", None)  # "custom" is the default
        if form := theirs.pop("output_format", None):  # under a beta header
            theirs["output_config"] = {**theirs.get("output_config", {}), "format": form}
        if options.thinking == 2000 and name.endswith("4-8"):  # an effort for the budget, and thoughts with their words
            assert (ours.pop("thinking"), theirs.pop("thinking")) == (
                {"type": "adaptive", "display": "summarized"},
                {"type": "adaptive"},
            )
            assert (ours.pop("output_config"), theirs.pop("output_config")) == ({"effort": "medium"}, {"effort": "low"})
    assert ours == theirs


# ---- keys and addresses


@asynccontextmanager
async def hearing(
    status: int = 400, headers: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[str, list[web.Request]]]:
    """A server that records and refuses requests."""
    heard: list[web.Request] = []

    async def refuse(request: web.BaseRequest) -> web.Response:
        heard.append(request)  # pyright: ignore[reportArgumentType]
        await request.read()
        return web.json_response({"error": {"message": "no"}}, status=status, headers=headers)

    runner = web.ServerRunner(web.Server(refuse))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", heard
    await runner.cleanup()


async def asked(model: Model, options: ModelOptions | None = None) -> list[ModelChunk]:
    request = ModelRequest([Msg.user("hi")], (), options or ModelOptions(), model.name)
    return [chunk async for chunk in model.stream(request)]


async def refused(model: Model, options: ModelOptions | None = None) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await asked(model, options)
    return caught.value


def key_of(request: web.Request) -> str:
    return request.headers.get("authorization") or request.headers["x-api-key"]


@wires
async def test_a_key_goes_to_its_own_host_alone(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vendor's key is sent to the vendor, or to the address of the vendor's variable; never to another
    `api_base`.
    """
    name = wire.upper()
    monkeypatch.setenv(f"{name}_API_KEY", "vendors-own")
    async with hearing() as (url, heard):
        await refused(DIRECT[wire]("m", api_base=url, retries=0))
        monkeypatch.setenv(f"{name}_COMPATIBLE_API_KEY", "for-others")
        await refused(DIRECT[wire]("m", api_base=url, retries=0))
        await refused(DIRECT[wire]("m", api_base=url, api_key="given", retries=0))
        monkeypatch.setenv(f"{name}_BASE_URL", url)
        await refused(DIRECT[wire]("m", retries=0))
    assert [key_of(request).removeprefix("Bearer ") for request in heard] == [
        "none",
        "for-others",
        "given",
        "vendors-own",
    ]


@wires
async def test_a_missing_key_is_told_and_nothing_sent(wire: str) -> None:
    """Without a key the error names the variable."""
    error = await refused(DIRECT[wire]("m", retries=0))
    assert (error.status, error.retryable, error.kind) == (401, False, "authentication")
    assert f"There is no API key for {wire}/m: set the environment variable {wire.upper()}_API_KEY" in str(error)


@wires
async def test_no_redirect_is_followed(wire: str) -> None:
    """A redirect would get the key: it is an error."""
    async with hearing() as (other, there), hearing(307, {"location": other}) as (url, here):
        error = await refused(DIRECT[wire]("m", api_base=url, api_key="k", retries=0))
    assert (len(here), len(there), error.status) == (1, 0, 307)


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests use `HTTP_PROXY`, except for hosts in `NO_PROXY`."""
    async with hearing() as (proxy, heard), hearing() as (near, there):
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        await refused(OpenAIWire("m", api_base="http://models.invalid/v1", api_key="k", retries=0))
        await refused(OpenAIWire("m", api_base=near, api_key="k", retries=0))
    assert [str(request.url) for request in heard] == ["http://models.invalid/v1/chat/completions"]
    assert len(there) == 1


@wires
async def test_headers_and_fields_are_sent_along(wire: str) -> None:
    """`headers=`, `params=` and `extra` reach the server; `extra_headers` are headers."""
    async with Catcher() as server:
        model = DIRECT[wire](
            "m", api_base=server.url, api_key="k", retries=0, headers={"x-a": "1"}, params={"top_k": 5}
        )
        await refused(model, ModelOptions(extra={"metadata": {"a": "b"}, "extra_headers": {"x-b": "2"}}))
        body = server.bodies[0]
    assert (body["top_k"], body["metadata"], "extra_headers" in body) == (5, {"a": "b"}, False)
    async with hearing() as (url, heard):
        model = DIRECT[wire]("m", api_base=url, api_key="k", retries=0, headers={"x-a": "1"})
        await refused(model, ModelOptions(extra={"extra_headers": {"x-b": "2"}}))
    assert (heard[0].headers["x-a"], heard[0].headers["x-b"]) == ("1", "2")


def test_names() -> None:
    """A name may include the vendor, or the whole address; an invalid one is refused."""
    assert [OpenAIWire(name).name for name in ("gpt-5", "openai/gpt-5")] == ["openai/gpt-5"] * 2
    assert AnthropicWire("claude-opus-4-8").name == "anthropic/claude-opus-4-8"
    assert OpenAIWire("openai+https://h:1/v1#org/m").name == "openai+https://h:1/v1#org/m"
    for wrong in ("openai+http://h/v1", "openai+http://#m", "openai+http://key@h/v1#m"):
        with pytest.raises(UsageError, match="'openai\\+http://host:8000/v1#model'"):
            OpenAIWire(wrong)
    with pytest.raises(UsageError, match="must begin with http"):
        OpenAIWire("m", api_base="127.0.0.1:8000")
    for wrong in (
        "http://[::1/v1",
        "http://h:99999/v1",
        "http://h:p/v1",
        "http://h:0/v1",
        "http:///v1",
        "http://a b/v1",
    ):
        with pytest.raises(UsageError, match=r"api_base='http://.* is invalid: (it is not a URL|it has no host)"):
            AnthropicWire("m", api_base=wrong)
    with pytest.raises(UsageError, match="it is not a URL: Invalid IPv6 URL"):
        OpenAIWire("openai+http://[::1#m")
    with pytest.raises(UsageError, match="needs a model name"):
        AnthropicWire("anthropic/")
    with pytest.raises(UsageError, match=r"contains \['stream'\], which OpenAIWire sets itself"):
        OpenAIWire("m", params={"stream": False})


async def test_a_server_by_its_address() -> None:
    """`openai+http://…#model` uses that server and that model."""
    async with WireServer.openai(["Hello."]) as server:
        model = OpenAIWire(f"openai+{server.base_url}#org/small", retries=0)
        assert fold(await asked(model)).text == "Hello."
    assert server.requests[0].model == "org/small"


def certificate(folder: Path) -> Path:
    """A key and a self-signed certificate for 127.0.0.1, in one file."""
    file = folder / "own.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *names, "-keyout", file, "-out", folder / "cert.pem"], check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + (folder / "cert.pem").read_bytes())
    return file


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
async def test_certificates_are_checked(tmp_path: Path) -> None:
    """A server with an unknown certificate is refused, unless `tls=` has it or checks none."""
    file = await asyncio.to_thread(certificate, tmp_path)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(file)

    async def answer(request: web.BaseRequest) -> web.Response:
        await request.read()
        return web.json_response({"error": {"message": "so far, so good"}}, status=400)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=served).start()
    base = f"https://127.0.0.1:{runner.addresses[0][1]}"
    trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    said = [
        str(await refused(OpenAIWire("m", api_base=base, api_key="k", retries=0, tls=tls)))
        for tls in (True, trusted, False)
    ]
    await close_clients()
    await runner.cleanup()
    assert re.search("certificate verify failed", said[0])
    assert ["so far, so good" in words for words in said] == [False, True, True]


# ---- streams


@wires
async def test_a_reader_that_stops_closes_the_connection_at_once(wire: str) -> None:
    """Closed or cancelled within a reply, the connection is closed before the next line."""
    async with getattr(WireServer, wire)(lambda request: Say("never ends", faults=Fault.hang("text"))) as server:
        model = DIRECT[wire]("m", api_base=server.base_url, api_key="k", retries=0)
        chunks = model.stream(ModelRequest([Msg.user("hi")], (), ModelOptions(), model.name))
        await anext(chunks)
        await chunks.aclose()
        async with asyncio.timeout(5):
            await server.wait_closed_connections()
        task = asyncio.ensure_future(asked(model))
        async with asyncio.timeout(5):
            await server.wait_requests(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await server.wait_closed_connections()
    assert [request.ending for request in server.requests] == ["client left"] * 2


@wires
async def test_a_silent_server_is_given_up(wire: str) -> None:
    """Silence beyond `timeout`, before the head and within the stream, is a retryable failure."""
    script = [WireReply(faults=Fault.hang()), Say("half", faults=Fault.hang("text"))]
    async with getattr(WireServer, wire)(script) as server:
        model = DIRECT[wire]("m", api_base=server.base_url, api_key="k", retries=0, timeout=0.05)
        errors = [await refused(model), await refused(model)]
    assert [(error.retryable, error.status) for error in errors] == [(True, None)] * 2
    assert all("did not answer in time" in str(error) for error in errors)


@wires
async def test_a_server_that_is_killed_and_comes_back(wire: str) -> None:
    """A reply that breaks with its server is requested again from the restarted one."""
    build = getattr(WireServer, wire)
    async with build([Say("half of it", chunk=4, faults=Fault.hang("text"))]) as first, build(["whole"]) as second:
        waits: list[float] = []

        async def wait(seconds: float) -> None:
            waits.append(seconds)
            model._api_base = second.base_url

        model = DIRECT[wire]("m", api_base=first.base_url, api_key="k", sleep=wait)
        chunks: list[ModelChunk] = []
        async for chunk in model.stream(ModelRequest([Msg.user("hi")], (), ModelOptions(), model.name)):
            chunks.append(chunk)
            if len(chunks) == 1:
                await first.stop()
    assert (len(waits), fold(chunks).text) == (1, "whole")


@wires
async def test_a_connection_is_used_again(wire: str) -> None:
    """Replies that are read to their end, one after the other, use one connection."""
    with KeepAlive() as server:
        base = f"http://127.0.0.1:{server.port}"
        model = DIRECT[wire]("m", api_base=base, api_key="k", retries=0)
        for _ in range(3):
            await asked(model)
        assert (server.answered, server.connections) == (3, 1)
        await close_clients()


@wires
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Fault.raw_body('{"error": {"message": "no such thing", "type": "server_error"}}'), "no such thing"),
        (Fault.raw_body('[{"error": {"message": "in a list"}}]'), "in a list"),
        (Fault.raw_body('{"choices": []}'), "without a stream of events"),
        (Fault.empty_body(), "without a stream of events"),
        (Fault.raw_body("data: {nonsense\n\n", content_type="text/event-stream"), "readable JSON"),
        (Fault.raw_body("data: [1]\n\n", content_type="text/event-stream"), "readable JSON|broke off"),
        (Fault.raw_body("data: 7\n\n", content_type="text/event-stream"), "readable JSON|broke off"),
    ],
    ids=["error", "list", "no stream", "empty", "no JSON", "an array", "a number"],
)
async def test_nonsense_of_a_server_is_a_model_error(wire: str, answer: Fault, words: str) -> None:
    """An answer with status 200 that is no reply is an error on one line."""
    async with getattr(WireServer, wire)([answer]) as server:
        base = server.base_url
        error = await refused(DIRECT[wire]("m", api_base=base, api_key="k", retries=0))
    assert re.search(words, str(error))
    assert len(str(error).splitlines()) == 1
    if words == "without a stream of events":
        assert "Check that api_base= is the root of an API with this wire" in str(error)
        assert f"The request went to {base}" in str(error)


ODD_CHUNKS = [
    {"choices": [{"index": 0, "delta": {"content": "a", "role": 3, "x": {}}, "finish_reason": None}], "x": 1},
    {"choices": [{"index": 1, "delta": {"content": "other"}}]},
    {"choices": [{"index": "0", "delta": {"content": ["b"]}}]},
    {"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]},
    {"choices": [{"index": 0, "delta": {"content": "c", "tool_calls": []}}], "usage": {"prompt_tokens": 1.0}},
    {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]},
    {
        "choices": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": None, "prompt_tokens_details": {"cached_tokens": 2}},
    },
]


async def test_odd_types_are_understood() -> None:
    """Fields of other types than the wire's are read; further choices and unknown fields do not break a reply."""
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in ODD_CHUNKS)
    async with WireServer.openai([Fault.raw_body(text, content_type="text/event-stream")]) as server:
        reply = fold(await asked(OpenAIWire("m", api_base=server.base_url, api_key="k", retries=0)))
    assert (reply.text, reply.thinking, reply.finish_reason) == ("abc", "hm", "stop")
    assert reply.usage == Usage(input_tokens=3, cache_read_tokens=2, model_calls=1)


@pytest.mark.parametrize("place", ["chunk", "choice", "x_groq"])
async def test_usage_that_comes_with_text_is_read(place: str) -> None:
    """Servers put it into one of three places; an event with text is no exception."""
    usage: dict[str, Any] = {"usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    choice: dict[str, Any] = {"index": 0, "delta": {"content": "ok"}, **(usage if place == "choice" else {})}
    chunk: dict[str, Any] = {
        "choices": [choice],
        **(usage if place == "chunk" else {"x_groq": usage} if place == "x_groq" else {}),
    }
    end: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in (chunk, end))
    async with WireServer.openai([Fault.raw_body(text, content_type="text/event-stream")]) as server:
        reply = fold(await asked(OpenAIWire("m", api_base=server.base_url, api_key="k", retries=0)))
    assert (reply.text, reply.usage) == ("ok", Usage(input_tokens=3, output_tokens=2, model_calls=1))


WHOLE = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 3}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "So: "}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}},
    },
    {"type": "content_block_stop", "index": 1},
    {
        "type": "content_block_start",
        "index": 2,
        "content_block": {"type": "server_tool_use", "id": "s", "name": "x", "input": {}},
    },
    {"type": "content_block_delta", "index": 2, "delta": {"type": "citations_delta", "citation": {"a": []}}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}},
    {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 4}},
]


async def test_blocks_that_come_whole() -> None:
    """Text and arguments in the start of their block are read; blocks of other kinds are skipped."""
    text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in WHOLE)
    async with WireServer.anthropic([Fault.raw_body(text, content_type="text/event-stream")]) as server:
        reply = fold(await asked(AnthropicWire("m", api_base=server.base_url, api_key="k", retries=0)))
    (use,) = reply.tool_uses
    assert (reply.text, use.name, dict(use.input), reply.finish_reason) == ("So: ", "add", {"a": 1}, "tool_calls")
    assert reply.usage == Usage(input_tokens=8, output_tokens=4, cache_read_tokens=3, model_calls=1)


HALVES = {
    "openai": [{"choices": [{"index": 0, "delta": {"content": half}}]} for half in ("so \ud83d", "\ude00")]
    + [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}],
    "anthropic": [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}]
    + [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": half}}
        for half in ("so \ud83d", "\ude00")
    ]
    + [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}],
}


@wires
async def test_a_character_that_is_cut_in_two_is_whole_in_the_reply(wire: str) -> None:
    """A server that splits text in UTF-16 sends half of a surrogate pair in each of two events."""
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in HALVES[wire])
    async with getattr(WireServer, wire)([Fault.raw_body(text, content_type="text/event-stream")]) as server:
        reply = fold(await asked(DIRECT[wire]("m", api_base=server.base_url, api_key="k", retries=0)))
    assert (reply.text, reply.finish_reason) == ("so 😀", "stop")


@wires
async def test_half_a_character_of_a_person_is_sent_as_a_replacement(wire: str) -> None:
    """No encoding can hold it, and a conversation with it must continue."""
    async with getattr(WireServer, wire)([WireReply("fine")]) as server:
        model = DIRECT[wire]("m", api_base=server.base_url, api_key="k", retries=0)
        reply = await Agent("a", model).call("a name: \udc80 \ud83d\ude00")
        assert reply.text == "fine"
        assert "a name: � 😀" in json.dumps(server.requests[0].body, ensure_ascii=False)


async def test_an_event_without_an_end_is_an_error() -> None:
    """Beyond `max_event` the reply fails."""
    text = "data: " + "x" * 5000
    async with WireServer.openai([Fault.raw_body(text, content_type="text/event-stream")]) as server:
        error = await refused(OpenAIWire("m", api_base=server.base_url, api_key="k", retries=0, max_event=1000))
    assert "event of more than 1,000 bytes" in str(error)


async def test_a_refusal_is_the_models_text() -> None:
    """OpenAI's `refusal` field, which LiteLLM drops, is the model's text."""
    async with WireServer.openai([WireReply(faults=Fault.refusal("I cannot."))]) as server:
        reply = fold(await asked(OpenAIWire("gpt-4o", api_base=server.base_url, api_key="k", retries=0)))
    assert reply.text == "I cannot."


async def test_a_failed_tool_is_marked() -> None:
    """Anthropic gets a mark on failed results, however they failed; OpenAI has no field for it."""
    calls = [ToolUseBlock(f"t{n}", "add", {}) for n in range(3)]
    states: list[Any] = ["success", "error", "denied"]
    results = [ToolResultBlock(f"t{n}", "add", "words", state) for n, state in enumerate(states)]
    messages = [Msg.user("add"), Msg.assistant(calls), Msg.tool(results)]
    async with WireServer.anthropic(["ok"]) as server, WireServer.openai(["ok"]) as other:
        for model in (
            AnthropicWire("m", api_base=server.base_url, api_key="k"),
            OpenAIWire("m", api_base=other.base_url, api_key="k"),
        ):
            request = ModelRequest(messages, (ADD,), ModelOptions(), model.name)
            assert fold([chunk async for chunk in model.stream(request)]).text == "ok"
    content: Any = server.requests[0].messages[-1]["content"]
    assert [block.get("is_error") for block in content] == [None, True, True]
    assert "is_error" not in str(other.requests[0].body)


async def test_a_sound_is_refused_before_anything_is_sent() -> None:
    """Anthropic supports no sounds: the caller gets an error."""
    async with Catcher() as server:
        model = AnthropicWire("m", api_base=server.url, api_key="k")
        request = ModelRequest([Msg.user([DataBlock("audio/wav", data="AAAA")])], (), ModelOptions(), model.name)
        with pytest.raises(UnsupportedContentError, match="takes no audio"):
            await anext(model.stream(request))
    assert server.bodies == []


BLOCK = """
import sys
from agentflow import Agent
from agentflow.testing.wire import Fault, Say, WireServer

script = ["one", Say("two", faults=Fault.cut("text")), "three", Fault.status(400)]
with WireServer.{wire}(script).in_thread() as server:
    import os
    os.environ["{name}_BASE_URL"], os.environ["{name}_API_KEY"] = server.base_url, "k"
    agent = Agent("a", "{model}")
    print(agent.call("hi").block().text, agent.call("hi").block().text)
    try:
        agent.call("hi").block()
    except Exception as error:
        print(type(error).__name__)
print([name for name in ("litellm", "httpx", "openai", "anthropic") if name in sys.modules])
"""


@pytest.mark.ci
@pytest.mark.parametrize(("wire", "model"), [("openai", "openai/gpt-4o"), ("anthropic", "anthropic/claude-sonnet-4-5")])
def test_a_program_loads_no_litellm_and_leaves_nothing_open(wire: str, model: str) -> None:
    """Names alone, from synchronous code, with every warning an error: no session, socket or task is left open."""
    code = BLOCK.format(wire=wire, name=wire.upper(), model=model)
    command = [sys.executable, "-W", "error", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.stderr, ended.stdout) == ("", "one three\nModelError\n[]\n")


# ---- prices


@pytest.mark.parametrize(
    "usage",
    [
        Usage(input_tokens=1000, output_tokens=50, model_calls=1),
        Usage(input_tokens=1000, output_tokens=50, cache_read_tokens=600, model_calls=1),
        Usage(input_tokens=300_000, output_tokens=50, cache_read_tokens=600, model_calls=1),
    ],
    ids=["plain", "cached", "long"],
)
@pytest.mark.parametrize(
    "name",
    ["openai/gpt-4o", "openai/gpt-5", "openai/gpt-5.4", "anthropic/claude-sonnet-4-5", "anthropic/claude-opus-4-8"],
)
async def test_a_price_is_that_of_litellm(name: str, usage: Usage) -> None:
    """Read from LiteLLM's file, the price of a reply equals LiteLLM's own."""
    litellm: Any = await library()
    told = litellm.Usage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        prompt_tokens_details={"cached_tokens": usage.cache_read_tokens},
    )
    theirs = sum(litellm.cost_per_token(model=name, usage_object=told))
    provider, _, model = name.partition("/")
    assert price(listed(provider, model), usage) == pytest.approx(theirs)


async def test_what_has_no_price_has_none() -> None:
    """The cost of a model that is in no list is None, not zero."""
    async with WireServer.openai(["ok", WireReply(calls=(ScriptedCall("add", {}),))]) as server:
        model = OpenAIWire("my-own", api_base=server.base_url, api_key="k", retries=0)
        assert fold(await asked(model)).usage.cost is None  # pyright: ignore[reportOptionalMemberAccess]
        priced = OpenAIWire("gpt-4o", api_base=server.base_url, api_key="k", retries=0)
        used = fold(await asked(priced)).usage
    assert used is not None
    assert used.cost == pytest.approx(used.input_tokens * 2.5e-06 + used.output_tokens * 1e-05)


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (None, None),
        ({}, None),
        ({"output_tokens": 4}, Usage(output_tokens=4, model_calls=1)),
        ({"input_tokens": 3}, Usage(input_tokens=3, model_calls=1)),
    ],
)
async def test_usage_is_what_was_reported(reported: object, usage: Usage | None) -> None:
    """One of the two numbers is enough; without both, the usage is unknown."""
    ended = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    events = [*HALVES["anthropic"][:-1], ended if reported is None else {**ended, "usage": reported}]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    async with WireServer.anthropic([Fault.raw_body(text, content_type="text/event-stream")]) as server:
        reply = fold(await asked(AnthropicWire("m", api_base=server.base_url, api_key="k", retries=0)))
    assert (reply.usage, reply.finish_reason) == (usage, "stop")


async def test_the_account_is_named_to_its_own_vendor_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another address does not get the organization and the project."""
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    async with WireServer.openai([Say("hi")]) as server:
        await asked(OpenAIWire("m", api_base=server.base_url, api_key="k", retries=0))
    assert not [name for name in server.requests[0].headers if name.lower().startswith("openai-")]
