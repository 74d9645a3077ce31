"""Servers that answer illegally, or break off: the reply is complete, or a `ModelError` is raised."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from wired import answered

from agentflow.errors import ModelError
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.clients import close_clients
from agentflow.models.openai_wire import OpenAIWire
from agentflow.models.wire import DirectWire

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"h\xc3\xa9"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
FAILED = b"HTTP/1.1 500 Failed\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
DEEP = b"[" * 100_000


@asynccontextmanager
async def server(*parts: bytes) -> AsyncGenerator[tuple[int, list[bytes]]]:
    """Answer each request with these bytes and close the connection; record the heads of the requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        length = next(line for line in heads[-1].lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1], heads


async def failure(model: DirectWire) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await answered(model)
    return caught.value


def model_at(wire: type[DirectWire], port: int) -> DirectWire:
    return wire("m", api_base=f"http://127.0.0.1:{port}/v1", api_key="k", retries=0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (HEAD + b"\r\n" + EVENT[: EVENT.index(b"\xa9")], "did not send readable JSON"),
        (
            HEAD + b'\r\ndata: {"type": "error", "choices": [], "error": {"message": "h\xc3"}}\n\n',
            "did not send readable JSON",
        ),
        (HEAD + b'\r\ndata: {"more": ' + DEEP + b"\n\n", "did not send readable JSON"),
        (HEAD + b'\r\ndata: {"more": "\\ud83d", "choices": ' + DEEP + b"\n\n", "did not send readable JSON"),
        (FAILED + DEEP, "failed (500)"),
        (HEAD + b"content-encoding: gzip\r\n\r\nno gzip", "gzip"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<html>Log in</html>", "Log in"),
        (b"HTTP/1.1 200 OK\r\nset-cookie: secret", "within the head"),
    ],
    ids=["cut", "half a character", "deep", "deep with a surrogate", "deep refusal", "gzip", "a page", "half a head"],
)
@pytest.mark.parametrize("wire", [OpenAIWire, AnthropicWire])
async def test_an_answer_that_cannot_be_read_is_a_model_error(
    closed_clients: None, wire: type[DirectWire], answer: bytes, words: str
) -> None:
    """It is retryable, names the problem, and shows no header."""
    async with server(answer) as (port, _):
        error = await failure(model_at(wire, port))
    assert error.retryable
    assert words in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize(
    "parts",
    [
        (HEAD + b"content-encoding: gzip\r\n\r\n" + gzip.compress(EVENT),),
        (HEAD + b"\r\n: hello\r\n\r\n" + EVENT.replace(b"\n", b"\r\n"),),
        (HEAD + b"\r\n", *(EVENT[n : n + 1] for n in range(len(EVENT)))),
    ],
    ids=["gzip", "CR LF and a comment", "byte by byte"],
)
async def test_odd_ways_to_send_a_reply(closed_clients: None, parts: tuple[bytes, ...]) -> None:
    """The reply is the same."""
    async with server(*parts) as (port, _):
        assert await answered(model_at(OpenAIWire, port)) == "hé"


@pytest.mark.parametrize("wait", ["nan", "inf", "1e999"])
async def test_a_wait_that_is_no_number_of_seconds_is_none(closed_clients: None, wait: str) -> None:
    """An invalid wait is ignored."""
    answer = f"HTTP/1.1 429 Slow down\r\nretry-after: {wait}\r\nconnection: close\r\n\r\n{{}}"
    async with server(answer.encode()) as (port, _):
        error = await failure(model_at(OpenAIWire, port))
    assert (error.kind, error.retry_after) == ("rate_limit", None)


@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_a_proxy_with_a_password(closed_clients: None, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """It is sent to the proxy, which may have no scheme; invalid addresses do not show it."""
    async with server(HEAD + b"\r\n" + EVENT) as (port, heads):
        monkeypatch.setenv("http_proxy", f"{scheme}me:word@127.0.0.1:{port}")
        assert await answered(OpenAIWire("m", api_base="http://model.invalid/v1", api_key="k", retries=0)) == "hé"
        assert b"Basic " + base64.b64encode(b"me:word") in heads[0]
        monkeypatch.setenv("http_proxy", f"{scheme}me:word@127.0.0.1:99999")
        error = await failure(OpenAIWire("m", api_base="http://model.invalid/v1", api_key="k", retries=0))
        assert ("word" in str(error), error.retryable) == (False, False)


async def test_a_proxy_that_is_not_for_http(closed_clients: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent to it, and the error names its variable; it is not retried."""
    async with server(HEAD + b"\r\n" + EVENT) as (port, heads):
        monkeypatch.setenv("http_proxy", f"socks5://me:word@127.0.0.1:{port}")
        error = await failure(OpenAIWire("m", api_base="http://model.invalid/v1", api_key="k"))
        assert "could not be called: http_proxy=socks5://… is not an HTTP proxy" in str(error)
        assert (error.retryable, "word" in str(error), heads) == (False, False, [])
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert await answered(model_at(OpenAIWire, port)) == "hé"


@pytest.mark.parametrize("base", ["ftp://127.0.0.1/v1", "http://[none/v1", "http://127.0.0.1:99999/v1", "127.0.0.1:80"])
async def test_an_address_of_the_environment_that_is_none(
    closed_clients: None, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    """It is not retried."""
    monkeypatch.setenv("OPENAI_BASE_URL", base)
    error = await failure(OpenAIWire("m", api_key="k"))
    assert ("m could not be called: " in str(error), error.retryable) == (True, False)


async def test_the_line_feed_of_a_file_is_no_part_of_a_key(closed_clients: None) -> None:
    """A key that was read with a line feed is sent without it."""
    async with server(HEAD + b"\r\n" + EVENT) as (port, heads):
        assert (
            await answered(OpenAIWire("m", api_base=f"http://127.0.0.1:{port}/v1", api_key="k-1\n", retries=0)) == "hé"
        )
        assert b"Bearer k-1\r\n" in heads[0]


async def test_clients_that_are_closed_end_the_request_on_a_kept_connection(closed_clients: None) -> None:
    """It fails as other requests do, and is not sent again."""
    asked = asyncio.Semaphore(0)
    answer = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer % (len(EVENT), EVENT))
        await reader.readuntil(b"\r\n\r\n")
        asked.release()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        model = model_at(OpenAIWire, listening.sockets[0].getsockname()[1])
        assert await answered(model) == "hé"
        second = asyncio.create_task(failure(model))
        await asked.acquire()
        await close_clients()
        assert (await second).retryable
    assert asked.locked()
