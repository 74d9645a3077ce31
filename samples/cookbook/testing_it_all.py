"""Testing it all: an assistant, and its tests. No mocks, no sleeps, no network, no key.

    pytest samples/cookbook/testing_it_all.py

The tested code comes first; in a real project you would import it. Async tests need pytest-asyncio with
`asyncio_mode = "auto"`; the others use `.block()`.
"""

from __future__ import annotations

import os

from agentflow import Agent, Approve, Deny, Model, PreActing, ToolUseBlock, before_each_tool, tool
from agentflow.errors import ModelError
from agentflow.models import LiteLLMModel
from agentflow.plugins import ModelRetry, Redaction
from agentflow.testing import ScriptedModel, check_hook, fire, run_virtual
from agentflow.testing.wire import Fault, Say, UseTool, WireServer

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise LiteLLM uses the network on import


@tool(type="read")
async def balance(account: int) -> str:
    """Look up a balance."""
    return f"100 euros on {account}"


@tool(requires_approval=True)
async def pay(euros: int, to: str) -> str:
    """Pay a person."""
    return f"{euros} euros went to {to}"


@before_each_tool(tools=["pay"], priority=60)
def at_most_fifty(event: PreActing) -> Deny | None:
    return Deny("more than fifty euros") if int(event.tool_use.input.get("euros", 0)) > 50 else None


def make_agent(model: Model) -> Agent:
    return Agent("teller", model, tools=[balance, pay], hooks=[at_most_fifty, Redaction(), ModelRetry()])


def test_a_conversation() -> None:
    """The model calls a tool, reads its result, and answers: one comparison of the whole conversation."""
    with ScriptedModel([ToolUseBlock("t1", "balance", {"account": 7}), "You have 100 euros."]) as model:
        agent = make_agent(model)
        reply = agent.call("How much do I have?").block()
    assert (reply.text, reply.outcome) == ("You have 100 euros.", "completed")
    assert [(message.role, message.text) for message in agent.session().messages] == [
        ("user", "How much do I have?"),
        ("assistant", ""),
        ("tool", "100 euros on 7"),
        ("assistant", "You have 100 euros."),
    ]


def test_the_request_has_no_secrets() -> None:
    """Secrets are redacted in the request to the model."""
    model = ScriptedModel(["Thank you."])
    make_agent(model).call("Mail me at ada@example.org").block()
    assert "ada@example.org" not in model.requests[0].messages[-1].text


async def test_the_hook_alone() -> None:
    """One event passes through one hook."""
    _, verdict = await fire(at_most_fifty, PreActing(tool_use=ToolUseBlock("t1", "pay", {"euros": 51, "to": "Ann"})))
    assert verdict == Deny("more than fifty euros")
    _, verdict = await fire(at_most_fifty, PreActing(tool_use=ToolUseBlock("t1", "pay", {"euros": 50, "to": "Ann"})))
    assert verdict is None


def test_the_hook_is_well_behaved() -> None:
    """About three hundred runs: every event, failing tools and models, fifty runs at once, cancellation at any point."""
    check_hook(at_most_fifty).assert_clean()


def test_a_person_decides() -> None:
    """The call waits, and continues with the decision."""
    model = ScriptedModel([ToolUseBlock("t1", "pay", {"euros": 40, "to": "Ann"}), "Ann has her money."])
    agent = make_agent(model)
    reply = agent.call("Pay Ann", session="s").block()
    assert [(waits.id, waits.tool_use and waits.tool_use.name) for waits in reply.pending] == [("t1", "pay")]
    reply = agent.resume("s", {"t1": Approve()}).block()
    assert reply.text == "Ann has her money."
    assert agent.session("s").messages[2].text == "40 euros went to Ann"


def test_the_retry_takes_no_real_time() -> None:
    """The retry waits for as long as the provider demands, in virtual time."""
    model = ScriptedModel([ModelError("slow down", retryable=True, retry_after=30), "Here I am."])
    assert run_virtual(_asked(model)) == "Here I am."


async def _asked(model: Model) -> str:
    return (await make_agent(model).call("Hello?")).text


async def test_over_a_real_wire() -> None:
    """The real adapter against a strict server: an overload, a tool call, an answer."""
    async with WireServer.openai([Fault.status(503), UseTool("balance", {"account": 7}), Say("100 euros.")]) as server:
        model = LiteLLMModel("openai/test", api_base=server.base_url, api_key="sk-test")
        reply = await make_agent(model).call("How much do I have?")
        assert reply.text == "100 euros."
        server.assert_done()


async def test_the_order_of_events() -> None:
    """The events of a call come in a fixed order."""
    agent = make_agent(ScriptedModel(["Hello."]))
    names = [type(event).__name__ async for event in agent.stream("Hi")]
    assert (names[0], names[1], names[-2], names[-1]) == ("PreCall", "PreReasoning", "PostCall", "CallEnded")
