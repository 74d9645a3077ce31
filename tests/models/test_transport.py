"""The connection to a server: proxies and certificates of the environment, heads, statuses, and http and https."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentflow.errors import ModelError, UsageError
from agentflow.models.clients import close_clients
from agentflow.models.environment import proxy_for
from agentflow.models.openai_wire import OpenAIWire
from agentflow.vocabulary.chunks import fold
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions, Usage

from .test_wires import certificate

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
PROXY = "http://proxy:8080"


@asynccontextmanager
async def serving(answer: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Answer each request with these bytes and close the connection; record the heads of the requests."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            length = re.search(rb"content-length: (\d+)", heads[-1].lower())
            await reader.readexactly(int(length[1]) if length else 0)
            writer.write(answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has left
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as listening:
        yield listening.sockets[0].getsockname()[1], heads
        await close_clients()


def head(status: str = "200 OK", *lines: str, kind: str = "text/event-stream") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", f"content-type: {kind}", "connection: close", *lines, "", "")).encode()


def model_at(port: int, scheme: str = "http", **options: Any) -> OpenAIWire:
    return OpenAIWire("m", **{"api_base": f"{scheme}://127.0.0.1:{port}/v1", "api_key": "k", "retries": 0, **options})


async def asked(model: OpenAIWire, options: ModelOptions | None = None) -> Msg:
    request = ModelRequest([Msg.user("hi")], (), options or ModelOptions(), model.name)
    return fold([chunk async for chunk in model.stream(request)])


async def refused(model: OpenAIWire) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await asked(model)
    return caught.value


# ---- proxies

ADDRESSES = [
    "http://127.0.0.1:8000/v1",
    "https://api.openai.com/v1",
    "https://example.com:8443/",
    "http://[::1]:80/v1",
    "http://localhost/",
]


@pytest.fixture(scope="module")
def trusting() -> ssl.SSLContext:
    """So that no client reads all certificates of the system."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.mark.parametrize(
    "named",
    [
        {"HTTP_PROXY": PROXY},
        {"http_proxy": "proxy:8080"},
        {"HTTPS_PROXY": PROXY},
        {"ALL_PROXY": PROXY},
        {"all_proxy": "proxy:8080"},
        {"ALL_PROXY": "http://other:1", "HTTPS_PROXY": PROXY},
        {"HTTP_PROXY": "", "ALL_PROXY": PROXY},
        *(
            {"ALL_PROXY": PROXY, "NO_PROXY": hosts}
            for hosts in (
                *("*", "127.0.0.1", "127.0.0.0/8", "127.0.0.1:8000", "127.0.0.1:1", "api.openai.com", "openai.com"),
                *(".openai.com", "enai.com", "API.OPENAI.COM", "example.com:8443", "example.com:1", "::1", "localhost"),
                *(" example.com , 127.0.0.1 ", ",,"),
                *("a.example.com", "*.openai.com", "host:port", "127.0.0.1,localhost"),
            )
        ),
    ],
    ids=lambda named: ",".join(f"{name}={value}" for name, value in named.items()),
)
@pytest.mark.parametrize("address", ADDRESSES)
def test_proxies_are_read_as_httpx_reads_them(
    named: dict[str, str], address: str, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every variable and entry of `NO_PROXY`, the same proxy or none."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    try:
        transport: Any = httpx.Client(verify=trusting)._transport_for_url(httpx.URL(address))
    except httpx.InvalidURL:  # an entry that httpx cannot read ends its client; here it matches nothing
        assert proxy_for(address) == PROXY
        return
    theirs = getattr(transport._pool, "_proxy_url", None)
    host = None if theirs is None else f"{theirs.scheme.decode()}://{theirs.host.decode()}:{theirs.port}"
    assert proxy_for(address) == host


def test_the_port_of_the_scheme_counts_where_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """`host:443` is the host of an https address, which httpx ignores."""
    monkeypatch.setenv("all_proxy", PROXY)
    monkeypatch.setenv("no_proxy", "api.openai.com:443")
    assert proxy_for("https://api.openai.com/v1") is None
    assert proxy_for("http://api.openai.com/v1") == PROXY


# ---- certificates


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
async def test_certificates_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`SSL_CERT_FILE`, else `SSL_CERT_DIR`, is read when the request is made; `tls=` overrides them."""
    file = await asyncio.to_thread(certificate, tmp_path)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(file)
    empty = tmp_path / "empty"
    empty.mkdir()
    async with serving(head() + EVENT, served) as (port, _):
        assert "certificate verify failed" in str(await refused(model_at(port, "https")))
        monkeypatch.setenv("SSL_CERT_DIR", str(empty))
        assert "certificate verify failed" in str(await refused(model_at(port, "https")))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert (await asked(model_at(port, "https"))).text == "Hi"
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
        assert (await asked(model_at(port, "https", tls=False))).text == "Hi"
        error = await refused(model_at(port, "https"))
        assert ("SSL_CERT_FILE=" in str(error), "Use a PEM file" in str(error), error.retryable) == (True, True, False)


# ---- the wrong kind of port


async def test_https_to_a_port_that_does_not_answer_the_handshake() -> None:
    """The time to connect, or the longest silence if that is shorter, limits it, and the error names which."""
    async with serving(b"") as (port, heads):
        first = await refused(model_at(port, "https", connect_timeout=0.05))
        second = await refused(model_at(port, "https", timeout=0.06))
    assert (
        f"no connection to https://127.0.0.1:{port} within 0.05 s (connect_timeout=); a server that expects http"
        in str(first)
    )
    assert "within 0.06 s (timeout=)" in str(second)
    assert (first.retryable, heads) == (True, [])


async def test_https_to_a_port_that_answers_in_http() -> None:
    """Its answer is not TLS, and the error has the remedy."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        error = await refused(model_at(listening.sockets[0].getsockname()[1], "https"))
        await close_clients()
    assert "does not support TLS; if the server is correct, use http://" in str(error)


# ---- heads and bodies


@pytest.mark.parametrize(
    "answer",
    [
        head("200 OK", f"x-long: {'a' * 90_000}"),
        head("200 OK", *(f"x-{n}: {n}" for n in range(900))),
        head("201 Created"),
        head("206 Partial Content"),
        head(kind="application/json"),
        head(kind="text/html"),
        head(kind="Text/Event-Stream;Charset=UTF-8"),
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + head(),
        b"HTTP/1.0 200 OK\r\n\r\n",
    ],
    ids=["a header of 90 KB", "900 headers", "201", "206", "json", "html", "capitals", "early hints", "HTTP/1.0"],
)
async def test_heads_of_other_forms_are_read(answer: bytes) -> None:
    """A stream of events is recognised whatever its head is, within the limits of the vendors' clients."""
    async with serving(answer + EVENT) as (port, _):
        assert (await asked(model_at(port))).text == "Hi"


@pytest.mark.parametrize(
    "answer", [head("204 No Content"), head(kind="application/json") + b'{"x": 1}'], ids=["204", "JSON"]
)
async def test_an_answer_that_is_no_stream(answer: bytes) -> None:
    """It is an error that shows the answer."""
    async with serving(answer) as (port, _):
        assert "it answered without a stream of events" in str(await refused(model_at(port)))


async def test_the_last_event_needs_no_blank_line() -> None:
    """A server may omit the end of its last event, and the end mark."""
    events = EVENT.partition(b"data: [DONE]")[0].replace(b"}]}", b'}],"usage":{"prompt_tokens":3}}').rstrip()
    async with serving(head() + events) as (port, _):
        reply = await asked(model_at(port))
    assert (reply.text, reply.usage) == ("Hi", Usage(input_tokens=3, model_calls=1))


async def test_headers_of_the_caller_replace_the_wires() -> None:
    """`headers=` may have another authorization, and a request's `extra_headers` override those."""
    async with serving(head() + EVENT) as (port, heads):
        model = model_at(port, headers={"authorization": "Mine", "x-a": "model"})
        await asked(model, ModelOptions(extra={"extra_headers": {"x-a": "request"}}))
    sent = heads[0].decode().lower()
    assert ("authorization: mine\r\n" in sent, "bearer" in sent, "x-a: request" in sent, "x-a: model" in sent) == (
        *(True, False, True, False),
    )


@pytest.mark.parametrize("end", ["?api-version=1", "#gpt-5"])
def test_an_address_that_no_path_can_be_added_to(end: str) -> None:
    """A query or a fragment at the end of `api_base` would hide the endpoint's path."""
    with pytest.raises(UsageError, match="it has a query or a fragment"):
        OpenAIWire("m", api_base=f"http://host/v1{end}")
