"""The official clients of OpenAI and Anthropic use an agent as if it were a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from serve_client import LIMIT, Gate, connected, served

from agentflow import Agent, CallEnded, ModelChunk, Msg, PostReasoning, ToolUseBlock, Usage, on, tool
from agentflow.serve import App, Limits, bearer_tokens
from agentflow.testing import ScriptedModel

TOKEN = "a-long-random-token"
WEATHER: Any = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Weather.", "parameters": WEATHER, "strict": True},
}
ASK: Any = {"role": "user", "content": "Weather in Rome?"}
USED = ModelChunk(usage=Usage(input_tokens=7, output_tokens=3))


@tool(type="read")
async def look_up(key: str) -> str:
    return f"value of {key}"


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    return "paid"


def weather(city: str = "Rome") -> ToolUseBlock:
    return ToolUseBlock("t1", "weather", {"city": city})


@asynccontextmanager
async def clients(
    script: Any, limits: Limits | None = None, **agent: Any
) -> AsyncIterator[tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic, ScriptedModel]]:
    """Both clients, and the model of the agent `a` that they use."""
    model = ScriptedModel(script)
    app = App(Agent("a", model, **agent), auth=bearer_tokens({TOKEN: "ada"}), limits=limits)
    async with (
        served(app) as url,
        openai.AsyncOpenAI(api_key=TOKEN, base_url=f"{url}/v1", max_retries=0, timeout=LIMIT) as one,
        anthropic.AsyncAnthropic(api_key=TOKEN, base_url=url, max_retries=0, timeout=LIMIT) as other,
    ):
        yield one, other, model


async def test_the_agents_are_the_models() -> None:
    """They are listed, and one that does not exist is an error of the client's own class."""
    async with clients([]) as (one, other, _):
        assert [model.id async for model in one.models.list()] == ["a"]
        assert (await one.models.retrieve("a")).owned_by == "agentflow"
        assert [model.id async for model in other.models.list()] == ["a"]
        with pytest.raises(openai.NotFoundError, match="no such model"):
            await one.models.retrieve("b")
        with pytest.raises(openai.NotFoundError, match="no model 'b'"):
            await one.chat.completions.create(model="b", messages=[ASK])
        with pytest.raises(anthropic.NotFoundError, match="no model 'b'"):
            await other.messages.create(model="b", messages=[ASK], max_tokens=9)
        with pytest.raises(openai.AuthenticationError):
            await one.with_options(api_key="wrong").models.list()
        with pytest.raises(anthropic.AuthenticationError):
            await other.with_options(api_key="wrong").models.list()


async def test_a_chat_completion() -> None:
    """The conversation, instructions and options reach the model; the agent's own tools run unseen; usage is counted."""
    script = [["Let me look.", ToolUseBlock("t1", "look_up", {"key": "x"}), USED], ["It is ", "42.", USED]]
    async with clients(script, system="Be exact.", tools=[look_up]) as (one, _, model):
        done = await one.chat.completions.create(
            model="a",
            messages=[
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": [{"type": "text", "text": "What is x?"}]},
            ],
            temperature=0.5,
            max_tokens=100,
            stop="END",
        )
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == ("Let me look.\n\nIt is 42.", "stop")
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (14, 6, 20)
    request = model.requests[0]
    assert [(msg.role, msg.text) for msg in request.messages] == [
        ("system", "Be exact.\n\nBe brief."),
        ("user", "Hi"),
        ("assistant", "Hello."),
        ("user", "What is x?"),
    ]
    assert (request.options.temperature, request.options.max_tokens, request.options.stop) == (0.5, 100, ("END",))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_not_streamed_is_the_same(stream: bool) -> None:
    """Such as one that a hook has written."""

    @on(PostReasoning)
    def rewrite(event: PostReasoning) -> None:
        event.reasoning_result = Msg.assistant("It is 43.")

    async with clients([[USED]], hooks=[rewrite], default_hooks=()) as (one, _, _model):
        answer: Any = await one.chat.completions.create(model="a", messages=[ASK], stream=stream)
        if not stream:
            text = answer.choices[0].message.content
        else:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
    assert text == "It is 43."


