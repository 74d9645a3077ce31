"""Access: only with the token and from the same origin; and the headers of each answer."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from inspected import client, record, serving
from starlette.applications import Starlette
from starlette.routing import Mount
from web_client import served

from agentflow.errors import UsageError
from agentflow.serve.inspector import Inspector
from agentflow.testing import run_virtual

PATHS = ["", "page/app.js", "page/page.css", "api/runs", "api/runs/x", "api/runs/x/export", "api/news", "nothing"]


def bearer(inspector: Inspector) -> dict[str, str]:
    return {"authorization": f"Bearer {inspector.token}"}


@pytest.mark.parametrize("path", PATHS)
async def test_without_the_token_nothing_is_served(runs: Path, path: str) -> None:
    """Not the page's own files either; a wrong token is none, and one in the address of a POST is none."""
    async with serving(runs) as (_, link), client(link) as (http, base):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "agentflow_inspector=wrong; a=b"}):
            async with http.get(base + path, headers=headers) as response:
                assert response.status == 403
                assert (
                    await response.text() == "A valid token is required. Open the link that `agentflow inspect` prints."
                )
                assert "set-cookie" not in response.headers
        async with http.post(f"{base}api/pauses/p1?token={link.partition('=')[2]}", json={}) as response:
            assert response.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:80"},
        {"host": "[nonsense"},
        {"host": "[::1].evil.example"},
        {"host": "[::1]evil.example:80"},
        {"host": "evil@127.0.0.1"},
        {"host": ""},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
    ids=str,
)
async def test_from_elsewhere_nothing_is_served(runs: Path, headers: dict[str, str]) -> None:
    """Neither with another Host (DNS rebinding), nor with another Origin, nor from another site; the token does not help."""
    async with serving(runs) as (inspector, link), client(link) as (http, base):
        for path in PATHS:
            async with http.get(base + path, headers={**bearer(inspector), **headers}) as response:
                assert response.status in (400, 403), path
                assert "set-cookie" not in response.headers  # it would hold the token
                assert "clerk" not in await response.text()


async def test_every_answer_forbids_what_it_can(runs: Path) -> None:
    """No script but ours, no frame, no guessing of types, no cache, no referrer."""
    async with serving(runs) as (inspector, link), client(link) as (http, base):
        for path in ("", "page/app.js", "api/runs", "nothing"):
            async with http.get(base + path, headers=bearer(inspector)) as response:
                rules = response.headers["content-security-policy"]
                assert "default-src 'none'; script-src 'self';" in rules
                assert "unsafe" not in rules
                assert "frame-ancestors 'none'" in rules
                assert response.headers["x-content-type-options"] == "nosniff"
                assert response.headers["cache-control"] == "no-store"
                assert response.headers["referrer-policy"] == "no-referrer"
                assert "server" not in response.headers
        async with http.get(link) as response:
            cookie = response.headers["set-cookie"]
            assert "HttpOnly; SameSite=Strict; Path=/" in cookie
        async with http.get(f"{base}api/runs", headers={"cookie": cookie.partition(";")[0]}) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    "path", ["page/..%2f..%2flogs.py", "page/nothing.js", "page/index.html", "api/runs/..%2f..%2fetc", "api/runs/a/b"]
)
async def test_paths_lead_nowhere_else(runs: Path, path: str) -> None:
    """A file is asked for by its name, a run by an id that was given out."""
    async with (
        serving(runs) as (inspector, link),
        client(link) as (http, base),
        http.get(base + path, headers=bearer(inspector)) as response,
    ):
        assert response.status == 404


async def test_a_body_is_an_object_of_json(runs: Path) -> None:
    """No form of another page can send it; nor is one too large, or nested without end."""

    async def status(http: aiohttp.ClientSession, base: str, **how: Any) -> int:
        async with http.post(f"{base}api/pauses/p1", **how) as response:
            return response.status

    async with serving(runs) as (inspector, link), client(link) as (http, base):
        http.headers.update(bearer(inspector))
        assert await status(http, base, data={"do": "continue"}) == 415
        assert await status(http, base, json=[1]) == 400
        json_type = {"content-type": "application/json"}
        assert await status(http, base, data=b"[" * 100_000, headers=json_type) == 400
        assert await status(http, base, data=io.BytesIO(b" " * 17_000_000), headers=json_type) == 413
        assert await status(http, base, json={"do": "continue"}) == 409


