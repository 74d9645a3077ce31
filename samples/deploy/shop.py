"""The agent of the deployment: web processes serve it, workers run its calls.

python shop.py "Count the apples"          # submits a job to the workers, and prints the reply
"""

from __future__ import annotations

import asyncio
import os
import sys

from agentflow import Agent, ModelRequest, ToolUseBlock, tool
from agentflow.durable.agent import DurableAgent
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel

DATABASE = os.environ["AGENTFLOW_DATABASE"]


@tool(idempotent=True)
async def count_stock(article: str) -> str:
    """Count the stock of an article."""
    await asyncio.sleep(1)
    return f"There are 12 {article}"


def offline(request: ModelRequest) -> list[ToolUseBlock] | str:
    """Answer without a model: count the article that the last word names."""
    last = request.messages[-1]
    if last.role == "tool":
        return f"{last.tool_results[0].text} by process {os.getpid()}."
    return [ToolUseBlock(f"t{len(request.messages)}", "count_stock", {"article": last.text.split()[-1]})]


clerk = Agent(
    "clerk",
    os.environ.get("MODEL") or ScriptedModel(offline),  # such as "openai/gpt-5", with its key in the environment
    description="Counts the stock of a shop.",
    tools=[count_stock],
    store=SqlStore(DATABASE),
)
served = DurableAgent(clerk, DATABASE)


async def submit(text: str) -> str:
    """Run a job in a worker."""
    async with served:
        return str(await served.call(text))


if __name__ == "__main__":
    print(asyncio.run(submit(sys.argv[1])))
