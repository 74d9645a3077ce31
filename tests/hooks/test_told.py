"""The events that hooks get: when, in which order, and with what content."""

from __future__ import annotations

import asyncio
import random
from contextvars import ContextVar
from typing import Any

import pytest
from eventlog import Recorder, streamed, use
from toolbox import ONE, agent_of, delete, submit

from agentflow import (
    Again,
    Agent,
    CallEnded,
    Deny,
    Error,
    Hook,
    ModelChunk,
    PostActing,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreReasoning,
    PreToolRound,
    ToolSchedule,
    after_each_tool,
    after_llm,
    after_tool_round,
    before_each_tool,
    on,
    on_error,
    tool,
)
from agentflow.errors import ModelError
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.chunks import ToolUseDelta
from agentflow.vocabulary.events import ReasoningChunk


async def test_an_unknown_tool_is_shown_to_hooks() -> None:
    """A call of an unknown tool fires Pre and Post events like any other, and can be answered."""
    seen: list[str] = []
    before = before_each_tool(lambda event: seen.append(f"before {event.tool_use.name}"))
    after = after_each_tool(lambda event: seen.append(f"after {event.tool_result.state}"))
    await agent_of([[use("t1", "fly")], "end"], before, after).call("go")
    assert seen == ["before fly", "after not_found"]


async def test_malformed_arguments_are_shown_as_such_and_the_tool_does_not_run() -> None:
    """A hook sees that the arguments could not be read; the model reads the error, and the tool does not run."""
    ran: list[str] = []
    seen: list[bool] = []

    @tool
    async def wipe(path: str = "/") -> str:
        """Wipe."""
        ran.append(path)
        return "wiped"

    note = before_each_tool(lambda event: seen.append(bool(event.tool_use.input_error)))
    broken = ModelChunk(tool_uses=(ToolUseDelta(0, "t1", "wipe", '{"path": "/tm'),))
    agent = agent_of([[broken], "end"], note, tools=[wipe])
    assert (await agent.call("go")).text == "end"
    assert (ran, seen, agent.session().messages[2].tool_results[0].state) == ([], [True], "error")


async def test_error_hooks_hear_of_failures_and_not_of_vetoes() -> None:
    """A failing tool and a failing model are errors; a veto is a verdict, not an error."""
    heard: list[str] = []

    @on_error
    def hear(event: Error) -> None:
        heard.append(f"{event.phase.value} {event.error}")

    @tool
    async def breaks() -> str:
        """Break."""
        raise ValueError("broken")

    veto = before_each_tool(lambda event: Deny("no"), tools=["delete"])
    script = [[use("t1", "breaks"), use("t2", "delete", path="x")], ModelError("down")]
    with pytest.raises(ModelError):
        await agent_of(script, hear, veto, tools=[breaks, delete]).call("go")
    assert heard == ["acting broken", "reasoning down"]


async def test_a_failing_model_is_reported_and_the_call_ended() -> None:
    """A model that fails in the middle of its stream: `Error` has the phase and is fatal, `CallEnded` is last, and
    the caller gets the original exception.
    """
    down, recorder = ModelError("gone"), Recorder()
    agent = agent_of([["half", down], "Hello."], recorder)
    with pytest.raises(ModelError) as caught:
        await agent.stream("go").to_list()
    assert caught.value is down
    error, ended = recorder.seen[-2:]
    assert isinstance(error, Error)
    assert isinstance(ended, CallEnded)
    assert (error.phase.value, error.fatal, ended.outcome, ended.error) == ("reasoning", True, "failed", down)
    assert (await agent.call("Hi")).text == "Hello."


async def test_a_result_that_says_error_is_no_error() -> None:
    """The state of a result is a field: a tool may return any text."""

    @tool(type="read")
    async def log_file() -> str:
        """Read."""
        return "[ERROR] disk full"

    states: list[str] = []
    note = after_each_tool(lambda event: states.append(event.tool_result.state))
    agent = agent_of([[use("t1", "log_file"), use("t2", "gone")], "end"], note, tools=[log_file])
    await agent.call("go")
    assert states == ["success", "not_found"]