async def test_it_can_be_mounted(runs: Path) -> None:
    """In an application of one's own, under a path: the cookie counts there only."""
    inspector = Inspector(runs, token="a-token-of-our-own")
    async with served(Starlette(routes=[Mount("/inspect", inspector)])) as url, client(url) as (http, _):
        async with http.get(inspector.link(f"{url}/inspect")) as response:
            assert response.status == 200
            assert "Path=/inspect" in response.headers["set-cookie"]
            assert 'src="page/app.js"' in await response.text()
        async with http.get(f"{url}/inspect/api/runs", headers=bearer(inspector)) as response:
            assert [run["agent"] for run in await response.json()] == ["clerk", "clerk"]


async def test_where_it_cannot_listen(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error names the address, the reason and the remedy; nothing more is printed, and the program continues."""
    inspector = Inspector(runs)
    async with inspector.serving() as link:
        taken = int(link.rpartition(":")[2].partition("/")[0])
        for host, port, said in (
            ("127.0.0.1", taken, f"127.0.0.1, port {taken}: the port is in use. Choose another one"),
            ("203.0.113.1", 0, "203.0.113.1, port 0: this machine has no such address."),
            ("x" * 64, 0, f"{'x' * 64}: it is not an address or name of this machine."),
        ):
            with pytest.raises(UsageError, match=re.escape(said)):
                await inspector.serving(host=host, port=port).__aenter__()
    assert capfd.readouterr() == ("", "")


async def test_a_slow_reader_gets_the_news_later(runs: Path) -> None:
    """News are read from the file on demand; a client that disconnects leaves nothing."""
    before = asyncio.all_tasks()
    async with serving(runs) as (inspector, link), client(link) as (http, base):
        http.headers.update(bearer(inspector))
        async with http.get(f"{base}api/runs") as response:
            run = (await response.json())[0]["id"]
        async with http.get(f"{base}api/news?run={run}&from=0") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.content:
                if line.startswith(b"id: "):
                    assert int(line[4:]) > 0
                    break
        for wrong in ("run=nothing", "from=-1", "from=x"):
            async with http.get(f"{base}api/news?{wrong}") as response:
                assert response.status in (400, 404)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def received(inspector: Inspector, path: str, seconds: float) -> list[tuple[float, str]]:
    """What a client of this process gets until it disconnects, and when."""
    bodies: list[tuple[float, str]] = []
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def receive() -> Any:
        await asyncio.sleep(seconds)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message.get("body"):
            bodies.append((loop.time() - began, message["body"].decode()))

    path, _, query = path.partition("?")
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {inspector.token}".encode())]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": headers}
    await inspector(scope, receive, send)
    return bodies


def test_a_client_without_news_gets_heartbeats_and_damage_is_reported_once(tmp_path: Path) -> None:
    """A comment follows each 15 seconds of silence, so that no proxy closes the connection."""

    async def news() -> list[tuple[float, str]]:
        await record(tmp_path)
        inspector = Inspector(tmp_path)
        run = json.loads((await received(inspector, "/api/runs", 1.0))[0][1])[0]
        reading = asyncio.create_task(received(inspector, f"/api/news?run={run['id']}&from=0", 33.0))
        await asyncio.sleep(2.1)
        with (tmp_path / run["file"]).open("a") as log:
            log.write("{broken\n" * 2)
        return [(time, re.sub(r"(?s).*data: {\"(\w+).*", r"\1", body).strip()) for time, body in await reading]

    opened = [(0.0, ":"), (0.0, "lines"), (0.0, "pauses")]
    assert run_virtual(news()) == [*opened, (2.25, "problem"), (17.25, ":"), (32.25, ":")]


def test_wrong_arguments(tmp_path: Path) -> None:
    """Each is refused with the correction."""
    with pytest.raises(UsageError, match="at least 16 characters"):
        Inspector(tmp_path, token="short")
    with pytest.raises(UsageError, match=r"hosts=\['me'\]"):
        Inspector(tmp_path, hosts="me")
    with pytest.raises(UsageError, match="There is no run log"):
        Inspector(tmp_path / "run.jsonl")
