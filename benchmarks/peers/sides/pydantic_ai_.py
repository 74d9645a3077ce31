"""pydantic-ai: `Agent.run` and `Agent.run_stream_events`, a `Model` of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.capabilities import Hooks
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, StreamedResponse

from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = "the capability `Hooks`: `before_model_request` and `before_tool_execute`"
NOTES = (
    "Not instrumented, as by default.",
    "A `Model` of its own rather than `FunctionModel`, which estimates usage from the text.",
    "Streams are read with `run_stream_events`, which hands on every delta.",
)

_NO_LIMITS = UsageLimits(request_limit=None)
_NOW = datetime.now(UTC)


def _answered(messages: list[ModelMessage]) -> bool:
    return isinstance(messages[-1].parts[0], ToolReturnPart)


class Script(Model):
    """Replies as the plan says."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan

    @property
    def model_name(self) -> str:
        """Its name."""
        return "plan"

    @property
    def system(self) -> str:
        """Its provider."""
        return "plan"

    async def request(self, messages: list[ModelMessage], model_settings: Any, model_request_parameters: Any) -> Any:
        """The next reply."""
        self.prepare_request(model_settings, model_request_parameters)
        plan = self._plan
        asks = plan.turn(_answered(messages), len(messages))
        if plan.wait:
            await asyncio.sleep(plan.wait)
        if asks:
            parts = [ToolCallPart(plan.tool, kit.ARGUMENTS[plan.tool], id) for id in kit.ids(plan.calls)]  # noqa: A001
            return ModelResponse(parts=parts, model_name="plan")
        return ModelResponse(parts=[TextPart(plan.answer)], model_name="plan")

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: Any,
        model_request_parameters: Any,
        run_context: Any = None,
    ) -> AsyncIterator[StreamedResponse]:
        """The next reply, in chunks."""
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        yield Streamed(model_request_parameters=parameters, plan=self._plan, messages=messages)


@dataclass
class Streamed(StreamedResponse):
    """A reply in chunks."""

    plan: Plan = None  # pyright: ignore[reportAssignmentType] - the base class has defaults
    messages: Any = ()

    async def _get_event_iterator(self) -> AsyncIterator[Any]:
        plan, manager = self.plan, self._parts_manager
        if plan.turn(_answered(self.messages), len(self.messages)):
            for id in kit.ids(plan.calls):  # noqa: A001
                for event in manager.handle_tool_call_delta_events(
                    vendor_part_id=id, tool_name=plan.tool, args=kit.ARGUMENTS[plan.tool], tool_call_id=id
                ):
                    yield event
        else:
            for text in plan.pieces:
                for event in manager.handle_text_delta(vendor_part_id="content", content=text):
                    yield event
                if plan.pause:
                    await asyncio.sleep(plan.pause)

    async def close_stream(self) -> None:
        """Nothing is open."""

    model_name = "plan"  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    provider_name = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    provider_url = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
    timestamp = _NOW  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


async def _before_model(context: Any, request: Any) -> Any:
    kit.hooked()
    return request


async def _before_tool(context: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
    kit.hooked()
    return args


def build(plan: Plan, hooks: bool = False) -> Agent:
    """An agent with the plan's tool."""
    capabilities = [Hooks(before_model_request=_before_model, before_tool_execute=_before_tool)] if hooks else []
    return Agent(Script(plan), tools=[getattr(kit, plan.tool)], capabilities=capabilities)


def history(count: int) -> list[ModelMessage]:
    """A conversation of so many messages."""
    return [
        ModelResponse(parts=[TextPart(f"Message {place}.")])
        if place % 2
        else ModelRequest(parts=[UserPromptPart(f"Message {place}.")])
        for place in range(count)
    ]


async def call(agent: Agent, history: list[ModelMessage] | None = None) -> str:
    """A call in a conversation of its own."""
    result = await agent.run(kit.PROMPT, message_history=history, usage_limits=_NO_LIMITS)
    return result.output


async def stream(agent: Agent, prompt: str = kit.PROMPT) -> list[str]:
    """The same, and the chunks of text as a reader of its events gets them."""
    pieces: list[str] = []
    async with agent.run_stream_events(prompt, usage_limits=_NO_LIMITS) as events:
        async for event in events:
            if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                pieces.append(event.delta.content_delta)
            elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart) and event.part.content:
                pieces.append(event.part.content)
    return pieces


def wire(url: str) -> Agent:
    """The same agent over HTTP."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return Agent(OpenAIChatModel("test", provider=OpenAIProvider(base_url=url, api_key="sk-test")))
