"""The life of a wire server: script, addresses, threads, connections."""

import asyncio
import json
import urllib.request

import aiohttp
import httpx
import pytest
from wire_client import ask
from wire_examples import AUTH, USER, chat, message

from agentflow.errors import UsageError
from agentflow.testing.wire import Dialect, Say, UseTool, WireReply, WireRequest, WireServer


async def test_a_list_answers_in_order_and_then_fails_loudly() -> None:
    """The nth request gets the nth reply; one too many is a 500 that says so, and is remembered."""
    async with WireServer.openai(["one", Say("two")]) as server:
        said = [(await ask(server, chat(USER))).json["choices"][0]["message"]["content"] for _ in range(2)]
        server.assert_done()
        extra = await ask(server, chat(USER))
        assert (said, extra.status) == (["one", "two"], 500)
        assert extra.json["error"]["message"] == (
            "wire script: UsageError: the wire script has only 2 replies, but request 2 (model 'gpt-test', "
            "1 messages) needs another one"
        )
        with pytest.raises(AssertionError, match="the wire script has only"):
            server.assert_done()


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_one_function_answers_on_both_wires(wire: str) -> None:
    """A brain sees the request and answers in vendor-neutral words, at once or after waiting."""

    async def brain(request: WireRequest) -> WireReply:
        await asyncio.sleep(0)
        return Say(f"{request.wire} heard {request.user_text}") if request.messages else UseTool("never")

    server = WireServer.openai(brain) if wire == "openai" else WireServer.anthropic(brain)
    async with server:
        got = await ask(server, chat(USER) if wire == "openai" else message(USER))
        assert f"{wire} heard hi".encode() in got.body
        server.assert_done()


async def test_a_brain_that_raises_is_a_500_with_its_message() -> None:
    """The error goes to the client and into `assert_done`."""

    def brain(request: WireRequest) -> WireReply:
        raise LookupError(f"no answer to {request.user_text}")

    async with WireServer.anthropic(brain) as server:
        got = await ask(server, message(USER))
        assert (got.status, got.json["error"]["message"]) == (500, "wire script: LookupError: no answer to hi")
        with pytest.raises(AssertionError, match="no answer to hi"):
            server.assert_done()


async def test_a_brain_that_gives_no_reply_is_told_what_would_be_one() -> None:
    """What came back is named."""
    async with WireServer.openai(lambda _request: 3) as server:  # type: ignore[arg-type, return-value]
        got = await ask(server, chat(USER))
        assert "must be a WireReply, a text or a Fault, not int: 3" in got.json["error"]["message"]


def test_a_bare_text_is_no_script() -> None:
    """A string would be a list of letters, so it is refused."""
    with pytest.raises(UsageError, match="not the text 'hello'"):
        WireServer.openai("hello")


async def test_other_addresses_are_not_found() -> None:
    """A wrong path or method is a 404 in the vendor's shape, and is not recorded."""
    async with WireServer.openai([]) as server, httpx.AsyncClient() as client:
        got = await client.get(server.url)
        other = await client.post(server.base_url + "/nothing", json={})
        assert (got.status_code, other.status_code) == (404, 404)
        assert other.json()["error"]["message"].startswith("Invalid URL (POST /v1/nothing);")
        assert server.requests == []


async def test_addresses_are_what_clients_want_as_base() -> None:
    """OpenAI's base ends in /v1, Anthropic's has no path; there is none before the start or after the stop."""
    server = WireServer.anthropic([])
    with pytest.raises(UsageError, match="is not running"):
        _ = server.base_url
    async with server:
        assert server.url == f"{server.base_url}/v1/messages"
        assert server.base_url.rsplit(":", 1)[0] == "http://127.0.0.1"
        with pytest.raises(UsageError, match="already running"):
            await server.start()
    with pytest.raises(UsageError, match="is not running"):
        _ = server.url
    await server.stop()
    async with WireServer.openai([]) as openai:
        assert openai.url == f"{openai.base_url}/chat/completions"
        assert openai.base_url.endswith("/v1")


async def test_no_connection_is_left_when_answers_are_read() -> None:
    """Each answer closes its connection, also for a client that keeps a pool."""
    async with WireServer.openai(["a", "b"]) as server, aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(server.url, json=chat(USER), headers=AUTH) as response:
                assert response.headers["connection"] == "close"
                await response.read()
        async with asyncio.timeout(5):
            await server.wait_closed_connections()
        assert [request.ending for request in server.requests] == ["complete", "complete"]


async def test_requests_at_once_are_served_at_once() -> None:
    """A reply that waits does not hold up the others."""
    gate = asyncio.Event()

    async def brain(request: WireRequest) -> str:
        if request.user_text == "wait":
            await gate.wait()
        return request.user_text

    async with WireServer.openai(brain) as server:
        slow = asyncio.create_task(ask(server, chat({"role": "user", "content": "wait"})))
        quick = await ask(server, chat({"role": "user", "content": "go"}))
        gate.set()
        said = [got.json["choices"][0]["message"]["content"] for got in (quick, await slow)]
        assert said == ["go", "wait"]


def test_a_thread_serves_synchronous_code() -> None:
    """The same server runs in a thread of its own and is stopped with it."""
    with WireServer.openai(["hello"], dialect=Dialect()).in_thread() as server:
        request = urllib.request.Request(
            server.url, data=json.dumps(chat(USER)).encode(), headers={**AUTH, "content-type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            body = json.load(response)
        assert body["choices"][0]["message"]["content"] == "hello"
        server.assert_done()
    with pytest.raises(UsageError, match="is not running"):
        _ = server.base_url


def test_a_thread_is_started_once() -> None:
    """By hand it starts once and may be stopped twice."""
    thread = WireServer.anthropic([]).in_thread()
    thread.stop()
    thread.start()
    with pytest.raises(UsageError, match="already started"):
        thread.start()
    thread.stop()
    thread.stop()


async def test_a_threads_failure_to_start_is_raised_where_it_was_started() -> None:
    """A server that runs already cannot be run by a thread too."""
    async with WireServer.openai([]) as server:
        thread = server.in_thread()
        with pytest.raises(UsageError, match="already running"):
            await asyncio.to_thread(thread.start)


async def test_a_bigger_body_than_a_megabyte_is_read_whole() -> None:
    """Only the dialect's limit bounds a request."""
    async with WireServer.openai(["ok"]) as server, httpx.AsyncClient() as client:
        got = await client.post(server.url, json=chat({"role": "user", "content": "x" * (2 << 20)}), headers=AUTH)
        assert got.status_code == 200


def test_a_negative_chunk_is_refused() -> None:
    """A reply cannot be split into chunks of negative size."""
    with pytest.raises(UsageError, match="chunk=-1"):
        WireReply("x", chunk=-1)
