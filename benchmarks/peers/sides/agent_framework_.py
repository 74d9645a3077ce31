"""Microsoft Agent Framework: `Agent.run`, over a chat client with its layers for functions and middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    ResponseStream,
    chat_middleware,
    function_middleware,
    tool,
)

from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = "a `chat_middleware` and a `function_middleware`"
NOTES = (
    "Instrumentation is off, as by default; the client that is measured leaves out the telemetry layer as well.",
    "No session: a call is given its messages.",
)

_LIMITS: Any = {"max_iterations": 1_000}
TOOLS = {"add": tool(kit.add), "wait_a_millisecond": tool(kit.wait_a_millisecond)}


class _Client(BaseChatClient):
    """Replies as the plan says."""

    _plan: Plan

    def _inner_get_response(self, *, messages: Sequence[Message], stream: bool, options: Any, **more: Any) -> Any:
        if stream:
            return ResponseStream(self._pieces(messages), finalizer=ChatResponse.from_updates)
        return self._reply(messages)

    async def _reply(self, messages: Sequence[Message]) -> ChatResponse:
        plan = self._plan
        asks = plan.turn(messages[-1].role == "tool", len(messages))
        if plan.wait:
            await asyncio.sleep(plan.wait)
        contents = self._calls() if asks else [Content.from_text(plan.answer)]
        return ChatResponse(messages=[Message(role="assistant", contents=contents)], response_id=None)

    def _calls(self) -> list[Content]:
        plan = self._plan
        return [
            Content.from_function_call(id, plan.tool, arguments=kit.ARGUMENTS[plan.tool])
            for id in kit.ids(plan.calls)  # noqa: A001
        ]

    async def _pieces(self, messages: Sequence[Message]) -> AsyncIterator[ChatResponseUpdate]:
        plan = self._plan
        if plan.turn(messages[-1].role == "tool", len(messages)):
            yield ChatResponseUpdate(role="assistant", contents=self._calls())
        else:
            for text in plan.pieces:
                yield ChatResponseUpdate(role="assistant", contents=[Content.from_text(text)])


class Client(FunctionInvocationLayer, ChatMiddlewareLayer, _Client):  # pyright: ignore[reportIncompatibleMethodOverride]
    """The same with the layers that run functions and middleware."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(function_invocation_configuration=_LIMITS)
        self._plan = plan


@chat_middleware
async def _before_model(context: Any, call_next: Any) -> None:
    kit.hooked()
    await call_next()


@function_middleware
async def _before_tool(context: Any, call_next: Any) -> None:
    kit.hooked()
    await call_next()


def build(plan: Plan, hooks: bool = False) -> Agent:
    """An agent with the plan's tool."""
    client = Client(plan)
    middleware = [_before_model, _before_tool] if hooks else None
    return Agent(client, name="race", tools=[TOOLS[plan.tool]], middleware=middleware)


def first(plan: Plan) -> Agent:
    """The same, its tool made of the function."""
    return Agent(Client(plan), name="race", tools=[tool(kit.add)])


def history(count: int) -> list[Message]:
    """A conversation of so many messages."""
    return [
        Message(role="assistant" if place % 2 else "user", contents=[f"Message {place}."]) for place in range(count)
    ]


async def call(agent: Agent, history: list[Message] | None = None) -> str:
    """A call in a conversation of its own."""
    said: Any = [*history, Message(role="user", contents=[kit.PROMPT])] if history else kit.PROMPT
    return (await agent.run(said)).text


async def stream(agent: Agent, prompt: str = kit.PROMPT) -> list[str]:
    """The same, and the chunks of text as a reader receives them."""
    return [update.text async for update in agent.run(prompt, stream=True) if update.text]


def wire(url: str) -> Agent:
    """The same agent over HTTP."""
    from agent_framework.openai import OpenAIChatCompletionClient

    return Agent(OpenAIChatCompletionClient(model="test", base_url=url, api_key="sk-test"))
