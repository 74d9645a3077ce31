"""`ScriptedModel`: a mistake in a test's script reaches the test, whatever handles failures on the way; a script can grow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentflow import Agent, CallEnded, Flux, Hook, Msg, PostReasoning, PreReasoning, ToolUseBlock, Turn, tool
from agentflow.agent import AgentRegistry
from agentflow.errors import ScriptError, UsageError
from agentflow.plugins.fallback import ModelFallback
from agentflow.plugins.goal import GoalJudge
from agentflow.plugins.retry import ModelRetry, ToolRetry
from agentflow.testing import ScriptedModel


def _sub(name: str = "sub", script: Any = (), **options: Any) -> Agent:
    return Agent(name, ScriptedModel(script), description="Helps.", **options)


def _asks(*names: str) -> list[Any]:
    uses = [ToolUseBlock(f"t{n}", name, {"message": "x"}) for n, name in enumerate(names)]
    return [uses, "Done."]


@tool(retries=2)
async def asks() -> str:
    """Ask somebody."""
    return await _sub().answer("x")


class Judges(Hook):
    """Asks on the side, and does without where that fails."""

    on_failure = "skip"

    async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if isinstance(event, PostReasoning):
            await event.context.complete("Good?", model=ScriptedModel([]))
        return event


class Catches(Hook):
    """Has another reply for any failure."""

    def around(self, event: Any, source: Any) -> Any:
        if not isinstance(event, PreReasoning):
            return source
        return source.retry(2).catch(lambda error, _: Flux.empty())


async def _asked() -> Any:
    agents = AgentRegistry()
    boss = Agent("boss", ScriptedModel([]), agents=agents)
    for agent in (boss, _sub(agents=agents)):
        agents.register(agent)
    return await boss.ask("sub", "x")


async def _queued() -> Any:
    agent = Agent("queue", ScriptedModel([]), tools=[asks])
    receipt = await agent.put(Turn(asks))
    async for _ in agent.run():
        pass
    return await receipt


async def _streamed() -> Any:
    async with Agent("boss", ScriptedModel(_asks("sub")), tools=[_sub()]).stream("go") as events:
        async for _ in events:
            pass


SWALLOWERS: dict[str, Callable[[], Awaitable[Any]]] = {
    "a sub-agent": lambda: Agent("boss", ScriptedModel(_asks("sub")), tools=[_sub()]).call("go"),
    "two at once": lambda: Agent("boss", ScriptedModel(_asks("sub", "sub")), tools=[_sub()]).call("go"),
    "a sub-agent's sub-agent": lambda: Agent(
        "boss", ScriptedModel(_asks("mid")), tools=[_sub("mid", _asks("sub"), tools=[_sub()])]
    ).call("go"),
    "a stream": _streamed,
    "a tool that asks an agent": lambda: Agent(
        "boss", ScriptedModel([ToolUseBlock("t", "asks", {}), "Done."]), tools=[asks]
    ).call("go"),
    "a turn": lambda: Turn(asks).returning(),
    "a queue": _queued,
    "another agent that is asked": _asked,
    "on_failure": lambda: Agent("boss", ScriptedModel(["a"]), hooks=[Judges()]).call("go"),
    "around": lambda: Agent("boss", ScriptedModel([]), hooks=[Catches()]).call("go"),
    "ModelRetry": lambda: Agent("boss", ScriptedModel([]), hooks=[ModelRetry()]).call("go"),
    "ToolRetry": lambda: Agent("boss", ScriptedModel(_asks("sub")), tools=[_sub()], hooks=[ToolRetry()]).call("go"),
    "ModelFallback": lambda: Agent("boss", ScriptedModel([]), hooks=[ModelFallback(ScriptedModel(["spare"]))]).call(
        "go"
    ),
    "GoalJudge": lambda: Agent(
        "boss", ScriptedModel(["a"]), hooks=[GoalJudge("It is good.", model=ScriptedModel([]))]
    ).call("go"),
}


@pytest.mark.parametrize("work", SWALLOWERS.values(), ids=SWALLOWERS)
async def test_a_script_that_is_too_short_reaches_the_test(work: Callable[[], Awaitable[Any]]) -> None:
    """No tool result, retry, fallback, judge or queue treats a mistake of the test as a failure of the tested code."""
    with pytest.raises(ScriptError, match="has 0 replies and got one more request"):
        await work()


async def test_the_call_ends_as_any_failed_one() -> None:
    """Whoever watches sees the call fail, and the conversation stays legal."""
    ends: list[Any] = []

    class Watches(Hook):
        events = (CallEnded,)

        def on_event(self, event: Any) -> None:
            ends.append((event.outcome, type(event.error)))

    agent = Agent("boss", ScriptedModel(_asks("sub")), tools=[_sub()], hooks=[Watches()])
    with pytest.raises(ScriptError):
        await agent.call("go")
    assert ends == [("failed", ScriptError)]
    assert [msg.role for msg in agent.session().messages][:3] == ["user", "assistant", "tool"]


# ---- scripts that grow


async def test_a_script_is_extended_in_mid_test() -> None:
    """`add` appends replies of every form; unused ones are reported as before."""
    model = ScriptedModel(["One."])
    agent = Agent("a", model)
    assert (await agent.call("1")).text == "One."
    model.add("Two.", Msg.assistant("Three."))
    assert [(await agent.call("2")).text, (await agent.call("3")).text] == ["Two.", "Three."]
    model.add(["Fo", "ur."])
    with pytest.raises(ScriptError, match="1 of 4 replies left"):
        model.assert_done()
    assert (await agent.call("4")).text == "Four."
    model.assert_done()


def test_a_function_has_no_end_to_add_to() -> None:
    """A model that a function answers for refuses more lines, with what to write."""
    with pytest.raises(UsageError, match=r"ScriptedModel\(\[\.\.\.\]\)"):
        ScriptedModel(lambda request: "yes").add("no")
