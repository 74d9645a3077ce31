"""What uses which stream over HTTP, and streams that a client continues after its connection broke."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lines import Lines
from mcp_types import JSONRPCNotification
from ways import served

from agentflow import Agent, tool
from agentflow.errors import UsageError
from agentflow.mcp import ResumableStreams, agent_server
from agentflow.testing import ScriptedModel

ACCEPT = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


class Gate:
    """What the tool of a test waits for."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def agent(self) -> Agent:
        @tool
        async def slow(said: str) -> str:
            """Wait, and say something."""
            await self.open.wait()
            return said

        return Agent("clerk", ScriptedModel(["x"]), tools=[slow])


def request(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


async def opened(client: httpx2.AsyncClient, url: str, **capabilities: Any) -> dict[str, str]:
    """Open a session; the headers of its requests."""
    about = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}
    answer = await client.post(url, json=request(0, "initialize", about), headers=ACCEPT)
    answer.raise_for_status()
    headers = {**ACCEPT, "mcp-session-id": answer.headers["mcp-session-id"]}
    await client.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    return headers


async def first_id(lines: AsyncIterator[str]) -> str:
    """The id of a stream's first event."""
    async for line in lines:
        if line.startswith("id: "):
            return line[4:]
    raise AssertionError("no event")


async def cut(client: httpx2.AsyncClient, url: str, headers: dict[str, str], said: str, number: int = 1) -> str:
    """Call the tool, and lose the connection; return the id of the last event."""
    call = request(number, "tools/call", {"name": "slow", "arguments": {"said": said}})
    async with client.stream("POST", url, json=call, headers=headers) as answer:
        return await first_id(answer.aiter_lines())


