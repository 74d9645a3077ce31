"""agentflow, as `Agent` is by default."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agentflow import Agent, Hook, HookEvent, Msg, PreActing, PreReasoning, ReasoningChunk, Session, tool
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta
from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = "a `Hook` with `on_event` for `PreReasoning` and `PreActing`"
NOTES = (
    "Default hooks are on.",
    "`add` is a plain tool; the tool that waits is of type `read`, which runs in parallel.",
    "Over HTTP: `OpenAIWire`.",
)

_ADD = tool(kit.add)
_WAIT = tool(kit.wait_a_millisecond, type="read")
TOOLS = {"add": _ADD, "wait_a_millisecond": _WAIT}


class Model:
    """Replies as the plan says."""

    name = "plan"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def stream(self, request: Any) -> AsyncIterator[ModelChunk]:
        """Yield the chunks of the next reply."""
        plan = self._plan
        asks = plan.turn(request.messages[-1].role == "tool", len(request.messages))
        if plan.wait:
            await asyncio.sleep(plan.wait)
        if asks:
            deltas = [
                ToolUseDelta(index, id, plan.tool, kit.ARGUMENTS[plan.tool])
                for index, id in enumerate(kit.ids(plan.calls))  # noqa: A001
            ]
            yield ModelChunk(tool_uses=tuple(deltas), finish_reason="tool_calls")
        else:
            for text in plan.pieces:
                yield ModelChunk(text)
                if plan.pause:
                    await asyncio.sleep(plan.pause)


class _Hook(Hook):
    events = (PreReasoning, PreActing)

    async def on_event(self, event: HookEvent) -> HookEvent:
        if isinstance(event, PreReasoning | PreActing):
            kit.hooked()
        return event


def build(plan: Plan, hooks: bool = False) -> Agent:
    """An agent with the plan's tool; hooks say which events they hear."""
    return Agent("race", Model(plan), tools=[TOOLS[plan.tool]], hooks=[_Hook()] if hooks else (), max_iterations=1_000)


def first(plan: Plan) -> Agent:
    """The same, its tool made of the function."""
    return Agent("race", Model(plan), tools=[tool(kit.add)])


def history(count: int) -> list[Msg]:
    """A conversation of so many messages."""
    return [
        Msg.assistant(f"Message {place}.") if place % 2 else Msg.user(f"Message {place}.") for place in range(count)
    ]


async def call(agent: Agent, history: Sequence[Msg] = ()) -> str:
    """A call in a conversation of its own."""
    reply = await agent.call(kit.PROMPT, session=Session.fresh(messages=history))
    return reply.text


async def stream(agent: Agent, prompt: str = kit.PROMPT) -> list[str]:
    """The same, and the chunks of text as a reader of its events gets them."""
    async with agent.stream(prompt, session=Session.fresh()) as events:
        return [
            event.incremental_chunk.text
            async for event in events
            if isinstance(event, ReasoningChunk) and event.incremental_chunk.text
        ]


def wire(url: str) -> Agent:
    """The same agent over HTTP."""
    from agentflow.models import OpenAIWire  # here, as in the other sides: only these rows import a client

    return Agent("race", OpenAIWire(f"openai+{url}#test", api_key="sk-test"))
