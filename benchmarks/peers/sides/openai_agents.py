"""OpenAI Agents: `Runner.run` and `Runner.run_streamed`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    RunHooks,
    Runner,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = "`RunHooks` with `on_llm_start` and `on_tool_start`"
NOTES = (
    "Tracing is off (`set_tracing_disabled(True)`), no session.",
    "The model's stream has the deltas and the completed response, and no other events: the runner needs none.",
)

set_tracing_disabled(True)
_CONFIG = RunConfig(tracing_disabled=True)
TOOLS = {"add": function_tool(kit.add), "wait_a_millisecond": function_tool(kit.wait_a_millisecond)}


def _answered(items: Any) -> bool:
    return not isinstance(items, str) and items[-1].get("type") == "function_call_output"


class Script(Model):
    """Replies as the plan says."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def _output(self, asks: bool) -> list[Any]:
        plan = self._plan
        if asks:
            return [
                ResponseFunctionToolCall(
                    type="function_call", call_id=id, name=plan.tool, arguments=kit.ARGUMENTS[plan.tool]
                )
                for id in kit.ids(plan.calls)  # noqa: A001
            ]
        text = ResponseOutputText(type="output_text", text=plan.answer, annotations=[])
        return [
            ResponseOutputMessage(id="message", type="message", role="assistant", status="completed", content=[text])
        ]

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> ModelResponse:  # noqa: A002
        """The next reply."""
        plan = self._plan
        asks = plan.turn(_answered(input), 1 if isinstance(input, str) else len(input))
        if plan.wait:
            await asyncio.sleep(plan.wait)
        return ModelResponse(output=self._output(asks), usage=Usage(), response_id=None)

    async def stream_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002
        *args: Any,
        **more: Any,
    ) -> AsyncIterator[Any]:
        """The next reply, in chunks."""
        plan = self._plan
        asks = plan.turn(_answered(input), 1 if isinstance(input, str) else len(input))
        if not asks:
            for number, text in enumerate(plan.pieces):
                yield ResponseTextDeltaEvent(
                    content_index=0,
                    delta=text,
                    item_id="message",
                    output_index=0,
                    type="response.output_text.delta",
                    sequence_number=number,
                    logprobs=[],
                )
                if plan.pause:
                    await asyncio.sleep(plan.pause)
        response = Response(
            id="response",
            created_at=0,
            model="plan",
            object="response",
            output=self._output(asks),
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
        )
        yield ResponseCompletedEvent(type="response.completed", response=response, sequence_number=plan.chunks)


class _Hooks(RunHooks):
    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        kit.hooked()

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        kit.hooked()


class Hooked(Agent):
    """An agent with hooks of its runs: the run receives them, not the agent."""


def build(plan: Plan, hooks: bool = False) -> Agent:
    """An agent with the plan's tool."""
    return (Hooked if hooks else Agent)(name="race", model=Script(plan), tools=[TOOLS[plan.tool]])


def first(plan: Plan) -> Agent:
    """The same, its tool made of the function."""
    return Agent(name="race", model=Script(plan), tools=[function_tool(kit.add)])


def history(count: int) -> list[Any]:
    """A conversation of so many messages."""
    return [{"role": "assistant" if place % 2 else "user", "content": f"Message {place}."} for place in range(count)]


async def call(agent: Agent, history: list[Any] | None = None) -> str:
    """A call in a conversation of its own."""
    said: Any = [*history, {"role": "user", "content": kit.PROMPT}] if history else kit.PROMPT
    hooks = _Hooks() if isinstance(agent, Hooked) else None
    result = await Runner.run(agent, said, max_turns=1_000, run_config=_CONFIG, hooks=hooks)
    return result.final_output


async def stream(agent: Agent, prompt: str = kit.PROMPT) -> list[str]:
    """The same, and the chunks of text as a reader of its events gets them."""
    result = Runner.run_streamed(agent, prompt, max_turns=1_000, run_config=_CONFIG)
    return [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent)
    ]


def wire(url: str) -> Agent:
    """The same agent over HTTP."""
    from agents import OpenAIChatCompletionsModel
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="sk-test")
    return Agent(name="race", model=OpenAIChatCompletionsModel("test", client))
