"""`Reflection`: a review of the results after a round, which the agent reads."""

import asyncio
import json
from typing import Any

import pytest
from eventlog import Recorder, history, use
from wired import Wired

from agentflow import Agent, Msg, tool
from agentflow.errors import ModelError, UsageError
from agentflow.plugins.reflection import REFLECT, Reflection
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, ScriptedCall, WireReply, WireRequest
from agentflow.vocabulary.events import Error, MessagesAdded
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.specs import ModelOptions, Usage
from agentflow.vocabulary.transcript import legalise


@tool(type="read")
async def look(place: int) -> str:
    """Look at a place."""
    return f"nothing at {place}"


def is_reflection(system: str) -> bool:
    return system.startswith(REFLECT[:30])


@pytest.mark.parametrize("how", ["call", "stream"])
@pytest.mark.parametrize("keep", [True, False])
async def test_the_agent_reads_the_reflection(wired: Wired, how: str, keep: bool) -> None:
    """After each round the provider gets the reflection after the results, in an order that it accepts."""

    def brain(request: WireRequest) -> WireReply:
        if is_reflection(request.system):
            return Say(f"{request.user_text.count('nothing at')} empty results.")
        n = sum(1 for message in request.messages if "Step" in json.dumps(message))
        calls = (ScriptedCall("look", {"place": n}), ScriptedCall("look", {"place": -n}))
        return (
            WireReply(f"Step {n}.", thinking="Hm.", calls=calls) if n < 3 else Say("Nothing anywhere.", thinking="So.")
        )

    async with wired.serve(brain) as server:
        hook = Reflection(keep=keep)
        options = ModelOptions(thinking=2000, max_tokens=4000)
        agent = Agent("a", wired.model(server), system="S", tools=[look], hooks=[hook], options=options)
        added: list[tuple[str, ...]] = []
        if how == "stream":
            async with agent.stream("Find it.") as events:
                added = [tuple(m.text for m in e.messages) async for e in events if isinstance(e, MessagesAdded)]
            assert added == [("[reflection] 2 empty results.",)] * (3 if keep else 0)
        else:
            assert (await agent.call("Find it.")).usage.model_calls == 7
        assert (await agent.call("Thanks.")).text == "Nothing anywhere."
    asked = [request for request in server.requests if is_reflection(request.system)]
    assert [request.tool_names for request in asked] == [()] * 3
    assert all("Find it." in request.user_text and "calls look" in request.user_text for request in asked)
    main = [json.dumps(request.messages) for request in server.requests if not is_reflection(request.system)]
    assert [text.count("2 empty results.") for text in main] == ([0, 1, 2, 3, 3] if keep else [0, 1, 1, 1, 0])
    notes = [msg for msg in agent.session().messages if "synthetic" in msg.metadata]
    assert [(msg.role, msg.metadata["synthetic"]) for msg in notes] == [("user", "reflection")] * (3 if keep else 0)


async def test_the_whole_run() -> None:
    """The reflection is a side call: it is in no event but `MessagesAdded`, and its cost is the run's."""
    recorder = Recorder()
    model = ScriptedModel([use("t1", "look", place=1), "Look elsewhere.", "There is nothing."])
    agent = Agent("a", model, tools=[look], hooks=[Reflection(), recorder])
    reply = await agent.call("Go")
    assert recorder.log == [
        "PreCall user: Go",
        "PreReasoning 1 reason",
        'ReasoningChunk [t1:look {"place":1}]',
        "PostReasoning [t1:look(place=1)]",
        "PreToolRound t1:look(place=1)",
        "PreActing t1:look(place=1)",
        "PostActing t1 success 'nothing at 1'",
        "PostToolRound t1 success 'nothing at 1'",
        "MessagesAdded injected user: [reflection] Look elsewhere.",
        "PreReasoning 2 reason",
        "ReasoningChunk There is nothing.",
        "PostReasoning There is nothing.",
        "PostCall completed 'There is nothing.'",
        "CallEnded completed",
    ]
    assert history(agent.session())[3] == "user: [reflection] Look elsewhere."
    assert reply.usage == Usage(model_calls=3)


