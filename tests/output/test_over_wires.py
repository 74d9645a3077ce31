"""One suite of typed answers, both wires and every adapter: native, by tool, by prompt, streamed and not, with tools."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pydantic import BaseModel, Field
from wired import EVERY, Wired

from agentflow import Agent, Deny, Hook, HookEvent, HookResult, ModelOptions, Msg, Output, PreActing, PreReasoning, tool
from agentflow.errors import OutputError
from agentflow.loop.output import Way
from agentflow.testing.wire import ScriptedCall, WireReply, WireRequest
from agentflow.vocabulary.events import PostReasoning
from agentflow.vocabulary.verdicts import Again

pytestmark = pytest.mark.parametrize("wired", EVERY, ids="-".join, indirect=True)

WAYS: tuple[Way, ...] = ("native", "tool", "prompt")


class Line(BaseModel):
    item: str
    cents: int = Field(gt=0)


class Invoice(BaseModel):
    """What somebody has to pay."""

    customer: str = Field(min_length=2)
    lines: list[Line] = Field(max_length=5)
    paid: bool = False
    notes: str | None = None


GOOD: dict[str, Any] = {"customer": "Ada", "lines": [{"item": "tea", "cents": 250}], "paid": True, "notes": None}
BAD: dict[str, Any] = {**GOOD, "lines": [{"item": "tea", "cents": 0}]}
MEANT = Invoice.model_validate(GOOD)


def said(way: Way, values: dict[str, Any]) -> WireReply:
    """An answer, as the model gives it in a way."""
    if way == "tool":
        return WireReply(calls=(ScriptedCall("final_answer", values),))
    text = ScriptedCall("x", values).raw
    return WireReply(f"```json\n{text}\n```" if way == "prompt" else text)


def asked_by_schema(request: WireRequest) -> dict[str, Any] | None:
    """The schema that a request asks by, on any wire."""
    body: Any = request.body
    settings = body.get("output_config") or body.get("text") or {}
    wanted = body.get("response_format") or body.get("output_format") or settings.get("format")
    return None if wanted is None else wanted.get("schema") or wanted["json_schema"]["schema"]


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer(wired: Wired, way: Way) -> None:
    """The value comes, by each way; a misfit goes back as an `Again` that the reader sees, and both wires take all of it."""
    async with wired.serve([said(way, BAD), said(way, GOOD)]) as server:
        agent = Agent("clerk", wired.model(server), output=Output(Invoice, via=way))
        async with agent.stream("The invoice?") as events:
            verdicts = [event.verdict async for event in events if isinstance(event, PostReasoning)]
            reply = await events.reply()
        assert isinstance(verdicts[0], Again)
        assert (reply.output, reply.outcome) == (MEANT, "completed")
    first = server.requests[0]
    assert (asked_by_schema(first) is not None) == (way == "native")
    assert ("final_answer" in str(first.body.get("tools"))) == (way == "tool")


@pytest.mark.parametrize("way", WAYS)
async def test_with_tools(wired: Wired, way: Way) -> None:
    """The agent's tools run first; the conversation continues after the answer, and each wire accepts it."""

    @tool(type="read")
    async def price(item: str) -> int:
        """The price of an item, in cents."""
        return 250

    asks = WireReply("Let me see.", calls=(ScriptedCall("price", {"item": "tea"}),))
    async with wired.serve([asks, said(way, GOOD), said(way, GOOD)]) as server:
        agent = Agent("clerk", wired.model(server), tools=[price], output=Output(Invoice, via=way))
        assert (await agent.call("The invoice?")).output == MEANT
        assert (await agent.call("Once more.")).output == MEANT


@pytest.mark.parametrize("way", WAYS)
async def test_with_thinking(wired: Wired, way: Way) -> None:
    """A model that thinks is not forced to call a tool; its thoughts go back as they came."""
    good = said(way, GOOD)
    thoughtful = WireReply(good.text, thinking="Ada had tea.", calls=good.calls)
    script = [WireReply("Ada had tea.", thinking="Hm."), thoughtful, WireReply("Bye.")]
    async with wired.serve(script) as server:
        options = ModelOptions(thinking="low")
        agent = Agent("clerk", wired.model(server), options=options)
        assert (await agent.call("The invoice?", output=Output(Invoice, via=way))).output == MEANT
        assert (await agent.call("Thanks.")).text == "Bye."
        assert server.requests[0].body.get("tool_choice") in (None, "auto")


