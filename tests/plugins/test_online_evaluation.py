"""`OnlineEvaluation`: a share of the calls is evaluated beside the runs, within limits, at its own cost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from agentflow import Agent, ModelChunk, Suspend, ToolUseBlock, Usage, on, process_hooks, tool
from agentflow.errors import ModelError, UsageError
from agentflow.models import ModelRequest
from agentflow.plugins import OnlineEvaluation
from agentflow.plugins.evaluation import Judge, StaysWithin, Trial, UsesTools
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Say, ScriptedCall, WireReply, WireRequest
from agentflow.vocabulary.events import PreActing
from tests.conftest import Wired


@tool(type="read")
async def look(place: int) -> str:
    """Look at a place."""
    return f"place {place}"


def brain(request: ModelRequest) -> Any:
    if request.messages[-1].text == "down":
        return ModelError("overloaded")
    if request.messages[-1].role == "tool":
        return ["Seen.", ModelChunk(usage=Usage(10, 5, cost=0.01))]
    return [ToolUseBlock("t1", "look", {"place": 3}), ModelChunk(usage=Usage(10, 5, cost=0.01))]


def judging(answer: str) -> Judge:
    return Judge("It is right.", ScriptedModel(lambda request: [answer, ModelChunk(usage=Usage(7, 3, cost=0.5))]))


async def test_the_calls_of_a_share_are_evaluated_after_they_ended() -> None:
    """What a call did alone, without earlier calls of the session; the judge's cost is the plugin's, not the run's."""
    results: list[Trial] = []
    checks = [UsesTools(["look"]), StaysWithin(rounds=2, cost=0.02), judging('{"meets": false, "reason": "No."}')]
    online = OnlineEvaluation(checks, share=1, on_result=results.append)
    agent = Agent("seer", ScriptedModel(brain), tools=[look], hooks=[online], default_hooks=())
    async with online:
        replies = [await agent.call("one"), await agent.call("two")]
        with pytest.raises(ModelError):
            await agent.call("down")
    assert [(trial.case.input, trial.text, trial.failures, trial.errors) for trial in results] == [
        ("one", "Seen.", ("It is right. No.",), ()),
        ("two", "Seen.", ("It is right. No.",), ()),
        ("down", "", ("ModelError: overloaded",), ()),
    ]
    assert [reply.usage.cost for reply in replies] == [0.02, 0.02]
    assert (online.evaluated, online.dropped, online.usage.cost) == (3, 0, 1.0)


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.25, 60, 140), (1.0, 400, 400)])
async def test_the_share_is_chosen_by_the_run(share: float, least: int, most: int) -> None:
    """About the requested share, and the same runs for another instance."""
    chosen: list[list[str]] = [[], []]

    def kept(place: list[str]) -> Any:
        return lambda trial: place.append(trial.case.name)

    hooks = [OnlineEvaluation([len_of], share=share, on_result=kept(names), max_pending=500) for names in chosen]
    agent = Agent("a", ScriptedModel(lambda request: "3"), hooks=hooks)
    async with hooks[0], hooks[1]:
        for _ in range(400):
            await agent.call("x")
    assert least <= len(chosen[0]) <= most
    assert sorted(chosen[0]) == sorted(chosen[1])


def len_of(trial: Trial) -> float:
    return len(trial.text)


async def test_a_run_does_not_wait_for_its_evaluation() -> None:
    """The reply is returned while a check waits; calls beyond the queue are dropped and counted."""
    release = asyncio.Event()
    results: list[Trial] = []

    async def slow(trial: Trial) -> None:
        await release.wait()

    online = OnlineEvaluation([slow], share=1, on_result=results.append, concurrency=1, max_pending=2)
    agent = Agent("a", ScriptedModel(lambda request: "3"), hooks=[online])
    async with online:
        for n in range(5):
            assert (await agent.call(str(n))).text == "3"
        assert (online.evaluated, online.dropped, results) == (0, 2, [])
        release.set()
    assert ([trial.case.input for trial in results], online.evaluated, online.dropped) == (["0", "1", "2"], 3, 2)


