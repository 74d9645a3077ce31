"""A hook raises on any event: the call ends once, every tool call has its result, and the conversation continues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from eventlog import Recorder, history, sent, streamed, use
from toolbox import ONE, agent_of, look, looks

from agentflow import Agent, Hook, PostCall, PreActing, PreToolRound, before_each_tool, before_tool_round, on_complete
from agentflow.loop.history import fold_events
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import EVENT_TYPES, CallEnded, TurnEvent
from agentflow.vocabulary.transcript import Transcript


async def test_an_exception_before_a_tool_leaves_a_conversation_that_goes_on() -> None:
    """The call fails with the hook's own exception; every call has a result, and the next call works."""

    @before_each_tool
    def forbid(event: PreActing) -> None:
        raise PermissionError("forbidden")

    agent = agent_of([[*ONE, use("t2", "delete", path="x")], "Sorry."], forbid)
    with pytest.raises(PermissionError, match="forbidden"):
        await agent.call("go")
    results = agent.session().messages[2].tool_results
    assert [result.tool_use_id for result in results] == ["t1", "t2"]
    agent.remove(forbid)
    assert (await agent.call("And now?")).text == "Sorry."


async def test_an_exception_before_a_round_leaves_a_conversation_that_goes_on() -> None:
    """The same holds for the whole round: no call is left without a result."""

    @before_tool_round
    def cancelled(event: PreToolRound) -> None:
        raise RuntimeError("the user said no")

    agent = agent_of([ONE, "Sorry."], cancelled)
    with pytest.raises(RuntimeError, match="the user said no"):
        await agent.call("go")
    agent.remove(cancelled)
    assert (await agent.call("And now?")).text == "Sorry."
    assert [line.split(":")[0] for line in sent(agent, 1)][:3] == ["user", "assistant", "tool"]


async def test_a_hook_that_raises_at_the_end_leaves_the_agent_usable() -> None:
    """The caller gets the exception of `on_complete`; the call has ended, and the next one works."""
    first = True

    @on_complete
    def once(event: PostCall) -> None:
        nonlocal first
        if first:
            first = False
            raise RuntimeError("at the end")

    agent = agent_of(["1", "2"], once)
    with pytest.raises(RuntimeError, match="at the end"):
        await agent.call("go")
    assert (await agent.call("go")).text == "2"


async def test_a_failing_wrapper_of_parallel_tools() -> None:
    """A wrapper that fails for one of three parallel tools is that tool's failure: there is no ExceptionGroup,
    siblings run, each call has a result, and the call ends once.
    """

    class Breaks(Hook):
        def around(self, event: Any, source: Any) -> Any:
            if isinstance(event, PreActing) and event.tool_use.id == "t2":
                return source.map(lambda result: 1 / 0)
            return source

    calls = [use(f"t{n}", "add", a=n, b=n) for n in (1, 2, 3)]
    lines = await streamed(agent_of([calls, "end"], Breaks()))
    assert [line for line in lines if line.startswith(("PostToolRound", "CallEnded"))] == [
        "PostToolRound t1 success '2'; t2 error 'ZeroDivisionError: division by zero'; t3 success '6'",
        "CallEnded completed",
    ]


RUN_EVENTS = [kind for kind in EVENT_TYPES if not issubclass(kind, TurnEvent)]


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", RUN_EVENTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("watched", [False, True], ids=["call", "stream"])
async def test_a_hook_that_raises_on_any_event(kind: type, watched: bool, later: bool) -> None:
    """A hook raises on any event, called or streamed: one CallEnded, no task left, a legal history that equals the
    fold of the events, the hook's own error or none, and the next call works.
    """

    class Bad(Hook):
        broken = True

        def on_event(self, event: Any) -> Any:
            if isinstance(event, kind) and self.broken:
                return self.fail() if later else self.now()
            return event

        def now(self) -> None:
            raise ValueError("hook broke")

        async def fail(self) -> None:
            await asyncio.sleep(0)
            raise ValueError("hook broke")

    recorder, bad = Recorder(), Bad()
    raised: list[str] = []
    agent = Agent(
        "a", ScriptedModel([looks("a", "b"), looks("c"), "x", "y", "z", "zz"]), tools=[look], hooks=[bad, recorder]
    )
    try:
        if watched:
            async for _ in agent.stream("go"):
                pass
        else:
            await agent.call("go")
    except ValueError as error:
        raised = [str(error), *error.__notes__]
    assert raised in ([], ["hook broke", f"raised by hook Bad (priority 100) on {kind.__name__}"])
    assert [type(event) for event in recorder.seen].count(CallEnded) == 1
    assert isinstance(recorder.seen[-1], CallEnded)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert history(fold_events(recorder.seen)) == history(agent.session())
    bad.broken = False
    assert (await agent.call("next")).outcome == "completed"
    Transcript(agent.session().messages)