async def test_a_streamed_chat_completion() -> None:
    """The chunks join to the same text, the usage comes last on request, and `[DONE]` ends the stream."""
    async with clients([["It is ", "42.", USED]]) as (one, _, _model):
        stream = await one.chat.completions.create(
            model="a", messages=[ASK], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.content for chunk in chunks if chunk.choices] == ["", "It is ", "42.", None]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 10


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_s_tool_in_a_chat(stream: bool) -> None:
    """The client runs it, and the agent continues with the result, with its own tools' results before it."""
    script = [
        [ToolUseBlock("t0", "look_up", {"key": "x"})],
        ["I ask.", weather(), weather("Oslo")],
        "Sunny, 20 degrees.",
    ]
    async with clients(script, tools=[look_up]) as (one, _, model):
        messages: list[Any] = [ASK]
        if stream:
            async with one.chat.completions.stream(model="a", messages=messages, tools=[CHAT_TOOL]) as events:
                message: Any = (await events.get_final_completion()).choices[0].message
        else:
            done = await one.chat.completions.create(model="a", messages=messages, tools=[CHAT_TOOL])
            assert done.choices[0].finish_reason == "tool_calls"
            message = done.choices[0].message
        [call] = message.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Rome"}
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "Sunny"})
        second: Any = await one.chat.completions.create(model="a", messages=messages, tools=[CHAT_TOOL])
        [call] = second.choices[0].message.tool_calls  # several calls come one by one
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        messages.append(second.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "Rain"})
        end = await one.chat.completions.create(model="a", messages=messages, tools=[CHAT_TOOL])
        assert end.choices[0].message.content == "Sunny, 20 degrees."
        results = [result.text for msg in model.requests[-1].messages for result in msg.tool_results]
        assert results == ["value of x", "Sunny", "Rain"]
        model.add("Still sunny.", "Thanks.")
        again = await one.chat.completions.create(model="a", messages=messages, tools=[CHAT_TOOL])
        assert again.choices[0].message.content == "Still sunny."  # the same request can be repeated
        messages += [{"role": "assistant", "content": "Sunny."}, {"role": "user", "content": "Thanks"}]
        await one.chat.completions.create(model="a", messages=messages, tools=[CHAT_TOOL])
        assert [msg.role for msg in model.requests[-1].messages] == [
            "user",
            *["assistant", "tool"] * 2,
            *["assistant", "user"],
        ]


async def test_a_client_s_tool_is_not_offered_for_the_summary() -> None:
    """At the agent's limit no tool may be called, and the request has the agent's own ones only."""
    script = [ToolUseBlock("t1", "look_up", {"key": "x"}), "Summed up."]
    async with clients(script, tools=[look_up], max_iterations=1) as (one, _, model):
        done = await one.chat.completions.create(model="a", messages=[ASK], tools=[CHAT_TOOL])
    assert done.choices[0].message.content == "Summed up."
    offered = [([spec.name for spec in request.tools], request.options.tool_choice) for request in model.requests]
    assert offered == [(["look_up", "weather"], None), (["look_up"], "none")]


async def test_responses_and_their_continuation() -> None:
    """A response continues an earlier one by its id; each of several continuations has its own conversation."""
    async with clients(["Hello Ada.", "Ada.", "You said Ada."], system="Be kind.") as (one, _, model):
        first = await one.responses.create(model="a", input="I am Ada", instructions="Be brief.")
        second = await one.responses.create(model="a", input="Who am I?", previous_response_id=first.id)
        third = await one.responses.create(model="a", input="And I said?", previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError, match="no longer kept"):
            await one.responses.create(model="a", input="x", previous_response_id="resp_unknown")
    assert (first.output_text, second.output_text, third.output_text) == ("Hello Ada.", "Ada.", "You said Ada.")
    assert (first.status, first.model) == ("completed", "a")
    assert [msg.text for msg in model.requests[2].messages] == ["Be kind.", "I am Ada", "Hello Ada.", "And I said?"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_s_tool_in_responses(stream: bool) -> None:
    """By id or with the whole input, as the client's documentation shows."""
    async with clients([["I ask.", weather()], "Sunny.", "Sunny again."]) as (one, _, model):
        named: Any = {"type": "function", "name": "weather", "description": "Weather.", "parameters": WEATHER}
        if stream:
            async with one.responses.stream(model="a", input="Rome?", tools=[named]) as events:
                kinds = [event.type async for event in events]
                first: Any = await events.get_final_response()
            assert [kind for kind in kinds if kind.endswith((".added", ".done", ".completed"))] == [
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.output_item.added",
                "response.function_call_arguments.done",
                "response.output_item.done",
                "response.completed",
            ]
        else:
            first = await one.responses.create(model="a", input="Rome?", tools=[named])
        call = next(item for item in first.output if item.type == "function_call")
        assert (call.name, json.loads(call.arguments), first.output_text) == ("weather", {"city": "Rome"}, "I ask.")
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
        done = await one.responses.create(model="a", input=[result], previous_response_id=first.id, tools=[named])
        assert done.output_text == "Sunny."
        said = [item.model_dump(exclude_none=True) for item in first.output]
        whole = await one.responses.create(model="a", input=[ASK, *said, result], tools=[named])  # type: ignore[list-item]
        assert whole.output_text == "Sunny again."
        assert [msg.text for msg in model.requests[-1].messages][-1] == "sun"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_s_tool_in_messages(stream: bool) -> None:
    """Anthropic's client, with instructions, a tool, its result, and the counted tokens."""
    async with clients([["I ask.", weather(), USED], ["Sunny.", USED]], system="Be exact.") as (_, other, model):
        named: Any = {"name": "weather", "description": "Weather.", "input_schema": WEATHER}
        asked: Any = {"model": "a", "max_tokens": 100, "system": "Be brief.", "tools": [named]}
        if stream:
            async with other.messages.stream(messages=[ASK], **asked) as events:
                assert [text async for text in events.text_stream] == ["I ask."]
                first = await events.get_final_message()
        else:
            first = await other.messages.create(messages=[ASK], **asked)
        text, call = first.content
        assert (text.type, call.type, first.stop_reason) == ("text", "tool_use", "tool_use")
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("weather", {"city": "Rome"})
        assert (first.usage.input_tokens, first.usage.output_tokens) == (7, 3)
        result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sun"}]}
        said: Any = {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]}
        done = await other.messages.create(messages=[ASK, said, result], **asked)
    assert (done.content[0].type, done.stop_reason) == ("text", "end_turn")
    assert [msg.text for msg in model.requests[1].messages] == [
        "Be exact.\n\nBe brief.",
        ASK["content"],
        "I ask.",
        "sun",
    ]


