"""Google ADK: `InMemoryRunner.run_async`, a session of its own for each call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types

from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = "`before_model_callback` and `before_tool_callback`"
NOTES = (
    "No OpenTelemetry exporter, as by default.",
    "A session is made for each call and deleted after it, within the measured time.",
    "With a history, its events are appended to the session first, as the service requires.",
)

_NAME, _USER = "race", "user"
_USAGE = types.GenerateContentResponseUsageMetadata(
    prompt_token_count=1, candidates_token_count=1, total_token_count=2
)  # it logs a line for each reply without
_CONFIG = RunConfig(max_llm_calls=100_000)
_STREAMED = RunConfig(max_llm_calls=100_000, streaming_mode=StreamingMode.SSE)


def _content(*parts: types.Part, role: str = "model") -> types.Content:
    return types.Content(role=role, parts=list(parts))


class Script(BaseLlm):
    """Replies as the plan says."""

    model: str = "plan"
    plan: Any = None

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:
        """Yield the next reply, in chunks and complete."""
        plan: Plan = self.plan
        contents = llm_request.contents
        asks = plan.turn(contents[-1].parts[0].function_response is not None, len(contents))
        if plan.wait:
            await asyncio.sleep(plan.wait)
        if asks:
            arguments = json.loads(kit.ARGUMENTS[plan.tool])
            calls = [types.FunctionCall(id=id, name=plan.tool, args=arguments) for id in kit.ids(plan.calls)]  # noqa: A001
            yield LlmResponse(
                content=_content(*[types.Part(function_call=call) for call in calls]), usage_metadata=_USAGE
            )
            return
        if stream:
            for text in plan.pieces:
                yield LlmResponse(content=_content(types.Part(text=text)), partial=True)
        yield LlmResponse(content=_content(types.Part(text=plan.answer)), partial=False, usage_metadata=_USAGE)


async def _before_model(callback_context: Any, llm_request: Any) -> None:
    kit.hooked()


async def _before_tool(tool: Any, args: Any, tool_context: Any) -> None:
    kit.hooked()


def _runner(agent: LlmAgent) -> InMemoryRunner:
    return InMemoryRunner(agent, app_name=_NAME)


def build(plan: Plan, hooks: bool = False) -> InMemoryRunner:
    """An agent with the plan's tool, and its runner."""
    callbacks: Any = {"before_model_callback": _before_model, "before_tool_callback": _before_tool} if hooks else {}
    return _runner(LlmAgent(name=_NAME, model=Script(plan=plan), tools=[getattr(kit, plan.tool)], **callbacks))


def history(count: int) -> list[Event]:
    """A conversation of so many messages."""
    return [
        Event(
            author=_NAME if place % 2 else "user",
            content=_content(types.Part(text=f"Message {place}."), role="model" if place % 2 else "user"),
        )
        for place in range(count)
    ]


async def _events(runner: InMemoryRunner, prompt: str, config: RunConfig, past: list[Event] | None) -> list[Event]:
    sessions = runner.session_service
    session = await sessions.create_session(app_name=_NAME, user_id=_USER)
    for event in past or ():
        await sessions.append_event(session, event)
    message = _content(types.Part(text=prompt), role="user")
    run = runner.run_async(user_id=_USER, session_id=session.id, new_message=message, run_config=config)
    events = [event async for event in run]
    await sessions.delete_session(app_name=_NAME, user_id=_USER, session_id=session.id)
    return events


async def call(runner: InMemoryRunner, history: list[Event] | None = None) -> str:
    """A call in a conversation of its own."""
    events = await _events(runner, kit.PROMPT, _CONFIG, history)
    return events[-1].content.parts[0].text  # pyright: ignore[reportOptionalMemberAccess, reportOptionalSubscript, reportReturnType]


async def stream(runner: InMemoryRunner, prompt: str = kit.PROMPT) -> list[str]:
    """The same, and the chunks of text as a reader of its events gets them."""
    return [
        part.text
        for event in await _events(runner, prompt, _STREAMED, None)
        if event.partial and event.content
        for part in event.content.parts or ()
        if part.text
    ]


def wire(url: str) -> InMemoryRunner:
    """The same agent over HTTP."""
    import os

    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    os.environ["REPEATED_STREAMING_CHUNK_LIMIT"] = "1000000000"  # else the same word again and again is a fault
    from google.adk.models.lite_llm import LiteLlm

    return _runner(LlmAgent(name=_NAME, model=LiteLlm("openai/test", api_base=url, api_key="sk-test")))
