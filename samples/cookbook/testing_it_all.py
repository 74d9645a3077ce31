"""Testing it all: an assistant, and its tests. No mocks, no sleeps, no network, no key.

    pytest samples/cookbook/testing_it_all.py

What is tested stands at the top; in a project of yours it is imported. Tests that are `async` need pytest-asyncio with
`asyncio_mode = "auto"`, or `.block()` as in the others.
"""

from __future__ import annotations

import os

from agentflow import Agent, Approve, Deny, Model, PreActing, ToolUseBlock, before_each_tool, tool
from agentflow.errors import ModelError
from agentflow.models import LiteLLMModel
from agentflow.plugins import ModelRetry, Redaction
from agentflow.testing import ScriptedModel, check_hook, fire, run_virtual
from agentflow.testing.wire import Fault, Say, UseTool, WireServer

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or LiteLLM asks the network when it is loaded


@tool(type="read")
async def balance(account: int) -> str:
    """Tell a balance."""
    return f"100 euros on {account}"


@tool(requires_approval=True)
async def pay(euros: int, to: str) -> str:
    """Pay somebody."""
    return f"{euros} euros went to {to}"


@before_each_tool(tools=["pay"], priority=60)
def at_most_fifty(event: PreActing) -> Deny | None:
    return Deny("more than fifty euros") if int(event.tool_use.input.get("euros", 0)) > 50 else None


def make_agent(model: Model) -> Agent:
    return Agent("teller", model, tools=[balance, pay], hooks=[at_most_fifty, Redaction(), ModelRetry()])


def test_a_conversation() -> None:
    """The model asks for a tool, reads its result, and answers: one comparison of all that was said."""
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


def test_what_the_model_is_told() -> None:
    """A secret does not leave the house: the request is what the model was asked with."""
    model = ScriptedModel(["Thank you."])
    make_agent(model).call("Mail me at ada@example.org").block()
    assert "ada@example.org" not in model.requests[0].messages[-1].text


async def test_the_hook_alone() -> None:
    """One event through one hook, and what it says."""
    _, verdict = await fire(at_most_fifty, PreActing(tool_use=ToolUseBlock("t1", "pay", {"euros": 51, "to": "Ann"})))
    assert verdict == Deny("more than fifty euros")
    _, verdict = await fire(at_most_fifty, PreActing(tool_use=ToolUseBlock("t1", "pay", {"euros": 50, "to": "Ann"})))
    assert verdict is None


def test_the_hook_is_well_behaved() -> None:
    """Some three hundred runs: every event, failing tools and models, fifty at once, cancellation anywhere."""
    check_hook(at_most_fifty).assert_clean()


def test_a_person_decides() -> None:
    """The call waits, and goes on with the decision."""
    model = ScriptedModel([ToolUseBlock("t1", "pay", {"euros": 40, "to": "Ann"}), "Ann has her money."])
    agent = make_agent(model)
    reply = agent.call("Pay Ann", session="s").block()
    assert [(waits.id, waits.tool_use and waits.tool_use.name) for waits in reply.pending] == [("t1", "pay")]
    reply = agent.resume("s", {"t1": Approve()}).block()
    assert reply.text == "Ann has her money."
    assert agent.session("s").messages[2].text == "40 euros went to Ann"


def test_patience_takes_no_time() -> None:
    """The retry waits for as long as the provider says, in virtual time."""
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
    """What fired, in order; a hook's author reads it like a table of contents."""
    agent = make_agent(ScriptedModel(["Hello."]))
    names = [type(event).__name__ async for event in agent.stream("Hi")]
    assert (names[0], names[1], names[-2], names[-1]) == ("PreCall", "PreReasoning", "PostCall", "CallEnded")
