"""Turns, queues, agents and sessions as data: what is saved, what is refused, and what is restored."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from eventlog import use
from hypothesis import given, settings
from hypothesis import strategies as st
from turnlog import add, say, spell, worker

from agentflow import (
    Agent,
    Answer,
    Approve,
    Deny,
    Hook,
    ModelOptions,
    Msg,
    Session,
    ToolSchedule,
    ToolUseBlock,
    Turn,
    on,
    tool,
)
from agentflow.agent import AgentRegistry
from agentflow.errors import NotRegisteredError, StoreError, UsageError
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools import ToolRegistry
from agentflow.vocabulary.events import PreTurn


@tool(requires_approval=True)
async def delete(path: str) -> str:
    """Delete."""
    return f"deleted {path}"


@on(PreTurn)
def noted(event: PreTurn) -> None:
    """A hook that can be found by its name."""


class Strict(Hook):
    """Another such hook."""

    def on_event(self, event: Any) -> Any:
        return event


TOOLS = [say, spell, delete]
HOOKS = [noted, Strict()]
FIND: Any = {"tools": TOOLS, "hooks": HOOKS}

names = st.text("abc_xyzé ", min_size=1, max_size=8)
data: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
approvals: st.SearchStrategy[Any] = (
    st.none()
    | st.builds(Approve, st.none() | st.dictionaries(st.text(), data, max_size=2))
    | st.builds(Deny, st.text())
    | st.builds(Answer, data)
)


@st.composite
def turns(draw: st.DrawFn) -> Turn[Any]:
    turn = Turn(
        draw(st.sampled_from(TOOLS)),
        draw(st.dictionaries(names, data, max_size=3)),
        timeout=draw(st.none() | st.floats(0.001, 1e9)),
        tags=draw(st.lists(names, max_size=3)),
        metadata=draw(st.dictionaries(st.text(), data, max_size=3)),
        approval=draw(approvals),
        hooks=draw(st.lists(st.sampled_from(HOOKS), unique_by=id, max_size=2)),
    )
    if draw(st.booleans()):
        turn.send_by(draw(names), draw(names))
    return turn


def facts(turn: Turn[Any]) -> tuple[Any, ...]:
    """Return all data of a turn."""
    return (
        turn.id,
        turn.tool,
        dict(turn.arguments),
        turn.timeout,
        turn.tags,
        turn.metadata,
        turn.approval,
        turn.hooks,
        (turn.sender, turn.sender_run),
        (turn.start_time, turn.end_time, turn.stop_reason, turn.output),
    )


# ---- round trips


@settings(max_examples=60, deadline=None)
@given(turns())
def test_a_turn_comes_back_as_it_was(turn: Turn[Any]) -> None:
    """Through a dict and through JSON; saved again it is the same data."""
    saved = turn.to_dict()
    assert json.loads(json.dumps(saved)) == saved
    assert facts(Turn.from_dict(saved, **FIND)) == facts(turn)
    again = Turn.from_json(turn.to_json(), **FIND)
    assert (facts(again), again.to_dict()) == (facts(turn), saved)


@pytest.mark.parametrize("made", [Turn(say, {"word": "a"}), Turn(say, {"word": 7}), Turn(delete, {"path": "a"})])
async def test_how_a_turn_ended_comes_back(made: Turn[Any]) -> None:
    """Completed, failed or denied: times, reason and output; it may run again."""
    try:
        await made.returning()
    except Exception:
        assert made.stop_reason != "completed"
    again = Turn.from_json(made.to_json(), **FIND)
    assert facts(again) == facts(made)
    again.arguments, again.approval = {"path" if made.tool is delete else "word": "b"}, Approve()
    assert "b" in await again.returning()


@settings(max_examples=30, deadline=None)
@given(st.lists(turns(), max_size=4), st.booleans())
def test_a_queue_comes_back_as_it_was(given_turns: list[Turn[Any]], paused: bool) -> None:
    """Its turns in order, and whether it is paused."""

    async def main() -> None:
        agent = worker(*TOOLS)
        for turn in given_turns:
            await agent.put(turn)
        if paused:
            agent.queue.pause()
        saved = json.loads(json.dumps(agent.queue.to_dict()))
        other = worker(*TOOLS, name="other")
        other.queue.restore(saved, HOOKS)
        assert [facts(turn) for turn in other.queue] == [facts(turn) for turn in given_turns]
        assert (other.queue.paused, {turn.queued for turn in other.queue} - {"other"}) == (paused, set())
        assert other.queue.to_dict() == saved

    asyncio.run(main())


options = st.builds(
    ModelOptions,
    temperature=st.none() | st.floats(0, 2),
    max_tokens=st.none() | st.integers(1, 9999),
    top_p=st.none() | st.floats(0, 1),
    stop=st.none() | st.lists(st.text(min_size=1), max_size=2).map(tuple),
    seed=st.none() | st.integers(0, 99),
    extra=st.dictionaries(st.text(), data, max_size=2),
)


@settings(max_examples=40, deadline=None)
@given(
    st.text(min_size=1),
    st.none() | st.text(min_size=1) | st.text(min_size=1).map(Msg.system),
    options,
    st.integers(1, 99),
    st.sampled_from(["by_type", "in_call_order", "sequential", "parallel"]),
    st.lists(names, max_size=2),
    st.none() | st.integers(1, 99),
    st.lists(st.sampled_from(TOOLS), unique_by=id),
)
def test_an_agents_definition_comes_back(
    name: str, system: Any, chosen: ModelOptions, most: int, policy: Any, tags: list[str], limit: int | None, tools: Any
) -> None:
    """Everything that is data; code is saved by its name."""
    agent = Agent(
        name,
        "openai/gpt-5",
        system=system,
        description="about",
        tools=tools,
        hooks=HOOKS,
        options=chosen,
        max_iterations=most,
        schedule=ToolSchedule(policy, 3),
        tags=tags,
        queue_limit=limit,
    )
    saved = agent.to_dict()
    again = Agent.from_json(agent.to_json(), tools=TOOLS, hooks=HOOKS)
    assert again.to_dict() == json.loads(json.dumps(saved)) == saved
    assert (again.tools, again.config.options, again.config.schedule, again.config.tags) == (
        agent.tools,
        agent.config.options,
        agent.config.schedule,
        agent.config.tags,
    )
    assert [hook.name for hook in again.hooks] == [hook.name for hook in agent.hooks]


async def test_an_agent_comes_back_with_its_queue() -> None:
    """It continues where the other one stopped."""
    agent = worker(say, spell, tags=["x"])
    await agent.put(Turn(say, {"word": "a"}, metadata={"n": 1}))
    await agent.put(Turn(spell, {"word": "bc"}))
    again = Agent.from_json(agent.to_json(), tools=TOOLS, model=ScriptedModel([]))
    assert [value async for _, value in again.run()] == ["a", "b", "c"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.text(min_size=1).filter(str.strip), st.text(min_size=1)), max_size=3))
def test_a_session_comes_back_as_it_was(said: list[tuple[str, str]]) -> None:
    """Its conversation is restored, and continues."""

    async def main() -> None:
        agent = Agent("a", ScriptedModel([*[answer for _, answer in said], "more"]), default_hooks=())
        session = Session.fresh()
        for question, _ in said:
            await agent.call(question, session=session)
        again = Session.from_json(session.to_json())
        assert list(again.messages) == list(session.messages)
        assert (await agent.call("and?", session=again)).text == "more"

    asyncio.run(main())


async def test_a_suspended_session_with_a_suspended_sub_agent_comes_back() -> None:
    """Saved and loaded after each step, the run continues at both levels."""
    sub = Agent("sub", ScriptedModel([use("s1", "delete", path="a"), "sub done"]), tools=[delete])
    boss = Agent("boss", ScriptedModel([use("b1", "sub", message="go"), "boss done"]), tools=[sub])
    session = Session.fresh()
    await boss.call("go", session=session)
    for _ in range(3):
        session = Session.from_json(session.to_json())
    assert [waits.id for waits in session.pending] == ["b1/s1"]
    reply = await boss.resume(session, {"b1/s1": Approve()})
    assert (reply.text, reply.outcome) == ("boss done", "completed")
    assert "inner" not in session.to_dict()


async def test_an_agent_with_sub_agents_comes_back() -> None:
    """A sub-agent is found by its name, like any tool."""
    sub = Agent("sub", ScriptedModel(["from sub"]))
    boss = Agent("boss", "openai/gpt-5", tools=[sub])
    model = ScriptedModel([use("b1", "sub", message="go"), "done"])
    again = Agent.from_json(boss.to_json(), tools=[sub.as_tool()], model=model)
    assert (await again.call("go")).text == "done"
    assert again.session().messages[2].tool_results[0].text == "from sub"


# ---- in flight


async def test_a_turn_caught_in_flight_is_restored_first() -> None:
    """It counts as a turn that has not run; the others follow, in order."""
    begun = asyncio.Event()
    agent = worker(hold, say)
    await agent.put(Turn(hold, {}, deps=begun))
    await agent.put(Turn(say, {"word": "next"}))

    async def read() -> None:
        async for _ in agent.run():
            pass

    reading = asyncio.create_task(read())
    await begun.wait()
    saved = agent.queue.to_dict()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    other = worker(hold, say)
    other.queue.restore(saved)
    first = other.queue.turns[0]
    assert (first.tool, first.start_time, first.stop_reason, first.running) == (hold, None, None, False)
    assert [turn.tool.name for turn in other.queue] == ["hold", "say"]


@tool
async def hold(begun: asyncio.Event) -> str:
    """Wait indefinitely."""
    begun.set()
    await asyncio.Event().wait()
    return ""


async def test_a_question_that_waits_comes_back_as_a_question() -> None:
    """The restored agent answers it, also if it has a tool named `ask`."""

    @tool
    async def ask(message: str) -> str:
        return f"own: {message}"

    agents = AgentRegistry()
    own = tool(name="ask")(ask.function)
    other = agents.register(Agent("other", ScriptedModel(["an answer"]), tools=[own], agents=agents))
    boss = Agent("boss", ScriptedModel([]), agents=agents)
    other.queue.pause()
    asking = asyncio.ensure_future(_ask(boss))
    await other.put(Turn(own, {"message": "hello"}))
    await asyncio.sleep(0)
    saved = json.loads(json.dumps(other.to_dict()))
    asking.cancel()
    again = Agent.from_dict(saved, tools=[own], model=ScriptedModel(["an answer"]))
    again.queue.resume()
    values = [value async for _, value in again.run()]
    assert sorted(str(value) for value in values) == ["an answer", "own: hello"]


async def _ask(boss: Agent) -> Any:
    return await boss.ask("other", "what?")


# ---- what is refused


def closing_over(value: int) -> Any:
    @tool
    async def closure() -> int:
        """Return the value."""
        return value

    return closure


def test_a_tool_that_is_a_closure_is_refused() -> None:
    """Its name would not include the closure's values; the error names the variable."""
    with pytest.raises(UsageError, match=r"Tool 'closure' of turn .* closure over value"):
        Turn(closing_over(3)).to_dict()
    with pytest.raises(UsageError, match="Tool 'closure' of agent 'worker' cannot be saved"):
        worker(closing_over(3)).to_dict()


