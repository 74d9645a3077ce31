"""`fetch` against real servers on loopback: limits on size, type, address, redirects and time."""

from __future__ import annotations

import asyncio
import base64
import gzip
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from agentflow import Agent, Msg, tool
from agentflow.errors import FetchError, UsageError
from agentflow.models import addresses, fetch
from agentflow.models.addresses import why_refused
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.messages import ToolUseBlock

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """A web server with a handler for each path, which records its requests."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.asked: list[web.Request] = []


@asynccontextmanager
async def serving(handlers: dict[str, Handler]) -> AsyncIterator[Server]:
    server = Server("")

    async def answer(request: web.Request) -> web.StreamResponse:
        server.asked.append(request)
        return await handlers[request.path](request)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def gives(body: bytes, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(body=body, headers={name.replace("_", "-"): value for name, value in headers.items()})

    return handler


def in_parts(parts: Sequence[bytes], **headers: str) -> Handler:
    """Send these parts without a length, and close the connection."""

    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={name.replace("_", "-"): value for name, value in headers.items()})
        await answer.prepare(request)
        for part in parts:
            await answer.write(part)
        return answer

    return handler


def streams(pieces: int, piece: bytes, **headers: str) -> Handler:
    """Stream without a length, chunk by chunk, while the client stays."""

    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={name.replace("_", "-"): value for name, value in headers.items()})
        await answer.prepare(request)
        for _ in range(pieces):
            await answer.write(piece)
        return answer

    return handler


def leads_to(place: str, status: int = 302) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        del request
        return web.Response(status=status, headers={"location": place})

    return handler


async def test_an_address_becomes_a_block() -> None:
    """The type comes from the first bytes, then from the server, then from the name; the name is the address's."""
    handlers = {
        "/cat.png": gives(PNG, content_type="text/html"),
        "/a,b": gives(b"a,b", content_type="text/csv; charset=utf-8"),
        "/notes.md": gives(b"# Hi", content_type="application/octet-stream"),
    }
    async with serving(handlers) as server:
        cat = await fetch(f"{server.base}/cat.png?key=secret", types=["image/*"], private=True)
        table = await fetch(f"{server.base}/a,b", private=True)
        notes = await fetch(f"{server.base}/notes.md", private=True, name="n")
    assert (cat.media_type, cat.name, cat.to_bytes()) == ("image/png", "cat.png", PNG)
    assert (table.media_type, notes.media_type, notes.name) == ("text/csv", "text/markdown", "n")


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (gives(bytes(2000)), "it has more than the 1 kB that max_bytes= allows"),
        (streams(100_000, bytes(1000)), "it has more than the 1 kB"),
        (gives(gzip.compress(bytes(50_000_000)), content_encoding="gzip"), "it has more than the 1 kB"),
        (gives(zlib.compress(bytes(50_000_000)), content_encoding="deflate"), "it has more than the 1 kB"),
        (gives(b"not packed", content_encoding="gzip"), "its content is not valid gzip"),
        (gives(b"x", content_encoding="br"), "packed with br, which was not requested"),
        (gives(b"<html>", content_type="text/html"), "it is text/html, and types= allows image/\\*"),
        (gives(b""), "types= allows"),
        (leads_to("/x"), "it redirects more than 5 times"),
        (leads_to("file:///etc/passwd"), "it redirects to file, which is not followed"),
        (leads_to("http://user:pw@127.0.0.1/"), "which is not followed"),
    ],
)
async def test_what_goes_beyond_a_limit_is_refused(handler: Handler, why: str) -> None:
    """Declared or not, compressed or not: the bytes read are counted; the error has the address without its query."""
    async with serving({"/x": handler}) as server:
        with pytest.raises(FetchError, match=f"^{server.base}/x was not fetched: .*{why}"):
            await fetch(f"{server.base}/x?key=secret", types=["image/*"], max_bytes=1000, private=True)


async def test_packed_content_is_unpacked() -> None:
    """A response that is compressed without a request for it is read."""
    async with serving({"/x": gives(gzip.compress(PNG), content_encoding="gzip")}) as server:
        assert (await fetch(f"{server.base}/x", private=True)).to_bytes() == PNG
        assert server.asked[0].headers["accept-encoding"] == "identity"


async def test_packed_content_in_several_parts_is_whole() -> None:
    """A gzip file may have several members, and a part may end anywhere."""
    packed = gzip.compress(PNG[:20]) + gzip.compress(PNG[20:])
    for size in (1, 7, len(packed)):
        parts = [packed[at : at + size] for at in range(0, len(packed), size)]
        async with serving({"/x": in_parts(parts, content_encoding="gzip")}) as server:
            assert (await fetch(f"{server.base}/x", private=True)).to_bytes() == PNG


