"""What users stumbled over: wrong input is refused where it is given, and what is put in the place of work looks like it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from turnlog import Log, worker

from agentflow import (
    ActingEvent,
    Agent,
    AgentRegistry,
    Answer,
    Approve,
    Deny,
    Hook,
    Pending,
    PostActing,
    PostTurn,
    PreActing,
    PreReasoning,
    PreTurn,
    ProcessHooks,
    SafeExecutionError,
    Session,
    StopReason,
    StoreError,
    ToolContext,
    ToolUseBlock,
    Turn,
    TurnDeniedError,
    TurnEvent,
    UsageError,
    on,
    tool,
)
from agentflow.ground.ids import inner_session_id
from agentflow.ports.store import MemoryStore
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools.results import read_back, render


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def delete_file(path: str) -> str:
    """Delete."""
    return f"deleted {path}"


@tool
async def count(to: int) -> AsyncIterator[int]:
    """Count."""
    for number in range(to):
        yield number


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


class Settings:
    """A dependency."""


# ---- what a turn takes


@pytest.mark.parametrize("wrong", [False, True, "yes", Approve])
def test_the_approval_of_a_turn_is_a_decision_and_no_truth_value(wrong: Any) -> None:
    """`approval=False` would look like a refusal: it is refused, in the constructor and in an assignment."""
    turn = Turn(pay, {"euros": 5})
    with pytest.raises(UsageError) as made:
        Turn(pay, {"euros": 5}, approval=wrong)
    with pytest.raises(UsageError) as assigned:
        turn.approval = wrong
    legal = "legal are Approve(), Approve(input=...), Deny(reason), Answer(value), and None: nobody has decided."
    assert str(made.value) == str(assigned.value) == f"The approval of a turn of 'pay' is {wrong!r}; {legal}"
    assert turn.approval is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Turn(add, {"a": 1, "b": 2}, 60), "options are keywords, such as timeout=60."),
        (lambda: Turn(tool_name="add", kwargs={"a": 1}), "got kwargs, tool_name; options are timeout, "),
        (Turn, "Turn(...) takes a tool or its registered name, not NoneType"),
        (lambda: Turn(add, {"a": b"\xff\x00"}), "argument 'a' is bytes, which is no data"),
    ],
)
def test_a_wrong_form_of_a_turn_says_the_right_one(make: Callable[[], Any], said: str) -> None:
    """Positional options, names of other libraries, no tool at all, and bytes that are no text."""
    with pytest.raises(UsageError) as caught:
        make()
    assert said in str(caught.value)


async def test_a_denied_approval_refuses_the_turn_of_any_tool() -> None:
    """Of a tool that needs no approval too."""
    turn = Turn(add, {"a": 1, "b": 2}, approval=Deny("not today"))
    with pytest.raises(TurnDeniedError, match="not today"):
        await turn.returning()
    assert turn.stop_reason is StopReason.DENIED


@pytest.mark.parametrize("wrong", ["5", True, 0, float("nan")])
def test_a_time_limit_is_a_number_above_zero(wrong: Any) -> None:
    """A text that looks like one is none."""
    with pytest.raises(UsageError, match=r"Turn of 'add': timeout=.*; legal are seconds above 0, or None\."):
        Turn(add, {"a": 1, "b": 2}, timeout=wrong)


@pytest.mark.parametrize(
    ("name", "state"),
    [("time_out", "is no attribute of a turn"), ("stop_reason", "is read-only"), ("start_time", "is read-only"),
     ("sender", "is read-only"), ("output", "is read-only"), ("running", "is read-only")],
)  # fmt: skip
def test_what_cannot_be_assigned_is_refused_with_what_can(name: str, state: str) -> None:
    """A misspelt option does not vanish in silence."""
    turn = Turn(add, {"a": 1, "b": 2})
    with pytest.raises(AttributeError) as caught:
        setattr(turn, name, 5)
    legal = "approval, arguments, deps, id, metadata, tags, timeout, tool"
    assert str(caught.value) == f"turn.{name} {state}; assigned can be {legal}."


def test_an_agent_is_no_tool_but_can_be_made_one() -> None:
    """The error shows how."""
    agent = Agent("librarian", ScriptedModel([]))
    with pytest.raises(UsageError, match=r"not Agent .*Of an agent, take agent\.as_tool\(\)\."):
        Turn(agent, {"message": "Hi"})
    assert Turn(agent.as_tool(), {"message": "Hi"}).tool.name == "librarian"


async def test_a_missing_dependency_says_how_a_turn_is_given_one() -> None:
    """Not only how a call is."""

    @tool
    async def region(settings: Settings) -> str:
        return type(settings).__name__

    with pytest.raises(UsageError, match=r"with the turn, Turn\(\.\.\., deps=my_settings\)"):
        await Turn(region).returning()
    assert await Turn(region, deps=Settings()).returning() == "Settings"


# ---- hooks of a tool, a turn and a process


def test_the_scopes_take_hooks_as_an_agent_does(process: ProcessHooks) -> None:
    """One, a list of lists, functions by name; a plain function and a class get the agent's errors."""
    log = Log()
    turn = Turn(add, {"a": 1, "b": 2}, hooks=log)
    more = turn.hook([[Log()], {"before_each_tool": print}])
    process.add([log], log)
    assert [hook.name for hook in turn.hooks] == ["Log", "Log", "print"]
    assert process.hooks == (log,)
    more.dispose()
    assert turn.hooks == (log,)

    plain: Any = lambda event: event  # noqa: E731 - what users write
    for wrong, said in ((plain, "is a plain function: nothing says which event"), (Log, "pass an instance: Log()")):
        for refused in (
            lambda wrong=wrong: Turn(add, hooks=[wrong]),
            lambda wrong=wrong: turn.hook(wrong),
            lambda wrong=wrong: process.add(wrong),
            lambda wrong=wrong: add.hook(wrong),
        ):
            with pytest.raises(UsageError) as caught:
                refused()
            assert said in str(caught.value)
    assert (turn.hooks, process.hooks, add.hooks) == ((log,), (log,), ())


