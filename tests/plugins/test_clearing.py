"""`ClearOldResults`: old results leave the requests, in steps, and stay in the history."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from eventlog import Requests, use
from hypothesis import given, settings
from hypothesis import strategies as st
from wired import Wired

from agentflow import Agent, Msg, Session, tool
from agentflow.errors import ModelError, UsageError
from agentflow.plugins.clearing import ClearOldResults
from agentflow.plugins.compaction import SummaryCompaction
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, ScriptedCall, WireReply, WireRequest
from agentflow.vocabulary.events import PostActing
from agentflow.vocabulary.messages import DataBlock, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.transcript import legalise

BIG = "x" * 600


@tool(type="read")
async def look(place: int) -> str:
    """Look at a place."""
    return f"place {place}: {BIG}"


@tool(type="read")
async def peek(place: int) -> str:
    """Look quickly."""
    return f"peeked at {place}"


def results(messages: Any) -> list[str]:
    """Return the results in a request, long ones shortened to their first word and number."""
    return [" ".join(result.text.split()[:2]) for msg in messages for result in msg.tool_results]


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_requests_forget_and_the_history_does_not(wired: Wired, how: str) -> None:
    """Ten rounds of two calls: providers accept all requests, old results are gone from the last, none from the history."""

    def brain(request: WireRequest) -> WireReply:
        n = sum(1 for message in request.messages if message["role"] == "assistant")
        calls = (ScriptedCall("look", {"place": n}), ScriptedCall("peek", {"place": n}))
        return WireReply(f"Step {n}.", calls=calls) if n < 10 else Say("Seen.")

    async with wired.serve(brain) as server:
        agent = Agent("a", wired.model(server), tools=[look, peek], hooks=[ClearOldResults(keep=2, step=4)])
        if how == "stream":
            async with agent.stream("Go") as events:
                results_seen = [e.tool_result.text async for e in events if isinstance(e, PostActing)]
            assert sum(BIG in text for text in results_seen) == 10
        else:
            await agent.call("Go")
    sent = [json.dumps(request.body["messages"]) for request in server.requests]
    assert [text.count(BIG) for text in sent] == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 2]
    assert sent[-1].count("An old result of look was removed here (609 characters)") == 8
    assert sent[-1].count("peeked at") == 10
    assert sum(BIG in message.text for message in agent.session().messages) == 10


async def test_between_two_steps_the_start_of_the_request_stays_the_same() -> None:
    """A prompt cache can be read again: each request begins with the one before it, but where a step was made."""
    model = ScriptedModel([*[use(f"t{i}", "look", place=i) for i in range(12)], "Done."])
    await Agent("a", model, tools=[look], hooks=[ClearOldResults(keep=2, step=3)]).call("Go")
    sent = [tuple(request.messages) for request in model.requests]
    same = [after[: len(before)] == before for before, after in pairwise(sent)]
    assert same == [True, True, True, True, False, True, True, False, True, True, False, True]


async def test_a_cleared_message_keeps_its_other_fields() -> None:
    """Only its content changes."""
    old = Msg.tool([ToolResultBlock("t1", "look", BIG)], name="eyes", finish_reason="stop", metadata={"place": 1})
    past = [Msg.user("Go"), Msg.assistant(ToolUseBlock("t1", "look")), old]
    model = ScriptedModel(["Seen."])
    hook = ClearOldResults(keep=0, step=1)
    await Agent("a", model, hooks=[hook]).call("And?", session=Session("s", messages=past))
    sent = model.requests[0].messages[2]
    assert "was removed here" in sent.text
    assert replace(sent, content=old.content) == old


OVERFLOW = ModelError("the prompt is too long")


@pytest.mark.parametrize("keep", [0, 2, 5])
async def test_what_is_too_long_is_cleared_and_asked_once_more(keep: int) -> None:
    """The provider refuses the size: all old results go, those that `keep` spares too if need be; the last round stays, and
    later requests are as short."""
    looks = [use(f"t{i}", "look", place=i) for i in range(4)]
    model = ScriptedModel([*looks, OVERFLOW, use("t4", "look", place=4), "Done."])
    agent = Agent("a", model, tools=[look], hooks=[ClearOldResults(keep=keep, step=10)])
    assert (await agent.call("Go")).text == "Done."
    sent = [[BIG in msg.text for msg in request.messages if msg.role == "tool"] for request in model.requests[4:]]
    spared = {0: [False] * 4, 2: [False, False, True, True], 5: [False, False, True, True]}[keep]
    assert sent == [[True] * 4, spared, [*spared, True]]
    assert sum(BIG in message.text for message in agent.session().messages) == 5


async def test_too_long_with_nothing_to_clear_is_the_error() -> None:
    """One result, the last one, is what the model has requested: it stays, and the provider's error is raised, also
    if the second request does not fit.
    """
    for looks, asked in ((1, 2), (3, 5)):
        model = ScriptedModel([*[use(f"t{i}", "look", place=i) for i in range(looks)], OVERFLOW, OVERFLOW, "never"])
        with pytest.raises(ModelError, match="too long"):
            await Agent("a", model, tools=[look], hooks=[ClearOldResults()]).call("Go")
        assert len(model.requests) == asked
    other = ScriptedModel([use("t1", "look", place=1), use("t2", "look", place=2), ModelError("overloaded"), "never"])
    with pytest.raises(ModelError, match="overloaded"):
        await Agent("a", other, tools=[look], hooks=[ClearOldResults(keep=0)]).call("Go")


async def test_clearing_comes_before_a_summary() -> None:
    """With `SummaryCompaction`: results are cleared first; a summary is requested if that was not enough."""
    looks = [use(f"t{i}", "look", place=i) for i in range(3)]
    writer = ScriptedModel(["Nothing there."])
    model = ScriptedModel([*looks, OVERFLOW, OVERFLOW, "Done."])
    hooks = [ClearOldResults(keep=1), SummaryCompaction(keep_rounds=1, model=writer)]
    agent = Agent("a", model, tools=[look], hooks=hooks)
    assert (await agent.call("Go")).text == "Done."
    writer.assert_done()
    assert [len(request.messages) for request in model.requests] == [1, 3, 5, 7, 7, 4]


async def test_what_is_short_or_named_stays() -> None:
    """Short results, and those of tools that were named, are not cleared."""
    model = ScriptedModel(
        [[use(f"a{i}", "look", place=i), use(f"b{i}", "peek", place=i)] for i in range(3)] + ["Done."]
    )
    await Agent("a", model, tools=[look, peek], hooks=[ClearOldResults(1, step=1)]).call("Go")
    assert results(model.requests[-1].messages) == [
        "[An old",
        "peeked at",
        "[An old",
        "peeked at",
        "place 2:",
        "peeked at",
    ]
    model = ScriptedModel([*[use(f"t{i}", "look", place=i) for i in range(3)], "Done."])
    await Agent("a", model, tools=[look], hooks=[ClearOldResults(0, step=1, except_tools="lo*")]).call("Go")
    assert results(model.requests[-1].messages) == ["place 0:", "place 1:", "place 2:"]


async def test_pictures_are_cleared_and_states_stay() -> None:
    """A picture counts with its data; a failed call stays a failed one."""

    @tool(type="read")
    async def draw() -> list[Any]:
        """Draw."""
        return [TextBlock("a door"), DataBlock("image/png", "A" * 2000)]

    @tool(type="read")
    async def fail() -> str:
        """Fail."""
        raise ValueError("y" * 500)

    model = ScriptedModel([[use("t1", "draw"), use("t2", "fail")], "Done."])
    await Agent("a", model, tools=[draw, fail], hooks=[ClearOldResults(0, step=1)]).call("Go")
    cleared = model.requests[-1].messages[-1].tool_results
    assert [(result.state, isinstance(result.content, str)) for result in cleared] == [
        ("success", True),
        ("error", True),
    ]
    assert "(2006 characters)" in cleared[0].text


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.lists(st.integers(0, 900), max_size=3), max_size=10),
    keep=st.integers(0, 4),
    step=st.integers(1, 4),
    least=st.integers(0, 800),
)
def test_random_conversations(shape: list[list[int]], keep: int, step: int, least: int) -> None:
    """Whatever the rounds and thresholds: the request is legal as it is, and no longer than the history."""
    before: list[Msg] = [Msg.user("begin")]
    for number, sizes in enumerate(shape):
        ids = [f"h{number}_{i}" for i in range(len(sizes))]
        before.append(Msg.assistant([f"step {number}", *[ToolUseBlock(i, "look", {"place": 1}) for i in ids]]))
        if ids:
            found = zip(ids, sizes, strict=True)
            before.append(Msg.tool([ToolResultBlock(i, "look", "z" * size) for i, size in found]))

    async def run() -> None:
        requests = Requests()
        hooks = [ClearOldResults(keep, step=step, min_chars=least), requests]
        session = Session.fresh(before)
        await Agent("a", ScriptedModel(["Done."]), tools=[look], hooks=hooks).call("go", session=session)
        (sent,) = requests.seen
        assert legalise(sent) == sent
        assert [msg.id for msg in sent] == [msg.id for msg in session.messages[:-1]]
        assert all(len(new.text) <= len(old.text) for new, old in zip(sent, session.messages, strict=False))
        whole = [msg for msg in sent if msg.role == "tool"][max(0, sum(map(bool, shape)) - keep) :]
        assert whole == [msg for msg in before if msg.role == "tool"][max(0, sum(map(bool, shape)) - keep) :]

    asyncio.run(run())


async def test_fifty_runs_share_one_hook() -> None:
    """It holds no state: concurrent runs of two agents have the same results as each alone."""
    hook = ClearOldResults(1, step=1)

    async def one(agent: Agent, number: int) -> str:
        await agent.call("go", session=f"s{number}")
        return agent.session(f"s{number}").messages[-1].text

    def brain(request: Any) -> Any:
        n = sum(msg.role == "tool" for msg in request.messages)
        cleared = sum("An old result" in msg.text for msg in request.messages)
        return [ToolUseBlock(Msg.user("").id, "look", {"place": n})] if n < 4 else f"{cleared} cleared"

    agents = [Agent(name, ScriptedModel(brain), tools=[look], hooks=[hook]) for name in "ab"]
    assert await asyncio.gather(*(one(agents[n % 2], n) for n in range(50))) == ["3 cleared"] * 50


@pytest.mark.parametrize("arguments", [{"keep": -1}, {"step": 0}, {"min_chars": -1}])
def test_numbers_that_make_no_sense(arguments: dict[str, int]) -> None:
    """They are refused when the hook is built."""
    with pytest.raises(UsageError, match="ClearOldResults"):
        ClearOldResults(**arguments)
