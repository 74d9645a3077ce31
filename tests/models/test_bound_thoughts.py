"""Models that refuse a thought when the system prompt, the tools or a message before it has changed."""

import pytest

from agentflow import Agent, PreReasoning, tool
from agentflow.models.litellm import LiteLLMModel
from agentflow.testing.wire import Dialect, ScriptedCall, WireReply, WireRequest, WireServer
from agentflow.vocabulary.events import Event
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.specs import ModelOptions

NAME = "anthropic/claude-opus-5-5"
BOUND = "anthropic.thinking-bound"


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: Another.
    """
    return a + b


def brain(request: WireRequest) -> WireReply:
    """Thinks always, calls once for each question."""
    if request.results or request.body.get("tool_choice") == {"type": "none"}:
        return WireReply("Three.", thinking="That was easy.")
    return WireReply(thinking="I should add.", calls=(ScriptedCall("add", {"a": 1, "b": 2}),))


def agent_on(server: WireServer, **settings: object) -> Agent:
    model = LiteLLMModel(NAME, api_base=server.base_url, api_key="k", retries=0)
    options = ModelOptions(thinking="low", max_tokens=4000)
    return Agent("a", model, tools=[add], options=options, **settings)  # pyright: ignore[reportArgumentType]


def thoughts(request: WireRequest) -> list[int]:
    """Return how many thoughts each assistant message was sent back with."""
    said = [message["content"] for message in request.messages if message["role"] == "assistant"]
    return [sum(block["type"] == "thinking" for block in content) for content in said]  # pyright: ignore


def rules(server: WireServer) -> list[str | None]:
    return [request.rule for request in server.requests]


async def test_what_is_only_added_to_keeps_its_thoughts() -> None:
    """A conversation that only grows at its end sends every thought back, and none is refused."""
    async with WireServer.anthropic(brain, dialect=Dialect.claude_5_5()) as server:
        agent = agent_on(server)
        for _ in range(2):
            assert (await agent.call("add")).text == "Three."
    assert rules(server) == [None] * 4
    assert thoughts(server.requests[-1]) == [1, 1, 1]


async def test_the_summary_keeps_the_tools_and_its_thoughts() -> None:
    """At the limit the same tools are sent with `tool_choice` none, so that thoughts that depend on them stay valid."""
    async with WireServer.anthropic(brain, dialect=Dialect.claude_5_5()) as server:
        reply = await agent_on(server, max_iterations=1).call("add")
    assert (reply.outcome, reply.text, rules(server)) == ("limited", "Three.", [None, None])
    first, last = server.requests
    assert (last.tools, last.body["tool_choice"]) == (first.tools, {"type": "none"})
    assert thoughts(last) == [1]


async def test_a_refused_thought_is_left_out_for_good() -> None:
    """The summary's thought depends on a prompt that is not stored: refused once, left out, and never sent again."""
    async with WireServer.anthropic(brain, dialect=Dialect.claude_5_5()) as server:
        agent = agent_on(server, max_iterations=1)
        for _ in range(2):
            assert (await agent.call("add")).outcome == "limited"
        assert rules(server) == [None, None, BOUND, None, None]
        assert [thoughts(request) for request in server.requests[2:]] == [[1, 1], [0, 0], [0, 0, 1]]


@pytest.mark.parametrize("what", ["system", "tools", "message"])
async def test_a_hook_may_rewrite_what_was_thought_over(what: str) -> None:
    """A hook that changes the prompt, the tools or an earlier message causes one refusal, and the call continues."""
    changed = False

    def rewrite(event: Event) -> None:
        if not isinstance(event, PreReasoning) or not changed:
            return
        first, *rest = event.input_messages
        if what == "system":
            event.input_messages = [Msg.system("Be kind."), first, *rest]
        elif what == "message":
            event.input_messages = [Msg.user("please add"), *rest]
        else:
            event.tools = ()

    async with WireServer.anthropic(brain, dialect=Dialect.claude_5_5()) as server:
        agent = agent_on(server, hooks={"before_llm": [rewrite]})
        await agent.call("add")
        changed = True
        for _ in range(2):
            await agent.call("add")
        refused = [rule for rule in rules(server) if rule is not None]
        # Without its tools a request takes no thoughts along.
        assert refused == ([] if what == "tools" else [BOUND])


async def test_a_provider_that_drops_them_is_not_asked_twice() -> None:
    """A request with the provider's option to drop such thoughts is not refused."""
    binding = {"prefix_mismatch_behavior": "drop_block"}
    headers = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}
    async with WireServer.anthropic(brain, dialect=Dialect.claude_5_5()) as server:
        model = LiteLLMModel(NAME, api_base=server.base_url, api_key="k", retries=0, headers=headers)
        options = ModelOptions(max_tokens=4000, extra={"thinking": {"type": "adaptive", "block_binding": binding}})
        agent = Agent("a", model, tools=[add], options=options, max_iterations=1)
        for _ in range(2):
            assert (await agent.call("add")).outcome == "limited"
    assert rules(server) == [None] * 4
