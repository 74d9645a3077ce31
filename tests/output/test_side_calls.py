"""`context.complete(output=...)`: a judge's or a tool's own question with a typed answer."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel
from wired import Wired

from agentflow import Agent, Output, RunContext, after_llm, tool
from agentflow.errors import OutputError, UsageError
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import WireReply
from agentflow.vocabulary.events import PostActing, PostReasoning
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.verdicts import Again


class Judgement(BaseModel):
    good: bool
    why: str = ""


async def test_a_judge() -> None:
    """A hook makes a side call, and gets an object; an invalid answer is requested again there, and billed to the
    run.
    """
    spent: list[int] = []
    judge = ScriptedModel(["no", '{"good": false, "why": "too short"}', '{"good": true}'])

    @after_llm
    async def judged(event: PostReasoning) -> Again | None:
        asked = f"Is this good? {event.reasoning_result.text}"
        reply = await event.context.complete(asked, model=judge, output=Judgement)
        spent.append(reply.usage.model_calls)
        return None if reply.output.good else Again(reply.output.why)

    agent = Agent("writer", ScriptedModel(["Hm.", "A longer text."]), hooks=[judged])
    reply = await agent.call("Write.")
    assert reply.text == "A longer text."
    assert reply.usage.model_calls == 5
    assert spent == [2, 1]
    assert "fits this JSON schema" in judge.requests[0].messages[-1].text
    assert judge.requests[1].messages[-1].text.startswith("The values of your answer")


async def test_in_a_tool_and_never() -> None:
    """A tool may ask too; an answer that never fits is a failure of the tool, with what was wrong."""

    @tool
    async def size(context: RunContext) -> str:
        """The size."""
        one_of = Output[Literal["S", "L"]](Literal["S", "L"], retries=0)
        return (await context.complete("Which size?", output=one_of)).output

    model = ScriptedModel([[ToolUseBlock("a", "size")], '{"answer": "L"}', [ToolUseBlock("b", "size")], "XL", "Sorry."])
    agent = Agent("tailor", model, tools=[size])
    sizes = [event.tool_result.text async for event in agent.stream("Which?").of_type(PostActing)]
    assert sizes[0] == "L"
    assert sizes[1].startswith("OutputError: The model answered once")


async def test_words_checks_and_functions() -> None:
    """`str` with a check is looked at; a function is refused, since nothing would run it."""
    seen: list[Any] = []

    def short(text: str) -> str:
        if len(text) > 4:
            raise ValueError("too long")
        return text.upper()

    async def book(customer: str) -> str:
        """Book it."""
        return customer

    @after_llm
    async def asks(event: PostReasoning) -> None:
        side = ScriptedModel(["much too long", "ok"])
        seen.append((await event.context.complete("x", model=side, output=Output(str, validate=short))).output)
        with pytest.raises(UsageError, match="runs no function"):
            await event.context.complete("x", model=side, output=Output(book))
        with pytest.raises(OutputError):
            await event.context.complete("x", model=ScriptedModel(["a", "b"]), output=Output(int, retries=1))

    await Agent("a", ScriptedModel(["done"]), hooks=[asks]).call("x")
    assert seen == ["OK"]


async def test_natively(wired: Wired) -> None:
    """A model with a JSON-schema mode is called in that mode."""
    seen: list[Judgement] = []

    @after_llm
    async def asks(event: PostReasoning) -> None:
        seen.append((await event.context.complete("Is it good?", output=Judgement)).output)

    async with wired.serve([WireReply("Hello."), WireReply('{"good": true, "why": ""}')]) as server:
        await Agent("a", wired.model(server), hooks=[asks]).call("x")
    assert seen == [Judgement(good=True)]
    assert any(key in server.requests[1].body for key in ("response_format", "output_format", "output_config"))
