"""What users write, as they write it: hooks, filters, `around`, `hooks={…}`, streams. Strict pyright has nothing to say."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import assert_type

from reactivex import operators as ops

from agentflow import (
    ActingChunk,
    Agent,
    Answer,
    Approve,
    Deny,
    Flux,
    Hook,
    HookEvent,
    HookResult,
    ModelChunk,
    Mono,
    Msg,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreReasoning,
    ReasoningChunk,
    Reply,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    after_llm,
    on,
    tool,
)
from agentflow.hooks import ModelSource, ToolSource
from agentflow.testing import ScriptedModel, fire


@dataclass
class Basket:
    """Typed state of a run."""

    total: int = 0


@tool(type="read")
async def price(article: str) -> int:
    """Tell what something costs."""
    return len(article)


@tool(requires_approval=True)
async def buy(article: str, count: int = 1) -> str:
    """Buy something."""
    return f"{count} of {article}"


@tool
async def countdown(start: int) -> AsyncIterator[str]:
    """Count down."""
    for n in range(start, 0, -1):
        yield str(n)


class Shop(Hook):
    """Matches events; the attributes are known in each branch."""

    priority = 60

    async def on_event(self, event: HookEvent) -> HookResult:
        match event:
            case PreActing(tool_use=ToolUseBlock(name="buy", input={"count": int(count)})) if count > 10:
                return Deny(f"{count} are too many")
            case PreActing(tool_use=use):
                event.tool_use = use.replace(input={**use.input, "currency": "EUR"})
            case PostActing(tool_result=result):
                event.context.state[Basket].total += len(result.text)
            case PreReasoning(input_messages=messages):
                event.input_messages = (*messages, Msg.user("Be brief."))
            case PostCall():
                return event
            case _:
                pass
        return None


class Masked(Hook):
    """Changes what streams."""

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        retried = source.retry(3).catch(lambda error, _: source.using(model="openai/gpt-5-mini"))
        return retried.filter(lambda chunk: bool(chunk.text)).map(self.mask)

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        return source.chunks(lambda pieces: pieces.map(str.upper)).timeout(5)

    def mask(self, chunk: ModelChunk) -> ModelChunk:
        return replace(chunk, text=re.sub(r"\d", "*", chunk.text))


@after_llm
def log(event: PostReasoning) -> None:
    """Print what the model said."""
    print(event.reasoning_result.text)


@on(PreActing, guard=True)
async def guard(event: PreActing) -> Deny | None:
    """Refuse what is not for sale."""
    return Deny("not for sale") if event.tool_use.name == "buy" else None


def ended(event: PostCall) -> None:
    """Print how it ended."""
    print(event.outcome)


agent = Agent(
    "clerk",
    ScriptedModel(["Hello."]),
    system="You sell things.",
    tools=[price, buy, countdown],
    hooks=[Shop(), Masked(), log, guard],
)
by_name = Agent(
    "by name",
    ScriptedModel(["Hello."]),
    hooks={
        "after_llm": lambda event: print(event.reasoning_result.text),
        "before_each_tool": [guard, lambda event: Answer("sold out") if event.tool_use.name == "buy" else None],
    },
)
by_class = Agent("by class", ScriptedModel(["Hello."]), hooks={PostCall: ended, PreActing: [guard]})

agent.on("on_complete", ended)
agent.on(PostReasoning, lambda event: print(event.reasoning_result.text))


async def streams() -> None:
    """Each way to read a call."""
    async with agent.stream("Hi", session="s") as events:
        async for event in events:
            if isinstance(event, ReasoningChunk):
                print(event.incremental_chunk.text, end="")
    words = [piece async for piece in agent.stream("Hi").text()]
    assert_type(words, list[str])
    async for chunk in agent.stream("Hi").of_type(ReasoningChunk):
        print(chunk.incremental_chunk.text)
    async for chunk in agent.stream("Hi").of_type(ReasoningChunk, ActingChunk):
        assert_type(chunk, ReasoningChunk | ActingChunk)
    tools = agent.stream("Hi").of_type(PostActing).map(lambda event: event.tool_result.text)
    assert_type(await tools.to_list(), list[str])
    upper = agent.stream("Hi").of_type(ReasoningChunk).pipe(ops.map(lambda event: event.incremental_chunk.text.upper()))
    upper.subscribe(print)


async def calls() -> None:
    """Calls, several at once, suspended and resumed; turns."""
    reply = await agent.call("Buy three", session="s")
    assert_type(reply, Reply[None])
    if reply.outcome == "suspended":
        reply = await agent.resume("s", {waits.id: Approve() for waits in reply.pending})
    both = await asyncio.gather(agent.call("a", session="a"), agent.call("b", session="b"))
    print(reply.text, [one.usage.cost for one in both])
    turn = Turn(price, {"article": "tea"})
    print(await turn.returning(), turn.stop_reason == "completed")
    receipt = await agent.put(turn)
    print(await receipt)


async def testing() -> None:
    """A hook fired by hand."""
    fired = await fire(Shop(), PreReasoning(input_messages=(Msg.user("Hi"),)))
    print(fired.event.input_messages, fired.verdict)
