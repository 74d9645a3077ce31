"""NaN and Infinity: no request ever holds one, so no conversation is lost to one. The servers refuse what is not JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from wired import Wired

from agentflow import Agent, Answer, Approve, Session, ToolUseBlock, tool
from agentflow.errors import UsageError
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Say, UseTool

NUMBERS = ("NaN", "-Infinity", "1e999")


@tool
async def look(q: float, note: Any = None) -> dict[str, float]:
    """Measure."""
    return {"q": q, "error": float("inf")}


@tool(requires_approval=True)
async def pay(amount: float) -> str:
    """Pay."""
    return f"paid {amount}"


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_model_writes_one(wired: Wired, number: str) -> None:
    """The call is malformed: the tool does not run, the model is informed, and the conversation continues."""
    script = [UseTool("look", f'{{"q": 1, "note": [{number}]}}'), UseTool("look", {"q": 2}), Say("Two."), Say("Again.")]
    async with wired.serve(script) as server:
        agent = Agent("a", wired.model(server), tools=[look])
        assert (await agent.call("Look.")).text == "Two."
        assert (await agent.call("Go on.")).text == "Again."
    results = [result for msg in agent.session().messages for result in msg.tool_results]
    assert [(result.state, result.text[:90].partition(" at line ")[0]) for result in results] == [
        ("error", f"Tool 'look' was not run: its arguments are not valid JSON ({number}"),
        ("success", '{"q":2.0,"error":"Infinity"}'),
    ]


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_stored_session_that_holds_one(wired: Wired, number: str, tmp_path: Path) -> None:
    """Sessions of a version that let them through are mended when they are sent, from a store and from a file."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    uses = [ToolUseBlock("t1", "look", {"q": 271828.5}), ToolUseBlock.from_json("t2", "look", '{"q": 271828.5}')]
    async with SqlStore(url) as store:
        await Agent("a", ScriptedModel([uses, "Fine."]), tools=[look], store=store).call("Look.", session="s")
        exported = json.dumps(await store.export("s"))
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE agentflow_facts SET body = replace(body, '271828.5', '{number}')")
    engine.dispose()
    async with wired.serve([Say("From the store."), Say("From the file.")]) as server, SqlStore(url) as store:
        agent = Agent("a", wired.model(server), tools=[look], store=store)
        assert (await agent.call("Go on.", session="s")).text == "From the store."
        loaded = Session.from_dict(json.loads(exported.replace("271828.5", number)))
        assert (await agent.call("Go on.", session=loaded)).text == "From the file."
        json.dumps(await store.export("s"), allow_nan=False)
        json.loads(loaded.to_json(), parse_constant=pytest.fail)


async def test_a_person_writes_one(wired: Wired) -> None:
    """Edited arguments with one are refused and the call still waits; an answer with one is passed on as text."""
    nan = float("nan")
    script = [UseTool("pay", {"amount": 1}), UseTool("pay", {"amount": 2}), Say("Done.")]
    async with wired.serve(script) as server:
        agent = Agent("a", wired.model(server), tools=[pay])
        reply = await agent.call("Pay.")
        with pytest.raises(
            UsageError,
            match=r"edited arguments .* are invalid, so nothing was resumed.*NaN at line 1 column [0-9]+ is not a JSON number",
        ):
            await agent.resume(decisions={reply.pending[0].id: Approve(input={"amount": nan})})
        reply = await agent.resume(decisions={reply.pending[0].id: Answer({"left": nan})})
        reply = await agent.resume(decisions={reply.pending[0].id: Approve()})
    assert reply.text == "Done."
    told = [answer.text for request in server.requests for answer in request.results]
    assert told == ['{"left":"NaN"}', "paid 2.0"]
