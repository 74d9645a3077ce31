"""`GoalJudge`: an answer that misses the goal sends the agent back to work, and never forever."""

import asyncio
import json
from typing import Any

import pytest
from eventlog import Recorder, history, streamed, use
from wired import Wired

from agentflow import Agent, Hook, Msg, tool
from agentflow.errors import ModelError, UsageError
from agentflow.plugins.goal import JUDGE, GoalJudge, GoalState, Judgement
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, UseTool, WireReply, WireRequest
from agentflow.vocabulary.events import CallEnded, PreCall
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.typed_state import StateMap


@tool(type="read")
async def look(place: int) -> str:
    """Look at a place."""
    return f"nothing at {place}"


def has_source(event: Any) -> bool | str:
    return "https://" in event.reasoning_result.text or "name your source"


def verdict(done: bool, reason: str = "") -> str:
    return json.dumps({"done": done, "reason": reason})


class Ended(Hook):
    """Keeps how the judging of each run ended."""

    observer = True
    events = (CallEnded,)

    def __init__(self) -> None:
        self.states: list[tuple[str, str, int]] = []

    def on_event(self, event: Any) -> None:
        state = event.context.state[GoalState]
        self.states.append((state.verdict, state.reason, state.sent_back))


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_sent_back_over_the_wire(wired: Wired, how: str) -> None:
    """The first answer is rejected by the judging model, the agent looks once more, and its second answer is accepted."""

    def brain(request: WireRequest) -> WireReply:
        text = json.dumps(request.messages)
        if request.system.startswith(JUDGE[:30]):
            return Say(verdict("2" in request.user_text.split("The answer:")[1], "look at place 2 too"))
        if "look at place 2 too" not in text:
            return UseTool("look", {"place": 1}) if "nothing at 1" not in text else Say("Nothing at 1.")
        return UseTool("look", {"place": 2}) if "nothing at 2" not in text else Say("Nothing at 1 and 2.")

    ended = Ended()
    async with wired.serve(brain) as server:
        hooks = [GoalJudge("Both places were looked at."), ended]
        agent = Agent("a", wired.model(server), tools=[look], hooks=hooks)
        if how == "stream":
            async with agent.stream("Look.") as events:
                reply = [event async for event in events][-2].final_message
        else:
            reply = await agent.call("Look.")
            assert (reply.outcome, reply.usage.model_calls) == ("completed", 6)
    assert (reply.text, reply.metadata["goal"]) == ("Nothing at 1 and 2.", "met")
    assert [msg.role[0] for msg in agent.session().messages] == list("uatauata")
    sent_back = agent.session().messages[4]
    assert sent_back.text == "[goal] This answer is not accepted: look at place 2 too\nKeep working, then answer again."
    assert sent_back.metadata["synthetic"] == "goal_judge"
    judged = [r.user_text for r in server.requests if r.system.startswith(JUDGE[:30])]
    assert len(judged) == 2
    for part in ("Look.", "Both places were looked at.", "result of look: nothing at 1", "The answer:\nNothing at 1."):
        assert part in judged[0]
    assert ended.states == [("met", "look at place 2 too", 1)]


async def test_the_whole_run() -> None:
    """What a consumer sees of a rejected answer: the reply with its verdict, and the reason as an added message."""
    model = ScriptedModel(["It is so.", "It is so: https://a.b"])
    seen = await streamed(Agent("a", model, hooks=[GoalJudge(has_source)]))
    told = "[goal] This answer is not accepted: name your source\nKeep working, then answer again."
    assert seen == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        "ReasoningChunk It is so.",
        "PostReasoning It is so. -> Again(GoalJudge)",
        f"MessagesAdded again user: {told}",
        "PreReasoning 2 reason",
        "ReasoningChunk It is so: https://a.b",
        "PostReasoning It is so: https://a.b",
        "PostCall completed 'It is so: https://a.b'",
        "CallEnded completed",
    ]