def test_hooks_that_a_name_does_not_carry_are_refused() -> None:
    """A lambda has no name, and a closure's values are not saved."""
    seen: list[Any] = []

    @on(PreTurn)
    def closure(event: PreTurn) -> None:
        seen.append(event)

    nameless = on(PreTurn)(lambda event: None)
    for hook, says in ((closure, "closure over seen"), (nameless, "is a lambda")):
        with pytest.raises(UsageError, match=says):
            Turn(say, {}, hooks=[hook]).to_dict()
        with pytest.raises(UsageError, match=says):
            worker(say, hooks=[hook]).to_dict()


def test_metadata_that_is_no_data_is_refused() -> None:
    """The error has its place."""
    with pytest.raises(UsageError, match="metadata of turn"):
        Turn(say, {}, metadata={"live": object()}).to_dict()


async def test_numbers_that_json_does_not_know() -> None:
    """NaN in an output or in metadata is saved as text; as an argument it is damage."""
    turn = Turn(ratio, metadata={"score": [float("inf")]})
    await turn.returning()
    again = Turn.from_json(json.dumps(json.loads(turn.to_json()), allow_nan=False), tools=[ratio])
    assert (again.output, again.metadata) == ("NaN", {"score": ["Infinity"]})
    with pytest.raises(StoreError, match="only finite numbers"):
        Turn.from_dict({**Turn(say, {}).to_dict(), "arguments": {"word": float("nan")}}, **FIND)


