"""The hub: a conversation of several agents, who get the contributions of the others with their names."""

from __future__ import annotations

import contextlib
from itertools import cycle
from typing import Any, Literal

import pytest
from compositions import said
from laws_checks import check_request

from agentflow import Agent, MemoryStore, RunContext
from agentflow.agent.orchestration import Hub, StepError, ask, workflow
from agentflow.errors import UsageError
from agentflow.testing import ScriptedModel


def echo(name: str) -> ScriptedModel:
    """Answers with its name, and how often it has spoken."""

    def brain(request: Any) -> str:
        check_request(request.messages)
        return f"{name}{sum(msg.role == 'assistant' for msg in request.messages) + 1}"

    return ScriptedModel(brain)


async def test_each_hears_the_others_by_name() -> None:
    """Round robin: a speaker gets what was said since it spoke last, each contribution with its speaker's name."""
    models = {name: echo(name) for name in ("ann", "bob", "cyd")}
    agents = [Agent(name, model) for name, model in models.items()]

    @workflow(*agents)
    async def panel(question: str) -> str:
        hub = Hub(agents)
        hub.tell(question)
        hub.tell("Be brief.", "chair")
        for _, speaker in zip(range(5), cycle(hub.agents), strict=False):
            await hub.ask(speaker)
        return str(hub)

    reply = await panel.call("Tea?")
    assert reply.text.split("\n\n") == [
        "user: Tea?",
        "chair: Be brief.",
        "ann: ann1",
        "bob: bob1",
        "cyd: cyd1",
        "ann: ann2",
        "bob: bob2",
    ]
    assert said(models["ann"].requests[1].messages) == [
        "user: user: Tea?",
        "user: chair: Be brief.",
        "assistant: ann1",
        "user: bob: bob1",
        "user: cyd: cyd1",
    ]
    assert reply.usage.model_calls == 5


@pytest.mark.parametrize("restart", [False, True])
async def test_the_conversation_goes_on_in_the_next_call(restart: bool) -> None:
    """With the context the hub knows the contributions of earlier calls, and gives each agent the ones that it lacks."""
    store = MemoryStore()

    def make() -> tuple[Agent[str], ScriptedModel]:
        ann, bob = echo("ann"), echo("bob")
        agents = [Agent("ann", ann), Agent("bob", bob)]

        @workflow(*agents, store=store)
        async def panel(question: str, context: RunContext) -> str:
            hub = Hub(agents, context)
            hub.tell(question)
            for speaker in hub.agents:
                await hub.ask(speaker)
            return str(len(hub.contributions))

        return panel, ann

    panel, ann = make()
    assert (await panel.call("Tea?", session="s")).text == "3"
    if restart:
        panel, ann = make()
    assert (await panel.call("Milk?", session="s")).text == "6"
    assert said(ann.requests[-1].messages) == [
        "user: user: Tea?",
        "assistant: ann1",
        "user: bob: bob1",
        "user: user: Milk?",
    ]


async def test_a_model_says_who_speaks_next() -> None:
    """The chair reads the conversation and names the next speaker, or the end."""
    ann, bob = Agent("ann", echo("ann")), Agent("bob", echo("bob"))
    names = iter(["bob", "ann", "end"])
    chair = Agent("chair", ScriptedModel(lambda request: f'{{"answer": "{next(names)}"}}'))

    @workflow(ann, bob, chair)
    async def panel(question: str) -> str:
        hub, who = Hub([ann, bob]), {"ann": ann, "bob": bob}
        hub.tell(question)
        while (turn := (await ask(chair, str(hub), output=Literal["ann", "bob", "end"])).output) != "end":  # type: ignore[arg-type]
            await hub.ask(who[turn])
        return str(hub)

    assert (await panel.call("Tea?")).text == "user: Tea?\n\nbob: bob1\n\nann: ann1"


async def test_who_joins_hears_all_and_who_leaves_nothing() -> None:
    """Participants change during the conversation; an agent that speaks twice in a row reads that there is nothing
    new.
    """
    ann, bob = Agent("ann", echo("ann")), Agent("bob", (model := echo("bob")))

    @workflow(ann, bob)
    async def panel(question: str) -> str:
        hub = Hub([ann])
        await hub.ask(ann)
        with pytest.raises(UsageError, match="'bob' is not a participant"):
            await hub.ask(bob)
        hub.join(bob)
        await hub.ask(bob)
        await hub.ask(bob)
        hub.leave(bob)
        return ", ".join(agent.name for agent in hub.agents)

    assert (await panel.call("Tea?")).text == "ann"
    assert said(model.requests[1].messages) == [
        "user: ann: ann1",
        "assistant: bob1",
        "user: (There are no new messages. Continue.)",
    ]


async def test_who_fails_has_said_nothing() -> None:
    """The others continue, and do not get the failure; typed outputs come from the reply."""
    bad = Agent("bad", ScriptedModel(lambda request: ValueError("broken")), default_hooks=())
    good = Agent("good", ScriptedModel(lambda request: '{"answer": 7}'))

    @workflow(bad, good)
    async def panel(question: str) -> int:
        hub = Hub([bad, good])
        hub.tell(question)
        with pytest.raises(StepError):
            await hub.ask(bad)
        number = (await hub.ask(good, output=int)).output
        assert [one.name for one in hub.contributions] == ["user", "good"]
        return number

    assert (await panel.call("?")).output == 7


async def test_a_hub_remembers_only_what_was_said_in_it() -> None:
    """In the next call it has neither an answer that was requested outside of it, nor one that failed."""
    ann = Agent("ann", ScriptedModel(["aside", ValueError("no voice"), "third"]), default_hooks=())
    bob = Agent("bob", ScriptedModel(["first", "second"]))
    remembered: list[list[str]] = []

    @workflow(ann, bob)
    async def panel(task: str, context: RunContext) -> str:
        hub = Hub([ann, bob], context)
        remembered.append([str(said) for said in hub.contributions])
        hub.tell(task)
        if task == "one":
            await ask(ann, "between us")
            with contextlib.suppress(StepError):
                await hub.ask(ann)
        await hub.ask(bob)
        return "done"

    await panel.call("one", session="s")
    await panel.call("two", session="s")
    assert remembered[-1] == ["user: one", "bob: first"]


async def test_nobody_is_told_what_was_said_in_their_own_name() -> None:
    """What the workflow says as an agent is for the others."""
    models = {name: ScriptedModel(["yes"]) for name in ("ann", "bob")}
    ann, bob = (Agent(name, model) for name, model in models.items())

    @workflow(ann, bob)
    async def panel(task: str) -> str:
        hub = Hub([ann, bob])
        hub.tell("I vote for tea.", name="ann")
        await hub.ask(ann)
        await hub.ask(bob)
        return "done"

    await panel.call("go")
    told = {name: model.requests[0].messages[0].text for name, model in models.items()}
    assert told == {"ann": "(There are no new messages. Continue.)", "bob": "ann: I vote for tea."}
