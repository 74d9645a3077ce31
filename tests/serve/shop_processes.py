"""The processes of a served durable agent: `shop_processes.py web URL PORT` and `shop_processes.py worker URL LEASE`.

A user is who the header `X-User` says. The agent's replies are determined by its input, so a test knows them; they are slow,
so a kill finds them unfinished.
"""

from __future__ import annotations

import asyncio
import os
import sys

from starlette.requests import Request

from agentflow import Agent, ToolUseBlock, tool
from agentflow.durable.agent import DurableAgent
from agentflow.durable.worker import QueueLimits
from agentflow.serve import App, Limits
from agentflow.serve.server import listen, server_for
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest

WORDS = 12
PAUSE = float(os.environ.get("PAUSE", "0.05"))


def answers(question: str) -> list[str]:
    """The agent's replies to a question."""
    return [f"Counting {question}. ", "".join(f"{n} of {question}, " for n in range(WORDS)) + f"in stock: {question}"]


@tool(idempotent=True)
async def count_stock(article: str) -> str:
    """Count the stock of an article."""
    await asyncio.sleep(PAUSE)
    return f"in stock: {article}"


def brain(request: ModelRequest) -> list[object]:
    """Say something and count, then report."""
    question = next(msg.text for msg in reversed(request.messages) if msg.role == "user")
    first, second = answers(question)
    if request.messages[-1].role != "tool":
        return [first, ToolUseBlock(f"t{len(request.messages)}", "count_stock", {"article": question})]
    words = second.split(" ")
    parts: list[object] = []
    for n, word in enumerate(words):
        parts += [word if n == len(words) - 1 else f"{word} ", pause]
    return parts


async def pause() -> str:
    """Wait, as an item of a scripted reply."""
    await asyncio.sleep(PAUSE)
    return ""


def agent_on(url: str) -> DurableAgent:
    """The agent."""
    return DurableAgent(Agent("clerk", ScriptedModel(brain), tools=[count_stock], store=SqlStore(url)), url)


async def auth(request: Request) -> str | None:
    """Trust the header; only for this test."""
    return request.headers.get("x-user")


async def serve(url: str, port: int) -> None:
    """Be a web process."""
    app = App(agent_on(url), auth=auth, limits=Limits(runs=10_000, heartbeat=1.0))
    with listen(app, "127.0.0.1", port) as listening:
        await server_for(app, shutdown_seconds=2).serve(sockets=[listening])


async def work(url: str, lease: float) -> None:
    """Be a worker."""
    durable = agent_on(url)
    async with durable, durable.worker(limits=QueueLimits(per_worker=50), lease_seconds=lease, poll=0.1):
        await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "web":
        asyncio.run(serve(sys.argv[2], int(sys.argv[3])))
    else:
        asyncio.run(work(sys.argv[2], float(sys.argv[3])))
