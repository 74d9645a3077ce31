"""What can be read from the stream of a call: events of one type, the text, the reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentflow import (
    Agent,
    Answer,
    Deny,
    Error,
    ModelChunk,
    Msg,
    PostActing,
    PostCall,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
    Recover,
    Stop,
    ToolUseBlock,
    tool,
)
from agentflow.errors import UsageError
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import ReasoningEvent


@tool
async def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


def asks(said: str = "Let me see.") -> list[Any]:
    return [said, ToolUseBlock("t1", "add", {"a": 1, "b": 2})]


def agent_of(*replies: Any, **options: Any) -> Agent:
    return Agent("a", ScriptedModel(list(replies)), tools=[add], **options)


async def test_events_of_one_type() -> None:
    """`of_type` yields the events of a class, or of a base class, with the right type for checkers."""
    agent = agent_of(asks(), ["It ", "is 3."])
    pieces = [event.incremental_chunk.text async for event in agent.stream("1 + 2?").of_type(ReasoningChunk)]
    assert [piece for piece in pieces if piece] == ["Let me see.", "It ", "is 3."]
    agent = agent_of("Hello.")
    phase = [type(event).__name__ async for event in agent.stream("Hi").of_type(ReasoningEvent)]
    assert phase == ["PreReasoning", "ReasoningChunk", "PostReasoning"]


def started_over() -> list[Any]:
    return ["Hel", ModelChunk("Hello.", restart=True)]


WORDS: dict[str, tuple[Callable[[], Agent], list[str]]] = {
    "two rounds": (lambda: agent_of(asks(), ["It ", "is 3."]), ["Let me see.", "\n\n", "It ", "is 3."]),
    "a round without words": (lambda: agent_of([asks()[1]], "3"), ["3"]),
    "a reply that starts over": (lambda: agent_of(started_over()), ["Hel", "\n\n", "Hello."]),
    "denied": (lambda: agent_of(hooks={PreCall: lambda event: Deny("Not you.")}), ["Not you."]),
    "answered before the model": (lambda: agent_of(hooks={PreCall: lambda event: Answer("Known.")}), ["Known."]),
    "answered in its place": (lambda: agent_of(hooks={PreReasoning: lambda event: Answer("Known.")}), ["Known."]),
    "stopped": (
        lambda: agent_of(asks(), hooks={PreToolRound: lambda event: Stop("Enough.")}),
        ["Let me see.", "\n\n", "Enough."],
    ),
    "limited": (
        lambda: agent_of(asks(), "So far: 3.", max_iterations=1),
        ["Let me see.", "\n\n", "So far: 3."],
    ),
    "changed at the end": (
        lambda: agent_of("Hello.", hooks={PostCall: lambda event: event.replace(final_message=Msg.assistant("Bye."))}),
        ["Hello.", "\n\n", "Bye."],
    ),
    "recovered": (
        lambda: agent_of(RuntimeError("down"), hooks={Error: lambda event: Recover("Sorry.")}),
        ["Sorry."],
    ),
}


@pytest.mark.parametrize("way", WORDS)
async def test_the_words_that_a_person_should_see(way: str) -> None:
    """The model's text as it streams, and in one chunk what was not streamed; from the flux and inside `async with`."""
    make, said = WORDS[way]
    assert [piece async for piece in make().stream("Hi").text()] == said
    async with make().stream("Hi") as events:
        assert [piece async for piece in events.text()] == said


async def test_words_of_sub_agents_are_not_the_callers() -> None:
    """With `children=True` their events are in the stream; their text is not in `text()`."""
    inner = Agent("inner", ScriptedModel(["Inner words."]))
    outer = Agent(
        "outer",
        ScriptedModel([[ToolUseBlock("t1", "inner", {"message": "go"})], "Outer words."]),
        tools=[inner.as_tool()],
    )
    assert [piece async for piece in outer.stream("Hi", children=True).text()] == ["Outer words."]


async def test_a_reader_who_leaves_ends_the_call() -> None:
    """Closing the text stream closes its call: the session is free."""
    agent = agent_of(["One ", "two ", "three."], "Again.")
    async with agent.stream("Hi").text() as pieces:
        async for piece in pieces:
            assert piece == "One "
            break
    assert (await agent.call("Hi")).text == "Again."


async def test_the_reply_of_a_stream() -> None:
    """From the flux it is a call of its own; inside `async with` it reads the rest, and can be read again."""
    agent = agent_of("1", asks(), "2")
    first = await agent.stream("Hi").reply()
    assert (first.text, first.outcome) == ("1", "completed")
    async with agent.stream("Hi") as events:
        async for event in events:
            if isinstance(event, PostActing):
                break
        reply = await events.reply()
        assert reply is await events.reply()
    assert (reply.text, reply.usage.model_calls) == ("2", 2)


async def test_a_stream_without_a_reply_says_so() -> None:
    """A failed call raises; a closed one has no reply."""
    agent = agent_of(RuntimeError("down"), "Hello.")
    with pytest.raises(RuntimeError, match="down"):
        await agent.stream("Hi").reply()
    async with agent.stream("Hi") as events:
        await anext(events)
    with pytest.raises(UsageError, match="ended before its call had a reply"):
        await events.reply()
