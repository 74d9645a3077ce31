"""The default hooks of an agent."""

from itertools import count
from typing import Any

import pytest
from eventlog import history, use

from agentflow import Agent, Approve, Hook, ModelChunk, PostReasoning, PreReasoning, Session, ThinkingBlock, tool
from agentflow.errors import ModelError
from agentflow.recording.recorder import Recorder
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.messages import Msg


def cut(text: str) -> list[ModelChunk]:
    return [ModelChunk(text, finish_reason="length")]


async def test_an_empty_answer_is_asked_for_once_more() -> None:
    """An empty answer is not stored; the model is called once more, with a reminder."""
    agent = Agent("a", ScriptedModel(["", "words"]))
    assert (await agent.call("go")).text == "words"
    reminder = "user: Your answer was empty. Answer with text, or call a tool."
    assert history(agent.session()) == ["user: go", reminder, "assistant: words"]


@pytest.mark.parametrize(
    "empty", ["", "  \n", [ModelChunk(finish_reason="stop")], Msg.assistant([ThinkingBlock("hm")])]
)
async def test_two_empty_answers_are_an_error(empty: Any) -> None:
    """The second empty answer is a ModelError that says so."""
    agent = Agent("a", ScriptedModel([empty, empty]))
    with pytest.raises(ModelError) as caught:
        await agent.call("go")
    assert str(caught.value).startswith(
        "The model's answer was empty 2 times: neither text nor a tool call (finish_reason"
    )


async def test_a_truncated_answer_is_asked_for_twice() -> None:
    """A truncated answer is requested again, twice."""
    agent = Agent("a", ScriptedModel([cut("too lo"), cut("still too"), "short"]))
    assert (await agent.call("go")).text == "short"


async def test_a_third_truncated_answer_is_an_error() -> None:
    """The third truncated answer is a ModelError that names the fix."""
    agent = Agent("a", ScriptedModel([cut("a"), cut("b"), cut("c")]))
    with pytest.raises(ModelError) as caught:
        await agent.call("go")
    assert str(caught.value) == (
        "The model's answer was truncated by the token limit 3 times (finish_reason 'length'). Raise "
        "ModelOptions(max_tokens=...), or request a shorter answer."
    )


async def test_a_truncated_answer_with_calls_does_not_run_them() -> None:
    """Calls of a truncated answer may be incomplete: they are superseded, not run."""
    ran: list[int] = []

    @tool
    async def work() -> str:
        """Work."""
        ran.append(1)
        return ""

    agent = Agent("a", ScriptedModel([[use("t1", "work"), ModelChunk(finish_reason="length")], "short"]), tools=[work])
    assert (await agent.call("go")).text == "short"
    assert ran == []


@pytest.mark.parametrize("summary", ["", cut("so fa")], ids=["empty", "cut off"])
async def test_a_summary_is_never_asked_for_again(summary: Any) -> None:
    """At the limit of `max_iterations` the call ends with the summary, however it is."""
    model = ScriptedModel([use("t1", "nope"), summary])
    reply = await Agent("a", model, max_iterations=1).call("go")
    assert (reply.outcome, len(model.requests)) == ("limited", 2)


async def test_the_counts_are_per_run() -> None:
    """Each run has its retries."""
    agent = Agent("a", ScriptedModel(["", "one", "", "two"]))
    assert [(await agent.call("1")).text, (await agent.call("2")).text] == ["one", "two"]


async def test_ids_of_what_they_say_come_from_the_run() -> None:
    """A custom `new_id` makes the ids of all messages that the run stores, those of the default hooks included."""
    numbers = count(1)
    script = ["", cut("a"), use("t1", "nope"), "end"]
    agent = Agent("a", ScriptedModel(script), new_id=lambda kind: f"{kind}mine-{next(numbers)}")
    await agent.call("go")
    assert [msg.id for msg in agent.session().messages if "mine-" not in msg.id] == []
    assert [msg.text[:12] for msg in agent.session().messages if msg.role == "user"] == [
        "go",
        "Your answer ",
        "Your answer ",
    ]


@pytest.mark.parametrize("first", ["", cut("too lo")], ids=["empty", "cut off"])
async def test_a_run_that_waits_is_saved_with_its_counts(first: Any) -> None:
    """A session that waits for an approval after an answer was requested again is saved, and continues the count."""

    @tool(requires_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        return "paid"

    session = Session.fresh(id="s")
    agent = Agent("a", ScriptedModel([first, use("t", "pay", cents=1)]), tools=[pay])
    assert (await agent.call("pay", session=session)).outcome == "suspended"
    restored = Session.from_json(session.to_json())
    model = ScriptedModel([first, first, first])
    other = Agent("a", model, tools=[pay])
    with pytest.raises(ModelError):
        await other.resume(restored, {"t": Approve()})
    assert len(model.requests) == (1 if first == "" else 2)


async def test_left_out() -> None:
    """`default_hooks=()` removes them, in the constructor and the builder: an empty answer is an answer."""
    reply = await Agent("a", ScriptedModel([""]), default_hooks=()).call("go")
    assert (reply.text, reply.outcome) == ("", "completed")
    built = Agent.builder().name("a").model(ScriptedModel([cut("cut of")])).default_hooks().build()
    assert (await built.call("go")).text == "cut of"


async def test_a_reply_that_concerns_nobody_is_not_made_an_event() -> None:
    """`concerns` selects the replies that a hook of PostReasoning handles; the events of others are counted, and not
    built.
    """

    class Shouting(Hook):
        events = (PreReasoning, PostReasoning)

        def __init__(self) -> None:
            self.seen: list[str] = []

        def concerns(self, reply: Msg) -> bool:
            return reply.text.isupper()

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostReasoning):
                self.seen.append(event.reasoning_result.text)
            return event

    hook = Shouting()
    agent = Agent("a", ScriptedModel(["quiet", "LOUD", "quiet"]), hooks=[hook])
    await agent.call("one")
    await agent.call("two")
    assert hook.seen == ["LOUD"]
    async for _ in agent.stream("three"):
        pass
    assert hook.seen == ["LOUD"]
    watched = Shouting()
    agent = Agent("a", ScriptedModel(["quiet", "LOUD"]), hooks=[watched, Recorder()])
    await agent.call("a recorder gets all replies")
    await agent.call("and the hook that it watches")
    assert watched.seen == ["LOUD"]