async def test_an_output_that_is_no_data_is_left_out() -> None:
    """The turn is saved without it, and can be run again."""
    turn = Turn(live)
    await turn.returning()
    again = Turn.from_json(turn.to_json(), tools=[live])
    assert (again.output, again.stop_reason) == (None, "completed")


@tool
async def ratio() -> float:
    """Return NaN."""
    return float("nan")


@tool
async def live() -> object:
    """Return a live object."""
    return object()


def test_unknown_names() -> None:
    """A tool or hook that is not passed is an error that lists the known ones; nothing is half restored."""
    turn = Turn(say, {"word": "a"}, hooks=[noted])
    with pytest.raises(NotRegisteredError, match=r"No tool is registered as 'say'.*spell"):
        Turn.from_dict(turn.to_dict(), tools=[spell])
    with pytest.raises(NotRegisteredError, match=r"No hook is registered as 'noted'.*Strict"):
        Turn.from_dict(turn.to_dict(), tools=TOOLS, hooks=[Strict()])
    registry = ToolRegistry()
    with pytest.raises(NotRegisteredError):
        Turn.from_dict(turn.to_dict(), tools=registry, hooks=HOOKS)
    registry.register(say)
    assert Turn.from_dict(turn.to_dict(), tools=registry, hooks=HOOKS).tool is say