class Maybe(BaseModel):
    """What was found, if anything."""

    name: str | None = None


async def test_an_answer_without_arguments(wired: Wired) -> None:
    """The final tool called with `{}` answers with the defaults, also where a provider streams no text for it."""
    async with wired.serve([WireReply(calls=(ScriptedCall("final_answer", {}),))]) as server:
        reply = await Agent("clerk", wired.model(server), output=Output(Maybe, via="tool", retries=0)).call("Who?")
    assert (reply.output, reply.text) == (Maybe(), "{}")


@pytest.mark.parametrize("way", WAYS)
async def test_never(wired: Wired, way: Way) -> None:
    """After its retries the call fails with what was wrong, and the session is as good as before."""
    async with wired.serve([said(way, BAD), said(way, BAD), WireReply("Hello.")]) as server:
        agent = Agent("clerk", wired.model(server))
        with pytest.raises(OutputError, match="cents: should be greater than 0"):
            await agent.call("The invoice?", output=Output(Invoice, via=way, retries=1))
        assert (await agent.call("Hi")).text == "Hello."


async def test_the_way_is_chosen(wired: Wired) -> None:
    """Both models have a JSON-schema mode that works with tools, by LiteLLM's list; a function is requested by its
    tool.
    """

    async def book(customer: str) -> str:
        """Book it."""
        return f"booked for {customer}"

    script = [
        said("native", GOOD),
        WireReply(calls=(ScriptedCall("book", {"customer": "Ada"}),)),
        WireReply('{"answer": [1, 2]}'),
    ]
    async with wired.serve(script) as server:
        agent = Agent("clerk", wired.model(server))
        assert (await agent.call("The invoice?", output=Invoice)).output == MEANT
        assert (await agent.call("Book it.", output=book)).output == "booked for Ada"
        assert (await agent.call("Numbers?", output=list[int])).output == [1, 2]
    schemas = [asked_by_schema(request) for request in server.requests]
    assert [schema is not None for schema in schemas] == [True, False, True]


async def test_broken_off(wired: Wired) -> None:
    """An answer that is truncated by the token limit is requested again, and so is an empty one."""
    cut = WireReply('{"customer": "Ad', finish="length")
    async with wired.serve([cut, WireReply(""), said("native", GOOD)]) as server:
        agent = Agent("clerk", wired.model(server), output=Output(Invoice, via="native", retries=3))
        assert (await agent.call("The invoice?")).output == MEANT


class PlantedError(Exception):
    """What a hook raises."""


class Random(Hook):
    """Does anything that a hook may do, by a seed."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def on_event(self, event: HookEvent) -> HookResult:
        roll = self.dice.random()
        match event:
            case PreReasoning() if roll < 0.3:
                event.context.inject(Msg.user("By the way: be quick."))
            case PostReasoning() if roll < 0.15:
                return Again("Once more, please.")
            case PostReasoning() if roll < 0.3:
                event.reasoning_result = Msg.assistant("I would rather not.")
            case PreActing() if roll < 0.3:
                return Deny("not now")
            case _ if roll > 0.9:
                raise PlantedError
            case _:
                pass
        return None


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("way", WAYS)
async def test_random_hooks_leave_a_value_or_a_clear_error_and_a_legal_history(
    wired: Wired, way: Way, seed: int, quiet: None
) -> None:
    """Whatever hooks change in requests and answers: each wire accepts every request, and the conversation continues."""
    dice = random.Random(seed)

    @tool
    async def price(item: str) -> int:
        """What it costs."""
        return 250

    def brain(request: WireRequest) -> WireReply:
        if dice.random() < 0.3:
            return WireReply("Let me see.", calls=(ScriptedCall("price", {"item": "tea"}),))
        return said(way, dice.choice([GOOD, BAD]))

    async with wired.serve(brain) as server:
        agent = Agent(
            "clerk", wired.model(server), tools=[price], hooks=[Random(dice)], output=Output(Invoice, via=way)
        )
        for _ in range(3):
            try:
                reply = await agent.call("The invoice?", session="s")
            except (OutputError, PlantedError):
                continue
            assert reply.output == MEANT if reply.typed else reply.outcome != "completed"
