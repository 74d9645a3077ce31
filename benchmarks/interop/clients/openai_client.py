"""OpenAI's client: plain, streamed, its typed helpers, a tool loop, errors."""

import json

import openai
from cases import OPENAI, case, same, versions
from pydantic import BaseModel

versions("openai")
U = [{"role": "user", "content": "hello"}]
FORM = [{"role": "user", "content": "as json"}]
ADD = [{"role": "user", "content": "add"}]
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS, "strict": True}}]
client = openai.OpenAI(base_url=OPENAI, api_key="k", max_retries=0)


class Point(BaseModel):
    x: int
    y: str


@case("a reply")
def _():
    reply = client.chat.completions.create(model="gpt-5", messages=U)
    same((reply.choices[0].message.content, reply.choices[0].finish_reason), ("Hello world", "stop"))
    assert reply.usage.total_tokens > 0


@case("a stream with usage")
def _():
    text, usage = "", None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(model="gpt-5", messages=U, stream=True, stream_options=options):
        text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        usage = chunk.usage or usage
    same(text, "Hello world")
    assert usage


@case("asynchronous")
async def _():
    async with openai.AsyncOpenAI(base_url=OPENAI, api_key="k") as other:
        text = ""
        async for chunk in await other.chat.completions.create(model="gpt-5", messages=U, stream=True):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        same(text, "Hello world")


@case("stream() helper")
def _():
    with client.chat.completions.stream(model="gpt-5", messages=U) as stream:
        assert "content.delta" in {event.type for event in stream}
        same(stream.get_final_completion().choices[0].message.content, "Hello world")


@case("stream() helper, parallel calls")
def _():
    with client.chat.completions.stream(model="gpt-5", messages=ADD, tools=TOOLS) as stream:
        stream.until_done()
        calls = stream.get_final_completion().choices[0].message.tool_calls
    same([call.function.parsed_arguments for call in calls], [{"a": 1, "b": 2}, {"a": 3, "b": 4}])


@case("a tool loop")
def _():
    messages = list(ADD)
    said = client.chat.completions.create(model="gpt-5", messages=messages, tools=TOOLS).choices[0].message
    messages.append(said)
    for call in said.tool_calls:
        total = sum(json.loads(call.function.arguments).values())
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})
    reply = client.chat.completions.create(model="gpt-5", messages=messages, tools=TOOLS)
    same(reply.choices[0].message.content, "sum 3,7")


@case("parse() into a model")
def _():
    reply = client.chat.completions.parse(model="gpt-5", messages=FORM, response_format=Point)
    same(reply.choices[0].message.parsed, Point(x=1, y="b"))


@case("stream() into a model")
def _():
    with client.chat.completions.stream(model="gpt-5", messages=FORM, response_format=Point) as stream:
        stream.until_done()
        same(stream.get_final_completion().choices[0].message.parsed, Point(x=1, y="b"))


@case("raw responses")
def _():
    raw = client.chat.completions.with_raw_response.create(model="gpt-5", messages=U)
    same(raw.parse().choices[0].message.content, "Hello world")


@case("the list of models")
def _():
    assert [model.id for model in client.models.list()]


@case("a refused request is a BadRequestError")
def _():
    try:
        client.chat.completions.create(model="gpt-5", messages=[])
    except openai.BadRequestError as error:
        same(error.type, "invalid_request_error")
    else:
        raise AssertionError("it was taken")
