"""`EventLog`: one line per event, whatever was said in it; JSON where wanted; and a run never suffers from it."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from clocks import JumpingClock
from eventlog import streamed, use
from loguru import logger
from wired import Wired

from agentflow import Agent, CallEnded, Deny, ModelChunk, PostActing, PreActing, PreReasoning, Usage, on, tool
from agentflow._support.shown import controls
from agentflow.errors import ModelError, UsageError
from agentflow.plugins.logging import EventLog
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, UseTool, WireUsage
from agentflow.vocabulary.events import Event


@tool(type="read")
async def look(place: int = 0) -> str:
    """Look at a place."""
    return f"place {place}"


class Sink(list[Any]):
    """What a loguru sink was given."""

    @property
    def lines(self) -> list[str]:
        """Level and message; times are left out."""
        return [f"{m.record['level'].name} {re.sub(r'ms=[0-9.]+', 'ms=*', m.record['message'])}" for m in self]


@pytest.fixture
def sink() -> Iterator[Sink]:
    """A sink for everything, beside existing ones."""
    found = Sink()
    number = logger.add(found.append, level=0, format="{message}", filter=lambda record: "event" in record["extra"])
    yield found
    logger.remove(number)


def billed() -> list[Any]:
    return [use("t1", "look", place=1), ModelChunk(usage=Usage(30, 5, cost=0.0012))]


RUN = [
    'INFO a PreCall input="Look \\"there\\"." history=0',
    "DEBUG a#1 PreReasoning model=scripted messages=1 tools=1",
    'INFO a#1 PostReasoning calls="look({\\"place\\":1})" finish=tool_calls input_tokens=30 output_tokens=5 cost=0.0012 ms=*',
    'DEBUG a#1 PreToolRound calls="look({\\"place\\":1})"',
    'INFO a#1 PreActing tool=look id=t1 input="{\\"place\\":1}"',
    'INFO a#1 PostActing tool=look id=t1 state=success result="place 1" ms=*',
    'DEBUG a#1 PostToolRound results="look success"',
    "DEBUG a#2 PreReasoning model=scripted messages=3 tools=1",
    "INFO a#2 PostReasoning text=Nothing. finish=stop input_tokens=0 output_tokens=0 ms=*",
    "DEBUG a#2 PostCall outcome=completed text=Nothing. ms=*",
    "INFO a#2 CallEnded outcome=completed model_calls=2 input_tokens=30 output_tokens=5 cost=0.0012 ms=*",
]


async def test_a_run_is_one_line_per_event(sink: Sink) -> None:
    """What a reader of the log sees of a call; a streamed call is logged the same, without its chunks."""
    script = [[*billed(), ModelChunk(finish_reason="tool_calls")], "Nothing."]

    def agent() -> Agent:
        return Agent("a", ScriptedModel(script), tools=[look], hooks=[EventLog()], clock=JumpingClock())

    await agent().call('Look "there".')
    assert sink.lines == RUN
    sink.clear()
    await streamed(agent(), 'Look "there".')
    assert sink.lines == RUN


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_json_over_the_wire(wired: Wired, sink: Sink, how: str) -> None:
    """Each line is a JSON object that says who, where and what; tokens are the provider's own."""
    usage = WireUsage(input=100, output=50)
    async with wired.serve([UseTool("look", {"place": 3}, usage=usage), Say("Place three.", usage=usage)]) as server:
        agent = Agent("a", wired.model(server), tools=[look], hooks=[EventLog(json=True)])
        if how == "call":
            await agent.call("Look.", session="ada")
        else:
            async with agent.stream("Look.", session="ada") as events:
                assert [event async for event in events][-1].outcome == "completed"
    told = [json.loads(message.record["message"]) for message in sink]
    assert [one["event"] for one in told] == [line.split()[2] for line in RUN]
    assert {(one["agent"], one["source"], one["session_id"]) for one in told} == {("a", "", "ada")}
    assert len({one["call_id"] for one in told}) == 1
    assert [one["seq"] for one in told] == sorted(one["seq"] for one in told)
    assert told[5]["result"] == "place 3"
    assert (told[-1]["input_tokens"], told[-1]["output_tokens"], told[-1]["model_calls"]) == (200, 100, 2)
    assert {message.record["extra"]["session_id"] for message in sink} == {"ada"}


