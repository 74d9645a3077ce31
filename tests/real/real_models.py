"""The adapters for the real server, a model that counts its requests, and the log of a run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.testing.real import LlamaServer
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.ports.model import AnswerModes, ModelRequest
from agentflow.vocabulary.specs import ModelOptions

SEED = int(os.environ.get("AGENTFLOW_REAL_SEED", "1"))
"""Another one has the model say other things: the laws hold all the same."""


@dataclass
class Tally:
    """The requests of one test to the model."""

    test: str
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    requests: int = 0
    failed: int = 0
    retries: int = 0
    chunks: int = 0
    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    rounds: int = 0
    outcomes: list[str] = field(default_factory=list)

    def line(self) -> str:
        told = f" -> {', '.join(self.outcomes)}" if self.outcomes else ""
        return (
            f"{self.seconds:6.1f} s  {self.requests:3} requests, {self.failed} failed, {self.retries} retried, "
            f"{self.rounds} rounds of tools; {self.chunks:4} chunks; {self.tokens_in:5} tokens read "
            f"({self.tokens_cached} from the cache), {self.tokens_out:4} written  {self.test}{told}"
        )


class Counted:
    """A model that records its requests, and counts streams, chunks and tokens."""

    def __init__(self, model: Any, tally: Tally) -> None:
        self.inner = model
        self.tally = tally
        self.name: str = model.name
        self.requests: list[ModelRequest] = []
        self.open_streams = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        self.requests.append(request)
        self.tally.requests += 1
        self.open_streams += 1
        try:
            async with aclosing(self.inner.stream(request)) as chunks:
                async for chunk in chunks:
                    self._count(chunk)
                    yield chunk
        except Exception:
            self.tally.failed += 1
            raise
        finally:
            self.open_streams -= 1

    def _count(self, chunk: ModelChunk) -> None:
        self.tally.chunks += 1
        if chunk.usage is not None:
            self.tally.tokens_in += chunk.usage.input_tokens
            self.tally.tokens_cached += chunk.usage.cache_read_tokens
            self.tally.tokens_out += chunk.usage.output_tokens

    async def answer_modes(self) -> AnswerModes:
        return await self.inner.answer_modes()


class Real:
    """One adapter on the real server.

    Attributes:
        options: Short answers, and the same ones when a test is run again.
    """

    def __init__(self, adapter: str, server: LlamaServer, tally: Tally) -> None:
        self.adapter = adapter
        self.server = server
        self.tally = tally
        seed = None if "anthropic" in adapter else SEED  # that wire has none
        self.options = ModelOptions(max_tokens=12, seed=seed, temperature=0.8)

    def model(self, *, retries: int = 0, sleep: Callable[[float], Awaitable[None]] | None = None) -> Counted:
        """The model through this adapter.

        Args:
            retries: Extra attempts.
            sleep: What is done between attempts; by default nothing.
        """

        async def waited(seconds: float) -> None:
            self.tally.retries += 1
            if sleep is not None:
                await sleep(seconds)

        made = ADAPTERS[self.adapter](self.server, api_key="none", retries=retries, timeout=120, sleep=waited)
        return Counted(made, self.tally)

    async def idle(self, patience: float = 20.0) -> None:
        """Wait until no slot of the server is at work."""
        async with asyncio.timeout(patience):
            while await asyncio.to_thread(self.server.busy):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.05)


def _openai(server: LlamaServer, **options: Any) -> OpenAIWire:
    return OpenAIWire("gemma", api_base=server.base_url, **options)


def _anthropic(server: LlamaServer, **options: Any) -> AnthropicWire:
    return AnthropicWire("gemma", api_base=server.url, family="compatible", **options)


def _litellm_openai(server: LlamaServer, **options: Any) -> LiteLLMModel:
    return LiteLLMModel("openai/gemma", api_base=server.base_url, **options)


def _litellm_anthropic(server: LlamaServer, **options: Any) -> LiteLLMModel:
    return LiteLLMModel("anthropic/gemma", api_base=server.url, family="compatible", **options)


ADAPTERS: dict[str, Callable[..., Any]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "litellm-openai": _litellm_openai,
    "litellm-anthropic": _litellm_anthropic,
}
"""Each wire over its direct adapter, and over LiteLLM."""
DIRECT = ("openai", "anthropic")
"""What says something about the agent and not about the connection is tried on these alone: tokens take time."""
