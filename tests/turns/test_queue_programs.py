"""Random programs over queues: each turn that was put runs once, or waits in one queue, or was dropped.

A turn that fails has run. A turn that was denied, removed, or cancelled before its tool began was dropped. A branch
puts
copies.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import THOROUGH

from agentflow import Agent, Deny, ToolContext, Turn, on, tool
from agentflow.agent import AgentRegistry, Receipt
from agentflow.errors import QueueFullError, TurnDeniedError
from agentflow.testing.scripted import ScriptedModel
from agentflow.vocabulary.events import PostTurn, PrePut

ran: Counter[int] = Counter()
began: set[str] = set()
never_began: Counter[int] = Counter()


class FailsError(Exception):
    """The error of every fifth turn."""


def begin(n: int, context: ToolContext) -> None:
    ran[n] += 1
    began.add(context.idempotency_key)


@on(PostTurn)
def ended(event: PostTurn) -> None:
    """Record a turn that was cancelled between its start and its tool's start."""
    use = event.turn.tool_use
    if use.id in began:
        began.discard(use.id)
    else:
        never_began[int(str(use.input["n"]))] += 1


@tool
async def work(n: int, context: ToolContext) -> int:
    """Work."""
    begin(n, context)
    await asyncio.sleep(0)
    if n % 5 == 4:
        raise FailsError
    return n


@tool
async def stream(n: int, context: ToolContext) -> AsyncIterator[int]:
    """Work in three steps."""
    begin(n, context)
    for _ in range(3):
        await asyncio.sleep(0)
        yield n


@on(PrePut)
async def picky(event: PrePut) -> Deny | None:
    """Deny every seventh."""
    await asyncio.sleep(0)
    return Deny("no") if int(str(event.turn.tool_use.input["n"])) % 7 == 6 else None


