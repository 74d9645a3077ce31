"""One agent, either wire, any adapter: servers, models that ask them, and the normal form in which runs are compared.

The normal form is that of `eventlog`, and neighbouring chunks of one attempt are one line that holds their fold: what was
thought, said and called does not depend on how a wire cuts its pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from eventlog import line, said

from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.testing.wire import Script, WireServer
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.events import Event, PostReasoning, ReasoningChunk
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model, ModelRequest
from agentflow.vocabulary.specs import ModelOptions

__all__ = ["EVERY", "WIRES", "Wired", "answered", "normal", "normal_history", "tokens"]

WIRES = ("openai", "anthropic")
EVERY = [*((wire, adapter) for adapter in ("direct", "litellm") for wire in WIRES), ("responses", "direct")]
"""Both wires, each over its direct adapter and over LiteLLM; and OpenAI's `/responses`."""

_DIRECT: dict[str, Any] = {"openai": OpenAIWire, "responses": OpenAIWire, "anthropic": AnthropicWire}
_NAMES = {
    "openai": "openai/gpt-5",
    "responses": "openai/responses/gpt-5",
    "anthropic": "anthropic/claude-sonnet-4-5",
}


async def _no_wait(seconds: float) -> None:
    del seconds


class Wired:
    """A wire: its servers and the models that speak to them, over its direct adapter or over LiteLLM."""

    def __init__(self, name: str, adapter: str = "direct") -> None:
        self.name = name
        self.adapter = adapter

    @asynccontextmanager
    async def serve(self, script: Script, *, strict: bool = True) -> AsyncIterator[WireServer]:
        """A server that, when it is left in peace, has refused nothing, has no open connection and a used-up script."""
        build = WireServer.anthropic if self.name == "anthropic" else WireServer.openai
        async with build(script) as server:
            yield server
            async with asyncio.timeout(5):
                await server.wait_closed_connections()
            assert [request.refused for request in server.requests] == [None] * len(server.requests)
            if strict:
                server.assert_done()

    def model(self, server: WireServer, *, retries: int = 2) -> Model:
        """A model on that server; it does not wait between attempts."""
        family = "anthropic" if self.name == "anthropic" else "openai"
        base, name = server.base_url, _NAMES[self.name]
        build: Any = _DIRECT[self.name] if self.adapter == "direct" else LiteLLMModel
        return build(name, api_base=base, api_key="k", retries=retries, family=family, sleep=_no_wait)


def normal(events: Iterable[Event]) -> list[str]:
    """Events in the normal form."""
    lines: list[str] = []
    chunks: list[ModelChunk] = []

    def end() -> None:
        if chunks:
            mark = " restart" if chunks[0].restart else ""
            lines.append(f"ReasoningChunk{mark} {_said(fold(chunks))}".rstrip())
            chunks.clear()

    for event in events:
        if isinstance(event, ReasoningChunk):
            if event.restart:
                end()
            chunks.append(event.incremental_chunk)
            continue
        end()
        thoughts = f" <{event.reasoning_result.thinking}>" if isinstance(event, PostReasoning) else ""
        lines.append(line(event) + thoughts)
    end()
    return lines


def _said(msg: Msg) -> str:
    thoughts = f"<{msg.thinking}> " if msg.thinking else ""
    finish = f" ({msg.finish_reason})" if msg.finish_reason else ""
    return f"{thoughts}{said(msg)}{finish}"


def normal_history(messages: Sequence[Msg]) -> list[str]:
    """Messages in the normal form, thoughts and finish reasons included."""
    return [_said(msg) for msg in messages]


def tokens(events: Iterable[Any]) -> list[tuple[int, int]]:
    """What each reply cost, in tokens."""
    return [
        (event.usage.input_tokens, event.usage.output_tokens) for event in events if isinstance(event, PostReasoning)
    ]


async def answered(model: Model) -> str:
    """Ask a model, and return its text."""
    request = ModelRequest([Msg.user("hi")], (), ModelOptions(), model.name)
    return fold([chunk async for chunk in model.stream(request)]).text
