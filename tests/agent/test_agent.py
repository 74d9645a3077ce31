"""An agent as an object: it is immutable, its subclasses are not, and unknown attributes raise an error that names
ours.
"""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Agent, tool
from agentflow.errors import UsageError
from agentflow.testing.scripted import ScriptedModel


@tool
async def look(where: str) -> str:
    """Look."""
    return f"nothing in {where}"


def scripted(**options: Any) -> Agent:
    return Agent("a", ScriptedModel(lambda request: "Hello."), **options)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("max_iterations", "build an agent with it, Agent(..., max_iterations=...)"),
        ("system", "build an agent with it, Agent(..., system=...)"),
        ("hooks", "build an agent with it, Agent(..., hooks=...)"),
        ("name", "build an agent with it, Agent(..., name=...)"),
        ("config", "Agent(...) knows no such argument"),
        ("typo", "Agent(...) knows no such argument"),
    ],
)
def test_an_attribute_of_an_agent_cannot_be_assigned(name: str, fix: str) -> None:
    """The assignment would have no effect: it is refused, with the way that works."""
    agent = scripted()
    with pytest.raises(AttributeError) as caught:
        setattr(agent, name, 1)
    assert str(caught.value) == (
        f"Agent 'a' is immutable, so {name} cannot be assigned: {fix}. Hooks can be added: agent.hook(h)."
    )
    assert not hasattr(agent, "typo")


async def test_a_subclass_has_attributes_of_its_own() -> None:
    """They can be set before and after the constructor of `Agent`."""

    class Clerk(Agent):
        def __init__(self) -> None:
            self.desk = 3
            super().__init__("clerk", ScriptedModel(["Hello."]))
            self.team = "north"

    clerk = Clerk()
    clerk.desk += 1
    assert (clerk.desk, clerk.team, (await clerk.call("Hi")).text) == (4, "north", "Hello.")


def test_run_is_no_call() -> None:
    """`agent.run` runs the queue; an input is refused with the method that calls the model."""
    with pytest.raises(UsageError) as caught:
        scripted().run("Hi")  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == (
        "agent.run() runs the turns in the queue of agent 'a' and takes no input. To ask the model: await agent.call('Hi'), "
        "agent.call('Hi').block() from synchronous code, or async for event in agent.stream('Hi')."
    )


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("run_sync", ". To ask it: agent.call('Hi').block(), or await agent.call('Hi')"),
        ("invoke", ". To ask it: agent.call('Hi').block(), or await agent.call('Hi')"),
        ("arun", ". To ask it: await agent.call('Hi')"),
        ("astream", ". To ask it: async for event in agent.stream('Hi')"),
        ("typo", ""),
    ],
)
def test_a_method_of_another_library_names_ours(name: str, right: str) -> None:
    """It stays an AttributeError, so `hasattr` and `getattr` with a default work as usual."""
    agent = scripted()
    with pytest.raises(AttributeError) as caught:
        getattr(agent, name)
    assert str(caught.value) == f"'Agent' object has no attribute {name!r}{right}"
    assert getattr(agent, name, None) is None


def test_tools_that_are_none() -> None:
    """One tool alone is accepted as a list of one; None is refused."""
    assert [made.name for made in scripted(tools=look).tools] == ["look"]
    with pytest.raises(UsageError, match=r"^tools= takes tools and agents, not NoneType"):
        scripted(tools=None)
