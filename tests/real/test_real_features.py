"""Several outputs, skills, memory, retrieval and code on a real model: what the framework owes, whatever it answers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from laws_checks import check_history, check_request
from pydantic import BaseModel
from real_models import Counted, Real

from agentflow import Agent, PreReasoning, on, tool
from agentflow.errors import ModelError, OutputError
from agentflow.loop.output import Output
from agentflow.loop.session import Session
from agentflow.plugins import Skills
from agentflow.plugins.code import Bubblewrap, code_tool
from agentflow.plugins.memory import Memory, SqliteMemory
from agentflow.plugins.retrieval import Retrieve, SqliteIndex
from agentflow.vocabulary.messages import Msg, Reply, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.specs import ModelOptions

pytestmark = pytest.mark.parametrize("real", ["openai"], indirect=True)
Tried: TypeAlias = "tuple[Reply[Any] | None, list[ToolResultBlock]]"
LIMIT = 240  # seconds of a call


@on(PreReasoning)
def calls_first(event: PreReasoning) -> None:
    """The first reply is to call a tool; the server's grammar holds its arguments to the schema."""
    if event.iteration == 1 and event.purpose == "reason":
        event.options = event.options.merge(ModelOptions(tool_choice="required", max_tokens=60, temperature=0.0))


async def tried(real: Real, agent: Agent[Any], model: Counted, text: str, earlier: Sequence[Msg] = ()) -> Tried:
    """Call it after an earlier conversation: legal history and requests, and a reply or an error after a few requests."""
    reply: Reply[Any] | None = None
    session = Session.fresh(earlier)
    try:
        reply = await agent.call(text, session=session, timeout=LIMIT)
        real.tally.outcomes.append(f"{reply.outcome}: {reply.text[:60]!r}")
    except (OutputError, ModelError) as error:
        real.tally.outcomes.append(f"{type(error).__name__}: {str(error)[:80]!r}")
    check_history(session.messages)
    for request in model.requests:
        check_request(request.messages)
    assert 1 <= len(model.requests) <= 4
    found = [one for msg in session.messages[len(earlier) :] for one in msg.tool_results]
    real.tally.outcomes += [f"{one.name} {one.state}: {one.text[:60]!r}" for one in found]
    return reply, found


def conversation(text: str, name: str, input: dict[str, Any], result: str, end: str = "Done.") -> list[Msg]:  # noqa: A002
    """A successful tool call in the history, which small models imitate."""
    use, answer = ToolUseBlock("call_0", name, input), ToolResultBlock("call_0", name, result)
    return [Msg.user(text), Msg.assistant([use]), Msg("tool", (answer,)), Msg.assistant(end)]


class Mood(BaseModel):
    good: bool


class Order(BaseModel):
    item: Literal["tea", "milk"]


@pytest.mark.parametrize("via", ["tool", "prompt", "native"])
async def test_several_outputs(real: Real, via: Any) -> None:
    """One of the types with legal values, or an error after a bounded number of tries; both types were offered."""
    model = real.model()
    options = real.options.merge(ModelOptions(max_tokens=40, temperature=0.0))
    output: Output[Any] = Output([Mood, Order], via=via, retries=1)
    agent: Agent[Any] = Agent("a", model, output=output, options=options, default_hooks=())
    reply, _ = await tried(real, agent, model, "I would like a tea.")
    if reply is not None:
        assert isinstance(reply.output, Mood | Order)
    request = model.requests[0]
    offered = "\n".join([*(msg.text for msg in request.messages), str(request.tools), str(request.options)])
    assert ("Mood" in offered, "Order" in offered) == (True, True)


async def test_skills(real: Real, tmp_path: Path) -> None:
    """The skill is listed and its tool offered; a call of it has its text, or an error that names the skills."""
    folder = tmp_path / "tea"
    folder.mkdir()
    (folder / "SKILL.md").write_text("---\nname: tea\ndescription: Make tea.\n---\nBoil water.")
    model = real.model()
    agent = Agent(
        "a", model, hooks=[Skills(tmp_path), calls_first], options=real.options, max_iterations=2, default_hooks=()
    )
    earlier = conversation("Read the skill tea.", "read_skill", {"skill": "tea"}, "Boil water.", "Boil water.")
    _, found = await tried(real, agent, model, "Read the skill tea.", earlier)
    request = model.requests[0]
    assert ("- tea: Make tea." in request.messages[0].text, [one.name for one in request.tools]) == (
        True,
        ["read_skill"],
    )
    for one in found:
        if one.state == "success":
            assert one.text.startswith("Boil water.")
        else:
            assert one.state in ("error", "not_found")
            assert "tea" in one.text or "read_skill" in one.text


async def test_memory_and_retrieval(real: Real) -> None:
    """The memories and passages that match are in the request, their tools are offered, and only known passages are cited."""
    bank, index = SqliteMemory(":memory:"), SqliteIndex(":memory:")
    await bank.add("ada", "Ada drinks tea at lunch.", "user", 0.0)
    await index.add("book.md", "Lunch is at noon.")
    model = real.model()
    hooks = [Memory(bank, user="ada"), Retrieve(index), calls_first]
    agent = Agent("a", model, hooks=hooks, options=real.options, max_iterations=2, default_hooks=())
    earlier = conversation("When is tea?", "search_documents", {"query": "tea"}, "[]")
    reply, found = await tried(real, agent, model, "When is lunch?", earlier)
    request = model.requests[0]
    asked = "\n".join(msg.text for msg in request.messages)
    assert ("Ada drinks tea" in asked, '"cite": "book.md:1"' in asked) == (True, True)
    assert {one.name for one in request.tools} == {"remember", "recall", "forget", "search_documents"}
    assert {one.state for one in found} <= {"success", "error", "not_found"}
    assert reply is None or [one.title for one in reply.citations] in ([], ["book.md:1"])


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_code(real: Real) -> None:
    """The tool is offered with its functions; a program that the model writes has an output or an error."""
    prices: list[str] = []

    @tool(type="read")
    async def price(item: str) -> float:
        """Look up a price."""
        prices.append(item)
        return 2.5

    model = real.model()
    python = code_tool(price, sandbox=Bubblewrap(seconds=10))
    agent = Agent(
        "a", model, tools=[python], hooks=[calls_first], options=real.options, max_iterations=2, default_hooks=()
    )
    earlier = conversation('Run print(price("milk")).', "run_python", {"code": 'print(price("milk"))'}, "1.25")
    _, found = await tried(real, agent, model, 'Run print(price("tea")).', earlier)
    (offered,) = model.requests[0].tools
    assert (offered.name, "price(item" in offered.description) == ("run_python", True)
    assert {one.state for one in found} <= {"success", "error", "timeout", "not_found"}
    real.tally.outcomes.append(f"prices of {prices}")