async def test_a_queue_with_an_unknown_tool_is_not_half_restored() -> None:
    """It restores all turns or none."""
    agent = worker(say, spell)
    await agent.put(Turn(say, {"word": "a"}))
    await agent.put(Turn(spell, {"word": "b"}))
    other = worker(say)
    with pytest.raises(NotRegisteredError):
        other.queue.restore(agent.queue.to_dict())
    assert len(other.queue) == 0


def test_what_has_to_be_handed_in_again() -> None:
    """A model object and a function as the system prompt are not data."""
    agent = Agent("a", ScriptedModel([]), system=lambda context: "hi")
    with pytest.raises(UsageError, match="model="):
        Agent.from_dict(agent.to_dict())
    with pytest.raises(UsageError, match="system="):
        Agent.from_dict(agent.to_dict(), model=ScriptedModel([]))
    assert Agent.from_dict(agent.to_dict(), model=ScriptedModel([]), system="hi").config.system == "hi"


@pytest.mark.parametrize("what", ["turn", "queue", "agent"])
@pytest.mark.parametrize(
    "damage",
    [
        {"format": "agentflow.other"},
        {"version": "one"},
        {"surplus": 1},
        {"turns": 7, "id": 7, "name": 7},
        None,
        [],
        "text",
    ],
)
def test_damaged_data(what: str, damage: Any) -> None:
    """It is a `StoreError` that names the damage."""
    agent = worker(say)
    saved = {"turn": Turn(say, {}).to_dict(), "queue": agent.queue.to_dict(), "agent": agent.to_dict()}[what]
    read: dict[str, Any] = {
        "turn": lambda data: Turn.from_dict(data, **FIND),
        "queue": worker(say).queue.restore,
        "agent": lambda data: Agent.from_dict(data, tools=TOOLS, model=ScriptedModel([])),
    }
    with pytest.raises(StoreError, match=f"not a saved {what}"):
        read[what]({**saved, **damage} if isinstance(damage, dict) else damage)


