"""An agent over HTTP: a client starts a run, loses its connection, and gets exactly the events it missed.

The same server with the command line: `agentflow serve module:agent`.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import aiohttp

from agentflow import Agent, ToolUseBlock, tool
from agentflow.serve import App, View
from agentflow.serve.server import server_for
from agentflow.testing import ScriptedModel


@tool(type="read")
async def price(article: str) -> str:
    """Look up a price."""
    return {"bread": "2.25 euros", "apple": "0.40 euros"}[article]


# or a real model: "openai/gpt-5"
model = ScriptedModel([ToolUseBlock("t1", "price", {"article": "bread"}), ["Bread is ", "2.25 euros."]])
clerk = Agent("clerk", model, tools=[price])
app = App(clerk, view=View(labels={"price": "Looking up the price"}))


async def events(http: aiohttp.ClientSession, run: str, last: str | None = None) -> AsyncIterator[tuple[str, str]]:
    """Yield the events of a run after the last received one: their ids and data."""
    async with http.get(f"/runs/{run}/events", headers={} if last is None else {"Last-Event-ID": last}) as response:
        place = ""
        async for line in response.content:
            if line.startswith(b"id: "):
                place = line[4:].decode().strip()
            elif line.startswith(b"data: "):
                yield place, line[6:].decode().strip()


async def show(connection: str, received: AsyncIterator[tuple[str, str]], most: int | None = None) -> str:
    """Print events, and return the id of the last one."""
    seen, last = 0, ""
    async for place, data in received:
        last = place
        event = json.loads(data)
        print(f"{connection}: {event['type']:6} {event.get('text') or event.get('state') or event['type']}")
        seen += 1
        if seen == most:
            break
    return last


async def work() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = server_for(app, shutdown_seconds=5)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await server.listens.wait()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with aiohttp.ClientSession(url) as http:
            async with http.post("/agents/clerk/runs", json={"input": "How much is bread?"}) as response:
                run = (await response.json())["id"]
            last = await show("connection 1", events(http, run), 3)  # it breaks after three events
            await show("connection 2", events(http, run, last))
        server.should_exit = True
        await serving


def main() -> None:
    asyncio.run(work())


if __name__ == "__main__":
    main()