class World:
    """Agents, and the recorded history of the turns that were put."""

    def __init__(self, limit: int | None) -> None:
        self.registry = AgentRegistry()
        self.limit = limit
        self.agents = [self.add(Agent(name, ScriptedModel([]), **self.making(limit))) for name in ("a", "b")]
        self.numbers = 0
        self.made: Counter[int] = Counter()
        self.dropped: Counter[int] = Counter()
        self.receipts: list[Receipt[Any]] = []
        self.sending: list[asyncio.Task[None]] = []
        self.olds: list[Agent] = []

    def making(self, limit: int | None) -> dict[str, Any]:
        return {"tools": [work, stream], "hooks": [picky, ended], "agents": self.registry, "queue_limit": limit}

    def add(self, agent: Agent) -> Agent:
        return self.registry.register(agent)

    def turn(self) -> tuple[int, Turn[Any]]:
        n = self.numbers
        self.numbers += 1
        self.made[n] += 1
        return n, Turn(stream if n % 3 == 2 else work, {"n": n})

    async def put(self, which: int, wait: bool, sender: int | None) -> None:
        n, turn = self.turn()
        agent = self.agents[which % len(self.agents)]
        try:
            if sender is None:
                self.receipts.append(await agent.put(turn, wait=wait))
            else:
                boss = self.agents[sender % len(self.agents)]
                self.receipts.append(await boss.send(agent.name, turn, wait=wait))
        except (QueueFullError, TurnDeniedError, asyncio.CancelledError):
            if not turn.queued:
                self.dropped[n] += 1

    async def run(self, which: int, most: int) -> None:
        agent = self.agents[which % len(self.agents)]
        if agent.queue.paused:
            return
        got = 0
        try:
            async with agent.run() as values:
                async for _ in values:
                    got += 1
                    if got >= most:
                        break
        except FailsError:
            pass

    def drop(self, turn: Turn[Any]) -> None:
        self.dropped[int(turn.arguments["n"])] += 1

    async def idle(self, agent: Agent) -> None:
        agent.queue.pause()
        while agent.queue.current is not None:  # noqa: ASYNC110 - a program of steps, not of signals
            await asyncio.sleep(0)

    async def save_and_load(self, which: int) -> None:
        index = which % len(self.agents)
        old = self.agents[index]
        paused = old.queue.paused
        await self.idle(old)
        saved = json.loads(json.dumps(old.to_dict()))
        old.queue.clear()
        self.registry.unregister(old.name)
        new = Agent.from_dict(
            saved, tools=[work, stream], hooks=[picky, ended], model=ScriptedModel([]), agents=self.registry
        )
        self.agents[index] = self.add(new)
        if not paused:
            old.queue.resume()  # a waiting put finds it empty
            new.queue.resume()
        self.olds.append(old)

    async def branch(self, which: int) -> None:
        if len(self.agents) >= 4:
            return
        agent = self.agents[which % len(self.agents)]
        twin = self.add(agent.branch(f"{agent.name}{len(self.agents)}"))
        self.agents.append(twin)
        for turn in twin.queue:
            self.made[int(turn.arguments["n"])] += 1

    async def do(self, step: tuple[str, int, int]) -> None:
        name, which, more = step
        agent = self.agents[which % len(self.agents)]
        if name in ("put", "send"):
            await self.put(which, False, more if name == "send" else None)
        elif name in ("put_later", "send_later"):
            sender = more if name == "send_later" else None
            self.sending.append(asyncio.create_task(self.put(which, True, sender)))
        elif name == "run":
            await self.run(which, more + 1)
        elif name == "pause":
            agent.queue.pause()
        elif name == "resume":
            agent.queue.resume()
        elif name == "cancel" and self.receipts:
            receipt = self.receipts[more % len(self.receipts)]
            waits = bool(receipt.turn.queued)
            receipt.cancel()
            if waits and not receipt.turn.queued:
                self.drop(receipt.turn)
        elif name == "remove" and agent.queue.turns:
            turn = agent.queue.turns[more % len(agent.queue)]
            assert agent.queue.remove(turn)
            self.drop(turn)
        elif name == "clear":
            for turn in agent.queue.clear():
                self.drop(turn)
        elif name == "branch":
            await self.branch(which)
        elif name == "save":
            await self.save_and_load(which)
        elif name == "cancel_sending" and self.sending:
            self.sending[more % len(self.sending)].cancel()
        for _ in range(more):
            await asyncio.sleep(0)

    async def finish(self) -> None:
        """Run everything to its end."""
        while True:
            for agent in (*self.agents, *self.olds):
                agent.queue.resume()
            for index in range(len(self.agents)):
                await self.run(index, 10**6)
            for old in self.olds:
                try:
                    async for _ in old.run():
                        pass
                except FailsError:
                    pass
            if all(task.done() for task in self.sending) and not any(
                len(agent.queue) or agent.queue.current for agent in (*self.agents, *self.olds)
            ):
                return
            await asyncio.sleep(0)

    def waiting(self) -> Counter[int]:
        return Counter(int(turn.arguments["n"]) for agent in (*self.agents, *self.olds) for turn in agent.queue)


STEPS = [
    *("put", "put", "send", "send", "put_later", "send_later", "run", "run", "pause", "resume"),
    *("cancel", "remove", "clear", "branch", "save", "cancel_sending"),
]
programs = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3), st.integers(0, 5)), max_size=40)


@settings(max_examples=250 if THOROUGH else 100, deadline=None)
@given(programs, st.sampled_from([None, 1, 2, 5]))
def test_no_turn_is_lost_or_doubled(program: list[tuple[str, int, int]], limit: int | None) -> None:
    """After each step no turn has run or waits more often than it was put; at the end each has run or was dropped,
    once.
    """

    async def main() -> None:
        ran.clear()
        never_began.clear()
        world = World(limit)
        for step in program:
            await world.do(step)
            known = ran + world.waiting() + world.dropped + never_began
            assert all(known[n] <= world.made[n] for n in known), step
        await asyncio.wait_for(world.finish(), 20)
        assert ran + world.dropped + never_began == world.made

    asyncio.run(main())
