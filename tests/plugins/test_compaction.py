"""`SummaryCompaction`: long conversations continue, providers accept them, and nothing is lost from the history."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from eventlog import Requests, history, use
from hypothesis import given, settings
from hypothesis import strategies as st
from loguru import logger
from thorough import THOROUGH
from wired import Wired

from agentflow import Agent, Hook, Msg, Session, on, tool
from agentflow.errors import ModelError, UsageError
from agentflow.plugins import EventLog
from agentflow.plugins._attempts import is_context_overflow
from agentflow.plugins._counting import count_tokens, most_tokens, unit_starts
from agentflow.plugins.clearing import ClearOldResults
from agentflow.plugins.compaction import SUMMARISE, SummaryCompaction, _ObservedRequest
from agentflow.plugins.goal import JUDGE, GoalJudge
from agentflow.plugins.offload import OffloadResults
from agentflow.plugins.react import ChainOfThought, ReActThoughts
from agentflow.plugins.reflection import Reflection
from agentflow.terminal import Console
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Fault, Say, ScriptedCall, UseTool, WireReply, WireRequest
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import Compaction
from agentflow.vocabulary.events import CallEnded, PostReasoning, PreReasoning
from agentflow.vocabulary.messages import ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions, Usage
from agentflow.vocabulary.transcript import Transcript, legalise


@tool(type="read")
async def look(place: int) -> str:
    """Look at a place."""
    return f"place {place}: " + "x" * 200


class Savable(Hook):
    """Notes which state of runs and sessions could not be stored."""

    observer = True
    events = (CallEnded,)

    def __init__(self) -> None:
        self.refused: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.refused.append((event.context.state.saved()[1], event.context.session_state.saved()[1]))


def is_summary(system: str) -> bool:
    return system.startswith(SUMMARISE[:40])


def mark(messages: Sequence[Msg]) -> dict[str, int] | None:
    """Return the number of messages that a request's summary replaces."""
    first = next(msg for msg in messages if msg.role != "system")
    return first.metadata.get("compaction")


def assert_whole(sent: Sequence[Msg], stored: Sequence[Msg]) -> None:
    """A request is legal, and equals the history, except for the beginning that the summary replaces."""
    assert legalise(sent) == tuple(sent)
    body = [msg for msg in sent if msg.role != "system"]
    cut = mark(sent)
    replaced, standing = (cut["until"], cut["messages"]) if cut is not None else (0, 0)
    ids = [msg.id for msg in stored][replaced:]
    assert [msg.id for msg in body[standing:]] == ids[: len(body) - standing]


def explorer(rounds: int) -> Any:
    """A brain that looks at so many places, two at a time, and writes numbered summaries."""
    count = {"calls": 0, "summaries": 0}

    def brain(request: WireRequest) -> WireReply:
        if is_summary(request.system):
            count["summaries"] += 1
            return Say(f"SUMMARY {count['summaries']}")
        if count["calls"] == rounds:
            return Say("Seen it all.")
        count["calls"] += 1
        n = count["calls"]
        return WireReply(
            f"Step {n}.",
            thinking="Hm.",
            calls=(ScriptedCall("look", {"place": n}), ScriptedCall("look", {"place": -n})),
        )

    return brain


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_long_run_stays_short_on_the_wire(wired: Wired, how: str) -> None:
    """Twelve rounds: no request grows past the threshold, each provider accepts all, the history holds everything."""
    async with wired.serve(explorer(12)) as server:
        compaction = SummaryCompaction(at_messages=10, keep_rounds=2, cooldown=0)
        requests = Requests()
        options = ModelOptions(thinking=2000, max_tokens=4000)
        hooks = [compaction, requests]
        agent = Agent("a", wired.model(server), system="Be brief.", tools=[look], hooks=hooks, options=options)
        if how == "stream":
            async with agent.stream("Explore all twelve places.") as events:
                text = [event async for event in events][-2].final_message.text
        else:
            text = (await agent.call("Explore all twelve places.")).text
    assert text == "Seen it all."
    stored = agent.session().messages
    assert [msg.role for msg in stored] == ["user", *["assistant", "tool"] * 12, "assistant"]
    assert max(len(sent) for sent in requests.seen) == 11
    for sent in requests.seen:
        assert_whole(sent, stored)
    asked = [request.user_text for request in server.requests if is_summary(request.system)]
    assert len(asked) == 3
    assert "Explore all twelve places." in asked[0]
    assert "[summary] What came before in this conversation, in short:\nSUMMARY 1" in asked[1]
    last = requests.seen[-1]
    assert last[1].text.endswith("SUMMARY 3")
    assert last[2].text == "Explore all twelve places."


