"""pygents: a queue of turns. It calls no models: a tool `think` asks one, and queues the tools' turns and its next one."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from pygents import Agent, Turn, tool
from pygents.registry import AgentRegistry

from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = "`@agent.before_turn`, which is called before model calls and tools alike, since both are turns"
WITHOUT = {"wire": "has no model client"}
NOTES = (
    "The loop is the benchmark's: pygents runs turns, and knows neither messages nor models.",
    "Turns run one after the other, tools of one reply as well; arguments are not validated.",
    "1,000 at once are 1,000 agents, as the queue is the agent's.",
)

Message = dict[str, Any]
_names = itertools.count()


class Talk:
    """A conversation and the plan of its model."""

    def __init__(self, plan: Plan, agent: Agent) -> None:
        self.plan = plan
        self.agent = agent
        self.messages: list[Message] = []


async def _queue(talk: Talk, asks: bool) -> None:
    """Queue the tool calls of the reply."""
    plan = talk.plan
    calls = [{"id": id, "name": plan.tool, "arguments": kit.ARGUMENTS[plan.tool]} for id in kit.ids(plan.calls * asks)]  # noqa: A001
    talk.messages.append({"role": "assistant", "content": "" if asks else plan.answer, "tool_calls": calls})
    for call in calls:
        await talk.agent.put(Turn(call["name"], kwargs=json.loads(call["arguments"])))
    if calls:
        await talk.agent.put(Turn(talk.messages[0]["think"], kwargs={"talk": talk}))


@tool()
async def think(talk: Talk) -> str:
    """Ask the model."""
    plan = talk.plan
    asks = plan.turn(talk.messages[-1]["role"] == "tool", len(talk.messages) - 1)
    if plan.wait:
        await asyncio.sleep(plan.wait)
    await _queue(talk, asks)
    return "" if asks else plan.answer


@tool()
async def think_aloud(talk: Talk) -> Any:
    """Call the model, and pass on its reply."""
    plan = talk.plan
    asks = plan.turn(talk.messages[-1]["role"] == "tool", len(talk.messages) - 1)
    if not asks:
        for text in plan.pieces:
            yield text
    await _queue(talk, asks)


_ADD = tool()(kit.add)
_WAIT = tool()(kit.wait_a_millisecond)


def build(plan: Plan, hooks: bool = False) -> Talk:
    """An agent with the plan's tool, in a conversation."""
    agent = Agent(f"race-{next(_names)}", "", [think, think_aloud, _ADD if plan.tool == "add" else _WAIT])
    AgentRegistry.unregister(agent.name)  # or every agent stays for ever
    if hooks:

        @agent.before_turn
        async def before(agent: Agent) -> None:
            kit.hooked()

    return Talk(plan, agent)


def history(count: int) -> list[Message]:
    """A conversation of so many messages."""
    return [{"role": "assistant" if place % 2 else "user", "content": f"Message {place}."} for place in range(count)]


async def _run(talk: Talk, think: str, prompt: str, history: list[Message]) -> list[str]:
    talk.messages = [{"role": "system", "think": think}, *history, {"role": "user", "content": prompt}]
    pieces: list[str] = []
    await talk.agent.put(Turn(think, kwargs={"talk": talk}))
    async for turn, value in talk.agent.run():
        if turn.tool.__name__ == think:
            pieces.append(value)
        else:
            talk.messages.append({"role": "tool", "content": value})
    return pieces


async def call(talk: Talk, history: list[Message] | None = None) -> str:
    """A call in a conversation of its own."""
    return (await _run(talk, "think", kit.PROMPT, history or []))[-1]


async def stream(talk: Talk, prompt: str = kit.PROMPT) -> list[str]:
    """The same, and the chunks of text as a reader of the agent's values gets them."""
    return await _run(talk, "think_aloud", prompt, [])


async def crowd(talk: Talk, many: int) -> list[str]:
    """Many calls at once."""
    return list(await asyncio.gather(*[call(build(talk.plan)) for _ in range(many)]))
