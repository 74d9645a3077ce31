"""`Steering`: a message that is sent while an agent works is added at the next legal place, once, and is never lost."""

import asyncio
import threading
from typing import Any

import pytest
from eventlog import history, use
from wired import Wired

from agentflow import Again, Agent, Answer, Deny, Msg, PostReasoning, PreCall, PreReasoning, Stop, on, tool
from agentflow.errors import UsageError
from agentflow.loop.config import FrozenAgentView
from agentflow.plugins.steering import Steering
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, UseTool
from agentflow.vocabulary.events import Frame


def speaking(steering: Steering, *texts: str, session: str | None = None) -> Any:
    """A tool during which a message is sent."""

    @tool(type="read")
    async def look() -> str:
        """Look."""
        for text in texts:
            await asyncio.to_thread(steering.send, text, session=session)
        return "seen"

    return look


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_message_in_mid_run_over_the_wire(wired: Wired, how: str) -> None:
    """A message that a thread sends while a tool runs follows the results, in the next request and in the history."""
    steering = Steering()
    async with wired.serve([UseTool("look"), Say("I stop at two.")]) as server:
        agent = Agent("a", wired.model(server), tools=[speaking(steering, "Only two, please.")], hooks=[steering])
        if how == "call":
            await agent.call("Look.")
        else:
            async with agent.stream("Look.") as events:
                seen = [event async for event in events]
            assert [
                msg.text for event in seen if type(event).__name__ == "MessagesAdded" for msg in event.messages
            ] == ["Only two, please."]
    assert "Only two, please." in str(server.requests[1].body)
    assert history(agent.session())[-2:] == ["user: Only two, please.", "assistant: I stop at two."]
    assert agent.session().messages[-2].metadata["synthetic"] == "steering"
    assert steering.waiting() == ()


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_message_during_the_answer_over_the_wire(wired: Wired, how: str) -> None:
    """What comes while the answer is written sends the agent back to work, with a history that both wires accept."""
    steering = Steering()

    def brain(request: Any) -> Say:
        if request.index == 0:
            steering.send("In French.")
            return Say("Good day.")
        return Say("Bonjour.")

    async with wired.serve(brain) as server:
        agent = Agent("a", wired.model(server), hooks=[steering])
        if how == "call":
            await agent.call("Greet me.")
        else:
            async with agent.stream("Greet me.") as events:
                assert [event async for event in events][-1].outcome == "completed"
    assert history(agent.session()) == [
        "user: Greet me.",
        "assistant: Good day.",
        "user: In French.",
        "assistant: Bonjour.",
    ]
    assert steering.waiting() == ()


async def test_several_messages_keep_their_order() -> None:
    """They keep their order."""
    steering = Steering()
    model = ScriptedModel([use("t1", "look"), "Fine."])
    agent = Agent("a", model, tools=[speaking(steering, "One.", "Two.", "Three.")], hooks=[steering])
    await agent.call("Go")
    assert history(agent.session())[3:] == ["user: One.", "user: Two.", "user: Three.", "assistant: Fine."]


async def test_what_comes_after_the_end_opens_the_next_call() -> None:
    """A message to an idle session waits, and comes before the next call's input; then nothing waits."""
    steering = Steering()
    agent = Agent("a", ScriptedModel(["One.", "Two."]), hooks=[steering])
    await agent.call("First")
    sent = steering.send("By the way.")
    assert steering.waiting("a") == (sent,)
    await agent.call("Second")
    assert history(agent.session())[2:] == ["user: By the way.", "user: Second", "assistant: Two."]
    assert steering.waiting() == ()


async def test_what_was_never_given_to_a_call_can_be_taken_back() -> None:
    """Who has changed their mind gets the message back, and no call does."""
    steering = Steering()
    sent = steering.send("Never mind.", session="a")
    assert steering.withdraw("a") == (sent,)
    agent = Agent("a", ScriptedModel(["Fine."]), hooks=[steering])
    await agent.call("Go")
    assert history(agent.session()) == ["user: Go", "assistant: Fine."]


@on(PreReasoning, priority=40)
def stop_first(event: PreReasoning) -> Stop:
    return Stop("No.")


@on(PostReasoning, priority=40)
def stop_later(event: PostReasoning) -> Stop:
    return Stop("No.")


@on(PostReasoning, priority=10)
def other_again(event: PostReasoning) -> Again | None:
    return Again("Louder.") if event.iteration == 1 else None


@on(PreCall, priority=40)
def answer_at_once(event: PreCall) -> Answer:
    return Answer("At once.")


@on(PreCall, priority=40)
def deny(event: PreCall) -> Deny:
    return Deny("No.")


@on(PreCall, priority=40)
def other_input(event: PreCall) -> None:
    event.input_messages = (Msg.user("Go"),)


@pytest.mark.parametrize("other", [stop_first, stop_later, other_again, answer_at_once, deny, other_input])
@pytest.mark.parametrize("when", ["before", "answering"])
async def test_a_message_stands_in_the_history_once_whatever_other_hooks_do(other: Any, when: str) -> None:
    """Another hook stops, answers, refuses or asks again at the moment of delivery: later, the message is there, once."""
    steering = Steering()
    if when == "before":
        steering.send("Psst.", session="a")

    def brain(request: Any) -> str:
        if when == "answering" and len(model.requests) == 1:
            steering.send("Psst.", session="a")
        return "Fine."

    model = ScriptedModel(brain)
    agent = Agent("a", model, hooks=[steering])
    await agent.call("Go", hooks=[other])
    await agent.call("Again")
    await agent.call("And again")
    assert [msg.text for msg in agent.session().messages].count("Psst.") == 1
    assert steering.waiting() == ()