async def test_the_size_in_tokens_over_the_wire(wired: Wired) -> None:
    """With a threshold in tokens the provider's own counts decide: requests grow up to it, and are short again then."""
    async with wired.serve(explorer(12)) as server:
        hooks = [SummaryCompaction(at_tokens=700, keep_rounds=1, cooldown=2), requests := Requests()]
        agent = Agent("a", wired.model(server), tools=[look], hooks=hooks)
        await agent.call("Explore all twelve places.")
    for sent in requests.seen:
        assert_whole(sent, agent.session().messages)
    lengths = [len(sent) for sent in requests.seen]
    assert max(lengths) < 13
    assert sum(is_summary(request.system) for request in server.requests) >= 2


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_everything_at_once(wired: Wired, how: str) -> None:
    """Compaction, clearing, offloading, thoughts, reflections and a judge in one agent: providers accept every
    request.
    """
    judged = 0

    def brain(request: WireRequest) -> WireReply:
        nonlocal judged
        if is_summary(request.system):
            return Say("Gist.")
        if not request.tool_names:
            if request.system.startswith(JUDGE[:30]):
                judged += 1
                return Say('{"done": false, "reason": "more"}' if judged < 3 else '{"done": true}')
            return Say("Hm, hm.")
        steps = sum(message["role"] == "assistant" for message in request.messages)
        calls = (ScriptedCall("look", {"place": steps}), ScriptedCall("look", {"place": 100 + steps}))
        if steps % 5 == 4:
            return Say(f"Answer after {steps}.", thinking="So.")
        return WireReply(f"Step {steps}.", thinking="Hm.", calls=calls)

    options = ModelOptions(thinking=2000, max_tokens=4000)
    async with wired.serve(brain) as server:
        hooks: list[Hook] = [
            SummaryCompaction(at_messages=16, keep_rounds=2, cooldown=1),
            ClearOldResults(keep=1, step=1, min_chars=100),
            OffloadResults(150, preview_chars=120),
            ReActThoughts(),
            ChainOfThought(),
            Reflection(every=2),
            GoalJudge("More."),
            savable := Savable(),
        ]
        model = wired.model(server)
        agent = Agent("a", model, system="S", tools=[look], hooks=hooks, options=options, max_iterations=40)
        for word in ("one", "two", "three"):
            if how == "stream":
                async with agent.stream(word) as events:
                    outcome = [event async for event in events][-1].outcome
            else:
                outcome = (await agent.call(word)).outcome
            assert outcome == "completed"
    assert judged > 3
    assert savable.refused == [((), ())] * 3
    assert any(is_summary(request.system) for request in server.requests)


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_conversation_that_the_provider_finds_too_long(wired: Wired, how: str) -> None:
    """The provider refuses the size: the conversation is compacted, and the same call continues."""
    script = [
        UseTool("look", {"place": 1}),
        UseTool("look", {"place": 2}),
        UseTool("look", {"place": 3}),
        Fault.context_overflow(),
        Say("Places 1 and 2 are dull."),
        UseTool("look", {"place": 4}),
        Say("Done."),
    ]
    async with wired.serve(script, strict=False) as server:
        requests = Requests()
        agent = Agent("a", wired.model(server), tools=[look], hooks=[SummaryCompaction(keep_rounds=2), requests])
        if how == "stream":
            async with agent.stream("Look around.") as events:
                outcome = [event async for event in events][-1].outcome
        else:
            outcome = (await agent.call("Look around.")).outcome
        server.assert_done()
    assert outcome == "completed"
    assert [msg.role for msg in agent.session().messages] == ["user", *["assistant", "tool"] * 4, "assistant"]
    assert [len(sent) for sent in requests.seen] == [1, 3, 5, 7, 6]
    assert requests.seen[-1][0].text.endswith("Places 1 and 2 are dull.")
    assert_whole(requests.seen[-1], agent.session().messages)
    assert len(server.requests[5].body["messages"]) < len(server.requests[3].body["messages"])


