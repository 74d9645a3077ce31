"""The processes of a durable agent that chat pages and other clients use: `page_processes.py web URL PORT` and
`page_processes.py worker URL`.

A user is who the token of `Authorization` says. The agent's replies are determined by its input.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec

from agentflow import Agent, RunContext, ToolUseBlock, tool
from agentflow.durable.agent import DurableAgent
from agentflow.serve import STANDARD, App, Limits, View, bearer_tokens
from agentflow.serve.a2a import A2A
from agentflow.serve.server import listen, server_for
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest

TOKENS = {"a-long-random-token": "ada", "another-random-token": "bob"}
WORDS = 100
PAUSE = 0.03


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


@dataclass
class Cart:
    """A part of the session's state that pages may see."""

    items: list[str] = field(default_factory=list[str])


@dataclass
class Score:
    """One that they may not see."""

    value: int = 7


@tool
async def add(item: str, context: RunContext) -> str:
    """Add an item."""
    context.session_state[Cart].items.append(item)
    context.session_state[Score].value += 1
    return "added"


def brain(request: ModelRequest) -> list[object]:
    """Pay, call the client's tool, count slowly, name the instructions, or greet."""
    last = request.messages[-1]
    key = f"t{len(request.messages)}"
    match last.text.split(" "):
        case _ if last.role == "tool":
            return ["done: ", last.tool_results[-1].text]
        case ["pay", euros]:
            return ["Let me pay.", ToolUseBlock(key, "pay", {"euros": int(euros)})]
        case ["add", item]:
            return [ToolUseBlock(key, "add", {"item": item})]
        case ["draw", kind]:
            return ["Look: ", ToolUseBlock(key, request.tools[-1].name, {"kind": kind})]
        case ["count"]:
            return [part for n in range(WORDS) for part in (f"{n} ", pause)]
        case ["system?"]:
            return [request.messages[0].text]
        case _:
            return ["Hello ", last.text]


async def pause() -> str:
    """Wait, as an item of a scripted reply."""
    await asyncio.sleep(PAUSE)
    return ""


def agent_on(url: str) -> DurableAgent:
    """The agent, as a process makes it."""
    agent = Agent("a", ScriptedModel(brain), system="Be exact.", tools=[pay, add], store=SqlStore(url))
    return DurableAgent(agent, url, poll=0.05, state=[Cart])


async def serve(url: str, port: int) -> None:
    """Be a web process."""
    app = App(
        agent_on(url),
        auth=bearer_tokens(TOKENS),
        view=View(tools="full", state=[Cart]),
        limits=Limits(heartbeat=1.0),
        routes=[*STANDARD, A2A(tasks=url)] if find_spec("aiosqlite") else STANDARD,
    )
    with listen(app, "127.0.0.1", port) as listening:
        await server_for(app, shutdown_seconds=2).serve(sockets=[listening])


async def work(url: str) -> None:
    """Be a worker."""
    durable = agent_on(url)
    async with durable, durable.worker(poll=0.05, grace=1):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[2], int(sys.argv[3])) if sys.argv[1] == "web" else work(sys.argv[2]))
