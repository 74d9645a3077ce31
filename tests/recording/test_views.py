"""A run log as calls, rounds and tool calls, and the comparison of two: each value, whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agentflow import (
    Agent,
    Answer,
    Deny,
    Msg,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    ToolUseBlock,
    on,
    tool,
)
from agentflow._support.virtual_time import run_virtual
from agentflow.hooks.hook import Hook
from agentflow.recording import RunLog
from agentflow.recording.diffing import Difference, RunDiff, calls_of, diff_runs, paired_events
from agentflow.recording.entries import EventEntry
from agentflow.recording.recorder import Recorder
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import Usage
from tests.support.clocks import LoopClock

ROUND = Usage(input_tokens=5, output_tokens=2, model_calls=1)


class Slow:
    """A model that needs two seconds for each reply."""

    name = "slow"

    def __init__(self, *script: Any) -> None:
        self._scripted = ScriptedModel([[*reply, ModelChunk(usage=ROUND)] for reply in script])

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        await asyncio.sleep(2)
        async for chunk in self._scripted.stream(request):
            yield chunk


@tool
async def look(x: int) -> str:
    """Look, for three seconds."""
    await asyncio.sleep(3)
    return f"result {x}"


@tool
async def price(x: int) -> str:
    """Report a price."""
    return f"{x} cents"


@on
def closes(_event: PreCall) -> Deny:
    return Deny("closed")


@on
def answers(_event: PreReasoning) -> Answer:
    return Answer(Msg.assistant("canned"))


@on
def greets(event: PreCall) -> None:
    event.input_messages = (Msg.user("hello"),)


@on
def terse(event: PreReasoning) -> None:
    event.input_messages = (*event.input_messages, Msg.user("Be brief."))


@on
def doubles(event: PreActing) -> None:
    event.tool_use = event.tool_use.replace(input={"x": event.tool_use.input["x"] * 2})


@on(guard=True)
def bounds(event: PreActing) -> Deny | None:
    return Deny("too much") if event.tool_use.input["x"] > 9 else None


@on
def shouts(event: PostReasoning) -> None:
    if event.reasoning_result.text:
        event.reasoning_result = Msg.assistant(event.reasoning_result.text.upper(), id=event.reasoning_result.id)


def recorded(uses: list[ToolUseBlock], answer: str, *hooks: Hook) -> RunLog:
    """The log of a run of two rounds."""
    recorder = Recorder()
    agent = Agent("clerk", Slow(uses, [answer]), tools=[look, price], hooks=[*hooks, recorder], clock=LoopClock())

    async def run() -> None:
        await agent.call("go")

    run_virtual(run())
    return recorder.log


def looks(*numbers: int) -> list[ToolUseBlock]:
    return [ToolUseBlock(f"t{n}", "look", {"x": x}) for n, x in enumerate(numbers, 1)]


def test_a_run_as_calls_rounds_and_tool_calls() -> None:
    """What was requested, answered, done and decided, by which hooks, and at what cost."""
    (call,) = calls_of(recorded(looks(1, 5), "done", greets, terse, doubles, bounds, shouts))
    first, second = call.parts
    asked = '[look {"x":1}] [look {"x":5}]'
    assert (call.kind, call.name, call.hooks, call.usage, call.ended) == (
        "call",
        "clerk",
        ["greets"],
        ROUND + ROUND,
        True,
    )
    assert call.facts == {"input": "hello", "reply": "DONE", "end": "completed"}
    assert (first.name, first.hooks, first.usage) == ("1", ["terse"], ROUND)
    assert first.facts == {"request": ["user: hello", "user: Be brief."], "model": "slow", "reply": asked}
    assert [(tool.kind, tool.name, tool.hooks, tool.facts) for tool in first.parts] == [
        ("tool call", "look", ["doubles"], {"input": {"x": 2}, "result": "success: result 2"}),
        (
            *("tool call", "look", ["doubles", "bounds"]),
            {"input": {"x": 10}, "result": "denied: Denied: too much", "decided": "bounds returned Deny (too much)"},
        ),
    ]
    results = "tool: [look: success: result 2] [look: denied: Denied: too much]"
    request = ["user: hello", f"assistant: {asked}", results, "user: Be brief."]
    assert (second.name, second.hooks, second.usage, second.parts) == ("2", ["terse", "shouts"], ROUND, [])
    assert second.facts == {"request": request, "model": "slow", "reply": "DONE"}


def test_two_runs_compared() -> None:
    """All differences, in order of appearance, with the hooks of both; the reverse comparison is the mirror image."""
    one, other = recorded(looks(1, 5), "done", greets, doubles, bounds), recorded(looks(2, 3, 1), "Done.", terse)
    call, first, second = "call of clerk", "call of clerk, round 1", "call of clerk, round 2"
    hooks, acting, third = ("terse",), ("doubles", "bounds"), f"{first}, look"
    asked = ('[look {"x":1}] [look {"x":5}]', '[look {"x":2}] [look {"x":3}] [look {"x":1}]')
    values: list[tuple[str, str, Any, Any, tuple[str, ...]]] = [
        (call, "input", "hello", "go", ("greets",)),
        (first, "request", "user: hello", "user: go", hooks),
        (first, "reply", *asked, hooks),
        (third, "input", {"x": 10}, {"x": 3}, acting),
        (third, "decided", "bounds returned Deny (too much)", None, acting),
        (third, "result", "denied: Denied: too much", "success: result 3", acting),
        (third, "tool call", None, "look {'x': 1}", ()),
        (second, "request", "user: hello", "user: go", hooks),
        (second, "reply", "done", "Done.", hooks),
        (call, "reply", "done", "Done.", ("greets",)),
    ]
    usage, rounds = (ROUND + ROUND, ROUND + ROUND), (2, 2)

    def difference(where: str, what: str, a: Any, b: Any, by: tuple[str, ...]) -> Difference:
        return Difference(where=where, what=what, one=a, other=b, hooks=by)

    there = tuple([difference(where, what, a, b, by) for where, what, a, b, by in values])
    back = tuple([difference(where, what, b, a, by) for where, what, a, b, by in values])
    assert diff_runs(one, other) == RunDiff(differences=there, usage=usage, rounds=rounds)
    assert diff_runs(other, one) == RunDiff(differences=back, usage=usage, rounds=rounds)
    assert diff_runs(one, one).differences == ()


def test_what_hooks_decide() -> None:
    """A decision is listed with its subject, and with its reason if that is a text, and stays there until the end."""
    denied, answered = recorded([], "done", closes), recorded([], "done", answers)
    (deny,), (answer,) = calls_of(denied), calls_of(answered)
    assert (deny.facts["decided"], deny.facts["end"], deny.parts) == ("closes returned Deny (closed)", "denied", [])
    assert answer.facts["reply"] == "canned"
    assert [each.facts["decided"] for each in answer.parts] == ["answers returned Answer"]
    assert diff_runs(answered, denied).rounds == (1, 0)
    assert diff_runs(denied, answered).rounds == (0, 1)


def test_the_events_of_two_runs_side_by_side() -> None:
    """Each event with its counterpart; those of a tool call that only one run has are alone. No event is lost or
    repeated.
    """
    one = recorded(looks(1), "done")
    other = recorded([*looks(1), ToolUseBlock("p", "price", {"x": 1})], "done")
    pairs = paired_events(one, other)

    def shown(log: RunLog, event: EventEntry | None) -> str | None:
        if event is None or "tool_use" not in event.fields:
            return event and event.type
        return f"{event.type} {log.tool_use(event.fields['tool_use']).name}"

    told = [(shown(one, a), shown(other, b)) for a, b in pairs]
    assert [pair for pair in told if pair[0] != pair[1]] == [(None, "PreActing price"), (None, "PostActing price")]
    for side, log in enumerate((one, other)):
        assert [pair[side] for pair in pairs if pair[side] is not None] == list(log.events())