async def test_a_round_hook_fires_for_rounds_only() -> None:
    """Two rounds and a final answer: the hook fires twice; and not at all for an answer without tools."""
    rounds: list[int] = []
    note = after_tool_round(lambda event: rounds.append(event.iteration))
    await agent_of([ONE, [use("t2", "add", a=1, b=1)], "end"], note).call("go")
    await agent_of(["end"], note).call("go")
    assert rounds == [1, 2]


async def test_asking_again_keeps_the_pairs_of_other_hooks() -> None:
    """A hook that counts Pre and Post events finds them paired if another hook asks the model again."""
    depth: list[int] = []
    open_calls = 0

    @on(PreReasoning, PreToolRound, PreActing, priority=1)
    def opens(event: Any) -> None:
        nonlocal open_calls
        open_calls += 1

    @on(PostReasoning, PostToolRound, PostActing, priority=900)
    def closes(event: Any) -> None:
        nonlocal open_calls
        open_calls -= 1
        depth.append(open_calls)

    @after_llm
    def back(event: PostReasoning) -> Again | None:
        return Again("Look first.") if event.iteration == 1 else None

    agent = agent_of([ONE, [use("t2", "add", a=1, b=1)], "end"], opens, closes, back)
    assert (await agent.call("go")).text == "end"
    assert (depth, open_calls) == ([0, 0, 1, 0, 0], 0)


WHO: ContextVar[str] = ContextVar("who", default="nobody")


async def test_hooks_of_three_parallel_tools() -> None:
    """Three parallel tools: three Pre and three Post, and the context variable is visible in each hook and tool."""
    seen: list[str] = []

    @tool(type="read")
    async def who() -> str:
        """Who."""
        await asyncio.sleep(0)
        return WHO.get()

    class Sees(Hook):
        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            await asyncio.sleep(0)
            if isinstance(event, PreActing | PostActing):
                seen.append(f"{type(event).__name__} {WHO.get()}")
            return event

    WHO.set("me")
    agent = Agent("a", ScriptedModel([[use(f"t{i}", "who") for i in range(3)], "x"]), tools=[who], hooks=[Sees()])
    await agent.call("go")
    assert sorted(seen) == ["PostActing me"] * 3 + ["PreActing me"] * 3
    assert [result.text for result in agent.session().messages[2].tool_results] == ["me"] * 3


async def test_chunk_hooks_keep_the_order() -> None:
    """A chunk hook that waits at random keeps the order; one that raises is reported once and the run completes."""
    order: list[str] = []
    dice = random.Random(1)

    class Slow(Hook):
        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if isinstance(event, ReasoningChunk):
                for _ in range(dice.randrange(5)):
                    await asyncio.sleep(0)
                order.append(event.incremental_chunk.text)
            return event

    class Bad(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, ReasoningChunk):
                raise ValueError("bad")  # noqa: TRY004 - what a broken hook raises
            return event

    recorder = Recorder()
    agent = Agent("a", ScriptedModel([list("abcdefgh")]), hooks=[Bad(), Slow(), recorder])
    assert (await agent.call("go")).text == "abcdefgh"
    assert "".join(order) == "abcdefgh"
    assert [str(event.error) for event in recorder.seen if isinstance(event, Error)] == ["bad"]


async def test_before_and_after_events_are_as_many() -> None:
    """Vetoed, answered, unknown, malformed and failing calls have their `PostActing` too."""

    @on(PreActing)
    def deny(event: PreActing) -> Deny | None:
        return Deny("no") if event.tool_use.id == "t1" else None

    calls = [use("t1", "submit"), use("t2", "nothing"), use("t3", "submit", more=1), use("t4", "submit")]
    lines = await streamed(agent_of([calls, "ok"], deny, tools=[submit], schedule=ToolSchedule.SEQUENTIAL))
    acting = [line.split(":")[0].split(" ")[:2] for line in lines if "Acting " in line]
    assert acting == [[kind, f"t{i}"] for i in (1, 2, 3, 4) for kind in ("PreActing", "PostActing")]