async def test_what_went_wrong_is_raised(sink: Sink) -> None:
    """Denied and failing tools are warnings, and name the hook and the reason; a failed call is an error."""

    @tool(type="read")
    async def fall() -> str:
        """Fall."""
        raise ValueError("off the\nladder")

    @on(PreActing, tools=["look"])
    def guard(event: PreActing) -> Deny:
        return Deny("closed today")

    script = [[use("t1", "look"), use("t2", "fall")], ModelError("gone", retryable=False)]
    agent = Agent("a", ScriptedModel(script), tools=[look, fall], hooks=[guard, EventLog()], clock=JumpingClock())
    with pytest.raises(ModelError):
        await agent.call("Go")
    assert [line for line in sink.lines if not line.startswith(("DEBUG", "INFO a#1 Post", "INFO a Pre"))] == [
        'INFO a#1 PreActing tool=look id=t1 input={} verdict=Deny by=guard reason="closed today"',
        'WARNING a#1 PostActing tool=look id=t1 state=denied result="Denied: closed today" ms=*',
        "INFO a#1 PreActing tool=fall id=t2 input={}",
        'WARNING a#1 Error phase=acting fatal=false error="ValueError: off the\\nladder" tool=fall',
        'WARNING a#1 PostActing tool=fall id=t2 state=error result="ValueError: off the\\nladder" ms=*',
        'ERROR a#2 Error phase=reasoning fatal=true error="ModelError: gone"',
        'ERROR a#2 CallEnded outcome=failed error="ModelError: gone" model_calls=1 input_tokens=0 output_tokens=0 ms=*',
    ]


async def test_nothing_that_is_said_can_forge_a_line(sink: Sink) -> None:
    """Line breaks, terminal codes and braces in a user's text stay inside their value; long values are truncated."""
    text = "one\nINFO a CallEnded {x} <red>\x1b[31m\u2028\x9b " + "y" * 300
    await Agent("a", ScriptedModel(["Fine."]), hooks=[EventLog(only=[Event], clip=60)]).call(text)
    shown = next(message.record["message"] for message in sink if "PreCall" in message)
    assert shown == (
        'a PreCall input="one\\nINFO a CallEnded {x} <red>\\u001b[31m\\u2028\\u009b '
        + "y" * (60 - 38)
        + '… (338 characters)" history=0'
    )
    assert all(len(str(message).rstrip("\n").splitlines()) == 1 for message in sink)


@pytest.mark.parametrize("as_json", [False, True])
async def test_no_line_holds_a_control_character(sink: Sink, as_json: bool) -> None:
    """Neither readable lines nor JSON have any, whatever their origin: a model, a tool, a hook, or an agent's name."""
    steer = "a\x1b]52;c;eA==\x07\x9b2J\r\x7f\u202e\U000e0041"

    @tool
    async def look(x: str) -> str:
        """Look."""
        raise ValueError(steer)

    @on("before_each_tool", tools=["other*"])
    def veto(event: Any) -> Deny:
        return Deny(steer)

    model = ScriptedModel([[steer, use("t1", "look", x=steer), use("t2", "other" + steer)], ModelError(steer)])
    agent = Agent(
        steer, model, tools=[look], hooks=[veto, EventLog(only=[Event], json=as_json, chunks=True, clip=9_999)]
    )
    with pytest.raises(ModelError):
        await agent.call(steer, session="s")
    lines = [message.record["message"] for message in sink]
    assert [line for line in lines if controls().search(line)] == []
    assert "".join(lines).count("]52;c;eA==") > 20
    if as_json:
        assert [json.loads(line)["agent"] for line in lines] == [steer] * len(lines)


async def test_sub_agents_are_shown_with_their_path(sink: Sink) -> None:
    """The helper's lines say that they are the helper's; without `tree` there are none."""

    def family(log: EventLog) -> Agent:
        helper = Agent("helper", ScriptedModel(["Here."]), description="Helps.")
        return Agent("boss", ScriptedModel([use("b1", "helper", message="Help"), "Over."]), tools=[helper], hooks=[log])

    await family(EventLog(only=[CallEnded])).call("Go")
    await family(EventLog(only=[CallEnded], scope="own")).call("Go")
    assert [line.split()[1] for line in sink.lines] == ["helper#1", "boss#2", "boss#2"]
    assert [message.record["extra"]["source"] for message in sink] == ["helper", "", ""]


