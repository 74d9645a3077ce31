"""What the tests of the model adapter share: a model on a wire server, and a clean end for LiteLLM's connections."""

from collections.abc import Callable, Sequence

import pytest

from agentflow.chunks import ModelChunk, fold
from agentflow.messages import Msg
from agentflow.models.litellm import LiteLLMModel
from agentflow.ports.model import ModelRequest
from agentflow.specs import ModelOptions, ToolSpec
from agentflow.testing.wire import WireServer

NAMES = {"openai": "openai/gpt-5", "anthropic": "anthropic/claude-sonnet-4-5"}


@pytest.fixture(autouse=True)
def _closed(closed_clients: None) -> None:
    """Each test leaves no connection of LiteLLM's behind."""


class Asker:
    """A model on a server, with the sleeps that it asked for."""

    def __init__(self, server: WireServer, name: str, retries: int, max_wait: float) -> None:
        self.sleeps: list[float] = []
        self.model = LiteLLMModel(
            name, api_base=server.base_url, api_key="k", retries=retries, max_wait=max_wait, sleep=self._sleep
        )

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


@pytest.fixture
def asker() -> Callable[..., Asker]:
    """Builds an `Asker` for a server: the model's name follows the wire unless given."""

    def build(server: WireServer, name: str = "", retries: int = 2, max_wait: float = 60.0) -> Asker:
        wire = server.rules[0].wire
        return Asker(server, name or NAMES[wire], retries, max_wait)

    return build
