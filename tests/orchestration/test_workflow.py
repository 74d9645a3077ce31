"""Workflows: a function, instead of a model, decides who does what."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from compositions import by_round, said
from eventlog import Recorder, history, use

from agentflow import (
    Agent,
    Approve,
    Deny,
    Error,
    Hook,
    HookEvent,
    MemoryStore,
    ModelRequest,
    Msg,
    PostReasoning,
    PostToolRound,
    PreActing,
    Recover,
    RunContext,
    Session,
    Stop,
    on,
    on_error,
    tool,
)
from agentflow.agent.orchestration import StepError, ask, gather, handoffs, race, workflow
from agentflow.agent.orchestration import use as use_tool
from agentflow.errors import SuspendedError, UsageError
from agentflow.plugins import UsageLimits
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.vocabulary.events import ErrorPhase

CHAIN = """
PreCall user: Bees
PreReasoning 1 reason -> Answer(RunWorkflow)
ReasoningChunk [call_2-4ccfda31:writer(message='Bees')]
PostReasoning [call_2-4ccfda31:writer(message='Bees')]
PreToolRound call_2-4ccfda31:writer(message='Bees')
PreActing call_2-4ccfda31:writer(message='Bees')
PostActing call_2-4ccfda31 success 'Bees hum.'
PostToolRound call_2-4ccfda31 success 'Bees hum.'
PreReasoning 2 reason -> Answer(RunWorkflow)
ReasoningChunk Bees hum. The end.
PostReasoning Bees hum. The end.
PostCall completed 'Bees hum. The end.'
CallEnded completed
"""


def counted() -> Any:
    """Predictable ids: each kind has its own numbers."""
    counts: dict[str, int] = {}

    def new_id(kind: str) -> str:
        counts[kind] = counts.get(kind, 0) + 1
        return f"{kind}{counts[kind]}"

    return new_id


@tool
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def test_the_events_of_a_workflow() -> None:
    """A step is a tool call like any other, requested by the function instead of a model; then the function answers."""
    seen = Recorder()
    writer = Agent("writer", ScriptedModel(["Bees hum."]))

    @workflow(writer, hooks=[seen], new_id=counted())
    async def article(topic: str) -> str:
        return f"{(await ask(writer, topic)).text} The end."

    await article.call("Bees")
    assert seen.log == CHAIN.strip().splitlines()


def test_results_stand_in_the_order_of_the_steps() -> None:
    """Values are in the order of their steps, whichever ends first; the steps run concurrently, up to the limit."""
    running = most = 0

    def slowly(name: str, seconds: float) -> Agent[Any]:
        async def wait() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(seconds)
            running -= 1

        return Agent(name, ScriptedModel([[wait, name]]))

    async def gathered(limit: int) -> tuple[str, float]:
        nonlocal most
        most = 0
        workers = [slowly(f"w{n}", 4 - n) for n in range(4)]

        @workflow(*workers, max_concurrency=limit)
        async def team(task: str) -> list[str]:
            return [reply.text for reply in await gather(*[ask(one, task) for one in workers])]

        start = asyncio.get_running_loop().time()
        reply = await team.call("go")
        assert reply.output == ["w0", "w1", "w2", "w3"]
        return str(most), asyncio.get_running_loop().time() - start

    async def main() -> list[tuple[str, float]]:
        return [await gathered(4), await gathered(2)]

    assert run_virtual(main()) == [("4", 4.0), ("2", 5.0)]


async def test_a_partial_failure_is_typed() -> None:
    """With `return_exceptions=True` the value of a failed step is its error: the step, the reason, and the results of
    the others.
    """
    good = Agent("good", ScriptedModel(lambda request: "fine"))
    bad = Agent("bad", ScriptedModel(lambda request: ValueError("broken")), default_hooks=())
    found: list[Any] = []

    @workflow(good, bad)
    async def team(task: str) -> str:
        found[:] = await gather(ask(bad, task), ask(good, task), return_exceptions=True)
        return "done"

    assert (await team.call("go")).text == "done"
    error, reply = found
    assert isinstance(error, StepError)
    assert (error.step, error.state, error.others, reply.text) == ("bad", "error", (("good", "success"),), "fine")
    assert "broken" in error.reason


async def test_a_step_that_failed_can_be_made_up_for() -> None:
    """A `StepError` is caught like any exception: another agent is called."""
    bad = Agent("bad", ScriptedModel(lambda request: ValueError("broken")), default_hooks=())
    spare = Agent("spare", ScriptedModel(["here I am"]))

    @workflow(bad, spare)
    async def team(task: str) -> str:
        try:
            return (await ask(bad, task)).text
        except StepError as error:
            return (await ask(spare, f"{task} ({error.state})")).text

    assert (await team.call("go")).text == "here I am"


async def test_tools_are_steps_too() -> None:
    """`use` returns the tool's value, by its annotation; hooks handle the call, and it may need an approval."""
    did: list[str] = []

    @tool(requires_approval=True)
    async def send(text: str) -> None:
        did.append(text)

    @workflow(double, send)
    async def sums(given: str) -> int:
        twice = await use_tool(double, n=int(given))
        await use_tool(send, text=str(twice))
        return twice + 1

    reply = await sums.call("4")
    assert (reply.outcome, did) == ("suspended", [])
    reply = await sums.resume(None, {waits.id: Approve() for waits in reply.pending})
    assert (reply.output, reply.text, did) == (9, '{"answer":9}', ["8"])