async def test_another_hooks_word_does_not_push_a_message_out_of_the_run() -> None:
    """Two hooks send an answer back at once and only one can: the message gets in with the next request of the same call."""
    steering = Steering()

    def brain(request: Any) -> str:
        if len(model.requests) == 1:
            steering.send("Psst.")
        return "Fine."

    model = ScriptedModel(brain)
    agent = Agent("a", model, hooks=[steering, other_again])
    await agent.call("Go")
    assert history(agent.session()) == [
        "user: Go",
        "assistant: Fine.",
        "user: Louder.",
        "user: Psst.",
        "assistant: Fine.",
    ]


def test_a_call_that_died_with_its_event_loop_loses_nothing() -> None:
    """A call got a message and never ended, as its loop is gone: the next call gets it again."""
    steering = Steering()
    steering.send("Psst.", session="s")
    context: Any = None  # not asked for here
    given: list[list[str]] = []
    for call_id in ("dead", "alive"):
        frame = Frame("run", call_id, "s", "", FrozenAgentView("a", "", (), "scripted"), context)
        event = PreCall(_frame=frame, input_messages=(Msg.user("Go"),)).replace()
        steering.on_event(event)
        given.append([msg.text for msg in event.input_messages])
    assert given == [["Psst.", "Go"]] * 2


async def test_sending_back_has_a_bound() -> None:
    """A message during each answer does not keep a run alive forever; the last one waits for the next call."""
    steering = Steering(max_back=2)

    def brain(request: Any) -> str:
        steering.send("More!")
        return "Here."

    agent = Agent("a", ScriptedModel(brain), hooks=[steering])
    reply = await agent.call("Go")
    assert (reply.outcome, reply.usage.model_calls) == ("completed", 3)
    assert [msg.text for msg in steering.waiting("a")] == ["More!"]


async def test_the_summary_is_not_disturbed() -> None:
    """At the iteration limit nothing is let in: the model could do nothing about it. It waits for the next call."""
    steering = Steering()
    model = ScriptedModel([use("t1", "look"), "Summary.", "Second."])
    agent = Agent("a", model, tools=[speaking(steering, "Wait!")], hooks=[steering], max_iterations=1)
    assert (await agent.call("Go")).outcome == "limited"
    await agent.call("Next")
    assert history(agent.session())[-4:] == [
        "assistant: Summary.",
        "user: Wait!",
        "user: Next",
        "assistant: Second.",
    ]


async def test_a_cancelled_call_loses_nothing() -> None:
    """If a call is cancelled while its model is silent, messages sent before and meanwhile are delivered, once."""
    steering, silent = Steering(), asyncio.Event()

    async def brain(request: Any) -> str:
        if len(model.requests) == 1:
            silent.set()
            await asyncio.Event().wait()
        return "Fine."

    model = ScriptedModel(brain)
    agent = Agent("a", model, hooks=[steering])
    steering.send("First.", session="a")
    call = asyncio.ensure_future(agent.call("Go"))
    await silent.wait()
    steering.send("Second.")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await agent.call("On")
    texts = [msg.text for msg in agent.session().messages]
    assert [texts.count(text) for text in ("First.", "Second.")] == [1, 1]
    assert steering.waiting() == ()


async def test_fifty_sessions_of_two_agents_are_told_apart() -> None:
    """One instance: each of fifty concurrent runs gets the messages sent to its session, from a thread, and no
    others.
    """
    steering = Steering()

    @tool(type="read")
    async def look(session: str) -> str:
        """Look."""
        thread = threading.Thread(target=steering.send, args=(f"for {session}",), kwargs={"session": session})
        thread.start()
        await asyncio.to_thread(thread.join)
        return "seen"

    def brain(request: Any) -> Any:
        first = request.messages[0].text
        return use("t", "look", session=first) if len(request.messages) == 1 else request.messages[-1].text

    agents = [Agent(name, ScriptedModel(brain), tools=[look], hooks=[steering]) for name in ("a", "b")]
    replies = await asyncio.gather(*[agents[n % 2].call(f"s{n}", session=f"s{n}") for n in range(50)])
    assert [reply.text for reply in replies] == [f"for s{n}" for n in range(50)]
    assert steering.waiting() == ()


async def test_a_session_has_to_be_named_where_it_is_not_clear() -> None:
    """With no call, or with calls in two sessions, a message without a session is refused, and the error has the
    remedy.
    """
    steering = Steering()
    with pytest.raises(UsageError, match="no call is running"):
        steering.send("Hello?")

    async def brain(request: Any) -> str:
        if len(model.requests) == 2:
            with pytest.raises(UsageError, match="calls are running in the sessions one, two"):
                steering.send("Hello?")
            both.set()
        await both.wait()
        return "Fine."

    both = asyncio.Event()
    model = ScriptedModel(brain)
    agent = Agent("a", model, hooks=[steering])
    await asyncio.gather(agent.call("Go", session="one"), agent.call("Go", session="two"))
    with pytest.raises(UsageError, match="no call is running"):
        steering.send("Hello?")


def test_what_is_no_users_message_is_refused() -> None:
    """Nobody speaks for the model, or for the system."""
    with pytest.raises(UsageError, match="role 'assistant'"):
        Steering().send(Msg.assistant("I am done."), session="a")
    with pytest.raises(UsageError, match="max_back"):
        Steering(max_back=-1)
