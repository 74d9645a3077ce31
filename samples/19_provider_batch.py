"""Many inputs at half the price, through a provider's batches: a program that was killed and restarted pays nothing twice.

It runs offline: a wire server plays OpenAI's batch endpoint. Without api_base= and api_key= it is OpenAI's, with your key.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from agentflow import Agent, Reply
from agentflow.agent.orchestration import batch
from agentflow.models import OpenAIBatch
from agentflow.testing.wire import BatchPlan, ScriptedCall, WireReply, WireRequest, WireServer, WireUsage
from agentflow.tools import tool

CITIES = ["Bern", "Lima", "Oslo"]


@tool
async def degrees(city: str) -> int:
    """Return the temperature of a city."""
    return {"Bern": 12, "Lima": 21, "Oslo": 3}[city]


def think(request: WireRequest) -> WireReply:
    usage = WireUsage(input=1_000_000, output=0)
    if request.results:
        return WireReply("cold" if int(request.results[0].text) < 10 else "warm", usage=usage)
    return WireReply("", calls=(ScriptedCall("degrees", {"city": request.user_text}),), usage=usage)


async def ask(url: str, path: Path) -> None:
    model = OpenAIBatch("gpt-5-mini", path=path, max_requests=3, poll=0.01, api_base=url, api_key="k")
    agent = Agent("weather", model, tools=[degrees], default_hooks=())
    results = await batch(agent, CITIES, concurrency=len(CITIES))
    for city, result in zip(CITIES, results, strict=True):
        print(city, f"{result.text}, ${result.usage.cost:.3f}" if isinstance(result, Reply) else result)
    model.close()


async def ask_twice() -> None:
    with TemporaryDirectory() as folder:
        async with WireServer.openai(think, batches=BatchPlan(polls=3)) as server:
            await ask(server.base_url, Path(folder) / "job.db")
            print("Again:")
            await ask(server.base_url, Path(folder) / "job.db")
            print(f"{len(server.batches)} batches, of {[len(one.requests) for one in server.batches]} requests")


def main() -> None:
    asyncio.run(ask_twice())


if __name__ == "__main__":
    main()
