"""Crash and resume: a process kills itself in the middle of a call, twice; the next process resumes the call.

Without arguments it starts itself as a child as often as needed. A child ends with SIGKILL, as in a power failure: no handler
runs and nothing is cleaned up. The next child has only the stored data.
Needs `agentflow-hooks[sql]`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from agentflow import Agent, ModelRequest, ToolContext, ToolUseBlock, tool
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel


def die_once(folder: Path, where: str) -> None:
    """Kill the process the first time that this point is reached."""
    mark = folder / where
    if not mark.exists():
        mark.touch()
        print(f"  (SIGKILL {where})", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def agent_in(folder: Path, store: SqlStore) -> Agent:
    @tool(idempotent=True)  # the bank knows the key, so a repeated order is not a second payment
    async def pay(euros: int, context: ToolContext) -> str:
        print(
            f"  pay {euros}, attempt {context.attempt}, key …:{context.idempotency_key.partition(':')[2]}", flush=True
        )
        die_once(folder, "while the bank answers")
        return f"{euros} euros paid"

    @tool
    async def post(letter: str) -> str:
        print(f"  post {letter}", flush=True)
        die_once(folder, "behind the letter box")
        return "posted"

    def clerk(request: ModelRequest) -> str | ToolUseBlock:
        results = [result for msg in request.messages for result in msg.tool_results]
        if len(results) == 2:
            return f"{results[0].text}. The letter: {results[1].text}"
        name, given = (("pay", {"euros": 40}), ("post", {"letter": "Thank you, Ann"}))[len(results)]
        return ToolUseBlock(f"t{len(results)}", name, given)

    return Agent("clerk", ScriptedModel(clerk), tools=[pay, post], store=store)


async def work(folder: Path) -> None:
    async with SqlStore(f"sqlite:///{folder / 'agentflow.db'}") as store:
        agent = agent_in(folder, store)
        unfinished = await agent.unfinished()
        reply = await (agent.resume(unfinished[0].id) if unfinished else agent.call("Settle it", session="desk"))
        print(f"  {reply.outcome}: {reply}")


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(work(Path(sys.argv[1])))
        return
    with tempfile.TemporaryDirectory() as folder:
        for process in range(1, 10):
            print(f"process {process}", flush=True)
            if not subprocess.run([sys.executable, __file__, folder], check=False).returncode:
                break


if __name__ == "__main__":
    main()