@dataclass
class Report:
    title: str
    lines: list[str]


async def test_what_it_returns_is_the_typed_output() -> None:
    """A dataclass, and the typed output of a step by its agent or by the step itself; also after a restart."""
    store = MemoryStore()

    def make() -> Agent[Report]:
        counter = Agent("counter", by_round('{"answer": 3}'), output=int)
        poet = Agent("poet", by_round("A line."))
        judge = Agent("judge", by_round('{"answer": true}'))

        @workflow(counter, poet, judge, store=store)
        async def poem(title: str) -> Report:
            lines = (await ask(counter, title)).output
            good = (await ask(judge, "good?", output=bool)).output
            assert good is True
            return Report(title, [(await ask(poet, title)).text] * lines)

        return poem

    assert (await make().call("Bees", session="s")).output == Report("Bees", ["A line."] * 3)
    assert said(await make().history("s"))[-1] == 'assistant: {"title":"Bees","lines":["A line.","A line.","A line."]}'


async def test_the_function_takes_messages_and_the_context() -> None:
    """The user's input comes as messages if the annotation says so; deps and history come with the `RunContext`."""

    @workflow()
    async def echo(messages: Sequence[Msg], context: RunContext) -> str:
        return f"{len(messages)} {messages[-1].text} {context.deps(int)} {len(context.history)}"

    assert (await echo.call(["a", "b"], deps=7)).text == "2 b 7 2"  # type: ignore[list-item]


async def test_a_workflow_is_an_agent_like_any_other() -> None:
    """It can be a tool of a model and a step of another workflow, and it streams its text."""
    inner_writer = Agent("writer", ScriptedModel(lambda request: "words"))

    @workflow(inner_writer)
    async def inner(task: str) -> str:
        """Writes."""
        return (await ask(inner_writer, task)).text

    boss = Agent("boss", ScriptedModel([use("t1", "inner", message="go"), "done"]), tools=[inner])
    assert (await boss.call("go")).text == "done"
    assert boss.session().messages[2].text == "words"
    assert [tool.spec.description for tool in boss.tools] == ["Writes."]
    assert [piece async for piece in inner.stream("go").text()] == ["words"]


async def test_hooks_judge_steps() -> None:
    """A guard of the workflow denies a step, which fails; a Stop ends the workflow with its reason."""
    writer = Agent("writer", ScriptedModel(lambda request: "words"))

    @on(PreActing, guard=True)
    def never(event: PreActing) -> Deny:
        return Deny("not today")

    @on(PostReasoning)
    def enough(event: PostReasoning) -> Stop:
        return Stop("enough")

    @workflow(writer)
    async def team(task: str) -> str:
        return (await ask(writer, task)).text

    with pytest.raises(StepError, match="'denied': Denied: not today"):
        await team.call("go", hooks=[never])
    reply = await team.call("go", hooks=[enough])
    assert (reply.outcome, reply.text) == ("stopped", "enough")


