"""LangChain: `create_agent`, which is a LangGraph graph; `ainvoke` and `astream(stream_mode="messages")`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

os.environ["LANGSMITH_TRACING"] = "false"

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolCallChunk, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool

from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = "a middleware with `awrap_model_call` and `awrap_tool_call`, the cheaper of its two forms"
NOTES = (
    "LangSmith's tracing is off, no checkpointer.",
    "`awrap_model_call` rather than `abefore_model`, which is a node of the graph and costs more.",
)

_CONFIG: Any = {"recursion_limit": 10_000}
TOOLS = {"add": tool(kit.add), "wait_a_millisecond": tool(kit.wait_a_millisecond)}


class Model(BaseChatModel):
    """Replies as the plan says."""

    plan: Any

    @property
    def _llm_type(self) -> str:
        return "plan"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        """Tools are in the plan."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        plan: Plan = self.plan
        asks = plan.turn(isinstance(messages[-1], ToolMessage), len(messages))
        if plan.wait:
            await asyncio.sleep(plan.wait)
        if asks:
            arguments: Any = {"a": 1, "b": 2} if plan.tool == "add" else {}
            calls: Any = [{"name": plan.tool, "args": arguments, "id": id} for id in kit.ids(plan.calls)]  # noqa: A001
            return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=calls))])
        return ChatResult(generations=[ChatGeneration(message=AIMessage(plan.answer))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        plan: Plan = self.plan
        if plan.turn(isinstance(messages[-1], ToolMessage), len(messages)):
            calls = [
                ToolCallChunk(name=plan.tool, args=kit.ARGUMENTS[plan.tool], id=id, index=index)
                for index, id in enumerate(kit.ids(plan.calls))  # noqa: A001
            ]
            yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=calls))
        else:
            for text in plan.pieces:
                yield ChatGenerationChunk(message=AIMessageChunk(text))


class _Hooks(AgentMiddleware):
    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        kit.hooked()
        return await handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        kit.hooked()
        return await handler(request)


def build(plan: Plan, hooks: bool = False) -> Any:
    """An agent with the plan's tool."""
    return create_agent(Model(plan=plan), tools=[TOOLS[plan.tool]], middleware=[_Hooks()] if hooks else [])


def first(plan: Plan) -> Any:
    """The same, its tool made of the function."""
    return create_agent(Model(plan=plan), tools=[tool(kit.add)])


def history(count: int) -> list[BaseMessage]:
    """A conversation of so many messages."""
    return [
        AIMessage(f"Message {place}.") if place % 2 else HumanMessage(f"Message {place}.") for place in range(count)
    ]


async def call(agent: Any, history: list[BaseMessage] | None = None) -> str:
    """A call in a conversation of its own."""
    ended = await agent.ainvoke({"messages": [*(history or ()), HumanMessage(kit.PROMPT)]}, _CONFIG)
    return ended["messages"][-1].content


async def stream(agent: Any, prompt: str = kit.PROMPT) -> list[str]:
    """The same, and the chunks of text as a reader receives them."""
    pieces: list[str] = []
    async for chunk, _ in agent.astream({"messages": [HumanMessage(prompt)]}, _CONFIG, stream_mode="messages"):
        if isinstance(chunk, AIMessageChunk) and chunk.content:
            pieces.append(chunk.content)
    return pieces


def wire(url: str) -> Any:
    """The same agent over HTTP."""
    from langchain_openai import ChatOpenAI

    return create_agent(ChatOpenAI(model="test", base_url=url, api_key="sk-test"), tools=[])
