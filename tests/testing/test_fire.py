"""A hook under a unit test: events are built by hand, open, with a context if need be, and fired at it."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import (
    Again,
    Agent,
    Deny,
    Hook,
    HookEvent,
    Mono,
    Msg,
    PostCall,
    PostReasoning,
    PreActing,
    PreReasoning,
    Suspend,
    ToolUseBlock,
    before_each_tool,
    before_llm,
    on,
)
from agentflow.errors import HookContractError
from agentflow.testing import ScriptedModel, fire, run_context


class Enhances(Hook):
    """Puts a hint in front."""

    def on_event(self, event: HookEvent) -> Any:
        if isinstance(event, PreReasoning):
            event.input_messages = [Msg.system("HINT"), *event.input_messages]
        return Mono.just(event)


ASKED = [Msg.user("q")]
DELETE = ToolUseBlock("t1", "delete_file", {"path": "/etc"})


def test_an_event_that_is_built_by_hand_is_open() -> None:
    """So `hook.on_event(event)` can be called as it is, and blocked on."""
    event = PreReasoning(input_messages=ASKED)
    assert not event.sealed
    assert [msg.text for msg in Enhances().on_event(event).block().input_messages] == ["HINT", "q"]


async def test_fire_gives_the_event_and_the_verdict() -> None:
    """An edit, without a verdict; the event that was given stays as it was, and what comes back is sealed."""
    given = PreReasoning(input_messages=ASKED)
    event, verdict = await fire(Enhances(), given)
    assert ([msg.text for msg in event.input_messages], verdict, event.sealed) == (["HINT", "q"], None, True)
    assert [msg.text for msg in given.input_messages] == ["q"]


async def test_options_of_the_hook_count() -> None:
    """A filter by tools, several hooks in their order, and a hook for other events."""

    @before_each_tool(tools=["delete_*"], guard=True)
    def forbids(event: PreActing) -> Deny:
        return Deny(f"not {event.tool_use.input['path']}")

    @before_each_tool
    def elsewhere(event: PreActing) -> PreActing:
        return event.replace(tool_use=event.tool_use.replace(input={"path": "/tmp"}))

    _, verdict = await fire([forbids, elsewhere], PreActing(tool_use=DELETE))
    assert verdict == Deny("not /tmp")
    assert (await fire(forbids, PreActing(tool_use=ToolUseBlock("t2", "look", {})))).verdict is None
    assert (await fire(forbids, PreReasoning(input_messages=ASKED))).verdict is None


async def test_what_a_hook_raises_is_raised() -> None:
    """An error of the hook, and an answer that is not legal there."""

    def fails(event: Any) -> None:
        raise RuntimeError("down")

    for on_failure in (None, "abort", "skip"):
        with pytest.raises(RuntimeError, match="down"):
            await fire(before_llm(on_failure=on_failure)(fails), PreReasoning(input_messages=ASKED))
    with pytest.raises(HookContractError):
        await fire(before_llm(lambda event: 3), PreReasoning(input_messages=ASKED))  # pyright: ignore[reportArgumentType]


async def test_the_context_can_be_given() -> None:
    """Deps, the conversation, the agent, typed state, a side call; a hook that needs none of it gets a fresh one."""
    seen: list[Any] = []

    @before_llm
    async def reads(event: PreReasoning) -> None:
        context = event.context
        reply = await context.complete([Msg.user("Is it?")])
        seen.append((event.agent.name, context.deps(dict), [msg.text for msg in context.history], reply.text))

    agent = Agent("clerk", ScriptedModel(["It is."]))
    context = run_context(agent=agent, deps={"db": 1}, history=[Msg.user("before"), Msg.assistant("yes")])
    await fire(reads, PreReasoning(input_messages=ASKED), context=context)
    event = PreReasoning(input_messages=ASKED).within(run_context(deps={}))
    await fire(reads, event)
    assert seen == [("clerk", {"db": 1}, ["before", "yes"], "It is."), ("test", {}, [], "ok")]


def test_an_event_without_a_context_says_how_to_give_one() -> None:
    """What is read of it names the two ways."""
    with pytest.raises(AttributeError, match=r"within\(agentflow\.testing\.run_context\(\)\)"):
        _ = PostCall(final_message=Msg.assistant("Hi")).context


@pytest.mark.parametrize("verdict", [Deny("no"), Suspend("ask"), Again("try")], ids=repr)
async def test_each_verdict_of_a_guard_comes_back(verdict: Any) -> None:
    """Without a run it is not acted on, a suspension included."""
    kind, event = (PreActing, PreActing(tool_use=DELETE))
    if isinstance(verdict, Again):
        kind, event = (PostReasoning, PostReasoning(reasoning_result=Msg.assistant("so")))
    for guard in (False, True):
        decides = on(kind, guard=guard)(lambda event: verdict)
        assert (await fire(decides, event))[1] == verdict
