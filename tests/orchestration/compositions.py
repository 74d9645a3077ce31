"""The ways in which agents work together, each around workers that a test provides: what holds for one holds for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from agentflow import Agent, ModelRequest, Msg, RunContext, ToolUseBlock
from agentflow.agent.orchestration import Hub, ask, gather, handoffs, race, workflow
from agentflow.testing import ScriptedModel

__all__ = ["COMPOSITIONS", "NAMES", "Compose", "by_round", "said"]

NAMES = ("ann", "bob")


class Compose(Protocol):
    """Makes the composition of two workers."""

    def __call__(self, ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]: ...


def by_round(*rounds: Any) -> ScriptedModel:
    """A model whose reply depends on the conversation only, as a new process needs: the nth reply since the last
    input.
    """

    def brain(request: ModelRequest) -> Any:
        since = 0
        for msg in reversed(request.messages):
            if msg.role == "user" and "synthetic" not in msg.metadata:
                break
            since += msg.role == "tool"
        return rounds[min(since, len(rounds) - 1)]

    return ScriptedModel(brain)


def said(messages: Sequence[Msg]) -> list[str]:
    """Return roles and texts, one line for each message."""
    return [f"{msg.role}: {msg.text}" for msg in messages]


def sequence(ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]:
    @workflow(ann, bob, name="team", **options)
    async def team(task: str) -> str:
        first = await ask(ann, task)
        return (await ask(bob, first.text)).text

    return team


def fan_out(ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]:
    @workflow(ann, bob, name="team", **options)
    async def team(task: str) -> str:
        return " ".join(reply.text for reply in await gather(ask(ann, task), ask(bob, task)))

    return team


def racing(ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]:
    @workflow(ann, bob, name="team", **options)
    async def team(task: str) -> str:
        return (await race(ask(ann, task), ask(bob, task))).text

    return team


def routing(ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]:
    router = Agent("router", by_round("bob"), output=str)

    @workflow(router, ann, bob, name="team", **options)
    async def team(task: str) -> str:
        chosen = (await ask(router, task)).text
        first = await ask(ann if "ann" in chosen else bob, task)
        return f"{first.text} {(await ask(ann, task)).text}"

    return team


def map_reduce(ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]:
    @workflow(ann, bob, name="team", **options)
    async def team(task: str) -> str:
        parts = await gather(*[ask(ann, f"{task} {part}") for part in "123"])
        return (await ask(bob, " ".join(part.text for part in parts))).text

    return team


def planning(ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]:
    planner = Agent("planner", by_round('{"answer": ["ann", "bob"]}'), output=list[str])

    @workflow(planner, ann, bob, name="team", **options)
    async def team(task: str) -> str:
        plan = (await ask(planner, task)).output
        workers = {"ann": ann, "bob": bob}
        return " ".join(reply.text for reply in await gather(*[ask(workers[one], task) for one in plan]))

    return team


def chatting(ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]:
    @workflow(ann, bob, name="team", **options)
    async def team(task: str, context: RunContext) -> str:
        hub = Hub([ann, bob], context)
        hub.tell(task)
        for speaker in (*hub.agents, ann):
            await hub.ask(speaker)
        return hub.contributions[-1].text

    return team


def handing_over(ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]:
    first = Agent("first", by_round(ToolUseBlock("h1", "transfer_to_ann", {"reason": "hers"})))
    return handoffs(first, ann, bob, name="team", to={"first": ["ann"]}, **options)


def supervising(ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]:
    rounds = [ToolUseBlock("w1", "ann", {"message": "a"}), ToolUseBlock("w2", "bob", {"message": "b"})], "All done."
    return Agent("team", by_round(*rounds), tools=[ann, bob], **options)


def nested(ann: Agent[Any], bob: Agent[Any], **options: Any) -> Agent[Any]:
    @workflow(bob)
    async def inner(task: str) -> str:
        return (await ask(bob, task)).text

    lead = Agent("lead", by_round(ToolUseBlock("n1", "inner", {"message": "go"}), "led"), tools=[inner])

    @workflow(ann, lead, name="team", **options)
    async def team(task: str) -> str:
        return " ".join(reply.text for reply in await gather(ask(ann, task), ask(lead, task)))

    return team


COMPOSITIONS: dict[str, Compose] = {
    "sequence": sequence,
    "fan_out": fan_out,
    "race": racing,
    "route": routing,
    "map_reduce": map_reduce,
    "planner": planning,
    "group_chat": chatting,
    "handoff": handing_over,
    "supervisor": supervising,
    "nested": nested,
}