async def test_failures_have_the_form_of_the_api() -> None:
    """A failed call, an approval, a wrong request: each is an error of the client, streamed or not, without internals."""
    failing = [ConnectionError("SECRET key")] * 4
    async with clients([*failing, *[ToolUseBlock("t1", "pay", {"euros": 5})] * 2], tools=[pay]) as (one, other, _):
        with pytest.raises(openai.InternalServerError) as failed:
            await one.chat.completions.create(model="a", messages=[ASK])
        with pytest.raises(openai.APIError) as streamed:
            async for _chunk in await one.chat.completions.create(model="a", messages=[ASK], stream=True):
                pass
        with pytest.raises(anthropic.APIStatusError) as others:
            async with other.messages.stream(model="a", messages=[ASK], max_tokens=9) as events:
                await events.get_final_message()
        async with one.responses.stream(model="a", input="x") as events_:
            kinds = [event.type async for event in events_]
        assert kinds[-1] == "response.failed"
        assert "SECRET" not in str([failed.value, streamed.value, others.value, failed.value.body])
        with pytest.raises(openai.ConflictError, match="person's decision"):
            await one.chat.completions.create(model="a", messages=[ASK])
        clash: Any = {"type": "function", "function": {"name": "pay"}}
        with pytest.raises(openai.BadRequestError, match="tools named \\['pay'\\] of its own"):
            await one.chat.completions.create(model="a", messages=[ASK], tools=[clash])
        wrong: list[Any] = [
            [],
            [{"role": "assistant", "content": "Hi"}],
            [{"role": "user", "content": ""}],
            [{"role": "user"}],
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
            [ASK, {"role": "tool", "tool_call_id": "call_x_0", "content": "x"}],
            [{"role": "tool", "tool_call_id": "t", "content": "x"}, ASK],
        ]
        for messages in wrong:
            with pytest.raises(openai.BadRequestError):
                await one.chat.completions.create(model="a", messages=messages)


async def test_a_conversation_is_kept_for_its_owner_only() -> None:
    """Another user can neither answer a tool call nor continue a response, even with the right id."""
    ada, bob = "ada-has-a-long-token", "bob-has-a-long-token"
    app = App(Agent("a", ScriptedModel(["Hello.", weather()])), auth=bearer_tokens({ada: "ada", bob: "bob"}))
    async with served(app) as url:
        hers = openai.AsyncOpenAI(api_key=ada, base_url=f"{url}/v1", max_retries=0)
        his = openai.AsyncOpenAI(api_key=bob, base_url=f"{url}/v1", max_retries=0)
        async with hers, his:
            first = await hers.responses.create(model="a", input="I am Ada")
            with pytest.raises(openai.BadRequestError, match="no longer kept"):
                await his.responses.create(model="a", input="Who am I?", previous_response_id=first.id)
            asked = await hers.chat.completions.create(model="a", messages=[ASK], tools=[CHAT_TOOL])
            message: Any = asked.choices[0].message
            result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "x"}
            with pytest.raises(openai.BadRequestError, match="no longer kept"):
                await his.chat.completions.create(model="a", messages=[ASK, message.model_dump(), result])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_interrupts_the_agent(stream: bool) -> None:
    """No tokens are spent on an answer without a reader."""
    gate, ends = Gate(), asyncio.Queue[str]()

    @on(CallEnded)
    def ended(event: CallEnded) -> None:
        ends.put_nowait(event.outcome)

    app = App(Agent("a", ScriptedModel([["One ", gate]]), hooks=[ended]))
    async with served(app) as url, connected(url) as client:
        body = {"model": "a", "messages": [ASK], "stream": stream}
        asking = asyncio.create_task(client.ask("POST", "/v1/chat/completions", body))
        await asyncio.wait_for(gate.reached.wait(), LIMIT)
        asking.cancel()
        assert await asyncio.wait_for(ends.get(), LIMIT) == "interrupted"