async def test_too_long_twice_is_the_error() -> None:
    """If the compacted request does not fit either, the caller sees the provider's error."""
    full = ModelError("m cannot hold the conversation in its context window (400): too long.")
    model = ScriptedModel([use("t1", "look", place=1), use("t2", "look", place=2), full, "short", full])
    agent = Agent("a", model, tools=[look], hooks=[SummaryCompaction()])
    with pytest.raises(ModelError, match="cannot hold"):
        await agent.call("Go")
    model.assert_done()


async def test_too_long_although_it_was_compacted() -> None:
    """A request that was compacted by the threshold, and still does not fit, is compacted further."""
    full = ModelError("the prompt is too long")
    looks = [use(f"t{i}", "look", place=i) for i in range(4)]
    model = ScriptedModel([*looks, "one", full, "two", "Done."])
    agent = Agent("a", model, tools=[look], hooks=[SummaryCompaction(at_messages=8, keep_rounds=3, cooldown=0)])
    assert (await agent.call("Go")).text == "Done."
    assert [len(request.messages) for request in model.requests] == [1, 3, 5, 7, 2, 8, 2, 4]
    assert "one" in model.requests[-2].messages[1].text


@pytest.mark.parametrize("overflow", [False, True])
async def test_a_person_sees_that_it_was_compacted(overflow: bool) -> None:
    """Where it happens, once: in the context, in the log's line of the reply, at the terminal; by the threshold and when the
    provider says that it is too long."""
    looks = [use(f"t{i}", "look", place=i) for i in range(2)]
    full = [ModelError("the prompt is too long")] if overflow else []
    model = ScriptedModel([*looks, *full, use("t2", "look", place=2), "Done."], name="scripted")
    compaction = SummaryCompaction(at_messages=None if overflow else 4, keep_rounds=1, model=ScriptedModel(["short"]))
    lines: list[str] = []
    handler = logger.add(lambda line: lines.append(str(line)), format="{message}", filter="agentflow.plugins.logging")
    found: list[Compaction | None] = []

    @on
    def watch(event: PostReasoning) -> None:
        found.append(event.context.compaction)

    out = StringIO()
    agent = Agent("a", model, tools=[look], hooks=[compaction, EventLog(only=[PostReasoning]), watch])
    try:
        await Console(agent.stream("Go"), file=out)
    finally:
        logger.remove(handler)
    done = Compaction(3, 3, 67, 2, 24, "SummaryCompaction")
    said = "3 messages (about 67 tokens) into 2 (about 24), by SummaryCompaction"
    assert found == [None, None, done, done]
    assert [said in line for line in lines] == [False, False, True, False]
    assert out.getvalue().count(f"compacted {said}") == 1


async def test_other_errors_are_left_alone() -> None:
    """What is no overflow is not answered with a summary."""
    side = ScriptedModel(["not used"])
    model = ScriptedModel([use("t1", "look", place=1), use("t2", "look", place=2), ModelError("overloaded")])
    with pytest.raises(ModelError, match="overloaded"):
        await Agent("a", model, tools=[look], hooks=[SummaryCompaction(model=side)]).call("Go")
    assert side.requests == []


async def test_a_conversation_that_is_too_long_for_the_summariser() -> None:
    """It is shown less of each message then; if that is too much, too, nothing is changed."""
    full = ModelError("the prompt is too long")
    side = ScriptedModel([full, "gist", full, full])

    @tool(type="read")
    async def read(page: int) -> str:
        """Read a page."""
        return "x" * 2000

    model = ScriptedModel([use("t1", "read", page=1), use("t2", "read", page=2), "Done."])
    hooks = [SummaryCompaction(at_messages=4, keep_rounds=1, model=side, clip=1000)]
    await Agent("a", model, tools=[read], hooks=hooks).call("Go")
    assert [request.messages[1].text.count("x") for request in side.requests] == [1000, 300]
    assert "gist" in model.requests[-1].messages[0].text
    model = ScriptedModel([use("t1", "read", page=1), use("t2", "read", page=2), "Done."])
    await Agent("b", model, tools=[read], hooks=hooks).call("Go")
    assert len(side.requests) == 4
    assert len(model.requests[-1].messages) == 5