def test_a_hook_that_would_never_fire_is_refused() -> None:
    """A tool and a turn are told their own events only; one of several is enough, and a hook of all events may come."""

    @tool
    async def own() -> str:
        return "done"

    def see(event: Any) -> None: ...

    turn = Turn(own)
    with pytest.raises(UsageError) as of_tool:
        own.hook(on(PreReasoning)(see))
    with pytest.raises(UsageError):
        own.hook(on(PreTurn)(see))
    with pytest.raises(UsageError) as of_turn:
        turn.on(PreReasoning)(see)
    assert str(of_tool.value) == (
        "Hook 'see' is for PreReasoning, which hooks of tool 'own' are never told. They are told PreActing, ActingChunk, "
        "PostActing, Error; register this one on the agent."
    )
    assert "which hooks of a turn of 'own' are never told. They are told PrePut, PostPut, PreTurn," in str(
        of_turn.value
    )
    assert (own.hooks, turn.hooks) == ((), ())
    own.hook(on(PreReasoning, PreActing)(see))
    own.hook(Log())
    turn.hook(on(TurnEvent, ActingEvent)(see))

    class Wraps(Hook):
        events = (PreReasoning,)

        def around(self, event: Any, source: Any) -> Any:
            return source

    own.hook(Wraps())
    assert (len(own.hooks), len(turn.hooks), len(turn.copy().hooks)) == (3, 1, 1)


async def test_tools_can_be_chosen_where_an_event_is_about_a_turn() -> None:
    """`tools=` filters by the turn's tool."""
    seen: list[str] = []

    @on(PreTurn, PostTurn, PreActing, tools=["delete_*"])
    def show(event: PreTurn | PostTurn | PreActing) -> None:
        seen.append(type(event).__name__)

    agent = worker(add, delete_file, hooks=[show])
    await agent.put(Turn(add, {"a": 1, "b": 2}))
    await agent.put(Turn(delete_file, {"path": "a"}))
    assert [value async for _, value in agent.run()] == [3, "deleted a"]
    assert seen == ["PreTurn", "PreActing", "PostTurn"]


# ---- what takes the place of the tool's own value


async def test_a_replaced_result_is_read_back_as_what_the_tool_returns() -> None:
    """A number that a hook has put in the result is a number; what is none stays text."""

    def put(text: str) -> Hook:
        @on(PostActing)
        def replace(event: PostActing) -> None:
            result = event.tool_result
            event.tool_result = type(result)(result.tool_use_id, result.name, text)

        return replace

    numbers = {"a": 1, "b": 2}
    assert [await Turn(add, numbers, hooks=[put(text)]).returning() for text in ("4", "[hidden]")] == [4, "[hidden]"]
    assert await Turn(delete_file, {"path": "a"}, hooks=[put("4")]).returning() == "4"


@pytest.mark.parametrize(
    ("hint", "value"),
    [(int, 3), (bool, True), (float, 2.5), (None, None), (int | None, None), (str, "3"), (str | int, "3"),
     (list[int], [1, 2]), (dict[str, int], {"a": 1}), (Any, "3"), (tuple[int, str], (1, "a"))],
)  # fmt: skip
def test_a_value_is_read_back_from_the_text_that_it_was_rendered_to(hint: Any, value: object) -> None:
    """`read_back` undoes `render`, where the annotation tells."""
    text = render(value)
    assert isinstance(text, str)
    assert read_back(text, hint) == value


