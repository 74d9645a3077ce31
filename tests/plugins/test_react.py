"""ReAct thoughts: the agent writes a thought before it acts, in a call of its own or in the reply."""

import asyncio
import json
from typing import Any

import pytest
from eventlog import history, log, use
from wired import Wired

from agentflow import Agent, Hook, Msg, tool
from agentflow.errors import ModelError, UsageError
from agentflow.plugins.react import CHAIN_OF_THOUGHT, THINK, ChainOfThought, ReActThoughts, Thoughts
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, ScriptedCall, WireReply, WireRequest
from agentflow.vocabulary.events import CallEnded, MessagesAdded
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.specs import ModelOptions


@tool(type="read")
async def look(place: int) -> str:
    """Look at a place."""
    return f"nothing at {place}"


class Ended(Hook):
    """Keeps the thoughts of each run."""

    observer = True
    events = (CallEnded,)

    def __init__(self) -> None:
        self.thoughts: list[list[str]] = []

    def on_event(self, event: Any) -> None:
        self.thoughts.append(event.context.state[Thoughts].texts)


@pytest.mark.parametrize("how", ["call", "stream"])
@pytest.mark.parametrize("keep", [True, False])
async def test_thoughts_over_the_wire(wired: Wired, how: str, keep: bool) -> None:
    """Three rounds with thoughts between them: providers accept every request, models that think included."""
    thought = 0

    def brain(request: WireRequest) -> WireReply:
        nonlocal thought
        if request.system.startswith(THINK[:30]):
            thought += 1
            return Say(f"Idea {thought}.")
        n = sum(1 for message in request.messages if "Step" in json.dumps(message))
        calls = (ScriptedCall("look", {"place": n}), ScriptedCall("look", {"place": -n}))
        return (
            WireReply(f"Step {n}.", thinking="Hm.", calls=calls) if n < 3 else Say("Nothing anywhere.", thinking="So.")
        )

    ended = Ended()
    options = ModelOptions(thinking=2000, max_tokens=4000)
    async with wired.serve(brain) as server:
        hooks = [ReActThoughts(keep=keep), ended]
        agent = Agent("a", wired.model(server), system="S", tools=[look], hooks=hooks, options=options)
        if how == "stream":
            async with agent.stream("Find it.") as events:
                added = [m.text async for e in events if isinstance(e, MessagesAdded) for m in e.messages]
            assert added == ([f"[thought] Idea {n}." for n in range(1, 5)] if keep else [])
        else:
            await agent.call("Find it.")
        assert (await agent.call("Thanks.")).text == "Nothing anywhere."
    assert ended.thoughts == [[f"Idea {n}." for n in range(1, 5)], ["Idea 5."]]
    main = [json.dumps(r.messages) for r in server.requests if not r.system.startswith(THINK[:30])]
    assert [text.count("[thought]") for text in main] == ([1, 2, 3, 4, 5] if keep else [1] * 5)
    notes = [msg for msg in agent.session().messages if "synthetic" in msg.metadata]
    assert [(msg.role, msg.metadata["synthetic"]) for msg in notes] == [("user", "thought")] * (5 if keep else 0)


async def test_the_whole_run() -> None:
    """The intent is in the stream before the act."""
    model = ScriptedModel(["I will look.", use("t1", "look", place=1), "I know enough.", "Nothing."])
    agent = Agent("a", model, tools=[look], hooks=[ReActThoughts()])
    async with agent.stream("Go") as events:
        seen = log([event async for event in events])
    assert seen[:5] == [
        "PreCall user: Go",
        "PreReasoning 1 reason",
        "MessagesAdded injected user: [thought] I will look.",
        'ReasoningChunk [t1:look {"place":1}]',
        "PostReasoning [t1:look(place=1)]",
    ]
    assert history(agent.session()) == [
        "user: Go",
        "user: [thought] I will look.",
        "assistant: [t1:look(place=1)]",
        "tool: t1 success 'nothing at 1'",
        "user: [thought] I know enough.",
        "assistant: Nothing.",
    ]
    told = model.requests[0].messages[1].text
    assert told == "The tools:\n- look: Look at a place.\n\nThe conversation:\nuser: Go"


