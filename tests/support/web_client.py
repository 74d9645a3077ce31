"""The backend of `samples/web_chat` under a real uvicorn on loopback, and clients of real HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "samples" / "web_chat"
sys.path.append(str(SAMPLE))

LIMIT = 60.0


class Client:
    """One browser, as far as HTTP is concerned: it keeps its cookie."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    async def history(self) -> dict[str, Any]:
        """The conversation."""
        async with self.http.get(f"{self.url}/history") as response:
            assert response.status == 200
            return await response.json()

    def post(self, path: str, data: Any) -> Any:
        """Begin a request; `async with` it."""
        return self.http.post(f"{self.url}/{path}", json=data)

    async def call(self, path: str, data: Any) -> list[dict[str, Any]]:
        """A call's events, to its end."""
        async with self.post(path, data) as response:
            assert response.status == 200, await response.text()
            return [event async for event in events(response)]

    async def chat(self, text: str) -> list[dict[str, Any]]:
        """Say something."""
        return await self.call("chat", {"text": text})

    async def status(self, path: str, data: Any) -> int:
        """How a request is answered."""
        async with self.post(path, data) as response:
            return response.status


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The events of a response, as they come."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


def text_of(seen: Sequence[dict[str, Any]]) -> str:
    """Return the text of a call."""
    return "".join(event["text"] for event in seen if event["type"] == "text")


@asynccontextmanager
async def connected(url: str, cookies: Any = None) -> AsyncIterator[Client]:
    """A client with a conversation of its own, or with another one's cookies: a second tab."""
    timeout = aiohttp.ClientTimeout(total=LIMIT)
    connector = aiohttp.TCPConnector(limit=0)
    jar = cookies or aiohttp.CookieJar(unsafe=True)  # unsafe: for an address without a name
    async with aiohttp.ClientSession(cookie_jar=jar, timeout=timeout, connector=connector) as http:
        client = Client(http, url)
        if cookies is None:
            await client.history()
        yield client


class Server(uvicorn.Server):
    """It reports when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.listens.set()

    @property
    def url(self) -> str:
        """Where."""
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """An application under uvicorn, in this process and loop; its address."""
    server = Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=5))
    running = asyncio.create_task(server.serve())
    try:
        await asyncio.wait_for(server.listens.wait(), LIMIT)
        yield server.url
    finally:
        server.should_exit = True
        await running