async def test_what_was_injected_into_the_refused_request_is_in_the_next_one() -> None:
    """A note that a hook added to the request that did not fit is in the repeated request."""

    class Notes(Hook):
        def on_event(self, event: Any) -> None:
            if isinstance(event, PreReasoning) and event.iteration == 3:
                event.context.inject("Mind the time.")
                event.context.inject("Only now.", keep=False)

    full = ModelError("the prompt is too long")
    model = ScriptedModel([use("t1", "look", place=1), use("t2", "look", place=2), full, "short", "Done."])
    agent = Agent("a", model, tools=[look], hooks=[SummaryCompaction(), Notes()])
    assert (await agent.call("Go")).text == "Done."
    for request in (model.requests[2], model.requests[-1]):
        assert [msg.text for msg in request.messages][-2:] == ["Mind the time.", "Only now."]


async def test_a_summary_that_fails_changes_nothing() -> None:
    """The side call fails: requests carry everything, and five requests go by before it is tried again."""
    tries: list[int] = []
    calls = 0

    def brain(request: ModelRequest) -> Any:
        nonlocal calls
        if is_summary(request.messages[0].text):
            tries.append(calls)
            return ModelError("the summariser is down")
        calls += 1
        return use(f"t{calls}", "look", place=calls) if calls < 16 else "Done."

    model = ScriptedModel(brain)
    agent = Agent("a", model, tools=[look], hooks=[SummaryCompaction(at_messages=6, keep_rounds=1, cooldown=5)])
    reply = await agent.call("Go")
    assert (reply.text, reply.outcome) == ("Done.", "completed")
    assert tries == [3, 9, 15]
    assert len(model.requests[-1].messages) == 31


async def test_an_empty_summary_is_a_failure() -> None:
    """A summariser that says nothing does not wipe the conversation out."""
    model = ScriptedModel([use("t1", "look", place=1), use("t2", "look", place=2), "  ", "Done."])
    agent = Agent("a", model, tools=[look], hooks=[SummaryCompaction(at_messages=4, keep_rounds=1)])
    assert (await agent.call("Go")).text == "Done."
    assert len(model.requests[-1].messages) == 5


async def test_the_users_last_words_stay() -> None:
    """The request that the user made is kept word for word, however often the conversation is compacted."""
    words = [use(f"t{i}", "look", place=i) for i in range(1, 4)]
    model = ScriptedModel([*words[:2], "one", words[2], "two", "Done."])
    hook = SummaryCompaction(at_messages=4, keep_rounds=1, cooldown=0)
    agent = Agent("a", model, tools=[look], hooks=[hook])
    await agent.call("Find the red door, please.")
    assert [msg.text for msg in model.requests[-1].messages[:2]] == [
        "[summary] What came before in this conversation, in short:\ntwo",
        "Find the red door, please.",
    ]


async def test_the_size_is_what_the_last_reply_reported() -> None:
    """The provider's own count of the last request decides; only later messages are estimated."""
    big = ModelChunk(usage=Usage(input_tokens=900, output_tokens=50))
    small = ModelChunk(usage=Usage(input_tokens=90, output_tokens=5))
    model = ScriptedModel(
        [[use("t1", "look", place=1), small], [use("t2", "look", place=2), big], "short", ["Done.", small]]
    )
    counted: list[str] = []

    def count(text: str, model: str) -> int:
        counted.append(text)
        return len(text) // 4

    agent = Agent("a", model, tools=[look], hooks=[SummaryCompaction(900, keep_rounds=1, count=count)])
    reply = await agent.call("Go")
    assert reply.text == "Done."
    assert counted == []
    assert reply.usage == Usage(input_tokens=1080, output_tokens=60, model_calls=4)