@pytest.mark.parametrize("options", [{"format": 1}, {"temperature": "warm"}, {"thinking": 0}, {"stop": 3}])
def test_damaged_options(options: Any) -> None:
    """Those of a saved agent are checked on loading, by their names and their values."""
    saved = worker(say).to_dict()
    with pytest.raises(StoreError, match="not a saved agent: options: "):
        Agent.from_dict({**saved, "options": options}, tools=TOOLS, model=ScriptedModel([]))


@pytest.mark.parametrize("what", ["turn", "queue", "agent"])
def test_newer_data(what: str) -> None:
    """It is refused unchanged, and the error has the remedy."""
    agent = worker(say)
    saved = {"turn": Turn(say, {}).to_dict(), "queue": agent.queue.to_dict(), "agent": agent.to_dict()}[what]
    read: dict[str, Any] = {"turn": Turn.from_dict, "queue": worker(say).queue.restore, "agent": Agent.from_dict}
    with pytest.raises(StoreError, match=r"version 99.*upgrade agentflow"):
        read[what]({**saved, "version": 99, "something": "new"})


@pytest.mark.parametrize("field", ["timeout", "arguments", "approval", "tags"])
def test_a_turn_that_was_changed_by_hand(field: str) -> None:
    """Values that no turn can have are damage, and no mistake of the caller."""
    wrong = {"timeout": -1, "arguments": [1], "approval": {"verdict": "maybe", "value": 1}, "tags": 7}
    with pytest.raises(StoreError, match=field):
        Turn.from_dict({**Turn(say, {}).to_dict(), field: wrong[field]}, **FIND)


@pytest.mark.parametrize("text", ["", "{", "[1,", b"\xff"])
def test_text_that_is_no_json(text: Any) -> None:
    """Of turns, agents and sessions."""
    for read in (Turn.from_json, Agent.from_json, Session.from_json):
        with pytest.raises(StoreError):
            read(text)


async def test_a_saved_session_holds_no_live_objects() -> None:
    """A session with tool calls is JSON, independent of the objects that the tool returned."""
    kept = {"list": [1]}

    @tool
    async def returns() -> dict[str, Any]:
        return kept

    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "returns", {}), "ok"]), tools=[returns])
    await agent.call("go")
    saved = json.dumps(agent.session().to_dict())
    kept["list"].append(2)
    assert json.dumps(agent.session().to_dict()) == saved


async def test_a_saved_queue_is_restored_once() -> None:
    """Two turns with one id would be two runs of one turn; nothing is restored then."""
    agent = worker(add)
    await agent.put(Turn(add, {"a": 1, "b": 2}, id="one"))
    data = agent.queue.to_dict()
    await agent.put(Turn(add, {"a": 3, "b": 4}, id="two"))
    for again in (data, {**data, "turns": data["turns"] * 2}):
        with pytest.raises(UsageError, match=r"would hold two turns of one id \(one\), so nothing was restored"):
            (agent if again is data else worker(add)).queue.restore(again)
    assert [turn.id for turn in agent.queue] == ["one", "two"]
    agent.queue.clear()
    agent.queue.restore(data)
    assert [value async for _, value in agent.run()] == [3]


def test_what_saved_data_says_cannot_be_given_besides_it() -> None:
    """The error lists what can be passed."""
    text = Agent("clerk", "openai/gpt-5").to_json()
    with pytest.raises(UsageError) as caught:
        Agent.from_json(text, max_iterations=2)
    assert str(caught.value) == (
        "Agent.from_dict(data, ...) got max_iterations. Only arguments that the data does not hold can be passed: tools, "
        "hooks, model, system, store, agents, process_hooks, clock, new_id, output. All other arguments are "
        "in the data: change them there."
    )
