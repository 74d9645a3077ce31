"""ConnectOnion: `Agent.input`, which is synchronous."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from connectonion import Agent, before_each_tool, before_llm
from connectonion.core.llm import LLM, LLMResponse, ToolCall
from connectonion.core.usage import TokenUsage

from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = "`on_events=[before_llm(...), before_each_tool(...)]`, which are synchronous"
_WHOLE = "has no streams; answers arrive whole"
WITHOUT = {"streams": _WHOLE, "chunks": _WHOLE, "wire": _WHOLE}
NOTES = (
    "`quiet=True, log=False`, so nothing is printed or written.",
    "Synchronous: tools are ordinary functions and run one after the other.",
    "Of 1,000 calls at once 64 run at a time, in threads, each with an agent of its own; its memory is that of so many.",
)
_FUNCTIONS = {"add": kit.add_now, "wait_a_millisecond": kit.wait_a_millisecond_now}


def _named(name: str) -> Any:
    function = _FUNCTIONS[name]
    function.__name__ = name
    return function


class Script(LLM):
    """Replies as the plan says."""

    model = "plan"

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def complete(self, messages: Any, tools: Any = None, **more: Any) -> LLMResponse:
        """The next reply."""
        plan = self.plan
        asks = plan.turn(messages[-1]["role"] == "tool", len(messages))
        if plan.wait:
            time.sleep(plan.wait)
        calls: list[ToolCall] = []
        if asks:
            arguments = kit.ARGUMENTS[plan.tool]
            calls = [ToolCall(plan.tool, json.loads(arguments), id) for id in kit.ids(plan.calls)]  # noqa: A001
        return LLMResponse("" if asks else plan.answer, calls, None, TokenUsage())

    def structured_complete(self, *args: Any, **more: Any) -> Any:
        """Not asked for."""
        raise NotImplementedError


def _hook(agent: Any) -> None:
    kit.hooked()


def _hook_of_tools(agent: Any) -> None:
    kit.hooked()


def build(plan: Plan, hooks: bool = False) -> Agent:
    """An agent with the plan's tool."""
    listening = [before_llm(_hook), before_each_tool(_hook_of_tools)] if hooks else None
    return Agent(
        "race",
        Script(plan),
        tools=[_named(plan.tool)],
        quiet=True,
        log=False,
        max_iterations=1_000,
        on_events=listening,
    )


def history(count: int) -> list[Any]:
    """A conversation of so many messages."""
    return [{"role": "assistant" if place % 2 else "user", "content": f"Message {place}."} for place in range(count)]


def _call(agent: Agent, history: list[Any] | None) -> str:
    agent.current_session = None
    return agent.input(kit.PROMPT, session={"messages": list(history)} if history else None)


async def call(agent: Agent, history: list[Any] | None = None) -> str:
    """A call in a conversation of its own."""
    return _call(agent, history)


async def crowd(agent: Agent, many: int) -> list[str]:
    """Many calls at once."""
    plan = agent.llm.plan

    def work(_: int) -> str:
        return _call(build(plan), None)

    def all_of_them() -> list[str]:
        with ThreadPoolExecutor(64) as pool:
            return list(pool.map(work, range(many)))

    return await asyncio.to_thread(all_of_them)
