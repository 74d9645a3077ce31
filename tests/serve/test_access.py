"""Who may use the server, and what hostile clients get: a clear status, and nothing of others."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import pytest
from loguru import logger
from serve_client import LIMIT, Client, Gate, connected, served

from agentflow import Agent, MemoryStore, ModelRequest
from agentflow._support.logs import reset_to_default
from agentflow.errors import UsageError
from agentflow.serve import App, Limits, bearer_tokens
from agentflow.serve.server import listen
from agentflow.testing import ScriptedModel

ADA, BOB = "ada-has-a-long-token", "bob-has-a-long-token"
AUTH = bearer_tokens({ADA: "ada", BOB: "bob"})


def talkative(store: Any = None) -> Agent:
    return Agent("a", ScriptedModel(lambda request: "Hello."), store=store)


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


async def raw(url: str, request: bytes) -> bytes:
    """Send bytes, and return the response as bytes."""
    reader, writer = await asyncio.open_connection(*address(url))
    try:
        writer.write(request)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), LIMIT)
    finally:
        writer.close()


async def refusals(client: Client, asked: list[tuple[str, str, Any]]) -> set[tuple[int, str]]:
    """The status and code of each request."""
    found: set[tuple[int, str]] = set()
    for method, path, data in asked:
        status, body = await client.ask(method, path, data)
        found.add((status, body["error"]["code"]))
    return found


def routes(run: str, session: str) -> list[tuple[str, str, Any]]:
    """A request to each route that names a run or a session."""
    path = f"/agents/a/sessions/{session}"
    return [
        ("GET", f"/runs/{run}", None),
        ("GET", f"/runs/{run}/events", None),
        ("POST", f"/runs/{run}/interrupt", {}),
        ("POST", f"/runs/{run}/steer", {"text": "x"}),
        ("GET", path, None),
        ("POST", f"{path}/resume", {}),
        ("POST", f"{path}/fork", {}),
        ("DELETE", path, None),
    ]


async def test_every_route_requires_a_user() -> None:
    """Without a valid token there is no answer but 401, except for the two checks of a container platform."""
    async with served(App(talkative(), auth=AUTH)) as url, connected(url, Authorization="Bearer wrong") as client:
        asked = [
            *routes("run_1", "s"),
            ("GET", "/agents", None),
            ("GET", "/agents/a/sessions", None),
            ("GET", "/runs", None),
            ("POST", "/agents/a/runs", {"input": "Hi"}),
            ("POST", "/agents/a/call", {"input": "Hi"}),
            ("GET", "/openapi.json", None),
            ("GET", "/nothing", None),
        ]
        assert await refusals(client, asked) == {(401, "unauthenticated")}
        assert await client.ask("GET", "/health") == (200, {"status": "ok"})
        assert await client.ask("GET", "/ready") == (200, {"status": "ok"})


async def test_another_user_s_runs_and_sessions_do_not_exist() -> None:
    """The same id means a session of one's own; every route that names another's answers 404."""
    store = MemoryStore()
    async with (
        served(App(talkative(), store=store, auth=AUTH)) as url,
        connected(url, Authorization=f"Bearer {ADA}") as ada,
        connected(url, Authorization=f"Bearer {BOB}") as bob,
    ):
        run = await ada.started("I am Ada", session="diary")
        await ada.ended(run["id"])
        assert await refusals(bob, routes(run["id"], "diary")) == {(404, "no_such_run"), (404, "no_such_session")}
        assert await bob.good("GET", "/runs") == []
        assert await bob.good("GET", "/agents/a/sessions") == {"total": 0, "sessions": []}
        await bob.ended((await bob.started("I am Bob", session="diary"))["id"])
        his, hers = [await one.good("GET", "/agents/a/sessions/diary") for one in (bob, ada)]
        for name in ("diary%2F..", "..", "%00", "a.b", "x" * 65):
            assert (await bob.ask("GET", f"/agents/a/sessions/{name}"))[0] == 404
    assert [hers["messages"][0]["text"], his["messages"][0]["text"]] == ["I am Ada", "I am Bob"]
    assert len(await store.sessions()) == 2
    assert not any("ada" in info.id for info in await store.sessions())


async def test_an_auth_that_fails_admits_nobody() -> None:
    """An exception, or something that is no user, refuses the request; an empty id is no user."""
    for wrong, expected in ((RuntimeError("SECRET"), 500), (7, 500), ("", 401), (None, 401)):

        async def auth(request: Any, wrong: Any = wrong) -> Any:
            if isinstance(wrong, Exception):
                raise wrong
            return wrong

        async with served(App(talkative(), auth=auth)) as url, connected(url) as client:
            status, body = await client.ask("GET", "/agents")
            assert (status, "SECRET" in json.dumps(body)) == (expected, False)


async def test_the_causes_of_failures_are_in_the_log() -> None:
    """A program that enables no log sees each failure, with its reference and the traceback of its own code."""

    def broken(request: ModelRequest) -> str:
        raise KeyError("the cause")

    reset_to_default()  # as in a program that enables no log

    def plain(request: object) -> str:
        return "ada"

    cases: list[tuple[Any, str]] = [
        (
            None,
            r"served run \S+ failed \(reference {reference}\)\nTraceback(?s:.)* in broken\n(?s:.)*KeyError: 'the cause'",
        ),
        (plain, "auth failed(?s:.)*UsageError: auth= must be an async function, but it returned str"),
    ]
    for auth, expected in cases:
        lines: list[str] = []
        sink = logger.add(lines.append, format="{message}", filter="agentflow.serve")
        try:
            app = App(Agent("a", ScriptedModel(broken)), auth=auth)
            async with served(app) as url, connected(url) as client:
                _, body = await client.ask("POST", "/agents/a/call", {"input": "Hi"})
        finally:
            logger.remove(sink)
        (line,) = lines
        assert re.match(expected.replace("{reference}", body.get("end", {}).get("reference", "")), line)


def test_unusable_agents_and_auth_are_refused() -> None:
    """They fail when the application is created, not with the first request."""
    for agents, auth, text in (("shop:clerk", None, "not 's'"), (talkative(), {"t": "ada"}, "not dict")):
        with pytest.raises(UsageError, match=text):
            App(agents, auth=auth)  # pyright: ignore[reportArgumentType]


async def test_a_foreign_host_or_origin_is_refused() -> None:
    """DNS rebinding and pages of other sites get nothing, even with a valid token; listed ones do."""
    app = App(talkative(), auth=AUTH, hosts=["127.0.0.1", "chat.example.com"], origins=["https://example.com"])
    async with served(app) as url, connected(url, Authorization=f"Bearer {ADA}") as client:
        good = {"input": "Hi"}
        for host in ("evil.example", "127.0.0.1.evil.example", "chat.example.com@evil.example", "evil.example:80", ""):
            assert (await client.ask("POST", "/agents/a/call", good, Host=host))[0] in (400, 421)
        assert (await client.ask("POST", "/agents/a/call", good, Host="chat.example.com"))[0] == 200
        for headers in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "https://example.com.evil.example"},
            {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"},
        ):
            status, body = await client.ask("POST", "/agents/a/call", good, **headers)
            assert (status, body["error"]["code"]) == (403, "cross_site")
        async with client.http.options(f"{url}/agents", headers={"Origin": "https://evil.example"}) as response:
            assert (response.status, response.headers.get("Access-Control-Allow-Origin")) == (403, None)
        asked = {"Origin": "https://example.com", "Access-Control-Request-Headers": "authorization"}
        async with client.http.options(f"{url}/agents", headers=asked) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (204, "https://example.com")
        async with client.http.get(f"{url}/agents", headers={"Origin": "https://example.com"}) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (200, "https://example.com")
            assert "origin" in response.headers["Vary"].lower()


async def test_without_authentication_only_this_machine_is_served() -> None:
    """By address, whatever the Host header says; and the command does not listen elsewhere."""
    app = App(talkative(), hosts=["*"])
    answers: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        answers.append(dict(message))

    scope = {"type": "http", "method": "GET", "path": "/agents", "headers": [(b"host", b"x")], "query_string": b""}
    for client in (("203.0.113.7", 1), ("127.0.0.1", 1), ("::1", 1), None, ("garbage", 1)):
        await app({**scope, "client": client}, receive, send)  # type: ignore[arg-type]
    assert [one["status"] for one in answers if "status" in one] == [403, 200, 200, 200, 403]
    with pytest.raises(UsageError, match="open to other machines"):
        listen(app, "0.0.0.0", 0)
    listen(App(talkative(), auth=AUTH), "0.0.0.0", 0).close()
    listen(app, "0.0.0.0", 0, insecure=True).close()


async def test_bodies_that_do_not_fit() -> None:
    """Each has its own status, and none is an error of the server."""
    app = App(talkative(), limits=Limits(body=2_000, message=100))
    async with served(app) as url, connected(url) as client:

        async def code(body: str, kind: str = "application/json", path: str = "/agents/a/runs") -> tuple[int, str]:
            async with client.http.post(f"{url}{path}", data=body.encode(), headers={"Content-Type": kind}) as response:
                return response.status, (await response.json())["error"]["code"]

        good = json.dumps({"input": "Hi"})
        assert await code(good, "text/plain") == (415, "unsupported_media_type")
        assert await code(good, "application/x-www-form-urlencoded") == (415, "unsupported_media_type")
        assert await code("{") == (400, "not_json")
        assert await code("[" * 1_900) == (400, "not_json")
        assert await code('{"input": NaN}') == (400, "not_json")
        assert await code('{"input": "' + "x" * 3_000 + '"}') == (413, "body_too_large")
        assert await code('{"input": "' + "x" * 101 + '"}') == (413, "message_too_long")
        for wrong in ("[]", "null", '"Hi"', '{"input": 5}', '{"input": ["Hi"]}', '{"input": ""}', '{"input": "  "}'):
            assert await code(wrong) == (422, "invalid_body")
        for wrong in ({"session": "a/b"}, {"session": 1}, {"session": "x" * 65}, {"owner": "bob"}, {"session": ""}):
            assert await code(json.dumps({"input": "Hi", **wrong})) == (422, "invalid_body")
        assert await code(good, path="/agents/unknown/runs") == (404, "no_such_agent")
        assert await code(good, path="/agents") == (405, "method_not_allowed")
        for query in ("limit=-1", "limit=x", "offset=1e9", "limit=" + "9" * 30, "limit=%D9%A3"):
            assert (await client.ask("GET", f"/agents/a/sessions?{query}"))[0] == 422


async def test_a_body_without_an_end_is_refused_as_too_large_or_too_slow() -> None:
    """Chunked bodies are counted, and a body that drips is given up."""
    app = App(talkative(), limits=Limits(body=2_000, body_seconds=0.2))
    head = b"POST /agents/a/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    async with served(app) as url:
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b" " * 1024 + b"\r\n"
        large = await raw(url, chunked + b"400\r\n" + b" " * 1024 + b"\r\n" + b"400\r\n")
        slow = await raw(url, head + b'Content-Length: 100\r\n\r\n{"inp')
        lying = await raw(url, head + b"Content-Length: 9999999999\r\n\r\n")
    assert [answer.split(b" ", 2)[1] for answer in (large, slow, lying)] == [b"413", b"408", b"413"]


async def test_limits_on_runs_name_who_must_wait_and_how_long() -> None:
    """A user's own limit is 429, the server's 503; both with `Retry-After`; a slot is free again after its run."""
    gate = Gate()
    agent = Agent("a", ScriptedModel(lambda request: ["One ", gate]))
    limits = Limits(runs=3, runs_per_user=2, retry_after=7)
    async with (
        served(App(agent, auth=AUTH, limits=limits)) as url,
        connected(url, Authorization=f"Bearer {ADA}") as ada,
        connected(url, Authorization=f"Bearer {BOB}") as bob,
    ):
        running = [await ada.started("1"), await ada.started("2")]

        async def refused(client: Client) -> tuple[int, str, str]:
            async with client.http.post(f"{url}/agents/a/runs", json={"input": "x"}) as response:
                return response.status, (await response.json())["error"]["code"], response.headers["Retry-After"]

        assert await refused(ada) == (429, "too_many_runs", "7")
        await bob.started("3")
        assert await refused(bob) == (503, "overloaded", "7")
        gate.open.set()
        await ada.ended(running[0]["id"])
        await ada.started("4")


async def test_limits_on_streams() -> None:
    """Further streams are refused, an idle one is closed, and the run continues."""
    gate = Gate()
    agent = Agent("a", ScriptedModel([["One ", gate]]))
    limits = Limits(streams_per_user=1, heartbeat=0.05, idle=0.2)
    async with served(App(agent, limits=limits)) as url, connected(url) as client:
        run = (await client.started("Go"))["id"]
        async with client.stream(f"/runs/{run}/events") as response:
            async with client.stream(f"/runs/{run}/events") as second:
                assert (second.status, second.headers["Retry-After"]) == (429, "5")
            text = await response.text()  # until it is closed for idleness
        assert "event: end" not in text
        assert text.count(":\n\n") >= 2
        gate.open.set()
        assert (await client.ended(run))["outcome"] == "completed"


async def test_a_call_without_a_free_stream_is_not_left_running() -> None:
    """It would spend tokens on an answer that was refused."""
    gates = [Gate(), Gate()]
    agent = Agent("a", ScriptedModel([["One ", gates[0]], ["Two ", gates[1]]]))
    async with served(App(agent, limits=Limits(streams=1))) as url, connected(url) as client:
        first = (await client.started("Go"))["id"]
        async with client.stream(f"/runs/{first}/events") as response:
            assert response.status == 200
            status, _ = await client.ask("POST", "/agents/a/call", {"input": "Go"}, Accept="text/event-stream")
            assert status == 503
            async with asyncio.timeout(LIMIT):
                while True:
                    second = (await client.good("GET", "/runs"))[-1]
                    if "end" in second:
                        break
                    await asyncio.sleep(0.02)
        gates[0].open.set()
    assert (second["id"] != first, second["end"]["outcome"]) == (True, "interrupted")


async def test_a_client_that_does_not_read_is_given_up() -> None:
    """A half-open connection holds neither the run nor the stream's slot."""
    agent = Agent("a", ScriptedModel([["x" * 60_000 for _ in range(200)], "Hello."]))
    limits = Limits(streams=1, send_seconds=0.3, buffer_bytes=20_000_000)
    async with served(App(agent, limits=limits)) as url, connected(url) as client:
        run = (await client.started("Go"))["id"]
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(address(url))
            stuck.sendall(f"GET /runs/{run}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            stuck.setblocking(False)
            statuses = [int((await asyncio.get_running_loop().sock_recv(stuck, 12))[-3:])]
            async with asyncio.timeout(LIMIT):
                while len(statuses) == 1 or statuses[-1] == 503:  # until the slot is free again
                    async with client.stream(f"/runs/{run}/events") as response:
                        statuses.append(response.status)
                    await asyncio.sleep(0.05)
    assert (statuses[:2], statuses[-1]) == ([200, 503], 200)


async def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that never ends (slow-loris) does not hold a connection."""
    from agentflow.serve import server

    monkeypatch.setattr(server, "_HEAD_SECONDS", 0.2)
    made = server.server_for(App(talkative()), shutdown_seconds=1)
    made.config.port = 0
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = asyncio.create_task(made.serve(sockets=[listening]))
        await asyncio.wait_for(made.listens.wait(), LIMIT)
        url = "http://{}:{}".format(*listening.getsockname())
        assert await raw(url, b"GET /agents HTTP/1.1\r\nHost: 127.") == b""
        async with connected(url) as client:
            assert (await client.ask("GET", "/agents"))[0] == 200
        made.should_exit = True
        await running


async def test_markup_in_every_field_stays_text() -> None:
    """Whatever the model, a tool or a user says, responses are JSON or SSE, and no text forges an event."""
    hostile = "<script>alert(1)</script>\n\nevent: end\ndata: {}\n\n\u2028\r\ndata: x"
    agent = Agent("a", ScriptedModel(lambda request: hostile), description=hostile)
    async with served(App(agent)) as url, connected(url) as client:
        run = await client.started(hostile)
        events = await client.events(run["id"])
        history = await client.good("GET", f"/agents/a/sessions/{run['session']}")
        for path in ("/agents", f"/runs/{run['id']}", "/<script>", f"/agents/{hostile.encode().hex()}"):
            async with client.http.get(f"{url}{path}") as response:
                assert response.headers["content-type"] == "application/json"
                assert response.headers["x-content-type-options"] == "nosniff"
                assert response.headers["content-security-policy"].startswith("default-src 'none'")
                assert response.headers["cache-control"] == "no-store"
    assert [one.type for one in events] == ["run", "text", "reply", "end"]
    assert events[1].data["text"] == hostile
    assert [msg["text"] for msg in history["messages"]] == [hostile, hostile]


async def test_ten_thousand_sessions_of_one_user() -> None:
    """The list stays a page."""
    store = MemoryStore()
    app = App(talkative(), store=store)
    async with served(app) as url, connected(url) as client:
        await client.ended((await client.started("Hi", session="s"))["id"])
        [first] = await store.sessions()
        saved = await store.export(first.id)
        for number in range(10_000):
            await store.import_(saved, f"{first.id}{number}")
        found = await client.good("GET", "/agents/a/sessions?limit=5000")
    assert (found["total"], len(found["sessions"])) == (10_001, 200)
