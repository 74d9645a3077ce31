"""What a server asks for while its tool runs: a person's answer, a model's answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Annotated, Any, cast

import pytest
from demo_server import make
from hypothesis import given
from hypothesis import strategies as st
from mcp.server import MCPServer as Server
from mcp.server.elicitation import ElicitationResult
from mcp.server.mcpserver import Context, Elicit, Resolve
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR
from pydantic import BaseModel
from ways import WAYS, demo, demo_over_stdio, results

from agentflow import Agent, Answer, Approve, Deny, PostActing, Session, ToolUseBlock, tool
from agentflow.mcp import MCPServer
from agentflow.mcp.active import ActiveCall, call_of_question, current_call
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.messages import Pending
from tests.support.clocks import JumpingClock

SCHEMA = {"properties": {"name": {"title": "Name", "type": "string"}}, "required": ["name"], "type": "object"}
GREET = ToolUseBlock("t1", "greet")


def greeter(server: MCPServer, *script: Any) -> Agent:
    return Agent("a", ScriptedModel([*script]), tools=[server])


@pytest.mark.parametrize("way", WAYS)
async def test_a_question_suspends_the_call(way: str) -> None:
    """The server gets the person's answers when it asks again; an answered question is not asked twice."""
    async with demo(way) as server:
        agent = greeter(server, GREET, "Done.")
        reply = await agent.call("Go")
        [waits] = reply.pending
        assert (reply.outcome, waits.kind, waits.hook, waits.source) == ("suspended", "approval", "mcp:demo", "demo")
        assert (waits.request["server"], waits.request["message"]) == ("demo", "What is your name?")
        assert {key: waits.request["schema"][key] for key in SCHEMA} == SCHEMA
        reply = await agent.resume(decisions={waits.id: Answer({"name": "Ada"})})
        [again] = reply.pending
        assert (reply.outcome, again.request["message"], again.id == waits.id) == ("suspended", "Is it Ada?", False)
        reply = await agent.resume(decisions={again.id: Approve(input={"name": "Ada L."})})
        assert (reply.outcome, reply.text, results(agent)[0].text) == ("completed", "Done.", "Hello Ada, or Ada L.")


async def test_a_question_is_answered_in_another_process() -> None:
    """The session is saved while it waits, and resumed by an agent with a connection of its own."""
    async with demo("memory") as server, demo("memory") as other:
        session = Session.fresh(id="s")
        reply = await greeter(server, GREET).call("Go", session=session)
        for name in ("Ada", "Ada L."):
            session = Session.from_json(session.to_json())
            [waits] = session.pending
            reply = await greeter(other, "Done.").resume(session, {waits.id: Answer({"name": name})})
        assert (reply.text, session.messages[2].tool_results[0].text) == ("Done.", "Hello Ada, or Ada L.")


async def test_calls_without_questions_keep_nothing() -> None:
    """The session has nothing of servers without a question; after the answers it has no answers."""
    async with demo("memory") as server:
        agent = greeter(server, ToolUseBlock("t1", "place"), "Done.")
        await agent.call("Go")
        assert len(agent.session().state) == 0
        agent = greeter(server, GREET, "Done.")
        reply = await agent.call("Go")
        while reply.outcome == "suspended":
            reply = await agent.resume(decisions={reply.pending[0].id: Answer({"name": "Ada"})})
        assert agent.session().state.saved()[0] == {"agentflow.mcp.active:Answered": {"answers": {}}}


async def test_a_question_is_declined() -> None:
    """A person's no is the server's affair: its tool says what becomes of it."""
    async with demo("memory-legacy") as server:
        agent = greeter(server, ToolUseBlock("t1", "ask_name"), "Done.")
        [waits] = (await agent.call("Go")).pending
        await agent.resume(decisions={waits.id: Deny("none of your business")})
        assert results(agent)[0].text == "nobody said: decline"


