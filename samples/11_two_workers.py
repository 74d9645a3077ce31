"""Two workers: a submitted call is run by a worker process; that worker is killed, and the other one continues the call.

Without arguments it submits the call and starts itself twice more, as workers. (`agentflow worker module:agent --database
URL` does the same for your own agent; the database may be PostgreSQL on another machine.)
Needs `agentflow-hooks[dbos]`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile

from agentflow import Agent, ToolUseBlock, tool
from agentflow.durable.agent import DurableAgent
from agentflow.durable.client import DurableClient
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest


@tool(idempotent=True)  # may run again if its worker dies; finished work never does
async def measure(metre: int) -> str:
    """Measure one metre of the river."""
    await asyncio.sleep(0.5)
    return f"metre {metre} by process {os.getpid()}"


def answer(request: ModelRequest) -> list[ToolUseBlock] | str:
    """Measure six times, then answer; replaces a model."""
    done = sum(msg.role == "tool" for msg in request.messages)
    return [ToolUseBlock(f"t{done}", "measure", {"metre": done})] if done < 6 else "It is 5 m deep."


async def work(url: str) -> None:
    async with SqlStore(url) as store:
        agent = Agent("surveyor", ScriptedModel(answer), tools=[measure], store=store)
        async with DurableAgent(agent, url) as durable:
            await durable.worker(lease_seconds=2, poll=0.1).run()


async def submit(url: str) -> None:
    async with DurableClient(url) as client:
        run_id = await client.submit("surveyor", "How deep is the river?", run_id="survey-1")
        await client.submit("surveyor", "How deep is the river?", run_id="survey-1")  # the same run: nothing happens
        who: list[int] = []
        async for event in client.stream(run_id):  # from another process, while the run moves to another worker
            if event.type == "PostActing":
                result = str(event.data["tool_result"])
                who.append(int(result.partition("by process ")[2].partition("'")[0]))
                if len(who) == 2:
                    os.kill(who[-1], signal.SIGKILL)
                    print("the worker that had the call is killed after two measurements", flush=True)
        print("the river was measured by", len(set(who)), "processes")
        reply = await client.result(run_id)
        print(f"{reply.outcome}: {reply}")


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(work(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/runs.db"
        command = [sys.executable, os.path.abspath(__file__), url]
        workers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
        asyncio.run(submit(url))
        for worker in workers:
            worker.kill()
            worker.wait()


if __name__ == "__main__":
    main()
