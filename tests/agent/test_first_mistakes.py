"""What is tried first by who comes from another library: each error names what is right, and that works."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Agent, Hook, HookEvent, PostReasoning, PreReasoning, UsageError, after_llm, on, tool
from agentflow.testing.scripted import ScriptedModel


@tool
async def look(where: str) -> str:
    """Look."""
    return f"nothing in {where}"


def scripted(**options: Any) -> Agent:
    return Agent("a", ScriptedModel(lambda request: "Hello."), **options)


# ---- an agent is immutable


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
    """It would do nothing: it is refused, with the way that does."""
    agent = scripted()
    with pytest.raises(AttributeError) as caught:
        setattr(agent, name, 1)
    assert str(caught.value) == (
        f"Agent 'a' is immutable, so {name} cannot be assigned: {fix}. Hooks can be added: agent.hook(h)."
    )
    assert not hasattr(agent, "typo")


async def test_a_subclass_has_attributes_of_its_own() -> None:
    """Before and behind the constructor of `Agent`."""

    class Clerk(Agent):
        def __init__(self) -> None:
            self.desk = 3
            super().__init__("clerk", ScriptedModel(["Hello."]))
            self.team = "north"

    clerk = Clerk()
    clerk.desk += 1
    assert (clerk.desk, clerk.team, (await clerk.call("Hi")).text) == (4, "north", "Hello.")


# ---- hooks of an agent that exists


class Notes(Hook):
    """Notes the events that it sees."""

    events = (PreReasoning, PostReasoning)

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_event(self, event: HookEvent) -> HookEvent:
        self.seen.append(type(event).__name__)
        return event


async def test_a_hook_is_added_to_an_agent_that_exists() -> None:
    """For calls that begin later, until its handle is disposed; a second time it is still one hook."""
    agent, notes = scripted(), Notes()
    await agent.call("Hi")
    handle = agent.hook(notes)
    agent.hook(notes)
    await agent.call("Hi")
    assert notes.seen == ["PreReasoning", "PostReasoning"]
    handle.dispose()
    await agent.call("Hi")
    assert notes.seen == ["PreReasoning", "PostReasoning"]
    assert notes not in agent.hooks


async def test_whatever_the_constructor_takes_as_hooks_can_be_added() -> None:
    """Marked functions, lists of them, functions by name; the handle takes all of them off."""
    seen: list[str] = []
    agent = scripted()
    with agent.hook([after_llm(lambda event: seen.append("a")), [on(PreReasoning)(lambda event: seen.append("b"))]]):
        with agent.hook({"on_complete": lambda event: seen.append("c")}):
            await agent.call("Hi")
        await agent.call("Hi")
    await agent.call("Hi")
    assert seen == ["b", "a", "c", "b", "a"]


async def test_a_call_that_runs_keeps_the_hooks_it_began_with() -> None:
    """A hook that is added meanwhile waits for the next call."""
    notes = Notes()

    def meanwhile() -> None:
        agent.hook(notes)

    agent = Agent("a", ScriptedModel([["Hel", meanwhile, "lo."], "Hello."]))
    await agent.call("Hi")
    assert notes.seen == []
    await agent.call("Hi")
    assert notes.seen == ["PreReasoning", "PostReasoning"]


def test_what_cannot_be_added_is_refused() -> None:
    """What is no hook, one whose tools would be lost, and a hook where `on` wants an event."""

    class Brings(Hook):
        def tools(self) -> list[Any]:
            return [look]

    agent = scripted()
    with pytest.raises(UsageError, match="not int"):
        agent.hook(5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError) as caught:
        agent.hook(Brings())
    assert str(caught.value) == (
        "Hook 'Brings' brings tools, and the tools of agent 'a' are settled: build the agent with it, Agent(..., hooks=[...])."
    )
    with pytest.raises(UsageError) as caught:
        agent.on(Notes())  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert str(caught.value) == (
        "agent.on(event, f) takes an event, and <Notes priority=100> is a hook already: agent.hook(it)."
    )
    assert len(agent.hooks) == len(scripted().hooks)


# ---- names of other libraries


def test_run_is_no_call() -> None:
    """`agent.run` runs the queue; an input is refused with what asks the model."""
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
    """It stays an AttributeError, so `hasattr` and `getattr` with a default are as ever."""
    agent = scripted()
    with pytest.raises(AttributeError) as caught:
        getattr(agent, name)
    assert str(caught.value) == f"'Agent' object has no attribute {name!r}{right}"
    assert getattr(agent, name, None) is None


def test_tools_that_are_none() -> None:
    """One tool alone may stand for a list of one; None is refused as what it is."""
    assert [made.name for made in scripted(tools=look).tools] == ["look"]
    with pytest.raises(UsageError, match=r"^tools= takes tools and agents, not NoneType"):
        scripted(tools=None)
