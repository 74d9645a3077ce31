"""Suspended and resumed, and interrupted at the limit: conversations that strict providers accept."""

from typing import Any

import pytest
from eventlog import Recorder, history, line
from wired import Wired

from agentflow import Agent, Answer, Approve, Deny, ModelOptions, tool
from agentflow.testing.wire import Say, ScriptedCall, UseTool, WireReply, WireRequest


@tool(requires_approval=True)
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


@tool(type="read")
async def balance() -> str:
    """The balance."""
    return "900"


def thinking_sent(request: WireRequest) -> list[Any]:
    """The signed thoughts that a request gives back (Anthropic's blocks; OpenAI takes none)."""
    blocks = [
        block for message in request.messages if isinstance(message["content"], list) for block in message["content"]
    ]
    return [block["thinking"] for block in blocks if isinstance(block, dict) and block["type"] == "thinking"]


ASKED = WireReply(
    "Let me see.",
    thinking="Look, then pay.",
    calls=(ScriptedCall("pay", {"cents": 500}, "t1"), ScriptedCall("balance", {}, "t2")),
)


@pytest.mark.parametrize(
    ("decision", "result"),
    [
        (Approve(), "t1 success 'paid 500'"),
        (Approve(input={"cents": 400}), "t1 success 'paid 400'"),
        (Deny("too much"), "t1 denied 'Denied: too much'"),
        (Answer("paid by hand"), "t1 success 'paid by hand'"),
    ],
    ids=["approve", "edit", "deny", "answer"],
)
@pytest.mark.parametrize("how", ["call", "stream"])
async def test_resume(wired: Wired, decision: Any, result: str, how: str) -> None:
    """A suspended round, thinking on, is resumed with each decision; the provider accepts it, and the call after it."""
    async with wired.serve([ASKED, Say("Done.", thinking="Done."), Say("Welcome.")]) as server:
        options = ModelOptions(thinking=True)
        agent = Agent("a", wired.model(server), tools=[pay, balance], options=options)
        reply = await agent.call("Pay.", session="till")
        assert (reply.outcome, [p.id for p in reply.pending]) == ("suspended", ["t1"])
        assert len(server.requests) == 1
        if how == "stream":
            async with agent.resume_stream("till", {"t1": decision}) as events:
                last = [event async for event in events][-1]
            assert line(last) == "CallEnded completed"
        else:
            assert (await agent.resume("till", {"t1": decision})).text == "Done."
        assert (await agent.call("Thanks.", session="till")).text == "Welcome."
    thoughts = [block for request in server.requests[1:] for block in thinking_sent(request)]
    assert thoughts == (["Look, then pay."] * 2 + ["Done."] if wired.name == "anthropic" else [])
    assert history(agent.session("till")) == [
        "user: Pay.",
        "assistant: Let me see. [t1:pay(cents=500)] [t2:balance()]",
        f"tool: {result}; t2 success '900'",
        "assistant: Done.",
        "user: Thanks.",
        "assistant: Welcome.",
    ]


@pytest.mark.parametrize("thinking", [None, True], ids=["plain", "thinking"])
async def test_the_summary(wired: Wired, thinking: bool | None) -> None:
    """At the limit the provider is called once more, with the tool history and without a tool that it could call; it
    accepts this request, and the next call.
    """
    recorder = Recorder()
    rounds = [UseTool("balance", thinking="Hm.") if thinking else UseTool("balance") for _ in range(2)]
    async with wired.serve([*rounds, Say("So far: 900."), Say("Next.")]) as server:
        agent = Agent(
            "a",
            wired.model(server),
            system="Count.",
            tools=[balance],
            max_iterations=2,
            hooks=[recorder],
            options=ModelOptions(thinking=thinking),
        )
        reply = await agent.call("go")
        assert (reply.text, reply.outcome) == ("So far: 900.", "limited")
        assert (await agent.call("next")).text == "Next."
    summary = server.requests[2].body
    assert "tools" not in summary or summary["tool_choice"] in ("none", {"type": "none"})
    assert "PreReasoning 3 summary" in recorder.log