async def test_levels_and_events_can_be_chosen(sink: Sink) -> None:
    """A level that was set is final; None turns an event off; a base class includes all below it."""
    log = EventLog(levels={Event: None, PostActing: "TRACE", PreReasoning: "SUCCESS"})
    agent = Agent("a", ScriptedModel([use("t1", "nothing"), "Fine."]), hooks=[log])
    await agent.call("Go")
    assert [" ".join(line.split()[:3]) for line in sink.lines] == [
        "SUCCESS a#1 PreReasoning",
        "TRACE a#1 PostActing",
        "SUCCESS a#2 PreReasoning",
    ]


async def test_the_end_tells_how_long_the_call_took(sink: Sink) -> None:
    """Even where nothing but the end is logged."""
    await Agent("a", ScriptedModel(["Fine."]), hooks=[EventLog(only=[CallEnded])]).call("Go")
    assert sink.lines == ["INFO a#1 CallEnded outcome=completed model_calls=1 input_tokens=0 output_tokens=0 ms=*"]


async def test_pieces_are_logged_on_request_only(sink: Sink) -> None:
    """By default the chunks of a reply are not even built for the log."""
    assert "ReasoningChunk" not in Agent("a", ScriptedModel([]), hooks=[EventLog()], default_hooks=()).hooks.describe()
    await Agent("a", ScriptedModel([["Hel", "lo"]]), hooks=[EventLog(chunks=True)]).call("Go")
    assert [line for line in sink.lines if "Chunk" in line] == [
        "DEBUG a#1 ReasoningChunk text=Hel",
        "DEBUG a#1 ReasoningChunk text=lo",
        "DEBUG a#1 ReasoningChunk",
    ]


@pytest.mark.filterwarnings("ignore")
async def test_a_sink_that_fails_harms_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether loguru catches the sink's exception or not: the reply is the same as without a log."""

    def full(message: Any) -> None:
        if "event" in message.record["extra"]:
            raise OSError("disk full")

    for catch in (True, False):
        number = logger.add(full, level=0, catch=catch)
        try:
            reply = await Agent(
                "a", ScriptedModel([use("t1", "look"), "Fine."]), tools=[look], hooks=[EventLog()]
            ).call("Go")
        finally:
            logger.remove(number)
        assert (reply.outcome, reply.text) == ("completed", "Fine.")


async def test_what_cannot_be_shown_harms_nothing(sink: Sink) -> None:
    """A tool's chunk that raises when it is printed is shown as its type."""

    class Shy:
        def __str__(self) -> str:
            raise RuntimeError("no")

        def __repr__(self) -> str:
            raise RuntimeError("no")

    @tool(type="read")
    async def shy() -> Any:
        """Hand out something."""
        yield Shy()
        yield "fine"

    agent = Agent("a", ScriptedModel([use("t1", "shy"), "Fine."]), tools=[shy], hooks=[EventLog(chunks=True)])
    await agent.call("Go")
    assert next(line for line in sink.lines if "ActingChunk" in line) == (
        'DEBUG a#1 ActingChunk tool=shy id=t1 chunk="(Shy without a readable text)"'
    )


async def test_fifty_runs_share_one_log(sink: Sink) -> None:
    """Fifty runs at once on two agents: each line is bound to its own run."""
    log = EventLog(only=[CallEnded])
    agents = [Agent(name, ScriptedModel(lambda request: "Fine."), hooks=[log]) for name in ("a", "b")]
    await asyncio.gather(*[agents[n % 2].call("Go", session=f"s{n}") for n in range(50)])
    assert len({message.record["extra"]["run_id"] for message in sink}) == 50
    assert sorted(message.record["message"].split("#")[0] for message in sink) == sorted(
        f"{'ab'[n % 2]} s{n}" for n in range(50)
    )


async def test_a_logger_of_ones_own(sink: Sink) -> None:
    """What was bound to it is on each record."""
    await Agent("a", ScriptedModel(["Fine."]), hooks=[EventLog(log=logger.bind(service="desk"))]).call("Go")
    assert {message.record["extra"]["service"] for message in sink} == {"desk"}


@pytest.mark.parametrize("wrong", [{"clip": 0}, {"levels": {CallEnded: "LOUD"}}])
def test_options_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    """When built, and not when the first line is to be written."""
    with pytest.raises(UsageError):
        EventLog(**wrong)