async def test_a_usage_from_before_the_compaction_does_not_count() -> None:
    """Replies that were kept tell of requests that were longer than the next one is: they do not set it off again."""
    big = ModelChunk(usage=Usage(input_tokens=2000, output_tokens=50))
    lines = [[use(f"t{i}", "look", place=i), big] for i in range(1, 4)]
    model = ScriptedModel([*lines[:2], "short", "Done.", "Again done."])
    agent = Agent("a", model, tools=[look], hooks=[SummaryCompaction(1000, keep_rounds=1, cooldown=0)])
    await agent.call("Go")
    await agent.call("And?")
    model.assert_done()


async def test_what_comes_after_the_last_reply_is_counted() -> None:
    """A result that is too big for the threshold sets it off, although the reply before it was small."""
    small = ModelChunk(usage=Usage(input_tokens=10, output_tokens=5))
    model = ScriptedModel([[use("t1", "look", place=1), small], [use("t2", "look", place=2), small], "short", "Done."])
    hook = SummaryCompaction(100, keep_rounds=1, cooldown=9, count=lambda text, model: 60 * text.count("place 2"))
    agent = Agent("a", model, tools=[look], hooks=[hook])
    await agent.call("Go")
    assert len(model.requests) == 3
    hook = SummaryCompaction(60, keep_rounds=1, cooldown=9, count=lambda text, model: 60 * text.count("place 2"))
    model = ScriptedModel([[use("t1", "look", place=1), small], [use("t2", "look", place=2), small], "short", "Done."])
    await Agent("a", model, tools=[look], hooks=[hook]).call("Go")
    model.assert_done()


class SlowStore(MemoryStore):
    """A store whose writing takes a while."""

    async def append(self, session_id: str, facts: Any, **options: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0)
        super().append(session_id, facts, **options)


@pytest.mark.parametrize("store_type", [MemoryStore, SlowStore])
async def test_it_goes_on_in_the_next_call_and_after_a_restart(store_type: type[MemoryStore]) -> None:
    """What was compacted stays compacted in later calls, also for an agent that reads the session from its store."""
    store = store_type()

    def brain(request: ModelRequest) -> Any:
        return "gist" if is_summary(request.messages[0].text) else "yes"

    requests = Requests()
    for _ in range(3):
        hooks = [SummaryCompaction(at_messages=5, keep_rounds=2, cooldown=0), requests]
        agent = Agent("a", ScriptedModel(brain), store=store, hooks=hooks)
        for word in ("one", "two", "three"):
            await agent.call(word, session="s")
    stored = agent.session("s").messages
    assert len(stored) == 18
    assert [mark(sent) is not None for sent in requests.seen] == [False] * 3 + [True] * 6
    assert max(len(sent) for sent in requests.seen) <= 6
    for sent in requests.seen:
        assert_whole(sent, stored)


async def test_somebody_elses_compaction_is_not_cut_again() -> None:
    """If the request does not begin with the history, nothing is compacted, because the place is unknown."""

    class Other(Hook):
        events = (PreReasoning,)
        priority = 10

        def on_event(self, event: Any) -> None:
            if event.iteration == 3:
                event.context.compact(3, Msg.user("gist", metadata={"synthetic": "other"}))

    model = ScriptedModel([*[use(f"t{i}", "look", place=i) for i in range(1, 7)], "Done."])
    agent = Agent("a", model, tools=[look], hooks=[Other(), SummaryCompaction(at_messages=7, keep_rounds=1)])
    await agent.call("Go")
    assert [len(request.messages) for request in model.requests] == [1, 3, 5, 5, 7, 9, 11]


async def test_an_unmarked_compaction_of_somebody_else_is_seen_by_the_history() -> None:
    """The history with which the call began shows the place, if the message that replaces its beginning does not."""

    class Other(Hook):
        events = (PreReasoning,)
        priority = 10

        def on_event(self, event: Any) -> None:
            if event.input_messages[0].text == "Go":
                event.context.compact(2, Msg.user("gist"))

    side = ScriptedModel(["not used"])
    model = ScriptedModel(["One.", *[use(f"t{i}", "look", place=i) for i in range(1, 4)], "Done."])
    hooks = [Other(), SummaryCompaction(at_messages=3, keep_rounds=1, cooldown=0, model=side)]
    agent = Agent("a", model, tools=[look], hooks=hooks)
    session = Session.fresh([Msg.user("Go"), Msg.assistant("Gone.")])
    await agent.call("And?", session=session)
    await agent.call("And then?", session=session)
    assert side.requests == []
    assert [msg.text[:5] for msg in model.requests[-1].messages] == ["gist", "And?", "One.", "And t"] + [
        "",
        "place",
    ] * 3