async def test_a_generators_turn_that_a_hook_sends_to_a_returning_tool_hands_out_its_value() -> None:
    """One value, from the queue and by hand; the other way round it is one value too."""

    def to(name: str, **given: int) -> Hook:
        @on(PreActing)
        def rename(event: PreActing) -> None:
            event.tool_use = event.tool_use.replace(name=name, input=given)

        return rename

    agent = worker(add, count)
    await agent.put(Turn(count, {"to": 3}, hooks=[to("add", a=1, b=2)]))
    await agent.put(Turn(add, {"a": 1, "b": 2}, hooks=[to("count", to=2)]))
    assert [value async for _, value in agent.run()] == [3, [0, 1]]


async def test_the_idempotency_key_of_a_turn_is_the_same_in_each_run() -> None:
    """So a service can tell that a turn is run again; a copy is another turn."""

    @tool
    async def charge(context: ToolContext) -> str:
        return context.idempotency_key

    turn = Turn(charge)
    first = await turn.returning()
    loaded = Turn.from_json(turn.to_json(), tools=[charge])
    keys = [first, await turn.returning(), await loaded.returning(), await turn.copy().returning()]
    assert [key == first for key in keys] == [True, True, True, False]


# ---- queues


async def test_a_turn_in_a_queue_is_not_run_by_hand() -> None:
    """It would run twice: it is refused when asked for and when awaited, until it was taken out."""
    agent = worker(add, count)
    turn, stream = Turn(add, {"a": 1, "b": 2}), Turn(count, {"to": 1})
    early = turn.returning()
    await agent.put(turn)
    await agent.put(stream)
    with pytest.raises(SafeExecutionError) as caught:
        turn.returning()
    with pytest.raises(SafeExecutionError):
        await early
    with pytest.raises(SafeExecutionError):
        stream.yielding()
    assert str(caught.value) == (
        f"Turn {turn.id!r} of tool 'add' waits in the queue of agent 'worker', which will run it. To run it by hand, take it "
        "out first, with agent.queue.remove(turn), or run turn.copy()."
    )
    assert await turn.copy().returning() == 3
    agent.queue.remove(turn)
    assert await turn.returning() == 3
    assert [value async for _, value in agent.run()] == [0]


async def test_a_paused_queue_ends_where_nothing_is_left_to_run() -> None:
    """It waits for `resume` only as long as there are turns that it could run then."""
    agent = worker(add)
    agent.queue.pause()
    assert [value async for _, value in agent.run()] == []

    held, log = asyncio.Event(), Log()

    class Held(Hook):
        def on_event(self, event: Any) -> None:
            if type(event).__name__ == "Paused":
                held.set()

    agent = worker(add, hooks=[Held(), log])
    await agent.put(Turn(add, {"a": 1, "b": 2}))
    agent.queue.pause()

    async def read() -> list[object]:
        return [value async for _, value in agent.run()]

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        await held.wait()
        assert not reading.done()
        agent.queue.clear()
    assert (reading.result(), log.names) == ([], ["PrePut", "PostPut", "Paused"])


async def test_a_saved_queue_is_restored_once() -> None:
    """Two turns of one id would be two runs of one turn; nothing is restored then."""
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


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_queue_without_a_place_is_refused_when_the_agent_is_built(wrong: Any) -> None:
    """Not at its first use."""
    with pytest.raises(UsageError, match=r"Agent 'worker': queue_limit=.*at least one turn"):
        worker(add, queue_limit=wrong)


async def test_waiting_for_ones_own_queue_is_told_in_words_for_one_agent() -> None:
    """There is no circle of agents to be shown."""
    told: list[str] = []

    @tool
    async def wait() -> None:
        receipt = await agent.put(Turn(add, {"a": 1, "b": 2}))
        try:
            await receipt
        except UsageError as error:
            told.append(str(error))

    agent = worker(wait, add)
    await agent.put(Turn(wait))
    assert [value async for _, value in agent.run()] == [None, 3]
    said = (
        "This is awaited within a turn that would have to end first (agent 'worker' runs one at a time), so neither would "
        "ever answer. Send a turn without awaiting its receipt there, or await it after the turn."
    )
    assert told == [said]


def test_what_saved_data_says_cannot_be_given_besides_it() -> None:
    """The error lists what can."""
    text = Agent("clerk", "openai/gpt-5").to_json()
    with pytest.raises(UsageError) as caught:
        Agent.from_json(text, max_iterations=2)
    assert str(caught.value) == (
        "Agent.from_dict(data, ...) got max_iterations. What the data does not hold is given besides it: tools, hooks, model, "
        "system, store, agents, process_hooks, clock, new_id. The rest is in the data: change it there."
    )