# ---- the race


def test_the_first_answer_wins_and_the_others_have_ended() -> None:
    """Losers are interrupted, and their tools cancelled and cleaned up, before the value is returned; failed steps
    are ignored.
    """
    cleaned: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.append("hanging")

    async def soon() -> None:
        await asyncio.sleep(2)

    async def main() -> tuple[str, float, list[str]]:
        slow = Agent("slow", ScriptedModel([[hang, "slow"]]))
        quick = Agent("quick", ScriptedModel([[soon, "quick"]]))
        broken = Agent("broken", ScriptedModel(lambda request: ValueError("no")), default_hooks=())

        @workflow(slow, quick, broken)
        async def team(task: str) -> str:
            first = await race(ask(slow, task), ask(quick, task), ask(broken, task))
            return f"{first.text} by {first.name}, {cleaned}"

        reply = await team.call("go")
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert tasks == []
        results = [f"{r.state}: {r.text}" for r in team.session().messages[2].tool_results]
        return reply.text, asyncio.get_running_loop().time(), [text.partition(" (")[0] for text in results]

    text, seconds, results = run_virtual(main())
    assert (text, seconds) == ("quick by quick, ['hanging']", 2.0)
    assert results[:2] == ["error: quick was first.", "success: quick"]
    assert results[2].startswith("error")


async def test_a_race_that_nobody_wins_fails_with_the_first_error() -> None:
    """If all fail, the error is that of the first one, and names the others."""
    agents = [Agent(name, ScriptedModel(lambda request: ValueError("no")), default_hooks=()) for name in ("a", "b")]

    @workflow(*agents)
    async def team(task: str) -> str:
        return (await race(*[ask(one, task) for one in agents])).text

    with pytest.raises(StepError) as failed:
        await team.call("go")
    assert (failed.value.step, failed.value.others) == ("a", (("b", "error"),))


@pytest.mark.parametrize("saved", [False, True])
async def test_a_race_of_those_who_all_wait_for_a_person(saved: bool) -> None:
    """If every step needs a person, the whole call waits for all of them; resumed, the first answer wins."""
    did: list[str] = []

    def make() -> Agent[str]:
        @tool(requires_approval=True)
        async def pay(who: str) -> str:
            did.append(who)
            return "paid"

        agents = [Agent(n, by_round(use(f"p{n}", "pay", who=n), f"{n} did"), tools=[pay]) for n in ("a", "b")]

        @workflow(*agents)
        async def team(task: str) -> str:
            return (await race(*[ask(one, task) for one in agents])).text

        return team

    team = make()
    reply = await team.call("go", session="s")
    assert [waits.source for waits in reply.pending] == ["a", "b"]
    session: Any = "s"
    if saved:
        session, team = Session.from_json(team.session("s").to_json()), make()
    reply = await team.resume(session, {waits.id: Approve() for waits in reply.pending})
    assert reply.text in ("a did", "b did")
    assert set(did) <= {"a", "b"}


@pytest.mark.parametrize("at_once", [1, 2, 3])
@pytest.mark.parametrize("kinds", [*itertools.product(["waits", "answers", "fails"], repeat=3)], ids=" ".join)
async def test_a_race_waits_for_a_person_only_if_nobody_answers(kinds: tuple[str, ...], at_once: int) -> None:
    """In each order, with all models answering at once, and with any limit on concurrency: the first answer counts."""

    @tool(requires_approval=True)
    async def pay() -> str:
        return "paid"

    def contestant(kind: str, name: str) -> Agent[str]:
        rounds = {"waits": (use("p1", "pay"), "approved"), "answers": ("known",), "fails": (ValueError("no"),)}[kind]
        return Agent(name, by_round(*rounds), tools=[pay], default_hooks=())

    agents = [contestant(kind, name) for kind, name in zip(kinds, "abc", strict=True)]

    @workflow(*agents, max_concurrency=at_once)
    async def team(task: str) -> str:
        return (await race(*[ask(one, task) for one in agents])).text

    if set(kinds) == {"fails"}:
        with pytest.raises(StepError):
            await team.call("go", session="s")
        return
    reply = await team.call("go", session="s")
    waiting = {name for kind, name in zip(kinds, "abc", strict=True) if kind == "waits"}
    if "answers" in kinds:
        assert (reply.outcome, reply.text, team.session("s").pending) == ("completed", "known", ())
        return
    assert (reply.outcome, {waits.source for waits in reply.pending}) == ("suspended", waiting)
    reply = await team.resume("s", {waits.id: Approve() for waits in reply.pending})
    assert (reply.outcome, reply.text) == ("completed", "approved")


