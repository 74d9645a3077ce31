"""Anthropic's client: plain, streamed, its typed helpers, tool loops with thinking, its tool runner, errors."""

import anthropic
from cases import ANTHROPIC, MODEL, case, same, versions
from pydantic import BaseModel

versions("anthropic")
U = [{"role": "user", "content": "hello"}]
FORM = [{"role": "user", "content": "as json"}]
ADD = [{"role": "user", "content": "add"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
THINKS = {
    "max_tokens": 4000,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tools": [{"name": "add", "description": "Adds.", "input_schema": SCHEMA}],
}
client = anthropic.Anthropic(base_url=ANTHROPIC, api_key="k", max_retries=0)


class Point(BaseModel):
    x: int
    y: str


def results(content):
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": str(block.input["a"] + block.input["b"])}
        for block in content
        if block.type == "tool_use"
    ]


@case("a reply")
def _():
    reply = client.messages.create(model=MODEL, max_tokens=100, messages=U)
    same((reply.content[0].text, reply.stop_reason), ("Hello world", "end_turn"))
    assert reply.usage.output_tokens > 0


@case("a stream")
def _():
    kinds = [event.type for event in client.messages.create(model=MODEL, max_tokens=100, messages=U, stream=True)]
    same((kinds[0], kinds[-1]), ("message_start", "message_stop"))


@case("stream() helper with thinking and parallel calls")
def _():
    with client.messages.stream(model=MODEL, messages=ADD, **THINKS) as stream:
        reply = stream.get_final_message()
    same([block.type for block in reply.content], ["thinking", "text", "tool_use", "tool_use"])
    assert reply.content[0].signature
    same(reply.content[2].input, {"a": 1, "b": 2})


@case("a tool loop with thinking, three turns")
def _():
    messages = list(ADD)
    said = client.messages.create(model=MODEL, messages=messages, **THINKS)
    messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": results(said.content)}]
    said = client.messages.create(model=MODEL, messages=messages, **THINKS)
    same(said.content[-1].text, "sum 3,7")
    messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": "hello"}]
    client.messages.create(model=MODEL, messages=messages, **THINKS)


@case("asynchronous, a streamed tool loop")
async def _():
    async with anthropic.AsyncAnthropic(base_url=ANTHROPIC, api_key="k") as other:
        messages = list(ADD)
        async with other.messages.stream(model=MODEL, messages=messages, **THINKS) as stream:
            said = await stream.get_final_message()
        messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": results(said.content)}]
        async with other.messages.stream(model=MODEL, messages=messages, **THINKS) as stream:
            same((await stream.get_final_message()).content[-1].text, "sum 3,7")


@case("parse() into a model")
def _():
    reply = client.messages.parse(model=MODEL, max_tokens=100, messages=FORM, output_format=Point)
    same(reply.parsed_output, Point(x=1, y="b"))


@case("the tool runner")
def _():
    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """Adds."""
        return str(a + b)

    runner = client.beta.messages.tool_runner(model=MODEL, max_tokens=100, messages=ADD, tools=[add])
    same(runner.until_done().content[-1].text, "sum 3,7")


@case("count_tokens and the list of models")
def _():
    assert client.messages.count_tokens(model=MODEL, messages=U).input_tokens > 0
    assert [model.id for model in client.models.list()]


@case("a refused request is a BadRequestError")
def _():
    try:
        client.messages.create(model=MODEL, max_tokens=100, messages=[])
    except anthropic.BadRequestError as error:
        same(bool(error.request_id), True)
    else:
        raise AssertionError("it was taken")