# ---- replies that wait


async def test_a_question_without_a_session_can_be_answered(agents: AgentRegistry) -> None:
    """The reply names its conversation, and the agent that was asked keeps it until it has its answer."""
    model = ScriptedModel([ToolUseBlock("t1", "pay", {"euros": 4}), "Paid.", "Hello."])
    treasurer = agents.register(Agent("treasurer", model, tools=[pay], agents=agents))
    clerk = Agent("clerk", ScriptedModel([]), agents=agents)
    reply = await clerk.ask("treasurer", "Pay Ann")
    assert reply.outcome == "suspended"
    assert treasurer.session(reply.session_id).pending == reply.pending
    done = await treasurer.resume(reply.session_id, {"t1": Approve()})
    assert (done.text, done.session_id) == ("Paid.", reply.session_id)
    assert treasurer.session(reply.session_id).messages == ()  # answered, so it is nobody's any more


@pytest.mark.parametrize("kind", ["implicit", "named", "fresh"])
@pytest.mark.parametrize("way", ["call", "stream"])
async def test_every_suspended_reply_is_resumed_by_its_session_id(kind: str, way: str) -> None:
    """Whoever made the session."""
    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "pay", {"euros": 4}), "Paid."]), tools=[pay])
    session = {"implicit": None, "named": "s", "fresh": Session.fresh()}[kind]
    if way == "call":
        session_id = (await agent.call("Pay", session=session)).session_id
    else:
        session_id = [event.session_id async for event in agent.stream("Pay", session=session)][-1]
    assert (await agent.resume(session_id, {"t1": Answer("no need")})).text == "Paid."


async def test_a_suspended_conversation_can_be_forgotten() -> None:
    """Then it waits no more."""
    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "pay", {"euros": 4})]), tools=[pay])
    reply = await agent.call("Pay", session=Session.fresh())
    assert (agent.forget(reply.session_id), agent.forget(reply.session_id)) == (True, False)
    with pytest.raises(UsageError, match="is not suspended"):
        await agent.resume(reply.session_id, {"t1": Approve()})


async def test_what_waits_is_json_by_itself() -> None:
    """`Pending.to_dict` and `from_dict`; what is none of it is refused."""
    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "pay", {"euros": 4})]), tools=[pay])
    [waits] = (await agent.call("Pay")).pending
    assert Pending.from_dict(json.loads(json.dumps(waits.to_dict()))) == waits
    assert Pending("call", "parked", object()).to_dict()["request"].startswith("<object object")
    with pytest.raises(StoreError, match=r"This is no saved Pending: id: Field required\."):
        Pending.from_dict({})


# ---- sessions of sub-agents


@pytest.mark.parametrize("use_id", ["t" * 5000, "a\x00b", "\ud800", "", "t1"])
@pytest.mark.parametrize("session_id", ["s", "s" * 255])
def test_the_id_of_an_inner_session_fits_every_store(use_id: str, session_id: str) -> None:
    """A provider's ids may be long, or not printable; different ones stay different."""
    made = inner_session_id(session_id, use_id)
    assert (0 < len(made) <= 255, made.isprintable()) == (True, True)
    assert made == inner_session_id(session_id, use_id) != inner_session_id(session_id, use_id + "x")
    assert (made == f"{session_id}/{use_id}") is (use_id == "t1" and session_id == "s")


async def test_a_sub_agent_of_a_session_with_a_long_id_suspends_and_goes_on_from_another_store() -> None:
    """Whoever names the inner session, names it alike: the agent, the store that exports it, and the one that takes it in."""
    long, call = "s" * 250, "t" * 40

    def build(store: MemoryStore, *replies: Any) -> Agent:
        inner = ScriptedModel([ToolUseBlock("s1", "pay", {"euros": 4}), "Paid."] if len(replies) > 1 else ["Paid."])
        treasurer = Agent("treasurer", inner, tools=[pay])
        return Agent("boss", ScriptedModel(replies), tools=[treasurer], store=store)

    store, other = MemoryStore(), MemoryStore()
    boss = build(store, ToolUseBlock(call, "treasurer", {"message": "Pay"}), "Done.")
    reply = await boss.call("Pay Ann", session=long)
    assert reply.outcome == "suspended"
    assert {info.id for info in await store.sessions()} == {long, inner_session_id(long, call)}
    await other.import_(await store.export(long))
    reply = await build(other, "Done.").resume(long, {waits.id: Approve() for waits in reply.pending})
    assert reply.text == "Done."
