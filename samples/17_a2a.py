"""An agent that uses an agent of another program over A2A; the question of the other one reaches a person here.

The other program is this one too: it serves the shop on a port of this machine.
"""

from __future__ import annotations

import asyncio
import socket

from agentflow import Agent, Answer, ModelRequest, ToolUseBlock, tool
from agentflow.serve import STANDARD, App
from agentflow.serve.a2a import A2A, RemoteAgent
from agentflow.serve.server import server_for
from agentflow.testing import ScriptedModel


@tool(requires_approval=True)
async def order(article: str, euros: int) -> str:
    """Order an article."""
    return f"ordered {article} for {euros} euros"


def clerk(request: ModelRequest) -> ToolUseBlock | str:
    last = request.messages[-1]
    if last.role == "user":
        return ToolUseBlock("t1", "order", {"article": "a lamp", "euros": 40})
    return f"Done: {last.tool_results[0].text}."


# ---- the shop's program; if it is a module, the command `agentflow serve shop:agent --a2a` does the same
shop = Agent("shop", ScriptedModel(clerk), description="Orders things for the office.", tools=[order])
app = App(shop, routes=[*STANDARD, A2A()])


async def office(url: str) -> None:
    """Work with the shop: the office's program."""
    remote = await RemoteAgent.discover(f"{url}/a2a/shop")
    print("card:    ", remote.name, "-", remote.description)
    script = [ToolUseBlock("c1", "shop", {"message": "We need a lamp."}), "The lamp is on its way."]
    assistant = Agent("assistant", ScriptedModel(script), tools=[remote.as_tool()])

    reply = await assistant.call("It is dark in here.")
    [waits] = reply.pending
    assert waits.tool_use is not None
    asked = waits.tool_use.input["data"][0]["questions"][0]
    print("question:", waits.tool_use.input["question"].splitlines()[0], asked["input"])

    decision = {"action": "approve", "input": {"article": "a lamp", "euros": 30}}  # or simply Answer("approve")
    reply = await assistant.resume(decisions={waits.id: Answer({"decisions": {asked["id"]: decision}})})
    print("shop:    ", assistant.session().messages[2].tool_results[0].text)
    print("reply:   ", reply.text)


async def work() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = server_for(app, shutdown_seconds=5)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await server.listens.wait()
        await office(f"http://127.0.0.1:{listening.getsockname()[1]}")
        server.should_exit = True
        await serving


def main() -> None:
    asyncio.run(work())


if __name__ == "__main__":
    main()