async def test_every_second_round() -> None:
    """`every=2` looks after the second, the fourth, … reply."""
    reflections = ScriptedModel(["one", "two"])
    model = ScriptedModel([*[use(f"t{i}", "look", place=i) for i in range(5)], "Done."])
    await Agent("a", model, tools=[look], hooks=[Reflection(reflections, every=2)]).call("Go")
    reflections.assert_done()
    assert [("[reflection] one" in str(r.messages), "[reflection] two" in str(r.messages)) for r in model.requests] == [
        (False, False),
        (False, False),
        (True, False),
        (True, False),
        (True, True),
        (True, True),
    ]


@pytest.mark.parametrize("said", ["NOTHING", "nothing.", "  ", ""])
async def test_nothing_worth_saying(said: str) -> None:
    """A reflection that has nothing to say leaves no trace."""
    model = ScriptedModel([use("t1", "look", place=1), "Done."])
    agent = Agent("a", model, tools=[look], hooks=[Reflection(ScriptedModel([said]))])
    await agent.call("Go")
    assert [msg.role for msg in agent.session().messages] == ["user", "assistant", "tool", "assistant"]


async def test_a_failing_reflection_does_no_harm() -> None:
    """The run continues without it, and a non-fatal `Error` fires."""
    recorder = Recorder()
    model = ScriptedModel([use("t1", "look", place=1), use("t2", "look", place=2), "Done."])
    side = ScriptedModel([ModelError("down"), "Look behind."])
    reply = await Agent("a", model, tools=[look], hooks=[Reflection(side), recorder]).call("Go")
    assert (reply.text, reply.outcome) == ("Done.", "completed")
    errors = [(str(e.error), e.fatal, e.hook) for e in recorder.seen if isinstance(e, Error)]
    assert errors == [("down", False, "Reflection")]
    assert model.requests[-1].messages[-1].text == "[reflection] Look behind."


async def test_a_reflection_that_hangs_is_left_behind() -> None:
    """Its time limit ends it, not the run."""
    side = ScriptedModel([lambda request: asyncio.get_running_loop().create_future()])
    model = ScriptedModel([use("t1", "look", place=1), "Done."])
    reply = await Agent("a", model, tools=[look], hooks=[Reflection(side, timeout=0.01)]).call("Go")
    assert reply.text == "Done."


async def test_long_results_are_shortened_for_it() -> None:
    """The reflecting model is shown so many characters of each result."""

    @tool(type="read")
    async def long() -> str:
        """Say much."""
        return "x" * 5000

    side = ScriptedModel(["Hm."])
    model = ScriptedModel([use("t1", "long"), "Done."])
    await Agent("a", model, tools=[long], hooks=[Reflection(side, "Be short.", clip=90)]).call("Go")
    assert side.requests[0].messages[0].text == "Be short."
    assert side.requests[0].messages[1].text.count("x") == 90
    assert "(4910 characters left out)" in side.requests[0].messages[1].text


async def test_fifty_runs_of_two_agents_share_one_hook() -> None:
    """Each reflection is about its own run."""
    side = ScriptedModel(lambda request: f"about {request.messages[1].text.split()[2]}")

    def brain(request: Any) -> Any:
        assert legalise(request.messages) == request.messages
        if len(request.messages) == 1:
            return [ToolUseBlock(Msg.user("").id, "look", {"place": 1})]
        return request.messages[-1].text

    hook = Reflection(side)
    agents = [Agent(name, ScriptedModel(brain), tools=[look], hooks=[hook]) for name in "ab"]
    calls = [agents[n % 2].call(f"run-{n}", session=f"s{n}") for n in range(50)]
    replies = await asyncio.gather(*calls)
    assert [reply.text for reply in replies] == [f"[reflection] about run-{n}" for n in range(50)]


def test_arguments_that_make_no_sense() -> None:
    """They are refused when the hook is built."""
    with pytest.raises(UsageError, match="every=0"):
        Reflection(every=0)
