"""Turns: tools with bound arguments, run by hand or from an agent's queue. No model is called.

The same hooks handle them as for the calls of a model, in four scopes: the tool, the turn, the agent and the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from agentflow import Agent, PreActing, Turn, Veto, on, tool
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import PostTurn, PrePut


@tool(lock=True)  # one at a time, across all agents
async def weigh(kilos: int) -> int:
    """Weigh something."""
    return kilos


@tool
async def count(to: int) -> AsyncIterator[int]:
    """Count."""
    for number in range(1, to + 1):
        yield number


@tool
async def plan(kilos: int) -> Turn[int]:
    """Return a turn, which is added to the queue."""
    return Turn(weigh, {"kilos": kilos})


@tool(type="completion_check")  # True ends the run
async def enough() -> bool:
    """Whether it is enough."""
    return True


@weigh.on(PreActing)  # on the tool
def show(event: PreActing) -> None:
    print("weighs", dict(event.tool_use.input))


@on(PrePut)  # on the agent, below
def light_only(event: PrePut) -> None:
    if event.turn.tool_use.input.get("kilos", 0) > 100:
        raise Veto("too heavy")


async def work() -> None:
    turn = Turn(weigh, {"kilos": 5}, timeout=2)
    turn.on(PostTurn)(lambda event: print("ended:", event.turn.stop_reason))  # on the turn
    print(await turn.returning())
    print([number async for number in Turn(count, {"to": 3}).yielding()])

    agent = Agent("scales", ScriptedModel([]), tools=[weigh, count, plan, enough], hooks=[light_only])
    for turn in (Turn(count, {"to": 2}), Turn(plan, {"kilos": 7}), Turn(enough), Turn(weigh, {"kilos": 9})):
        await agent.put(turn)
    try:
        await agent.put(Turn(weigh, {"kilos": 500}))
    except Exception as error:
        print(error)
    async for turn, value in agent.run():
        print(turn.tool.name, "→", value)
    saved = agent.to_json()  # the remaining queue as data, with tools by name
    again = Agent.from_json(saved, tools=[weigh, count, plan, enough], hooks=[light_only], model=ScriptedModel([]))
    print("left:", [(turn.tool.name, value) async for turn, value in again.run()])


def main() -> None:
    asyncio.run(work())


if __name__ == "__main__":
    main()
