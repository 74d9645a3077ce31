"""AgentScope (Python): `Agent.reply` and `Agent.reply_stream`, one agent per conversation, as it holds the state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agentscope.agent import Agent, InjectionConfig, ReActConfig
from agentscope.credential import CredentialBase, OpenAICredential
from agentscope.event import TextBlockDeltaEvent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import AssistantMsg, TextBlock, ToolCallBlock, ToolResultBlock, UserMsg
from agentscope.middleware import MiddlewareBase
from agentscope.model import ChatModelBase, ChatResponse, OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.state import AgentState
from agentscope.tool import FunctionTool, Toolkit

from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = "a middleware with `on_model_call` and `on_acting`"
NOTES = (
    "`inject_runtime_state=False`, no tracing middleware, a context so large that nothing is compressed.",
    "Tools have a permission that allows them, so there are no questions.",
    "An agent is a conversation: its `state` is a new one for each call, and 1,000 at once are 1,000 agents.",
)

_REACT = ReActConfig(max_iters=1_000)
_PLAIN = InjectionConfig(inject_runtime_state=False)
_ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="")


def _tool(name: str) -> FunctionTool:
    return FunctionTool(getattr(kit, name), permission=_ALLOWED)


TOOLS = {name: _tool(name) for name in ("add", "wait_a_millisecond")}


class Script(ChatModelBase):
    """Replies as the plan says."""

    def __init__(self, plan: Plan) -> None:
        parameters = ChatModelBase.Parameters()
        super().__init__(CredentialBase(), "plan", parameters, stream=False, context_size=1_000_000_000)
        self.plan = plan
        self.formatter = OpenAIChatFormatter()  # asked for the kinds of media that it takes

    async def _call_api(self, model_name: str, messages: Any, *args: Any, **more: Any) -> Any:
        plan = self.plan
        last = messages[-1].content
        asks = plan.turn(isinstance(last[-1], ToolResultBlock), len(messages) - 1 + len(last))
        if plan.wait:
            await asyncio.sleep(plan.wait)
        if self.stream:
            return self._pieces(asks)
        return ChatResponse(content=self._calls() if asks else [TextBlock(text=plan.answer)], is_last=True)

    def _calls(self) -> list[Any]:
        plan = self.plan
        return [ToolCallBlock(id=id, name=plan.tool, input=kit.ARGUMENTS[plan.tool]) for id in kit.ids(plan.calls)]  # noqa: A001

    async def _pieces(self, asks: bool) -> AsyncIterator[ChatResponse]:
        if asks:
            yield ChatResponse(content=self._calls(), is_last=False)
        else:
            for text in self.plan.pieces:
                yield ChatResponse(content=[TextBlock(text=text, id="text")], is_last=False)


class _Hooks(MiddlewareBase):
    async def on_model_call(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        kit.hooked()
        return await next_handler(**input_kwargs)

    async def on_acting(self, agent: Any, input_kwargs: Any, next_handler: Any) -> Any:
        kit.hooked()
        async for event in next_handler(**input_kwargs):
            yield event


def build(plan: Plan, hooks: bool = False) -> Agent:
    """An agent with the plan's tool."""
    return Agent(
        "race",
        "",
        Script(plan),
        Toolkit(tools=[TOOLS[plan.tool]]),
        middlewares=[_Hooks()] if hooks else None,
        react_config=_REACT,
        injection_config=_PLAIN,
    )


def first(plan: Plan) -> Agent:
    """The same, its tool made of the function."""
    return Agent("race", "", Script(plan), Toolkit(tools=[_tool("add")]), injection_config=_PLAIN)


def history(count: int) -> list[Any]:
    """A conversation of so many messages."""
    return [
        AssistantMsg("race", f"Message {place}.") if place % 2 else UserMsg("user", f"Message {place}.")
        for place in range(count)
    ]


async def call(agent: Agent, history: list[Any] | None = None) -> str:
    """A call in a conversation of its own."""
    agent.state = AgentState(context=list(history or ()))
    reply = await agent.reply(UserMsg("user", kit.PROMPT))
    return reply.content[-1].text  # pyright: ignore[reportAttributeAccessIssue]


async def crowd(agent: Agent, many: int) -> list[str]:
    """Many calls at once."""
    plan = agent.model.plan  # pyright: ignore[reportAttributeAccessIssue]
    return list(await asyncio.gather(*[call(build(plan)) for _ in range(many)]))


async def stream(agent: Agent, prompt: str = kit.PROMPT) -> list[str]:
    """The same, and the chunks of text as a reader of its events gets them."""
    model = agent.model
    if isinstance(model, OpenAIChatModel):  # streams over HTTP are many at once
        agent = Agent("race", "", model, injection_config=_PLAIN)
    model.stream = True
    agent.state = AgentState()
    events = agent.reply_stream(UserMsg("user", prompt))
    return [event.delta async for event in events if isinstance(event, TextBlockDeltaEvent)]


def wire(url: str) -> Agent:
    """The same agent over HTTP."""
    model = OpenAIChatModel(
        OpenAICredential(api_key="sk-test", base_url=url),  # pyright: ignore[reportArgumentType]
        "test",
    )
    return Agent("race", "", model, injection_config=_PLAIN)