async def test_it_asks_again_through_hooks_that_wrap_the_model() -> None:
    """A hook that wraps the model further inside wraps the second request, too."""

    class Wraps(Hook):
        def around(self, event: Any, source: Any) -> Any:
            if not isinstance(event, PreReasoning):
                return source
            return source.map(lambda chunk: replace(chunk, text=chunk.text.upper()))

    full = ModelError("the prompt is too long")
    model = ScriptedModel([use("t1", "look", place=1), use("t2", "look", place=2), full, "short", "Done."])
    agent = Agent("a", model, tools=[look], hooks=[SummaryCompaction(), Wraps()])
    assert (await agent.call("Go")).text == "DONE."
    assert [msg.role for msg in model.requests[-1].messages] == ["user", "user", "assistant", "tool"]


async def test_fifty_runs_of_two_agents_share_one_hook() -> None:
    """State belongs to runs and sessions: each conversation is summarised from its own words only."""
    mixed: list[str] = []

    def brain(request: ModelRequest) -> Any:
        text = "\n".join(msg.text for msg in request.messages)
        names = {word for word in text.split() if word.startswith("run-")}
        if len(names) != 1:
            mixed.append(text)
        if is_summary(request.messages[0].text):
            return f"gist of {names.pop()}"
        calls = sum(1 for msg in request.messages if msg.role == "tool")
        done = "gist" in text
        return "Done." if done and calls > 1 else [ToolUseBlock(Msg.user("").id, "look", {"place": calls})]

    hook = SummaryCompaction(at_messages=6, keep_rounds=1, cooldown=0)
    agents = [Agent(name, ScriptedModel(brain), tools=[look], hooks=[hook]) for name in "ab"]

    async def one(number: int) -> str:
        reply = await agents[number % 2].call(f"I am run-{number} here", session=f"s{number}")
        return reply.text

    assert await asyncio.gather(*(one(number) for number in range(50))) == ["Done."] * 50
    assert mixed == []


def rounds(shape: Sequence[int]) -> list[Msg]:
    """A history: 0 is a plain answer, n a round of n calls; -1 a user's word in between."""
    messages = [Msg.user("begin")]
    for number, calls in enumerate(shape):
        if calls < 0:
            messages.append(Msg.user(f"word {number}"))
        elif calls == 0:
            messages.append(Msg.assistant(f"answer {number}"))
        else:
            ids = [f"h{number}_{i}" for i in range(calls)]
            messages.append(Msg.assistant([ToolUseBlock(i, "look", {"place": number}) for i in ids]))
            messages.append(Msg.tool([ToolResultBlock(i, "look", f"seen {i}") for i in ids]))
    return messages


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(st.integers(-1, 3), max_size=12),
    script=st.lists(st.lists(st.integers(1, 3), max_size=5), min_size=1, max_size=3),
    at=st.integers(1, 14),
    keep=st.integers(1, 4),
    cooldown=st.integers(0, 3),
    overflows=st.sets(st.integers(0, 8), max_size=2),
)
def test_random_conversations(
    before: list[int], script: list[list[int]], at: int, keep: int, cooldown: int, overflows: set[int]
) -> None:
    """For any conversation and thresholds: each request is legal, and equals the history after the summarised part."""
    plan = [calls for call in script for calls in (*call, 0)]
    done = asked = 0

    def brain(request: ModelRequest) -> Any:
        nonlocal done, asked
        sent = list(request.messages)
        assert legalise(sent) == tuple(sent)
        if is_summary(sent[0].text):
            return "gist"
        asked += 1
        if asked in overflows:
            return ModelError("the prompt is too long")
        calls = plan[done]
        done += 1
        return [ToolUseBlock(f"n{done}_{i}", "look", {"place": i}) for i in range(calls)] or "Answer."

    async def run() -> None:
        requests = Requests()
        hook = SummaryCompaction(at_messages=at, keep_rounds=keep, cooldown=cooldown)
        agent = Agent("a", ScriptedModel(brain), system="S", tools=[look], hooks=[hook, requests])
        session = Session.fresh(rounds(before))
        for _ in script:
            try:
                await agent.call("next", session=session)
            except ModelError:
                break
        start = len(rounds(before))
        assert [m.text for m in session.messages[:start]] == [m.text for m in rounds(before)]
        for sent in requests.seen:
            assert_whole(sent, session.messages)

    asyncio.run(run())