def test_what_a_race_refuses() -> None:
    """Tools have no call to interrupt, and a conversation would be interrupted."""
    one = Agent("one", ScriptedModel([]))
    for steps in ([], [use_tool(double, n=1)], [ask(one, "go", conversation=True)]):
        with pytest.raises(UsageError, match="steps that ask agents"):
            race(*steps)  # type: ignore[arg-type]


# ---- conversations


async def test_an_agent_remembers_where_it_is_asked_in_a_conversation() -> None:
    """With `conversation=True` it continues its conversation in this session of the workflow; otherwise each step is
    new.
    """
    model = ScriptedModel(lambda request: f"{len(request.messages)} messages")
    critic = Agent("critic", model)

    @workflow(critic)
    async def team(task: str) -> str:
        told = [(await ask(critic, task, conversation=True)).text for _ in range(2)]
        told.append((await ask(critic, task)).text)
        return ", ".join(told)

    assert (await team.call("go", session="s")).text == "1 messages, 3 messages, 1 messages"
    assert (await team.call("go", session="s")).text == "5 messages, 7 messages, 1 messages"
    assert (await team.call("go", session="other")).text == "1 messages, 3 messages, 1 messages"


@pytest.mark.parametrize("way", ["to_json", "fork", "export", "restart"])
async def test_a_conversation_goes_where_its_session_goes(way: str) -> None:
    """Saved, forked, exported, loaded by another process: the agent remembers."""
    store = None if way == "to_json" else MemoryStore()

    def make(store: Any) -> Agent[str]:
        critic = Agent("critic", ScriptedModel(lambda request: f"{len(request.messages)} messages"))

        @workflow(critic, store=store)
        async def team(task: str) -> str:
            return (await ask(critic, task, conversation=True)).text

        return team

    first = make(store)
    assert (await first.call("go", session="s")).text == "1 messages"
    session: Any = "s"
    if way == "to_json":
        session = Session.from_json(first.session("s").to_json())
    elif way == "fork":
        assert store is not None
        await store.fork("s", "t")
        session = "t"
    elif way == "export":
        assert store is not None
        data, store = await store.export("s"), MemoryStore()
        await store.import_(data)
    assert (await make(store).call("go", session=session)).text == "3 messages"


