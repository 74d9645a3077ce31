"""pydantic-ai: agents with a tool on both wires, streamed too, and a typed answer."""

from cases import ANTHROPIC, MODEL, OPENAI, case, same, versions
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

versions("pydantic-ai-slim")


class Point(BaseModel):
    x: int
    y: str


def models():
    yield "openai", lambda: OpenAIChatModel("gpt-4o", provider=OpenAIProvider(base_url=OPENAI, api_key="k"))
    yield (
        "anthropic",
        lambda: AnthropicModel(MODEL, provider=AnthropicProvider(base_url=ANTHROPIC, api_key="k")),
    )


def agent_on(model, **options):
    made = Agent(model(), **options)

    @made.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return made


for wire, model in models():

    @case(f"{wire}: a tool loop, and a second run with its history")
    async def _(model=model):
        agent = agent_on(model)
        first = await agent.run("add")
        same(first.output, "sum 3,7")
        same((await agent.run("hello", message_history=first.all_messages())).output, "Hello world")

    @case(f"{wire}: a streamed run")
    async def _(model=model):
        async with agent_on(model).run_stream("add") as run:
            same(await run.get_output(), "sum 3,7")

    @case(f"{wire}: a typed answer")
    async def _(model=model):
        same((await Agent(model(), output_type=NativeOutput(Point)).run("as json")).output, Point(x=1, y="b"))