@pytest.mark.parametrize("way", WAYS)
async def test_a_function_answers_at_once(way: str) -> None:
    """The call is not suspended, the tool runs once, and the person's time is not the tool's work."""
    asked: list[object] = []
    clock = JumpingClock()

    async def answer(question: Pending) -> Answer:
        asked.append(question.request["message"])
        await clock.sleep(30)
        return Answer({"name": "Ada"})

    async with demo(way, elicitation=answer) as server:
        agent = Agent("a", ScriptedModel([GREET, "Done.", GREET, "Done."]), tools=[server], clock=clock)
        assert (await agent.call("Go")).outcome == "completed"
        assert (results(agent)[0].text, asked) == ("Hello Ada, or Ada", ["What is your name?", "Is it Ada?"])
        ended = [event async for event in agent.stream("Go", session=Session.fresh()) if isinstance(event, PostActing)]
        assert [(event.duration_ms, event.waited_ms) for event in ended] == [(0, 60_000)]


class Order(BaseModel):
    """What a person is asked for, with defaults."""

    article: str
    count: int = 3
    fast: bool = False


async def which() -> Elicit[Order]:
    return Elicit("Which?", Order)


SAID: list[str] = []
shop = Server("shop")


@shop.tool()
async def order(what: Annotated[ElicitationResult[Order], Resolve(which)]) -> str:
    return str(what.data) if what.action == "accept" else what.action


@shop.tool()
async def ask_order(ctx: Context) -> str:
    try:
        SAID.append((await ctx.elicit("Which?", Order)).action)
    except asyncio.CancelledError:
        SAID.append("cancelled")
        raise
    return "asked"


@shop.tool()
async def break_down(what: Annotated[ElicitationResult[Order], Resolve(which)]) -> str:
    raise MCPError(INTERNAL_ERROR, "out of order")


async def test_the_answers_of_a_call_that_fails_are_removed() -> None:
    """An error of the protocol is the result of the call, as a tool's own error is."""
    async with MCPServer.in_memory(shop) as server:
        agent = greeter(server, ToolUseBlock("t1", "break_down"), "Done.")
        [waits] = (await agent.call("Go")).pending
        await agent.resume(decisions={waits.id: Answer({"article": "apple"})})
        assert "out of order" in results(agent)[0].text
        assert agent.session().state.saved()[0] == {"agentflow.mcp.active:Answered": {"answers": {}}}


@pytest.mark.parametrize("protocol", ["auto", "legacy"])
async def test_defaults_are_filled_in(protocol: str) -> None:
    """Fields that an answer leaves out have the values that the server's schema names; an answer that is no yes has none."""
    for decision, said in (
        (Answer({"article": "apple", "fast": True}), "article='apple' count=3 fast=True"),
        (Approve(input={"article": "pear", "count": 1}), "article='pear' count=1 fast=False"),
        (Deny("no"), "decline"),
    ):
        async with MCPServer.in_memory(shop, protocol=protocol) as server:
            agent = greeter(server, ToolUseBlock("t1", "order"), "Done.")
            [waits] = (await agent.call("Go")).pending
            await agent.resume(decisions={waits.id: decision})
            assert results(agent)[0].text == said


async def test_an_older_server_gets_no_answer_while_a_person_is_asked() -> None:
    """Its call is cancelled; an error would be an answer that no person gave."""
    SAID.clear()
    async with MCPServer.in_memory(shop, protocol="legacy") as made:
        agent = greeter(made, ToolUseBlock("t1", "ask_order"), "Done.")
        [waits] = (await agent.call("Go")).pending
        await agent.resume(decisions={waits.id: Answer({"article": "apple"})})
        assert results(agent)[0].text == "asked"
        assert SAID in (["cancelled", "accept"], ["cancel", "accept"])
        await agent.close()


@pytest.mark.parametrize("way", ["memory", "memory-legacy"])
async def test_questions_may_be_refused(way: str) -> None:
    """With `elicitation="refuse"` no person is asked: the tool fails, or handles it."""
    async with demo(way, elicitation="refuse") as server:
        agent = greeter(server, GREET, "Done.")
        assert (await agent.call("Go")).outcome == "completed"
        assert results(agent)[0].state == "error"


async def test_an_answer_that_does_not_fit_is_a_tool_error() -> None:
    """The server checks it, and its tool fails; the run continues."""
    async with demo("memory-legacy") as server:
        agent = greeter(server, ToolUseBlock("t1", "ask_name"), "Done.")
        [waits] = (await agent.call("Go")).pending
        reply = await agent.resume(decisions={waits.id: Answer({"name": ["no", "text"]})})
        assert (reply.outcome, results(agent)[0].state) == ("completed", "error")


