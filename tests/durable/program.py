"""The worker process of the tests: `program.py URL LOG [LEASE]`. It works until it is stopped or killed.

Each effect of its tools is a line in LOG: the session, the run, the effect's key, the process. While there is a file
`hold`
beside it, a tool that has written its line waits, and reports it in a file `waiting`: the content of `hold`, and the
process.
With FREEZE in the environment the process stops itself at the first event of that name, as an operating system might.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from agentflow import Agent, Hook, ToolContext, ToolUseBlock, on, tool
from agentflow.durable.agent import DurableAgent
from agentflow.durable.worker import QueueLimits
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import events
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import Event
from agentflow.vocabulary.ports.model import ModelRequest

ROUNDS = 3


def rounds_of(request: ModelRequest) -> int:
    """Return how many tool rounds followed the last input."""
    messages = list(request.messages)
    spoken = max(n for n, msg in enumerate(messages) if msg.role == "user")
    return sum(msg.role == "tool" for msg in messages[spoken:])


def answer(request: ModelRequest) -> list[ToolUseBlock] | str:
    """Three rounds of tools, then a text; for the input "mixed", the second tool must not run twice."""
    said = next(msg.text for msg in reversed(request.messages) if msg.role == "user")
    done, place = rounds_of(request), len(request.messages)
    name, rounds = {"pay": ("pay", 1), "wait": ("wait", 1), "ask": ("ask_other", 1)}.get(said, ("note", ROUNDS))
    if done >= rounds:
        last = request.messages[-1].tool_results
        return f"done: {last[0].text}" if name != "note" else f"done: {said}"
    if said == "mixed" and done == 1:
        name = "post"
    return [ToolUseBlock(f"t{place}", name, {})]


def make_agents(url: str, log: Path, name: str = "clerk") -> tuple[DurableAgent, DurableAgent]:
    """Return the agents: one that works, and one that it asks."""
    store = SqlStore(url)

    def say(context: RunContext, key: str) -> None:
        with log.open("a") as file:
            file.write(f"{context.session_id} {context.run_id} {key} {os.getpid()}\n")

    async def at_work() -> None:
        await asyncio.sleep(0.02)  # so that a kill finds it at work
        hold = log.with_name("hold")
        with suppress(FileNotFoundError):
            said = hold.read_text()
            with log.with_name("waiting").open("a") as file:
                file.write(f"{said} {os.getpid()}\n")
        while hold.exists():  # noqa: ASYNC110 - another process removes it
            await asyncio.sleep(0.02)

    @tool(idempotent=True)
    async def note(run: RunContext, context: ToolContext) -> str:
        """Write a line."""
        say(run, context.idempotency_key)
        await at_work()
        return "noted"

    @tool
    async def post(run: RunContext, context: ToolContext) -> str:
        """Write a line, once only."""
        say(run, context.idempotency_key)
        await at_work()
        return "posted"

    @tool(requires_approval=True)
    async def pay(run: RunContext, context: ToolContext) -> str:
        """Pay."""
        say(run, context.idempotency_key)
        return f"paid by {os.getpid()}"

    @tool
    async def wait(run: RunContext, context: ToolContext) -> str:
        """Wait until the test releases it."""
        say(run, context.idempotency_key)
        while not log.with_name("go").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.05)
        say(run, "released")
        return "waited"

    @tool(idempotent=True)
    async def ask_other(context: ToolContext) -> str:
        """Ask the other agent."""
        return (await clerk.ask("expert", "What is it?", run_id=context.idempotency_key.replace("/", "-"))).text

    hooks: list[Hook] = []
    if "FREEZE" in os.environ:
        kind: type[Event] = getattr(events, os.environ["FREEZE"])

        @on(kind)
        def freeze(event: Event) -> None:
            if hooks:
                hooks.clear()
                if url.startswith(
                    "sqlite"
                ):  # a process that is stopped in a write keeps the only lock: stop between two
                    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as database:
                        database.execute("BEGIN IMMEDIATE")
                os.kill(os.getpid(), signal.SIGSTOP)

        hooks.append(freeze)

    model: Callable[[], ScriptedModel] = lambda: ScriptedModel(answer)  # noqa: E731
    clerk = DurableAgent(
        Agent(name, model(), tools=[note, post, pay, wait, ask_other], hooks=list(hooks), store=store), url
    )
    expert = DurableAgent(Agent("expert", ScriptedModel(lambda request: "42"), store=store), url)
    return clerk, expert


async def work(url: str, log: Path, lease: float) -> None:
    """Run a worker."""
    clerk, expert = make_agents(url, log)
    everywhere = os.environ.get("EVERYWHERE")
    limits = QueueLimits(per_worker=1 if everywhere else 8, everywhere=int(everywhere) if everywhere else None)
    agents = [agent for agent in (clerk, expert) if agent.name in os.environ.get("AGENTS", "clerk expert")]
    grace = float(os.environ.get("GRACE", "5"))
    worker = agents[0].worker(*agents[1:], limits=limits, lease_seconds=lease, grace=grace, poll=0.05)
    async with clerk, worker:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        print("ready", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
