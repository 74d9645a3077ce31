"""The model of `agentflow demo --real`: Gemma 3 270M, with constrained tool calls.

A model this small cannot choose among tools. A hook offers it one tool per round, and the server's grammar enforces the
tool's schema; the model chooses the arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agentflow.agent.agent import Agent
from agentflow.hooks.hook import Hook
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.openai_wire import OpenAIWire
from agentflow.terminal.cli.demo_agent import NoDeletes, add_up, delete_file, list_files, read_file
from agentflow.terminal.cli.demo_model import WireChoice
from agentflow.testing.real import LlamaServer
from agentflow.vocabulary.events import HookEvent, PreReasoning
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.specs import ModelOptions

_ORDER = (list_files, read_file, add_up, delete_file)
_LINE = ModelOptions(tool_choice="none", stop=("\n",))


class OneToolAtATime(Hook):
    """Offer the model only the tool of the current round, and none after the last one."""

    events = (PreReasoning,)

    def on_event(self, event: HookEvent) -> None:
        """Restrict the tools of a request."""
        assert isinstance(event, PreReasoning)
        if event.iteration <= len(_ORDER):
            event.tools = (_ORDER[event.iteration - 1].spec,)
            event.options = ModelOptions(tool_choice="required")
        else:
            event.options = _LINE


def _model(server: LlamaServer, wire: WireChoice) -> Model:
    if wire == "openai":
        return OpenAIWire("gemma", api_base=server.base_url, api_key="none", retries=0)
    return AnthropicWire("gemma", api_base=server.url, api_key="none", retries=0, family="compatible")


@asynccontextmanager
async def small_model(wire: WireChoice) -> AsyncGenerator[tuple[LlamaServer, Agent]]:
    """Run the server, and provide an agent that uses it.

    Args:
        wire: The wire between agent and server.
    """
    server = LlamaServer(slots=1, context=2048)
    try:
        await asyncio.to_thread(server.start)
        yield (
            server,
            Agent(
                "bookkeeper",
                _model(server, wire),
                system="You are a bookkeeper.",
                tools=list(_ORDER),
                hooks=[NoDeletes(), OneToolAtATime()],
                options=ModelOptions(max_tokens=64, temperature=0.0),
                default_hooks=(),  # its replies are often truncated, and retrying does not help
                max_iterations=len(_ORDER) + 1,
            ),
        )
    finally:
        server.stop()