def test_units_of_a_conversation() -> None:
    """A unit is a reply with the input before it and the results after it; unanswered input belongs to no unit."""
    messages = rounds([2, -1, 0, -1, -1, 1, -1])
    assert [msg.role[0] for msg in messages] == list("uatuauuatu")
    assert unit_starts(messages) == [0, 3, 5]


@pytest.mark.parametrize("arguments", [{"at_tokens": 0}, {"at_messages": 0}, {"keep_rounds": 0}, {"cooldown": -1}])
def test_thresholds_that_make_no_sense(arguments: dict[str, int]) -> None:
    """A threshold that could never work is refused when the hook is built."""
    with pytest.raises(UsageError, match=next(iter(arguments))):
        SummaryCompaction(**arguments)  # pyright: ignore[reportArgumentType]


async def test_tokens_are_counted_by_litellm() -> None:
    """Without a counter of your own LiteLLM's is used; the cheap bound is never below it."""
    messages = [Msg.user("Hello, world! " * 50), *rounds([2])]
    for model in ("openai/gpt-5", "scripted", "ollama/llama-3"):
        counted = await count_tokens(messages, model)
        assert 150 < counted <= most_tokens(messages)


def test_an_overflow_is_told_by_its_words() -> None:
    """`ModelError` has no field for it: the text and the cause decide."""
    error = ModelError("m refused the request (400): no.")
    assert not is_context_overflow(error)
    error.__cause__ = ValueError("This model's maximum context length is 10 tokens.")
    assert is_context_overflow(error)
    assert is_context_overflow(ModelError("too large", status=413))
    assert not is_context_overflow(ValueError("context window"))
    assert history([Msg.user("x")]) == ["user: x"]


def counted_at_once(messages: Sequence[Msg]) -> int:
    """The usage of the last reply that has one, and a bound for the messages after it."""
    known = [number for number, msg in enumerate(messages) if msg.usage is not None]
    if not known:
        return most_tokens(messages)
    usage = messages[known[-1]].usage
    assert usage is not None
    return usage.total_tokens + most_tokens(messages[known[-1] + 1 :])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["grows", "grows", "grows", "is another"]),
            st.lists(st.sampled_from([False] * 11 + [True]), max_size=12),
            st.sampled_from([0, 0, 0, 2]),
        ),
        min_size=3,
        max_size=8,
    )
)
@settings(max_examples=150 if THOROUGH else 60, deadline=None)
def test_the_bound_of_a_request_that_grows_is_that_of_the_whole(script: list[tuple[str, list[bool], int]]) -> None:
    """It is as large as if all messages were counted at once; larger only after messages of one request alone."""
    transcript, grown, exact = Transcript([Msg.user("a" * 400)]), _ObservedRequest(), True
    for step, reported, alone in script:
        if step == "is another":
            transcript = Transcript([Msg.user("other")])
        for number, usage in enumerate(reported, 1):
            transcript.append(
                Msg.assistant("b" * 30 * number, usage=Usage(input_tokens=1_000, output_tokens=10) if usage else None)
            )
        whole = _ObservedRequest()
        grown.messages = transcript.view().with_tail(*[Msg.user("c" * 700)] * alone)
        whole.messages = tuple(grown.messages)
        bound, exact = grown.bound(), exact and not alone
        assert whole.bound() == counted_at_once(whole.messages)
        assert bound == whole.bound() if exact else bound >= whole.bound()
