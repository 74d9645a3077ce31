"""Typed answers of calls that other processes may continue: after any last fact, the output is the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentflow import Agent, Approve, MemoryStore, Msg, Output, ToolUseBlock, tool
from agentflow.agent.typed_call import TypedOutput
from agentflow.durable.agent import DurableAgent
from agentflow.durable.execution import Host
from agentflow.durable.records import Request, decisions_out, result_in
from agentflow.loop.output.replying import with_output
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import HookEvent
from agentflow.vocabulary.facts import Fact, ToolFinished
from agentflow.vocabulary.messages import Reply
from agentflow.vocabulary.ports.model import ModelRequest


class Invoice(BaseModel):
    customer: str
    total: int


GOOD = {"customer": "Ada", "total": 3}


class Untold:
    """Events go nowhere."""

    async def publish(self, event: HookEvent) -> None:
        """Drop it."""

    async def catch_up(self, facts: Sequence[Fact]) -> None:
        """Drop them."""


class World:
    """An agent that has to look something up, is wrong once, and then answers."""

    def __init__(self, form: str, facts: Sequence[Fact] = ()) -> None:
        self.store = MemoryStore()
        if facts:
            self.store.append("s", facts)
        self.did: list[str] = []

        @tool(idempotent=True, requires_approval=form == "approved")
        async def book(customer: str, total: int) -> Invoice:
            """Book it."""
            self.did.append("book")
            return Invoice(customer=customer, total=total)

        @tool(type="read", idempotent=True)
        async def look() -> str:
            """Look it up."""
            self.did.append("look")
            return "Ada, 3"

        name = "final_answer" if form == "tool" else "book"
        output: Output[Any] = Output(Invoice, via="tool") if form == "tool" else Output(book)

        def answer(request: ModelRequest) -> Any:
            said = sum(msg.role == "assistant" for msg in request.messages)
            return [
                [ToolUseBlock("l1", "look")],
                [ToolUseBlock("f1", name, {"customer": "Ada"})],
                [ToolUseBlock("f2", name, GOOD)],
            ][said]

        self.output = output
        self.agent: Agent[Any] = Agent("a", ScriptedModel(answer), tools=[look], store=self.store)
        vars(self.agent)["_output"] = TypedOutput(output, output)
        self.host = Host(self.agent, self.store, None)

    async def run(self, workflow_id: str, request: Request) -> Reply[Any]:
        """Run a request, and read its reply as a caller in another process does."""
        result = result_in(workflow_id, "a", await self.host.run(workflow_id, request, 0.0, None, Untold()))
        assert isinstance(result, Reply)
        return await with_output(result, self.output)

    @property
    def facts(self) -> Sequence[Fact]:
        """The session's facts."""
        found = self.store.load("s")
        assert isinstance(found, Sequence)
        return found


CALL = Request("r", "a", "s", (Msg.user("go"),))


@pytest.mark.parametrize("form", ["tool", "step"])
async def test_a_call_goes_on_after_any_of_its_facts(form: str) -> None:
    """Cut after each fact and begun again elsewhere, a call gives the same output; a step with a result has not run again."""
    whole = World(form)
    first = await whole.run("r", CALL)
    assert first.output == Invoice(customer="Ada", total=3)
    for cut in range(len(whole.facts) + 1):
        there = whole.facts[:cut]
        world = World(form, there)
        again = await world.run("r", CALL)
        assert (again.outcome, again.text) == (first.outcome, first.text), there
        assert again.output == first.output, there
        finished = {fact.tool_use_id for fact in there if isinstance(fact, ToolFinished)}
        ran = {"l1": "look", "f2": "book"} if form == "step" else {"l1": "look"}
        assert world.did == [name for use, name in ran.items() if use not in finished], there


async def test_a_step_that_waited_for_a_person() -> None:
    """Approved in another process, after any fact, the step runs once and its value is the output."""
    whole = World("approved")
    first = await whole.run("r", CALL)
    assert (first.outcome, first.typed) == ("suspended", False)
    before = len(whole.facts)
    approved = Request("r", "a", "s", (), decisions_out("r", {"f2": Approve()}, first.pending))
    last = await whole.run("r/2", approved)
    assert last.output == Invoice(customer="Ada", total=3)
    for cut in range(before, len(whole.facts) + 1):
        world = World("approved", whole.facts[:cut])
        assert (await world.run("r/2", approved)).output == last.output


async def test_a_durable_agent(tmp_path: Path) -> None:
    """`DurableAgent.call` and `result` give the agent's typed output."""
    url = f"sqlite:///{tmp_path / 'data.db'}"
    async with SqlStore(url) as store:
        model = ScriptedModel([[ToolUseBlock("f", "final_answer", GOOD)]])
        agent = Agent("clerk", model, store=store, output=Invoice)
        async with DurableAgent(agent, url) as durable, durable.worker():
            reply = await durable.call("The invoice?", session="ada", run_id="r1")
            assert reply.output.total == 3
            assert (await durable.result("r1")).output == reply.output


async def test_stored_sessions_go_on(tmp_path: Path) -> None:
    """A suspended step is resumed by another object of the same agent, from the store alone."""

    @tool(requires_approval=True)
    async def pay(total: int) -> int:
        """Pay."""
        return total * 2

    url = f"sqlite:///{tmp_path / 'data.db'}"
    async with SqlStore(url) as store:
        first = Agent("clerk", ScriptedModel([[ToolUseBlock("f", "pay", {"total": 3})]]), store=store, output=pay)
        assert (await first.call("go", session="s")).outcome == "suspended"
    async with SqlStore(url) as store:
        second = Agent("clerk", ScriptedModel([]), store=store, output=pay)
        assert (await second.resume("s", {"f": Approve()})).output == 6