async def resumed(client: httpx2.AsyncClient, url: str, headers: dict[str, str], last: str) -> str:
    """What the tool has said, read after the last event that was seen."""
    async with client.stream("GET", url, headers={**headers, "last-event-id": last}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and '"result"' in line:
                return json.loads(line[6:])["result"]["content"][0]["text"]
    raise AssertionError("no result")


@asynccontextmanager
async def offered(gate: Gate, streams: ResumableStreams) -> AsyncIterator[tuple[str, httpx2.AsyncClient]]:
    app = streams.around(agent_server(gate.agent(), tools=True).streamable_http_app(event_store=streams))
    async with served(app) as address, httpx2.AsyncClient(timeout=20) as client:
        yield f"{address}/mcp", client


@pytest.mark.parametrize("before", [True, False])
async def test_a_client_goes_on(before: bool) -> None:
    """The call runs on, and its result is read over another connection: whether it ended before that, or after."""
    gate = Gate()
    async with offered(gate, ResumableStreams()) as (url, client):
        headers = await opened(client, url)
        last = await cut(client, url, headers, "apple")
        if before:
            gate.open.set()
            assert await resumed(client, url, headers, last) == "apple"
        else:
            reading = asyncio.ensure_future(resumed(client, url, headers, last))
            await asyncio.wait([reading], timeout=0)
            gate.open.set()
            assert await reading == "apple"
        assert await resumed(client, url, headers, last) == "apple"  # and once more


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=8))
def test_a_stream_continues_after_each_of_its_events(streams: list[str]) -> None:
    """Whatever the last event of a client was, it gets the later ones of that stream, once and in order."""
    store = ResumableStreams()
    continued: list[list[str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ids = [
            await store.store_event(stream, JSONRPCNotification(jsonrpc="2.0", method=str(n)))
            for n, stream in enumerate(streams)
        ]
        for last in ids:
            sent: list[str] = []

            async def send_event(event: Any, sent: list[str] = sent) -> None:
                sent.append(event.message.method)

            await store.replay_events_after(last, send_event)
            continued.append(sent)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": []}
    asyncio.run(store.around(app)(scope, None, None))  # type: ignore[arg-type]
    assert continued == [
        [str(n) for n, other in enumerate(streams) if n > at and other == stream] for at, stream in enumerate(streams)
    ]


async def test_a_client_never_reads_anothers() -> None:
    """Two clients, with the same numbers of requests and events: each gets its own result."""
    gate = Gate()
    async with offered(gate, ResumableStreams()) as (url, client):
        one, two = await opened(client, url), await opened(client, url)
        lasts = [await cut(client, url, one, "apple"), await cut(client, url, two, "pear")]
        assert lasts[0] == lasts[1]
        gate.open.set()
        assert await resumed(client, url, one, lasts[0]) == "apple"
        assert await resumed(client, url, two, lasts[1]) == "pear"


async def test_a_stream_is_one_of_several() -> None:
    """Two calls of one client: what is read of one is not the other's."""
    gate = Gate()
    async with offered(gate, ResumableStreams()) as (url, client):
        headers = await opened(client, url)
        await cut(client, url, headers, "apple")
        last = await cut(client, url, headers, "pear", 2)
        gate.open.set()
        assert await resumed(client, url, headers, last) == "pear"


async def test_events_are_bounded_and_gone_with_the_session() -> None:
    """Of a session the newest are kept; an event that is not there gives nothing; a session that ended keeps nothing."""
    gate, streams = Gate(), ResumableStreams(events=1)
    gate.open.set()
    async with offered(gate, streams) as (url, client):
        await opened(client, url)  # the first one's stay: see the rules of the module
        headers = await opened(client, url)
        call = request(1, "tools/call", {"name": "slow", "arguments": {"said": "apple"}})
        async with client.stream("POST", url, json=call, headers=headers) as answer:
            lines = answer.aiter_lines()
            last = await first_id(lines)
            assert [line async for line in lines if '"result"' in line] != []
        async with client.stream("GET", url, headers={**headers, "last-event-id": last}) as answer:
            assert [line async for line in answer.aiter_lines() if line.startswith("data: {")] == []
        assert len(streams._sessions) == 2
        answer = await client.delete(url, headers=headers)
        assert answer.is_success
        assert headers["mcp-session-id"].encode() not in streams._sessions


async def test_an_application_that_is_not_wrapped(logged: Lines) -> None:
    """It refuses to serve, and the log says what to do."""
    streams = ResumableStreams()
    app = agent_server(Gate().agent()).streamable_http_app(event_store=streams)
    async with served(app) as address, httpx2.AsyncClient(timeout=20) as client:
        with pytest.raises(httpx2.HTTPStatusError):
            await opened(client, f"{address}/mcp")
    assert any("Serve streams.around(app) instead of app." in line for line in logged)


@pytest.mark.parametrize("events", [0, -1, 1.5, True, "many"])
def test_a_number_of_events_that_is_none(events: Any) -> None:
    """It is refused."""
    with pytest.raises(UsageError, match="an integer of at least 1"):
        ResumableStreams(events)


async def test_a_question_is_asked_in_the_stream_of_its_call() -> None:
    """A client without another stream is asked."""

    @tool(requires_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    app = agent_server(Agent("clerk", ScriptedModel(["x"]), tools=[pay]), tools=True).streamable_http_app()
    async with served(app) as address, httpx2.AsyncClient(timeout=20) as client:
        url = f"{address}/mcp"
        headers = await opened(client, url, elicitation={})
        call = request(1, "tools/call", {"name": "pay", "arguments": {"amount": 3}})
        said: list[dict[str, Any]] = []
        async with client.stream("POST", url, json=call, headers=headers) as stream:
            async for line in stream.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                said.append(json.loads(line[6:]))
                if "method" in said[-1]:
                    result = {"action": "accept", "content": {"approve": True}}
                    answer = {"jsonrpc": "2.0", "id": said[-1]["id"], "result": result}
                    await client.post(url, json=answer, headers=headers)
    assert [one.get("method") for one in said] == ["elicitation/create", None]
    assert said[1]["result"]["content"][0]["text"] == "paid 3"
