"""Fixtures of the model adapters' tests: each adapter's model on a wire server, and closed connections at the end."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.testing.wire import WireServer
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions, ToolSpec

NAMES = {"openai": "openai/gpt-5", "anthropic": "anthropic/claude-sonnet-4-5"}


@pytest.fixture(autouse=True)
def _closed(closed_clients: None) -> None:
    """Each test leaves no open connection."""


DIRECT: dict[str, Any] = {"openai": OpenAIWire, "anthropic": AnthropicWire}
ADAPTERS = ("direct", "litellm")


def adapter_of(adapter: str, wire: str) -> Any:
    """Return the adapter's class for a wire."""
    return DIRECT[wire] if adapter == "direct" else LiteLLMModel


class Asker:
    """A model on a server, with the sleeps that it requested."""

    def __init__(self, server: WireServer, adapter: str, name: str, **options: Any) -> None:
        self.sleeps: list[float] = []
        build = adapter_of(adapter, server.rules[0].wire)
        self.model = build(name, api_base=server.base_url, api_key="k", sleep=self._sleep, **options)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)

    def request(self, messages: Sequence[Msg] | str, tools: Sequence[ToolSpec], options: ModelOptions) -> ModelRequest:
        given = [Msg.user(messages)] if isinstance(messages, str) else messages
        return ModelRequest(given, tuple(tools), options, self.model.name)

    async def chunks(
        self, messages: Sequence[Msg] | str = "hi", tools: Sequence[ToolSpec] = (), options: ModelOptions | None = None
    ) -> list[ModelChunk]:
        request = self.request(messages, tools, options or ModelOptions())
        return [chunk async for chunk in self.model.stream(request)]

    async def ask(
        self, messages: Sequence[Msg] | str = "hi", tools: Sequence[ToolSpec] = (), options: ModelOptions | None = None
    ) -> Msg:
        return fold(await self.chunks(messages, tools, options))


@pytest.fixture(params=ADAPTERS)
def asker(request: pytest.FixtureRequest) -> Callable[..., Asker]:
    """Build an `Asker` of each adapter for a server; by default the model's name follows from the wire."""

    def build(server: WireServer, name: str = "", retries: int = 2, max_wait: float = 60.0, **options: Any) -> Asker:
        wire = server.rules[0].wire
        return Asker(server, request.param, name or NAMES[wire], retries=retries, max_wait=max_wait, **options)

    return build