@pytest.mark.parametrize("way", WAYS)
async def test_sampling_is_off_unless_allowed(way: str) -> None:
    """The model is not called; the tool fails."""
    async with demo(way) as server:
        agent = greeter(server, ToolUseBlock("t1", "ask_model", {"question": "Why?"}), "Done.")
        await agent.call("Go")
        assert (len(agent.config.model.requests), results(agent)[0].state) == (2, "error")  # type: ignore[union-attr]


QUESTIONS = {"1": "Why?", "2": "Why, at length?"}


@pytest.mark.parametrize("way", WAYS)
async def test_sampling_asks_the_agents_model(way: str) -> None:
    """The question goes to the agent's model, with a limit of tokens; the answer to the server."""
    async with demo(way, sampling=1) as server:
        script = [part for n in "12" for part in (ToolUseBlock(n, "ask_model", {"question": QUESTIONS[n]}), "Because.")]
        agent = greeter(server, *script, "Done.")
        reply = await agent.call("Go")
        assert (reply.text, results(agent)[0].text) == ("Done.", "it said: Because.")
        side = agent.config.model.requests[1]  # type: ignore[union-attr]
        assert [(msg.role, msg.text) for msg in side.messages] == [("system", "Be brief."), ("user", "Why?")]
        limits = [request.options.max_tokens for request in agent.config.model.requests[1::2]]  # type: ignore[union-attr]
        assert (side.tools, limits) == ((), [100, 4096])  # the server asked for 100 and for 10,000


async def test_older_servers_whose_question_may_belong_to_two_runs() -> None:
    """It is ambiguous, so it is refused, and the tool fails; each run continues."""
    server = demo_over_stdio(protocol="legacy")
    agent = Agent(
        "a",
        ScriptedModel(lambda request: "Done." if request.messages[-1].role == "tool" else ToolUseBlock("t1", "meet")),
        tools=[server],
    )
    replies = await asyncio.gather(agent.call("Go", session="one"), agent.call("Go", session="two"))
    assert [reply.outcome for reply in replies] == ["completed"] * 2
    texts = [agent.session(name).messages[2].tool_results[0].text for name in ("one", "two")]
    assert all("it is unclear which call this request belongs to" in text for text in texts)
    await server.close()


@given(st.lists(st.sampled_from(["one", "two"]), max_size=4), st.booleans())
def test_the_call_of_a_question(runs: list[str], known: bool) -> None:
    """The one that the SDK knows; else the latest, if all calls are of one run."""
    calls = [cast("ActiveCall", SimpleNamespace(run_id=run)) for run in runs]
    asking = cast("ActiveCall", SimpleNamespace(run_id="three"))
    token = current_call.set(asking if known else None)
    try:
        found = call_of_question(iter(calls))
    finally:
        current_call.reset(token)
    assert found is (asking if known else calls[-1] if calls and len(set(runs)) == 1 else None)


async def test_an_agent_inside_a_servers_tool() -> None:
    """A server in memory whose tool is an agent: it is the server's own run, and its events are not the caller's."""
    inner = Agent("inner", ScriptedModel(["From inside."]))
    lowlevel = make()

    async def inside() -> str:
        return (await inner.call("Hi")).text

    lowlevel.add_tool(inside)
    async with MCPServer.in_memory(lowlevel) as server:
        agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "inside"), "Done."]), tools=[server])
        await agent.call("Go")
        assert results(agent)[0].text == "From inside."


async def test_what_a_tool_of_ours_shares_with_a_server() -> None:
    """Own tools and a server's run in one round."""

    @tool(type="read")
    async def own() -> str:
        return "mine"

    async with demo("memory") as server:
        calls = [ToolUseBlock("t1", "own"), ToolUseBlock("t2", "add", {"a": 1, "b": 1})]
        agent = Agent("a", ScriptedModel([calls, "Done."]), tools=[own, server])
        await agent.call("Go")
        assert [result.text for result in results(agent)] == ["mine", "2"]