@pytest.fixture(params=["memory", "sql"])
async def sessions(request: pytest.FixtureRequest) -> AsyncIterator[MemoryStore | SqlStore]:
    """A store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
        return
    async with SqlStore("sqlite://") as store:
        yield store


async def loaded(store: MemoryStore | SqlStore, session_id: str) -> int:
    facts = store.load(session_id)
    return len(facts if isinstance(facts, tuple) else await facts)


async def test_a_fork_at_an_earlier_point_knows_what_was_said_by_then(sessions: MemoryStore | SqlStore) -> None:
    """In the fork, an agent with a conversation remembers what it had read by that point, and no more; if it had not
    been called yet, nothing.
    """
    critic = Agent("critic", ScriptedModel(lambda request: f"{len(request.messages)} messages"))

    @workflow(critic, store=sessions)
    async def team(task: str) -> str:
        return (await ask(critic, task, conversation=True)).text

    first = await team.call("go", session="s")
    assert (await team.call("go", session="s")).text == "3 messages"
    await sessions.fork("s", "t", at=first.run_id)
    await sessions.fork("s", "whole")
    await sessions.fork("s", "start", at=1)
    assert (await team.call("go", session="t")).text == "3 messages"
    assert (await team.call("go", session="whole")).text == "5 messages"
    assert (await team.resume("start")).text == "1 messages"
    assert (await team.call("go", session="s")).text == "5 messages"


@pytest.mark.parametrize("conversation", [False, True])
async def test_a_fork_where_a_person_was_asked_is_asked_again(
    sessions: MemoryStore | SqlStore, conversation: bool
) -> None:
    """Later decisions are unknown in it: the sub-agent waits as it did then, and follows the new decision."""
    did: list[str] = []

    @tool(requires_approval=True)
    async def pay(who: str) -> str:
        did.append(who)
        return "paid"

    clerk = Agent("clerk", by_round(use("p1", "pay", who="ann"), "paid her"), tools=[pay])

    @workflow(clerk, store=sessions)
    async def team(task: str) -> str:
        return (await ask(clerk, task, conversation=conversation)).text

    [waits] = (await team.call("go", session="s")).pending
    then = await loaded(sessions, "s")
    assert (await team.resume("s", {waits.id: Approve()})).text == "paid her"
    await sessions.fork("s", "t", at=then)
    with pytest.raises(SuspendedError):
        await team.call("go", session="t")
    assert (await team.resume("t", {waits.id: Deny("no")})).text == "paid her"
    assert did == ["ann"]
    await sessions.fork("s", "u", at=then)
    assert (await team.resume("u", {waits.id: Approve()})).text == "paid her"
    assert did == ["ann", "ann"]


async def test_one_conversation_is_not_held_twice_at_a_time() -> None:
    """Two concurrent steps in one conversation run one after the other."""
    critic = Agent("critic", ScriptedModel(lambda request: f"{len(request.messages)}"))

    @workflow(critic)
    async def team(task: str) -> str:
        both = await gather(ask(critic, "a", conversation=True), ask(critic, "b", conversation=True))
        return " ".join(reply.text for reply in both)

    assert (await team.call("go")).text == "1 3"


# ---- what is refused


async def test_it_awaits_nothing_but_steps() -> None:
    """The function runs again and again, so anything that takes time is a step; the error says so, also for asyncio's
    own gather.
    """
    one = Agent("one", ScriptedModel(lambda request: "1"))

    @workflow(one)
    async def sleeps(task: str) -> str:
        await asyncio.sleep(0.01)
        return task

    @workflow(one)
    async def future(task: str) -> str:
        await asyncio.get_running_loop().create_future()
        return task

    for wrong in (sleeps, future):
        with pytest.raises(UsageError, match="awaits something other than a step"):
            await wrong.call("go")
    with pytest.raises(UsageError, match="A step can only be awaited in the function of a @workflow"):
        await ask(one, "go")


async def test_a_step_with_a_stranger_is_refused() -> None:
    """The agents of the steps are arguments of the workflow, so its graph is complete."""
    one, other = Agent("one", ScriptedModel([])), Agent("other", ScriptedModel([]))

    @workflow(one)
    async def team(task: str) -> str:
        return (await ask(other, task)).text

    with pytest.raises(UsageError, match="uses 'other', which is not a participant"):
        await team.call("go")


async def test_chance_is_found_out() -> None:
    """A function that takes another path than its history gets an error."""
    one, other = Agent("one", ScriptedModel(lambda request: "1")), Agent("other", ScriptedModel(lambda request: "2"))
    flips = iter([one, other, one])

    @workflow(one, other)
    async def team(task: str) -> str:
        return (await ask(next(flips), task)).text

    with pytest.raises(
        UsageError, match=r"is not deterministic: its recorded steps are one .*, but now its next steps are other"
    ):
        await team.call("go")


async def test_a_step_counts_by_what_it_asks() -> None:
    """The same agent with another question is another step; the ids of messages, which are new each time, do not
    count.
    """
    numbers = itertools.count()
    echo = Agent("echo", ScriptedModel(lambda request: f"you asked {request.messages[-1].text}"))

    @workflow(echo)
    async def team(task: str) -> str:
        same = (await ask(echo, [Msg.user(task)])).text
        return same + (await ask(echo, f"question {next(numbers)}")).text

    with pytest.raises(
        UsageError, match=r"its recorded steps are echo .*question 0.*, but now its next steps are echo .*question 1"
    ):
        await team.call("go")


async def test_a_function_that_returns_early_is_told_which_step_is_left() -> None:
    """The error names the first recorded step that was not taken this time."""
    agents = [Agent(name, ScriptedModel(lambda request: "done")) for name in ("one", "two", "three")]
    most = 3

    @workflow(*agents)
    async def team(task: str) -> str:
        nonlocal most
        for agent in agents[:most]:
            await ask(agent, task)
        return "done"

    class ReturnsEarly(Hook):
        def on_event(self, event: HookEvent) -> None:
            nonlocal most
            if isinstance(event, PostToolRound) and event.iteration == 3:
                most = 1

    with pytest.raises(UsageError, match=r"its recorded steps are two .*, but now it returned"):
        await team.call("go", hooks=[ReturnsEarly()])


async def test_a_step_is_the_same_whatever_the_order_of_its_arguments() -> None:
    """They are identified by name: a function that creates them in another order the next time takes the same path."""

    @tool(type="read")
    async def look(x: int, y: int) -> str:
        return f"{x} {y}"

    orders = itertools.cycle([{"x": 1, "y": 2}, {"y": 2, "x": 1}])

    @workflow(look)
    async def team(task: str) -> str:
        return await use_tool(look, **next(orders))

    assert (await team.call("go")).text == "1 2"


async def test_a_step_that_was_edited_while_it_waits_is_found_out() -> None:
    """A run that is continued by other code gets an error, and not the answer to another question."""

    @tool(requires_approval=True)
    async def pay(cents: int) -> str:
        return f"paid {cents}"

    def team(cents: int) -> Agent[str]:
        @workflow(pay, store=store)
        async def pays(task: str) -> str:
            return await use_tool(pay, cents=cents)

        return pays

    store = MemoryStore()
    assert (await team(5).call("go", session="s")).outcome == "suspended"
    loaded = team(500)
    await loaded.history("s")
    pending = loaded.session("s").pending
    reply = loaded.resume("s", decisions={waits.id: Approve() for waits in pending})
    with pytest.raises(UsageError, match="If its code was edited, start a new run"):
        await reply


def test_what_a_workflow_is_made_of() -> None:
    """A coroutine function with one argument, and annotations that can be resolved."""

    def plain(task: str) -> str:
        return task

    async def two(task: str, more: str) -> str:
        return task + more

    for wrong, told in ((plain, "needs a coroutine function"), (two, "takes 2 arguments")):
        with pytest.raises(UsageError, match=told):
            workflow()(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="with parentheses even without participants"):
        workflow(two)  # type: ignore[arg-type]
    twice = [Agent("one", ScriptedModel([])) for _ in range(2)]
    with pytest.raises(UsageError, match="Two tools are named 'one'"):

        @workflow(*twice)
        async def team(task: str) -> str:
            return task


async def test_what_does_not_fit_its_annotation_is_refused() -> None:
    """The function's return value is validated like any other output."""

    @workflow()
    async def wrong(task: str) -> Report:
        return 3  # type: ignore[return-value]

    @workflow()
    async def words(task: str) -> str:
        return 3  # type: ignore[return-value]

    with pytest.raises(UsageError, match="which is not a valid Report"):
        await wrong.call("go")
    with pytest.raises(UsageError, match="but its return type is str"):
        await words.call("go")