async def test_a_thought_that_fails_is_left_out() -> None:
    """The agent acts without it."""
    side = ScriptedModel([ModelError("down"), "", "I know enough."])
    model = ScriptedModel([use("t1", "look", place=1), use("t2", "look", place=2), "Nothing."])
    agent = Agent("a", model, tools=[look], hooks=[ReActThoughts(side)])
    assert (await agent.call("Go")).text == "Nothing."
    assert [msg.text for msg in agent.session().messages if "synthetic" in msg.metadata] == ["[thought] I know enough."]


async def test_a_thought_that_hangs_is_left_behind() -> None:
    """Its time limit ends it, not the run."""
    side = ScriptedModel([lambda request: asyncio.get_running_loop().create_future()])
    model = ScriptedModel(["Hi."])
    assert (await Agent("a", model, hooks=[ReActThoughts(side, timeout=0.01)]).call("Go")).text == "Hi."


async def test_no_thought_before_the_summary_at_the_limit() -> None:
    """At the limit nothing is left to be done, so nothing is thought."""
    side = ScriptedModel(["I will look."])
    model = ScriptedModel([use("t1", "look", place=1), "That is all."])
    reply = await Agent("a", model, tools=[look], hooks=[ReActThoughts(side)], max_iterations=1).call("Go")
    assert (reply.text, reply.outcome) == ("That is all.", "limited")
    assert len(side.requests) == 1


async def test_fifty_runs_of_two_agents_share_one_hook() -> None:
    """Each run has its own thoughts."""
    side = ScriptedModel(lambda request: f"about {request.messages[1].text.split('user: ')[1].split()[0]}")

    def brain(request: Any) -> Any:
        if len(request.messages) < 3:
            return [ToolUseBlock(Msg.user("").id, "look", {"place": 1})]
        return request.messages[-1].text

    ended, hook = Ended(), ReActThoughts(side)
    agents = [Agent(name, ScriptedModel(brain), tools=[look], hooks=[hook, ended]) for name in "ab"]
    calls = [agents[n % 2].call(f"run-{n}", session=f"s{n}") for n in range(50)]
    assert [r.text for r in await asyncio.gather(*calls)] == [f"[thought] about run-{n}" for n in range(50)]
    assert sorted(ended.thoughts) == sorted([f"about run-{n}"] * 2 for n in range(50))


@pytest.mark.parametrize("how", ["call", "stream"])
@pytest.mark.parametrize("system", [None, "Be brief."])
async def test_chain_of_thought_over_the_wire(wired: Wired, how: str, system: str | None) -> None:
    """The instruction is in the system prompt of each request and nowhere else; the model's thought is recorded."""
    script = [
        WireReply("Thought: I need to look.", calls=(ScriptedCall("look", {"place": 1}),)),
        Say("Nothing."),
    ]
    ended = Ended()
    async with wired.serve(script) as server:
        hooks = [ChainOfThought(), ended]
        agent = Agent("a", wired.model(server), system=system, tools=[look], hooks=hooks)
        if how == "stream":
            async with agent.stream("Go") as events:
                async for _ in events:
                    pass
        else:
            await agent.call("Go")
    wanted = CHAIN_OF_THOUGHT if system is None else f"{system}\n\n{CHAIN_OF_THOUGHT}"
    assert [request.system for request in server.requests] == [wanted] * 2
    assert ended.thoughts == [["Thought: I need to look."]]
    assert [msg.role for msg in agent.session().messages] == ["user", "assistant", "tool", "assistant"]
    assert CHAIN_OF_THOUGHT not in str(list(agent.session().messages))


async def test_chain_of_thought_without_tools_asks_for_nothing() -> None:
    """Where nothing can be called, and on the summary, the request is left alone."""
    model = ScriptedModel(["Hi."])
    await Agent("a", model, hooks=[ChainOfThought("Think!")]).call("Go")
    assert [msg.role for msg in model.requests[0].messages] == ["user"]
    model = ScriptedModel([use("t1", "look", place=1), "All."])
    await Agent("a", model, tools=[look], hooks=[ChainOfThought("Think!")], max_iterations=1).call("Go")
    assert ["Think!" in str(request.messages) for request in model.requests] == [True, False]


def test_arguments_that_make_no_sense() -> None:
    """They are refused when the hook is built."""
    with pytest.raises(UsageError, match="empty"):
        ChainOfThought(" ")
