"""A hook's rewritten value is all that the provider, the reader and the history see."""

import json
from dataclasses import replace
from typing import Any

import pytest
from eventlog import Recorder, history
from wired import Wired

from agentflow import Agent, Hook, tool
from agentflow.testing.wire import Say, UseTool
from agentflow.vocabulary.events import PostActing, PreReasoning, ReasoningChunk
from agentflow.vocabulary.messages import ToolResultBlock


@tool
async def vault() -> str:
    """Open the vault."""
    return "code open-sesame"


class Redact(Hook):
    def on_event(self, event: Any) -> Any:
        if isinstance(event, PostActing):
            event.tool_result = ToolResultBlock(event.tool_use.id, event.tool_use.name, "code ****")
        return event


class Masks(Hook):
    """Writes `******` for a word, in each chunk."""

    def around(self, event: Any, source: Any) -> Any:
        if not isinstance(event, PreReasoning):
            return source
        return source.map(lambda chunk: replace(chunk, text=chunk.text.replace("secret", "******")))


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_rewritten_result(wired: Wired, how: str) -> None:
    """The provider, the events and the history have the result that PostActing rewrote; the original is nowhere."""
    recorder = Recorder()
    events: list[Any] = []
    async with wired.serve([UseTool("vault"), Say("Thanks."), Say("Again.")]) as server:
        agent = Agent("a", wired.model(server), tools=[vault], hooks=[Redact(), recorder])
        if how == "stream":
            async with agent.stream("Open it.") as stream:
                events = [event async for event in stream]
        else:
            await agent.call("Open it.")
        await agent.call("And now?")
    assert [answer.text for answer in server.requests[1].results] == ["code ****"]
    assert history(agent.session())[2].endswith("success 'code ****'")
    sent = json.dumps([request.body for request in server.requests])
    held = repr([*events, *recorder.seen, *agent.session().messages, recorder.seen[-1].context.trace.turns])
    assert "code ****" in sent
    assert "code ****" in held
    assert "open-sesame" not in sent + held


async def test_a_rewritten_chunk(wired: Wired) -> None:
    """A chunk rewritten by `around` reaches the reader, the history and the provider's next request alike."""
    script = [Say("The secret is 42.", chunk=11), Say("The secret is safe.", chunk=0), Say("Bye.")]
    async with wired.serve(script) as server:
        agent = Agent("a", wired.model(server), hooks=[Masks()])
        async with agent.stream("Tell.") as events:
            texts = [event.incremental_chunk.text async for event in events if isinstance(event, ReasoningChunk)]
        reply = await agent.call("More.")
        await agent.call("Bye.")
    assert "".join(texts) == "The ****** is 42."
    assert reply.text == "The ****** is safe."
    assert history(agent.session()) == [
        "user: Tell.",
        "assistant: The ****** is 42.",
        "user: More.",
        "assistant: The ****** is safe.",
        "user: Bye.",
        "assistant: Bye.",
    ]
    sent = json.dumps(server.requests[2].body)
    assert sent.count("******") == 2
    assert "secret" not in sent
