"""`context.window` and `context.measure`: a conversation's share of the model's window, and the source of the number."""

from __future__ import annotations

from typing import Any

import pytest
from wired import Wired

from agentflow import Agent, DataBlock, Msg, RunContext, ToolUseBlock, Usage, after_llm, before_llm, tool
from agentflow.errors import ModelError
from agentflow.loop.run_context import estimate_tokens
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.plugins import SummaryCompaction
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Fault, Say, UseTool, WireReply, WireUsage
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import ContextWindow
from agentflow.vocabulary.ports.model import ModelRequest, TokenCount, context_limit
from agentflow.vocabulary.specs import ModelOptions


class Limited(ScriptedModel):
    """A scripted model that knows the size of its window."""

    context_limit = 1_000


def answers(*prompts: int) -> list[Any]:
    return [[ModelChunk("Yes."), ModelChunk(usage=Usage(input_tokens=n, output_tokens=10))] for n in prompts]


class Windows:
    """What hooks before and after each reply see."""

    def __init__(self) -> None:
        self.seen: list[ContextWindow] = []
        self.hooks = [before_llm(self.note), after_llm(self.note)]

    def note(self, event: Any) -> None:
        self.seen.append(event.context.window)


async def test_what_a_reply_reported_is_believed() -> None:
    """Before the first reply it is an estimate; then the reply's own usage, and an estimate of what follows."""
    windows = Windows()
    agent = Agent("a", Limited(answers(500, 600)), system="Be brief.", hooks=windows.hooks)
    await agent.call("Hello " * 100)
    await agent.call("Well " * 40)
    first, second, third, _ = windows.seen
    assert (first.how, first.limit, first.share) == ("estimate", 1_000, first.used / 1_000)
    assert 150 < first.used < 180
    assert second.how == "estimate"
    assert third.how == "estimate"
    assert 510 < third.used < 800


async def test_between_calls_it_is_the_reported_one() -> None:
    """Nothing follows the last reply: nothing is estimated."""
    seen: list[ContextWindow] = []

    @tool(type="read")
    async def look(context: RunContext) -> str:
        """Look."""
        seen.append(context.window)
        return "x"

    script = [
        [ModelChunk(blocks=(ToolUseBlock("t1", "look"),)), ModelChunk(usage=Usage(input_tokens=400, output_tokens=20))],
        "Done.",
    ]
    await Agent("a", Limited(script), tools=[look]).call("Look.")
    assert seen == [ContextWindow(420, 1_000, "reported")]
    assert seen[0].share == pytest.approx(0.42)


async def test_a_model_without_a_limit_has_no_share() -> None:
    """Nothing is made up."""
    windows = Windows()
    await Agent("a", ScriptedModel(["Hi"]), hooks=windows.hooks).call("Hi")
    assert [(window.limit, window.share) for window in windows.seen] == [(None, None)] * 2


async def test_after_a_compaction_older_usage_does_not_count() -> None:
    """Replies that were made of the longer request tell nothing of the shorter one."""
    seen: list[ContextWindow] = []

    def note(event: Any) -> None:
        seen.append(event.context.window)

    compaction = SummaryCompaction(at_messages=4, keep_rounds=1, model=ScriptedModel(lambda _: "Short."))
    agent = Agent("a", Limited(answers(300, 600, 70)), hooks=[compaction, before_llm(note, priority=900)])
    for _ in range(3):
        await agent.call("And?")
    assert [window.how for window in seen] == ["estimate"] * 3
    assert seen[1].used > 300
    assert seen[2].used < 60
    assert len(agent.session().messages) == 6


def test_a_tool_call_counts_as_its_name_and_arguments() -> None:
    """Like text of the same length."""
    call = ToolUseBlock("t1", "look_up_the_weather", {"city": "Rome, in Italy"})
    text = f"{call.name}{call.raw}"
    assert estimate_tokens([Msg.assistant([call])]) == estimate_tokens([Msg.assistant(text)])


async def test_pictures_count_as_pictures() -> None:
    """Not as the text that they are sent as."""
    windows = Windows()
    agent = Agent("a", Limited(["Hi"]), hooks=windows.hooks)
    await agent.call(Msg.user("What is this?", DataBlock.from_bytes(bytes(300_000), "image/png")))
    assert 1_500 < windows.seen[0].used < 1_600


async def test_the_vendors_counter_is_asked_when_somebody_asks() -> None:
    """Anthropic's: a request of its own with the tools and the system prompt, over a strict server; nothing goes without it."""
    seen: list[ContextWindow] = []

    @before_llm
    async def measure(event: Any) -> None:
        seen.append(await event.context.measure(event.input_messages))

    @tool(type="read")
    async def look(at: str) -> str:
        """Look."""
        return "x" * 400

    wired = Wired("anthropic")
    async with wired.serve([UseTool("look", {"at": "a"}), "Done."]) as server:
        model = wired.model(server)
        await Agent("a", model, system="Be brief.", tools=[look], hooks=[measure]).call("Look.")
    assert [window.how for window in seen] == ["provider"] * 2
    assert seen[0].limit == 200_000
    assert seen[1].used > seen[0].used + 100


async def test_a_counter_that_fails_says_so() -> None:
    """The caller gets a `ModelError`."""
    model = AnthropicWire("claude-sonnet-4-5", api_base="http://127.0.0.1:9", api_key="k")
    request = ModelRequest([Msg.user("Hi")], (), ModelOptions(), model.name)
    with pytest.raises(ModelError, match="could not be reached"):
        await model.count_tokens(request)


@pytest.mark.parametrize("build", [OpenAIWire, LiteLLMModel])
async def test_openais_requests_are_counted_by_their_tokenizer(build: Any, closed_clients: None) -> None:
    """The tables come with LiteLLM, nothing is downloaded; with a picture, or another's model, it is an estimate."""
    model = build("openai/gpt-4o", api_key="k")
    plain = ModelRequest([Msg.user("hello world " * 50)], (), ModelOptions(), model.name)
    seen = ModelRequest([Msg.user("hi", DataBlock.from_bytes(bytes(99), "image/png"))], (), ModelOptions(), model.name)
    assert await model.count_tokens(plain) == TokenCount(105, "tokenizer")
    assert (await model.count_tokens(seen)).how == "estimate"
    assert context_limit(model) == 128_000


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_too_long_is_compacted_and_asked_once_more(wire: str) -> None:
    """The vendor's refusal leads to a shorter request; the window then describes that one."""
    windows = Windows()
    wired = Wired(wire)
    overflow = WireReply(faults=Fault.context_overflow())
    script = [
        *(UseTool("look", {"at": str(n)}) for n in range(3)),
        overflow,
        Say("Nothing there."),
        Say("Nothing.", usage=WireUsage(input=50, output=5)),
    ]

    @tool(type="read")
    async def look(at: str) -> str:
        """Look."""
        return "x" * 4_000

    async with wired.serve(script, strict=True) as server:
        agent = Agent("a", wired.model(server), tools=[look], hooks=[SummaryCompaction(keep_rounds=1), *windows.hooks])
        reply = await agent.call("Look around.")
    assert reply.text == "Nothing."
    assert windows.seen[-1].used < windows.seen[-2].used
