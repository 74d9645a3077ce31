"""Objects that a program has released are collected: nothing of the package holds them."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest

from agentflow import Agent, Hook, ToolUseBlock, tool
from agentflow.agent.orchestration import workflow
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import Event, PreActing


class Knows(Hook):
    """Refers to the outermost agent, as a hook that reports to it might."""

    def __init__(self) -> None:
        self.top: Any = None

    def on_event(self, event: Event) -> None:
        """Ignore the event."""


def as_tool(below: Agent) -> Any:
    return Agent("top", ScriptedModel([]), tools=[below.as_tool()])


def in_a_workflow(below: Agent) -> Any:
    @workflow(below, name="top")
    async def top(said: str) -> str:
        return said

    return top


@pytest.mark.parametrize("compose", [as_tool, in_a_workflow])
def test_an_agent_whose_sub_agent_knows_it_is_collected(compose: Callable[[Agent], Any]) -> None:
    """A sub-agent's hook refers to the outermost agent: a cycle like any other."""
    knows = Knows()
    knows.top = compose(Agent("below", ScriptedModel([]), hooks=[knows]))
    top = ref(knows.top)
    del knows
    gc.collect()
    assert top() is None


def test_a_serial_hook_keeps_no_event_loop() -> None:
    """Calls have waited for each other in it; when their loop is closed and released, it is collected."""

    class Slow(Hook):
        serial = True

        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if isinstance(event, PreActing):
                await asyncio.sleep(0)
            return event

    @tool(type="read")
    async def look() -> str:
        """Look."""
        return "seen"

    slow = Slow()
    calls = [ToolUseBlock(f"t{n}", "look", {}) for n in range(3)]
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_called(Agent("a", ScriptedModel([calls, "end"]), tools=[look], hooks=[slow])))
    loop.close()
    left = ref(loop)
    del loop
    gc.collect()
    assert left() is None


async def _called(agent: Agent) -> None:
    await agent.call("go")