@pytest.mark.parametrize("bound", [0, 1, 3])
async def test_the_last_attempt_is_accepted_and_marked(bound: int) -> None:
    """At the limit the answer is accepted, marked as unmet with the reason."""
    ended = Ended()
    model = ScriptedModel([f"Attempt {n}." for n in range(bound + 1)])
    agent = Agent("a", model, hooks=[GoalJudge(has_source, max_rounds=bound), ended])
    reply = await agent.call("Go")
    assert (reply.text, reply.outcome) == (f"Attempt {bound}.", "completed")
    assert dict(reply.metadata) == {"goal": "unmet", "goal_reason": "name your source"}
    assert dict(agent.session().messages[-1].metadata) == dict(reply.metadata)
    assert ended.states == [("unmet", "name your source", bound)]
    model.assert_done()


@pytest.mark.parametrize(
    "nonsense", ["Looks good to me!", "", "{", '{"done": "perhaps"}', "[true]", '{"reason": "no done"}', "null"]
)
async def test_a_judge_that_answers_nonsense_accepts(nonsense: str) -> None:
    """The agent is not sent back for an unreadable judgement."""
    model, side = ScriptedModel(["Answer."]), ScriptedModel([nonsense])
    reply = await Agent("a", model, hooks=[GoalJudge("It is good.", side)]).call("Go")
    assert (reply.text, reply.outcome, reply.metadata["goal"]) == ("Answer.", "completed", "unjudged")


@pytest.mark.parametrize("wrapping", ["{}", "```json\n{}\n```", "Here is my verdict: {} I hope it helps."])
async def test_words_around_the_verdict_are_passed_over(wrapping: str) -> None:
    """Models put fences and words around their JSON."""
    side = ScriptedModel([wrapping.replace("{}", verdict(False, "too short")), verdict(True)])
    model = ScriptedModel(["Short.", "Long enough."])
    reply = await Agent("a", model, hooks=[GoalJudge("It is long.", side)]).call("Go")
    assert (reply.text, dict(reply.metadata)) == ("Long enough.", {"goal": "met"})


def broken(event: Any) -> bool:
    raise ZeroDivisionError("a bug")


def wrong(event: Any) -> Any:
    return 7


@pytest.mark.parametrize("criterion", [broken, wrong])
async def test_a_judge_that_fails_accepts(criterion: Any) -> None:
    """A bug in the judge, or an illegal return value, loses the judgement and not the run."""
    reply = await Agent("a", ScriptedModel(["Answer."]), hooks=[GoalJudge(criterion)]).call("Go")
    assert (reply.text, reply.metadata["goal"]) == ("Answer.", "unjudged")


async def test_a_judging_model_that_is_down_accepts() -> None:
    """So does a model that cannot be reached, and one that hangs."""
    side = ScriptedModel([ModelError("down"), lambda request: asyncio.get_running_loop().create_future()])
    agent = Agent("a", ScriptedModel(["One.", "Two."]), hooks=[GoalJudge("Good.", side, timeout=0.05)])
    assert (await agent.call("Go")).text == "One."
    assert (await agent.call("Go")).text == "Two."
    side.assert_done()


@pytest.mark.parametrize("found", [True, None, Judgement(done=True)])
async def test_what_accepts(found: Any) -> None:
    """A function's True, None, or a `Judgement` that says so; it may be a coroutine function."""

    async def judge(event: Any) -> Any:
        return found

    reply = await Agent("a", ScriptedModel(["Answer."]), hooks=[GoalJudge(judge)]).call("Go")
    assert reply.metadata["goal"] == "met"


@pytest.mark.parametrize("found", [False, "why", Judgement(done=False, reason="why")])
async def test_what_sends_back(found: Any) -> None:
    """A function's False, a reason, or a `Judgement` that says so."""
    agent = Agent("a", ScriptedModel(["One.", "Two."]), hooks=[GoalJudge(lambda event: found, max_rounds=1)])
    await agent.call("Go")
    why = "the goal is not reached" if found is False else "why"
    assert history(agent.session())[2].startswith(f"user: [goal] This answer is not accepted: {why}\n")


