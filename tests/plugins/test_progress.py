"""`NoProgress`: repeated equal calls are noticed, reported to the model once, and then end the call."""

import asyncio
from typing import Any

import pytest
from eventlog import Recorder, history, streamed, use
from wired import Wired

from agentflow import Again, Agent, PostReasoning, ToolUseBlock, on, tool
from agentflow.errors import UsageError
from agentflow.plugins.progress import NoProgress
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, UseTool


@tool(type="read")
async def look(place: int = 0, deep: bool = False) -> str:
    """Look at a place."""
    return f"place {place}"


@tool(type="read")
async def wait_a_bit() -> str:
    """Wait."""
    return "not yet"


TOLD = (
    'You have asked for the same thing 3 times in a row: look({"place":1}). It will not give another result. Try '
    "something else, or answer with what you have."
)


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_loop_is_told_and_left_over_the_wire(wired: Wired, how: str) -> None:
    """The third equal request is not run: the model reads why, and both wires accept the history."""
    script = [*[UseTool("look", {"place": 1}) for _ in range(3)], Say("I give up.")]
    async with wired.serve(script) as server:
        agent = Agent("a", wired.model(server), tools=[look], hooks=[NoProgress(repeats=3)])
        if how == "call":
            await agent.call("Look.")
        else:
            async with agent.stream("Look.") as events:
                assert [event async for event in events][-1].outcome == "completed"
    assert [msg.text for msg in agent.session().messages if msg.metadata.get("synthetic") == "no_progress"] == [
        TOLD.replace('{"place":1}', agent.session().messages[1].tool_uses[0].raw)
    ]
    assert history(agent.session())[-1] == "assistant: I give up."


async def test_a_loop_that_goes_on_is_stopped() -> None:
    """Two runs of the tool, one word to the model, and the end; the stopped reply names the calls. Call and stream agree."""
    script = [use(f"t{n}", "look", place=1) for n in range(4)]
    expected = [
        "PreCall user: go",
        "PreReasoning 1 reason",
        "PostReasoning [t0:look(place=1)]",
        "PreReasoning 2 reason",
        "PostReasoning [t1:look(place=1)]",
        "PreReasoning 3 reason",
        "PostReasoning [t2:look(place=1)] -> Again(NoProgress)",
        "PreReasoning 4 reason",
        "PostReasoning [t3:look(place=1)] -> Stop(NoProgress)",
        "PostCall stopped 'Stopped without progress: the same calls 4 times in a row: look({\"place\":1}).'",
        "CallEnded stopped",
    ]
    quiet = ("Reasoning", "Call")

    def of_interest(lines: list[str]) -> list[str]:
        return [line for line in lines if any(word in line.split()[0] for word in quiet) and "Chunk" not in line]

    recorder = Recorder()
    await Agent("a", ScriptedModel(script), tools=[look], hooks=[NoProgress(), recorder]).call("go")
    assert of_interest(recorder.log) == expected
    agent = Agent("a", ScriptedModel(script), tools=[look], hooks=[NoProgress()])
    assert of_interest(await streamed(agent)) == expected


async def outcome(script: list[Any], **options: Any) -> str:
    """How a run of a script ends under a guard."""
    guard = NoProgress(nudges=0, **options)
    agent = Agent("a", ScriptedModel([*script, "Done."]), tools=[look, wait_a_bit], hooks=[guard])
    return (await agent.call("go")).outcome


@pytest.mark.parametrize(
    ("script", "ends"),
    [
        pytest.param([use(f"t{n}", "look", place=1) for n in range(3)], "stopped", id="ids do not matter"),
        pytest.param(
            [
                ToolUseBlock.from_json(f"t{n}", "look", raw)
                for n, raw in enumerate(['{"place":1,"deep":true}', '{ "deep": true, "place": 1 }'] * 2)
            ],
            "stopped",
            id="order and blanks do not matter",
        ),
        pytest.param(
            [
                [use("a1", "look", place=1), use("a2", "look", place=2)],
                [use("b1", "look", place=2), use("b2", "look", place=1)],
                [use("c1", "look", place=1), use("c2", "look", place=2)],
            ],
            "stopped",
            id="a set of calls has no order",
        ),
        pytest.param(
            [ToolUseBlock.from_json(f"t{n}", "look", '{"place":') for n in range(3)], "stopped", id="broken arguments"
        ),
        pytest.param([use(f"t{n}", "look", place=n) for n in range(6)], "completed", id="other arguments are progress"),
        pytest.param(
            [use(f"t{n}", "look", place=place) for n, place in enumerate([1, 1, 2, 1, 1])],
            "completed",
            id="other calls between start over",
        ),
        pytest.param([use(f"t{n}", "nothing") for n in range(3)], "stopped", id="unknown tools too"),
        pytest.param([use(f"t{n}", "wait_a_bit") for n in range(5)], "completed", id="ignored tools may repeat"),
    ],
)
async def test_what_counts_as_the_same(script: list[Any], ends: str) -> None:
    """Names and arguments make two replies equal, and nothing else."""
    assert await outcome(script, ignore=["wait_*"]) == ends


async def test_an_answer_that_is_sent_back_for_ever_is_stopped() -> None:
    """Another hook rejects each answer, the model has no other: the third equal answer ends the call, and is its reply."""

    @on
    def never(event: PostReasoning) -> Again:
        return Again("No.")

    agent = Agent("a", ScriptedModel(["Forty-two."] * 3), hooks=[never, NoProgress()])
    reply = await agent.call("go")
    assert (reply.outcome, reply.text, reply.usage.model_calls) == ("stopped", "Forty-two.", 3)


async def test_other_calls_give_the_model_another_word() -> None:
    """A model that was warned, did something else, and then repeats itself again is warned again, and not stopped at
    once.
    """
    places = [1, 1, 1, 2, 1, 1, 1]
    script = [*[use(f"t{n}", "look", place=place) for n, place in enumerate(places)], "Done."]
    agent = Agent("a", ScriptedModel(script), tools=[look], hooks=[NoProgress()])
    assert (await agent.call("go")).outcome == "completed"
    assert [msg.text for msg in agent.session().messages].count(TOLD) == 2


async def test_each_run_counts_for_itself() -> None:
    """One instance, fifty concurrent runs on two agents, and the same session twice: only repetitions within one run
    count.
    """
    guard = NoProgress(repeats=2, nudges=0)

    def brain(request: Any) -> Any:
        return "Done." if request.messages[-1].role == "tool" else use("t", "look", place=1)

    agents = [Agent(name, ScriptedModel(brain), tools=[look], hooks=[guard]) for name in ("a", "b")]
    replies = await asyncio.gather(*[agents[n % 2].call("go", session=f"s{n % 25}") for n in range(50)])
    assert {reply.outcome for reply in replies} == {"completed"}


@pytest.mark.parametrize("wrong", [{"repeats": 1}, {"nudges": -1}])
def test_options_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    """A first reply repeats nothing."""
    with pytest.raises(UsageError):
        NoProgress(**wrong)
