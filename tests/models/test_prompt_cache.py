"""`ModelOptions(cache=...)`: marks and keys for prompt caches, over both wires, against the strict servers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from wired import WIRES, Wired

from agentflow import Agent, ModelOptions, Msg, ToolResultBlock, ToolUseBlock, before_llm, tool
from agentflow.models.cache_out import cache_arguments, mark_prefixes
from agentflow.models.conversion import Conversation
from agentflow.models.profiles import ANTHROPIC, OPENAI, Family
from agentflow.testing.wire import Say, UseTool, WireReply, WireRequest, WireUsage
from agentflow.vocabulary.messages import ThinkingBlock


@pytest.fixture(autouse=True)
def _closed(closed_clients: None) -> None:
    """Each test leaves no open connection of LiteLLM."""


@tool(type="read")
async def look(at: str) -> str:
    """Look."""
    return f"saw {at}"


@tool(type="read")
async def smell(at: str) -> str:
    """Smell."""
    return f"smelled {at}"


def items(request: WireRequest) -> Iterator[tuple[str, Any]]:
    """Return the content of a request, in the order in which the vendor reads it: place and content."""
    for spec in request.tools:
        yield "tool", spec
    system: Any = request.body.get("system", [])
    for part in [{"type": "text", "text": system}] if isinstance(system, str) else system:
        yield "system", part
    for message in request.messages:
        content: Any = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield str(message["role"]), part


def prefixes(request: WireRequest) -> list[str]:
    """Return what precedes each mark, without the marks."""
    found: list[str] = []
    text = ""
    for where, part in items(request):
        text += json.dumps([where, {name: value for name, value in part.items() if name != "cache_control"}])
        if "cache_control" in part:
            found.append(text)
    return found


SCRIPT = [
    UseTool("look", {"at": "a"}),
    WireReply("Both.", calls=(UseTool("look", {"at": "b"}).calls[0], UseTool("smell", {"at": "b"}).calls[0])),
    Say("Done.", usage=WireUsage(input=10, output=2, cache_read=900, cache_write=40)),
    Say("Again."),
]


@pytest.mark.parametrize(("cache", "adapter"), [(True, "direct"), ("1h", "direct"), ("1h", "litellm")])
async def test_marks_stand_behind_what_stays_the_same(cache: Any, adapter: str) -> None:
    """Each request reads what the one before wrote, with at most four marks of equal lifetime; usage counts the
    tokens read.
    """
    wired = Wired("anthropic", adapter)
    async with wired.serve(SCRIPT) as server:
        options = ModelOptions(cache=cache)
        agent = Agent("a", wired.model(server), system="Be brief.", tools=[look, smell], options=options)
        reply = await agent.call("Look around.")
        await agent.call("And now?")
    marks = [prefixes(request) for request in server.requests]
    assert [len(found) for found in marks] == [3, 4, 4, 4]
    for before, after in itertools.pairwise(marks):
        assert before[-1] in after
        assert before[:2] == after[:2]
    said = [
        part["cache_control"] for request in server.requests for _, part in items(request) if "cache_control" in part
    ]
    assert {json.dumps(mark) for mark in said} == {
        json.dumps({"type": "ephemeral", "ttl": "1h"} if cache == "1h" else {"type": "ephemeral"})
    }
    assert (reply.usage.cache_read_tokens, reply.usage.cache_write_tokens) == (900, 40)


async def test_thoughts_are_never_marked() -> None:
    """The strict server refuses a mark on a thought; results follow it, and are marked."""
    wired = Wired("anthropic")
    script = [
        WireReply(thinking="Where?", calls=(UseTool("look", {"at": "a"}).calls[0],)),
        WireReply("There.", thinking="So."),
    ]
    async with wired.serve(script) as server:
        options = ModelOptions(cache=True, thinking=True)
        await Agent("a", wired.model(server), tools=[look], options=options).call("Look.")
    assert [len(prefixes(request)) for request in server.requests] == [2, 3]


@pytest.mark.parametrize("adapter", ["direct", "litellm"])
async def test_openai_gets_a_key_of_what_stays_the_same(adapter: str) -> None:
    """It caches automatically: one key for each system prompt and set of tools, and no marks."""
    wired = Wired("openai", adapter)
    async with wired.serve(["1", "2", "3", "4"]) as server:
        model = wired.model(server)
        options = ModelOptions(cache=True)
        agent = Agent("a", model, system="Be brief.", options=options)
        await agent.call("One")
        await agent.call("Two")
        await Agent("b", model, system="Be long.", options=options).call("Three")
        await Agent("c", model, system="Be long.").call("Four")
    keys = [request.body.get("prompt_cache_key") for request in server.requests]
    assert keys[0] == keys[1] is not None
    assert keys[2] not in (keys[0], None)
    assert keys[3] is None
    assert "cache_control" not in json.dumps([dict(request.body) for request in server.requests])


@pytest.mark.parametrize("wire", WIRES)
async def test_a_hook_turns_it_on_and_nobody_else_does(wire: str) -> None:
    """Without the option nothing is marked; a hook may set it for one request; False of a call overrides the agent's."""

    @before_llm
    def caches(event: Any) -> Any:
        if "now" in event.input_messages[-1].text:
            event.options = event.options.merge(ModelOptions(cache=True))
        return event

    wired = Wired(wire)
    async with wired.serve(["1", "2", "3"]) as server:
        agent = Agent("a", wired.model(server), system="Be brief.", hooks=[caches])
        await agent.call("plain")
        await agent.call("now")
        cached = Agent("b", wired.model(server), options=ModelOptions(cache=True))
        await cached.call("x", options=ModelOptions(cache=False))
    asked = ["cache" in json.dumps(dict(request.body)) for request in server.requests]
    assert asked == [False, True, False]


def test_long_conversations_keep_to_four_marks() -> None:
    """However many tools, system prompts and messages there are; cached converted messages stay unmarked."""
    thought = ThinkingBlock("hm", "sealed", model="m")
    rounds = [
        msg
        for n in range(30)
        for msg in (
            Msg.assistant([thought, ToolUseBlock(f"t{n}", "look")]),
            Msg.tool([ToolResultBlock(f"t{n}", "look", "x")]),
        )
    ]
    conversation = Conversation("m", ANTHROPIC)
    history = [Msg.system("a"), Msg.user("b"), *rounds]
    messages = conversation.convert(history)
    tools: dict[str, Any] = {"tools": [{"type": "function", "function": {"name": str(n)}} for n in range(40)]}
    mark_prefixes(messages, tools, ModelOptions(cache=True))
    assert json.dumps([messages, tools]).count("cache_control") == 4
    assert "cache_control" not in json.dumps(conversation.convert(history))


def test_the_key_does_not_depend_on_the_order_of_names() -> None:
    """Two equal tools have one key, whatever the order in their schemas."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    keys = {
        json.dumps(
            cache_arguments([{"role": "system", "content": "s"}], {"tools": [tool]}, OPENAI, {"prompt_cache_key"})
        )
        for tool in ({"name": "look", "schema": schema}, {"schema": dict(reversed(schema.items())), "name": "look"})
    }
    assert len(keys) == 1


def test_only_openais_own_models_get_a_key() -> None:
    """Servers with the same wire, and other vendors, refuse fields that they do not know."""
    families = [
        family
        for family in get_args(Family)
        if cache_arguments([], {}, replace(OPENAI, family=family), {"prompt_cache_key"})
    ]
    assert families == ["openai"]