@pytest.mark.parametrize(("packing", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_packed_content_that_breaks_off_is_an_error(packing: str, pack: Callable[[bytes], bytes]) -> None:
    """Without a declared length, the connection's end says nothing; the packed data does."""
    whole = pack(PNG)
    for size in range(1, len(whole)):
        async with serving({"/x": in_parts([whole[:size]], content_encoding=packing)}) as server:
            with pytest.raises(FetchError, match=f"ended the answer before the end of the {packing} data") as caught:
                await fetch(f"{server.base}/x", private=True)
            assert caught.value.retryable


async def test_a_failed_answer_says_its_status() -> None:
    """Not found is final; a server error is retryable."""

    async def broken(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503 if "busy" in request.path else 404)

    async with serving({"/no": broken, "/busy": broken}) as server:
        with pytest.raises(FetchError, match="the server answered 404 Not Found") as gone:
            await fetch(f"{server.base}/no", private=True)
        with pytest.raises(FetchError, match="503") as busy:
            await fetch(f"{server.base}/busy", private=True)
    assert (gone.value.retryable, busy.value.retryable) == (False, True)
    with pytest.raises(FetchError, match="was not fetched"):
        await fetch(f"{server.base}/gone", private=True)


async def test_time_is_limited() -> None:
    """A silent server is abandoned after the limit."""
    left = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        return web.Response()

    async with serving({"/x": silent}) as server:
        with pytest.raises(FetchError, match=r"it took longer than 0\.05 s"):
            await fetch(f"{server.base}/x", timeout=0.05, private=True)


async def test_headers_stay_with_their_host() -> None:
    """A redirect within the host gets them, one to another host does not."""
    async with serving({"/there": gives(PNG)}) as other:
        handlers = {"/here": leads_to("/again"), "/again": leads_to(f"{other.base}/there")}
        async with serving(handlers) as server:
            await fetch(f"{server.base}/here", headers={"authorization": "Bearer x"}, private=True)
    assert [request.headers.get("authorization") for request in server.asked] == ["Bearer x", "Bearer x"]
    assert other.asked[0].headers.get("authorization") is None


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0", "localhost", "[::1]", "[::]", "0.0.0.0"),
        *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]", "[::127.0.0.1]"),
        *("10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1", "169.254.169.254", "[fe80::1]", "[fd00:ec2::254]"),
        *("100.100.100.200", "168.63.129.16", "224.0.0.1", "255.255.255.255"),
    ],
)
async def test_addresses_that_are_not_public_are_refused(host: str) -> None:
    """In every spelling; no connection is made."""
    async with serving({"/x": gives(PNG)}) as server:
        port = server.base.rpartition(":")[2]
        with pytest.raises(
            FetchError, match=r"(allow such addresses with private=True|is not a canonical IPv4 address)"
        ):
            await fetch(f"http://{host}:{port}/x")
        assert server.asked == []


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822"])
def test_public_addresses_are_none_of_them(address: str) -> None:
    """Those that a NAT64 network assigns to public ones are included."""
    assert why_refused(address) is None


async def test_each_hop_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the first host is public, a redirect to one that is not is refused before anything is sent there."""
    judged = addresses.why_refused
    monkeypatch.setattr(addresses, "why_refused", lambda found: None if found == "127.0.0.1" else judged(found))
    async with serving({"/secret": gives(b"secret")}) as inner:
        port = inner.base.rpartition(":")[2]
        places = [f"http://[::ffff:127.0.0.1]:{port}/secret", "http://169.254.169.254/latest/meta-data", "//10.0.0.1/"]
        for place in places:
            async with serving({"/x": leads_to(place)}) as server:
                with pytest.raises(FetchError, match="private=True"):
                    await fetch(f"{server.base}/x")
        assert inner.asked == []


async def test_a_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checked address is the one that is used: a name that resolves differently the second time has no effect."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "rebinding.test":
            return real(host, port, *args, **kwargs)
        asked.append(host)
        return real("192.0.2.1" if len(asked) == 1 else "127.0.0.1", port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    judged = addresses.why_refused
    monkeypatch.setattr(addresses, "why_refused", lambda found: None if found == "192.0.2.1" else judged(found))
    async with serving({"/x": gives(b"secret")}) as server:
        port = server.base.rpartition(":")[2]
        with pytest.raises(FetchError):
            await fetch(f"http://rebinding.test:{port}/x", timeout=0.2)
        assert (asked, server.asked) == (["rebinding.test"], [])
        with pytest.raises(FetchError, match=r"rebinding\.test: 127\.0\.0\.1 is loopback"):
            await fetch(f"http://rebinding.test:{port}/x", timeout=0.2)


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would resolve names itself, and their addresses could not be checked."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with serving({"/x": gives(PNG)}) as server, serving({"/x": gives(b"another")}) as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.base)
        assert (await fetch(f"{server.base}/x", private=True)).to_bytes() == PNG
        assert proxy.asked == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "cat.png", "", "http://", "http://a:b@c/"])
async def test_other_schemes_are_a_mistake(url: str) -> None:
    """Files, and addresses with a password, are refused."""
    with pytest.raises(UsageError):
        await fetch(url)


async def test_a_tool_fetches_for_the_model() -> None:
    """A refusal is the tool's result, and so is a picture."""
    async with serving({"/x.png": gives(PNG)}) as server:

        @tool(type="read")
        async def look(url: str, inside: bool) -> Any:
            """Look at a picture on the web."""
            return await fetch(url, types=["image/*"], private=inside)

        calls = [ToolUseBlock(f"t{n}", "look", {"url": f"{server.base}/x.png", "inside": bool(n)}) for n in range(2)]
        agent = Agent("eye", ScriptedModel([Msg.assistant(calls), "I see."]), tools=[look])
        await agent.call("Look.")
    refused, seen = agent.session().messages[2].tool_results
    assert refused.state == "error"
    assert "127.0.0.1 is loopback; allow such addresses with private=True" in refused.text
    assert seen.shown == "[x.png, image/png, 70 bytes]"