async def test_limits_of_time() -> None:
    """An evaluation that takes too long is an error, also if its check swallows the cancellation; the block waits only for
    the grace period."""
    results: list[Trial] = []

    async def hang(trial: Trial) -> None:
        await asyncio.Event().wait()

    async def swallow(trial: Trial) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    agent = Agent("a", ScriptedModel(lambda request: "3"))
    for check in (hang, swallow):
        online = OnlineEvaluation([check], share=1, on_result=results.append, timeout=0.01)
        async with online:
            await agent.call("x", hooks=[online])
    late = (False, ("the evaluation took longer than 0.01 s",))
    assert [(trial.passed, trial.errors) for trial in results] == [late, late]
    results.clear()
    short = OnlineEvaluation([hang], share=1, on_result=results.append, grace=0.01, concurrency=1)
    async with short:
        for _ in range(3):
            await agent.call("x", hooks=[short])
    assert (results, short.evaluated, short.dropped) == ([], 0, 3)
    await agent.call("x", hooks=[short])
    assert short.dropped == 4


async def test_calls_that_are_not_evaluated() -> None:
    """A suspended call, those of judges though the hook is the process's, and a result whose report fails."""

    @on(PreActing)
    def ask(event: PreActing) -> Suspend:
        return Suspend("money")

    reported = asyncio.Event()

    def broken(trial: Trial) -> None:
        reported.set()
        raise KeyError("x")

    online = OnlineEvaluation([judging('{"meets": true, "reason": ""}')], share=1, on_result=broken)
    agent = Agent("seer", ScriptedModel(brain), tools=[look])
    async with online:
        with process_hooks.hook(online):
            assert (await agent.call("one", hooks=[ask], session="s")).outcome == "suspended"
            await agent.call("two")
            await reported.wait()
    assert (online.evaluated, online.dropped) == (1, 0)


async def test_a_judge_that_answers_nonsense_is_an_error() -> None:
    """Never a pass."""
    results: list[Trial] = []
    online = OnlineEvaluation([judging("Excellent!")], share=1, on_result=results.append)
    async with online:
        await Agent("a", ScriptedModel(["3"]), hooks=[online]).call("x")
    assert [(trial.passed, "OutputError" in trial.errors[0]) for trial in results] == [(False, True)]


async def test_calls_of_other_threads() -> None:
    """A call in another event loop is evaluated in that of the block."""
    online = OnlineEvaluation([len_of], share=1)
    agent = Agent("a", ScriptedModel(lambda request: "3"), hooks=[online])
    async with online:
        thread = threading.Thread(target=lambda: agent.call("x").block())
        thread.start()
        await asyncio.to_thread(thread.join)
    assert (online.evaluated, online.dropped) == (1, 0)


async def test_over_a_wire(wired: Wired) -> None:
    """Providers accept the requests of the agent and the judge; the judge's usage is counted separately."""

    def script(request: WireRequest) -> WireReply:
        if "<answer>" in str(request.messages[-1]):
            if request.body.get("tools"):
                return WireReply(calls=(ScriptedCall(request.tools[-1], {"meets": True, "reason": "ok"}),))
            return Say('{"meets": true, "reason": "ok"}')
        asked = any(message["role"] == "assistant" for message in request.messages)
        return Say("Seen.") if asked else WireReply(calls=(ScriptedCall("look", {"place": 1}),))

    results: list[Trial] = []
    async with wired.serve(script) as server:
        judge = Judge("It is right.", wired.model(server))
        online = OnlineEvaluation([judge, UsesTools(["look"])], share=1, on_result=results.append)
        agent = Agent("seer", wired.model(server), tools=[look], hooks=[online])
        async with online:
            reply = await agent.call("Look")
    assert [(trial.passed, trial.errors) for trial in results] == [(True, ())]
    assert (reply.usage.model_calls, online.usage.model_calls) == (2, 1)


async def test_wrong_arguments() -> None:
    """What cannot be meant is refused."""
    for options, text in (
        ({"checks": []}, "has no checks"),
        ({"share": 1.5}, "must be from 0 to 1"),
        ({"share": float("nan")}, "must be from 0 to 1"),
        ({"max_pending": 0}, "max_pending=0 must be at least 1"),
    ):
        with pytest.raises(UsageError, match=text):
            OnlineEvaluation(**{"checks": [len_of], **options})  # pyright: ignore[reportArgumentType]
    online = OnlineEvaluation([len_of])
    async with online:
        with pytest.raises(UsageError, match="is open already"):
            async with online:
                pass
