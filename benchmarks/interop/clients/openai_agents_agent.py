"""openai-agents, on chat completions: a tool loop, streamed too, a hand-off, a typed answer."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from cases import OPENAI, case, same, versions
from openai import AsyncOpenAI
from pydantic import BaseModel

versions("openai-agents", "openai")
set_tracing_disabled(True)


class Point(BaseModel):
    x: int
    y: str


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent(**options):
    client = AsyncOpenAI(base_url=OPENAI, api_key="k", max_retries=0)
    return Agent("a", model=OpenAIChatCompletionsModel("gpt-4o", client), **options)


@case("a tool loop, and a second run with its history")
async def _():
    made = agent(tools=[add])
    first = await Runner.run(made, "add")
    same(first.final_output, "sum 3,7")
    more = [*first.to_input_list(), {"role": "user", "content": "hello"}]
    same((await Runner.run(made, more)).final_output, "Hello world")


@case("a streamed run")
async def _():
    run = Runner.run_streamed(agent(tools=[add]), "add")
    async for _event in run.stream_events():
        pass
    same(run.final_output, "sum 3,7")


@case("a typed answer")
async def _():
    same((await Runner.run(agent(output_type=Point), "as json")).final_output, Point(x=1, y="b"))
