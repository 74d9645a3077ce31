"""`agentflow.serve.App` under a real uvicorn on loopback, and a client of real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
from web_client import LIMIT, served

from agentflow import Agent, ToolUseBlock, tool
from agentflow.testing import ScriptedModel

__all__ = ["LIMIT", "Client", "Gate", "Sent", "connected", "pay", "paying", "served"]


class Sent(NamedTuple):
    """A server-sent event."""

    id: str
    type: str
    data: dict[str, Any]


class Gate:
    """A place in a script where a model waits until the test opens it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self) -> str:
        """Wait, as an item of a scripted reply."""
        self.reached.set()
        await asyncio.wait_for(self.open.wait(), LIMIT)
        return "opened "


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    """Pay an amount."""
    return f"paid {euros}"


def paying(name: str = "a") -> Agent:
    """An agent that pays after an approval, and says what became of it."""

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "user":
            return ToolUseBlock("t1", "pay", {"euros": 30})
        return f"Result: {last.tool_results[0].text}"

    return Agent(name, ScriptedModel(answer), tools=[pay])


class Client:
    """A program that uses the server."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    async def ask(self, method: str, path: str, data: Any = None, **headers: str) -> tuple[int, Any]:
        """Make a request; return its status, and its JSON."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = None if data is None else json.dumps(data)
        if body is not None:
            named.setdefault("Content-Type", "application/json")
        async with self.http.request(method, f"{self.url}{path}", data=body, headers=named) as response:
            text = await response.text()
            assert int(response.headers.get("content-length", len(text.encode()))) == len(text.encode())
            return response.status, json.loads(text) if text else None

    async def ask_status(self, method: str, path: str) -> int:
        """Make a request; return its status."""
        async with self.http.request(method, f"{self.url}{path}") as response:
            return response.status

    async def good(self, method: str, path: str, data: Any = None) -> Any:
        """Make a request that succeeds; return its JSON."""
        status, found = await self.ask(method, path, data)
        assert status < 300, (status, found)
        return found

    def stream(self, path: str, last: str | None = None) -> Any:
        """Begin to read events; `async with` it."""
        headers = {} if last is None else {"Last-Event-ID": last}
        return self.http.get(f"{self.url}{path}", headers=headers)

    async def events(self, run: str, last: str | None = None) -> list[Sent]:
        """Return all events of a run until its end."""
        async with self.stream(f"/runs/{run}/events", last) as response:
            assert response.status == 200, await response.text()
            return [sent async for sent in sent_by(response)]

    async def started(self, text: str, **more: Any) -> dict[str, Any]:
        """Start a run of the agent `a`."""
        return await self.good("POST", "/agents/a/runs", {"input": text, **more})

    async def ended(self, run: str) -> dict[str, Any]:
        """Wait for a run's end, and return it."""
        return (await self.events(run))[-1].data


async def sent_by(response: aiohttp.ClientResponse) -> AsyncIterator[Sent]:
    """Yield the events of a response."""
    fields: dict[str, str] = {}
    async for line in response.content:
        text = line.decode().rstrip("\n")
        if not text and "data" in fields:
            yield Sent(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
        if not text:
            fields = {}
        elif not text.startswith(":"):
            name, _, value = text.partition(": ")
            fields[name] = value


@asynccontextmanager
async def connected(url: str, **headers: str) -> AsyncIterator[Client]:
    """A client with headers of its own, such as a token."""
    timeout = aiohttp.ClientTimeout(total=LIMIT)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as http:
        yield Client(http, url)
