"""Strands: `Agent.invoke_async` and `Agent.stream_async`, one agent per conversation, as it holds the messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from strands import Agent, tool
from strands.hooks import BeforeModelCallEvent, BeforeToolCallEvent
from strands.models import Model

from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = "two callbacks in `hooks=`, for `BeforeModelCallEvent` and `BeforeToolCallEvent`"
NOTES = (
    "`callback_handler=None`, which prints nothing; no OpenTelemetry exporter.",
    "An agent is a conversation and refuses a second call meanwhile: `messages` is emptied before each call.",
    "1,000 at once are 1,000 agents, which are built within the measured time.",
)

TOOLS = {"add": tool(kit.add), "wait_a_millisecond": tool(kit.wait_a_millisecond)}


class Script(Model):
    """Replies as the plan says."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def update_config(self, **model_config: Any) -> None:
        """Nothing to set."""

    def get_config(self) -> Any:
        """Nothing is set."""
        return {}

    def structured_output(self, *args: Any, **more: Any) -> Any:
        """Not asked for."""
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **more: Any) -> AsyncIterator[Any]:
        """Yield the events of the next reply."""
        plan = self.plan
        asks = plan.turn("toolResult" in messages[-1]["content"][0], len(messages))
        if plan.wait:
            await asyncio.sleep(plan.wait)
        yield {"messageStart": {"role": "assistant"}}
        if asks:
            for id in kit.ids(plan.calls):  # noqa: A001
                yield {"contentBlockStart": {"start": {"toolUse": {"name": plan.tool, "toolUseId": id}}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": kit.ARGUMENTS[plan.tool]}}}}
                yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            for text in plan.pieces:
                yield {"contentBlockDelta": {"delta": {"text": text}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}


async def _before_model(event: BeforeModelCallEvent) -> None:
    kit.hooked()


async def _before_tool(event: BeforeToolCallEvent) -> None:
    kit.hooked()


_SHARED: list[Any] = []


def build(plan: Plan, hooks: bool = False) -> Agent:
    """An agent with the plan's tool."""
    listening: Any = [_before_model, _before_tool] if hooks else []
    return Agent(Script(plan), tools=[TOOLS[plan.tool]], hooks=listening, callback_handler=None)


def first(plan: Plan) -> Agent:
    """The same, its tool made of the function."""
    return Agent(Script(plan), tools=[tool(kit.add)], callback_handler=None)


def history(count: int) -> list[Any]:
    """A conversation of so many messages."""
    return [
        {"role": "assistant" if place % 2 else "user", "content": [{"text": f"Message {place}."}]}
        for place in range(count)
    ]


async def call(agent: Agent, history: list[Any] | None = None) -> str:
    """A call in a conversation of its own."""
    agent.messages = list(history or ())
    result = await agent.invoke_async(kit.PROMPT)
    return result.message["content"][0]["text"]


async def crowd(agent: Agent, many: int) -> list[str]:
    """Many calls at once."""
    plan = agent.model.plan  # pyright: ignore[reportAttributeAccessIssue]
    return list(await asyncio.gather(*[call(build(plan)) for _ in range(many)]))


async def stream(agent: Agent, prompt: str = kit.PROMPT) -> list[str]:
    """The same, and the chunks of text as a reader of its events gets them."""
    if agent.messages is _SHARED:
        agent = Agent(agent.model, tools=[TOOLS["add"]], callback_handler=None)
    agent.messages = []
    return [event["data"] async for event in agent.stream_async(prompt) if "data" in event]


def wire(url: str) -> Agent:
    """The same agent over HTTP; streams are many at once, so each has an agent of its own over this one's model."""
    from strands.models.openai import OpenAIModel

    agent = Agent(
        OpenAIModel(client_args={"base_url": url, "api_key": "sk-test"}, model_id="test"), callback_handler=None
    )
    agent.messages = _SHARED
    return agent