async def test_a_workflow_without_an_end_is_limited() -> None:
    """After `max_rounds` rounds the outcome is `limited`, and no further step runs."""
    one = Agent("one", ScriptedModel(lambda request: "1"))

    @workflow(one, max_rounds=3)
    async def team(task: str) -> int:
        while True:
            await ask(one, task)

    reply = await team.call("go")
    assert (reply.outcome, reply.usage.model_calls, reply.typed) == ("limited", 3, False)
    assert reply.text == "Workflow 'team' has not finished after 3 rounds of steps."


async def test_its_own_errors_are_raised_as_they_are() -> None:
    """The caller gets the function's exception; the session continues."""
    fails = [True, False]

    @workflow()
    async def team(task: str) -> str:
        if fails.pop(0):
            raise LookupError("not there")
        return "there"

    with pytest.raises(LookupError, match="not there"):
        await team.call("go")
    assert (await team.call("go")).text == "there"


async def test_a_used_up_budget_stops_a_workflow() -> None:
    """It ends as any agent: with a reply that says so, unless the function handles the step without a result; the
    next call continues.
    """
    limits = UsageLimits(model_calls=1)
    one = Agent("one", ScriptedModel(lambda request: "1"))

    @workflow(one, hooks=[limits])
    async def team(task: str) -> int:
        for _ in range(2 if task == "twice" else 1):
            await ask(one, task)
        return 1

    @workflow(one, hooks=[limits])
    async def careful(task: str) -> str:
        first = await ask(one, task)
        try:
            return (await ask(one, task)).text
        except StepError as error:
            return f"{first.text}, and then: {error.state}"

    reply = await team.call("twice")
    assert (reply.outcome, reply.text, reply.typed) == (
        "stopped",
        "Usage limit reached: 1 of 1 model calls are used in this run.",
        False,
    )
    assert (await team.call("once")).output == 1
    assert (await careful.call("go")).text == "1, and then: error"