async def test_replies_with_calls_and_the_summary_are_not_judged() -> None:
    """Only a reply that would end the call is evaluated; at the limit the agent cannot be sent back."""
    asked: list[str] = []

    def judge(event: Any) -> str:
        asked.append(event.reasoning_result.text)
        return "no"

    model = ScriptedModel([["Step.", use("t1", "look", place=1)], "Answer.", "All that was found."])
    agent = Agent("a", model, tools=[look], hooks=[GoalJudge(judge)], max_iterations=2)
    reply = await agent.call("Go")
    assert asked == ["Answer."]
    assert (reply.text, reply.outcome, dict(reply.metadata)) == ("All that was found.", "limited", {})


async def test_the_bound_holds_over_a_restart() -> None:
    """A run that was suspended, and resumed from its saved state, continues its count."""
    seen = StateMap()
    seen.restore({"agentflow.plugins.goal:GoalState": {"verdict": "unmet", "reason": "no", "sent_back": 1}})

    class Restored(Hook):
        priority = 1
        events = (PreCall,)

        def on_event(self, event: Any) -> None:
            event.context.state[GoalState] = seen[GoalState]

    model = ScriptedModel(["One.", "Two.", "Three."])
    await Agent("a", model, hooks=[Restored(), GoalJudge(lambda event: "no", max_rounds=2)]).call("Go")
    assert len(model.requests) == 2


async def test_two_judges_count_for_themselves() -> None:
    """Each has its own bound, and both have to be content or used up."""
    recorder = Recorder()
    judges = [GoalJudge(lambda event: "a", max_rounds=1), GoalJudge(lambda event: "b", max_rounds=2)]
    model = ScriptedModel(["One.", "Two.", "Three."])
    reply = await Agent("a", model, hooks=[*judges, recorder]).call("Go")
    assert reply.text == "Three."
    model.assert_done()


async def test_a_judge_of_a_subclass_counts_for_itself() -> None:
    """Both classes share the run's count, and each judge has its own limit."""

    class Strict(GoalJudge):
        pass

    judges = [GoalJudge(lambda event: "a", max_rounds=1), Strict(lambda event: "b", max_rounds=2)]
    model = ScriptedModel(["One.", "Two.", "Three."])
    reply = await Agent("a", model, hooks=judges).call("Go")
    assert reply.text == "Three."
    model.assert_done()


async def test_fifty_runs_of_two_agents_share_one_hook() -> None:
    """The count belongs to the run."""
    hook, ended = GoalJudge(lambda event: "again", max_rounds=2), Ended()

    def brain(request: Any) -> Any:
        tried = sum(msg.role == "assistant" and not msg.tool_uses for msg in request.messages)
        called = any(msg.role == "tool" for msg in request.messages)
        return (
            f"{request.messages[0].text} {tried}" if called else [ToolUseBlock(Msg.user("").id, "look", {"place": 1})]
        )

    agents = [Agent(name, ScriptedModel(brain), tools=[look], hooks=[hook, ended]) for name in "ab"]
    calls = [agents[n % 2].call(f"run-{n}", session=f"s{n}") for n in range(50)]
    assert [reply.text for reply in await asyncio.gather(*calls)] == [f"run-{n} 2" for n in range(50)]
    assert ended.states == [("unmet", "again", 2)] * 50


def test_arguments_that_make_no_sense() -> None:
    """They are refused when the hook is built."""
    with pytest.raises(UsageError, match="max_rounds=-1"):
        GoalJudge("good", max_rounds=-1)
    with pytest.raises(UsageError, match="empty"):
        GoalJudge(" ")
    with pytest.raises(UsageError, match="only used with a text as criterion"):
        GoalJudge(has_source, "openai/gpt-5-mini")