async def test_an_agents_own_budget_is_its_step() -> None:
    """If one agent exceeds its own budget, the step raises a `StepError`: the workflow may use another one."""
    miser = Agent("miser", ScriptedModel([use("t1", "look"), "?"]), hooks=[UsageLimits(model_calls=1)])

    @workflow(miser)
    async def team(task: str) -> str:
        return (await ask(miser, task)).text

    with pytest.raises(StepError, match=r"'miser' did not answer \(outcome 'stopped'\): Usage limit reached"):
        await team.call("go")


async def test_a_failing_step_can_be_recovered_by_a_hook() -> None:
    """An uncaught `StepError` is the failure of a model call: an `Error` event, and `Recover` answers instead."""
    bad = Agent("bad", ScriptedModel(lambda request: ValueError("broken")), default_hooks=())
    told: list[ErrorPhase] = []

    @on_error
    def sorry(event: Error) -> Recover | None:
        told.append(event.phase)
        return Recover("Nobody is there.") if event.fatal else None

    @workflow(bad, hooks=[sorry])
    async def team(task: str) -> str:
        return (await ask(bad, task)).text

    assert (await team.call("go")).text == "Nobody is there."
    assert told == [ErrorPhase.ACTING, ErrorPhase.REASONING]


async def test_a_workflow_is_no_data() -> None:
    """Its function is code: `to_dict` refuses, and names what to save instead. As a tool it is saved by its name."""
    one = Agent("one", ScriptedModel(lambda request: "1"))

    @workflow(one)
    async def made(task: str) -> str:
        return (await ask(one, task)).text

    for whole, name in ((made, "made"), (handoffs(one, Agent("two", ScriptedModel([]))), "desk")):
        with pytest.raises(UsageError, match=rf"Agent '{name}' cannot be saved: it is a workflow.* its sessions"):
            whole.to_dict()
    model = ScriptedModel([use("t1", "made", message="go"), "done"])
    again = Agent.from_dict(Agent("boss", model, tools=[made]).to_dict(), tools=[made.as_tool()], model=model)
    assert (await again.call("go")).text == "done"


async def test_nothing_at_once_is_no_round() -> None:
    """`gather()` without steps returns an empty list at once."""

    @workflow()
    async def team(task: str) -> str:
        return f"{await gather()}"

    assert (await team.call("go")).text == "()"
    assert history(team.session()) == ["user: go", "assistant: ()"]


async def test_a_slow_reader_slows_the_workers_down() -> None:
    """The stream has bounded buffers: models of parallel workers do not run ahead of the reader."""
    said_so_far = [0, 0]

    def chatty(place: int) -> Agent[Any]:
        def brain(request: ModelRequest) -> Any:
            def piece(n: int) -> Any:
                def say() -> str:
                    said_so_far[place] = n
                    return "x"

                return say

            return [piece(n) for n in range(200)]

        return Agent(f"w{place}", ScriptedModel(brain))

    workers = [chatty(0), chatty(1)]

    @workflow(*workers)
    async def team(task: str) -> str:
        return str(len(await gather(*[ask(one, task) for one in workers])))

    read = 0
    async with team.stream("go", children=True) as events:
        async for event in events:
            read += 1
            for _ in range(5):
                await asyncio.sleep(0)
            assert sum(said_so_far) <= read + 30
            del event
    assert said_so_far == [199, 199]
