"""The whole call waits for everything that waits inside it, however its call ends; resuming either one resumes both."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from compositions import Compose, by_round
from eventlog import use
from laws_checks import check_history, check_request
from thorough import THOROUGH

from agentflow import (
    Agent,
    Approve,
    CallEnded,
    Deny,
    Hook,
    MemoryStore,
    ModelRequest,
    PreActing,
    Reply,
    RunContext,
    Stop,
    after_tool_round,
    on,
    tool,
)
from agentflow.agent.orchestration import StepError, ask, gather, handoffs, workflow
from agentflow.errors import UsageError
from agentflow.loop.machine import Machine
from agentflow.loop.output import Output
from agentflow.loop.session import full_session
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import Event, Notification, PostActing, PostToolRound

Whole: TypeAlias = Agent[Any]


class HookedError(Exception):
    """The error of a hook."""


class Places(Hook):
    """Acts at the nth event of the whole call and of all calls inside it."""

    scope = "tree"
    on_failure = "abort"

    def __init__(self, at: int, act: Callable[[], None], notifications: bool) -> None:
        self._left = at
        self._act = act
        self._notifications = notifications

    @property
    def reached(self) -> bool:
        return self._left <= 0

    def on_event(self, event: Event) -> None:
        if self._notifications or not isinstance(event, Notification):
            self._left -= 1
            if self._left == 0:
                self._act()


def _fail() -> None:
    raise HookedError


async def _leave(whole: Whole, at: int, children: bool) -> bool:
    count = 0
    async with whole.stream("pay", session="s", children=children, buffer=0) as events:
        async for _ in events:
            count += 1
            if count == at:
                return True
    return False


async def _hooked(whole: Whole, at: int, act: Callable[[], None], notifications: bool = True) -> bool:
    hook = Places(at, act, notifications)
    with contextlib.suppress(HookedError, StepError, asyncio.CancelledError):
        await whole.call("pay", session="s", hooks=[hook])
    return hook.reached


async def _cancelled(whole: Whole, at: int) -> bool:
    calling: list[asyncio.Task[Any]] = []
    hook = Places(at, lambda: calling[0].cancel() and None, True)
    calling.append(asyncio.create_task(_call(whole, hook)))
    with contextlib.suppress(asyncio.CancelledError):
        await calling[0]
    return hook.reached


async def _call(whole: Whole, hook: Hook) -> Reply[Any]:
    return await whole.call("pay", session="s", hooks=[hook])


async def _interrupted(whole: Whole, at: int) -> bool:
    return await _hooked(whole, at, lambda: whole.interrupt("s", "enough") and None)


WAYS: dict[str, Callable[[Whole, int], Any]] = {
    "leave": lambda whole, at: _leave(whole, at, False),
    "leave with children": lambda whole, at: _leave(whole, at, True),
    "cancel": _cancelled,
    "interrupt": _interrupted,
    "fail": lambda whole, at: _hooked(whole, at, _fail, notifications=False),
}


def payer(did: list[str], name: str = "ann") -> Agent[Any]:
    """A worker that asks for an approval once, and then answers."""

    @tool(requires_approval=True)
    async def pay() -> str:
        did.append("paid")
        return "paid"

    def brain(request: ModelRequest) -> Any:
        check_request(request.messages)
        paid = any(msg.role == "tool" and "paid" in msg.text for msg in request.messages)
        return f"{name} is done" if paid else use(f"p{len(request.messages)}", "pay")

    return Agent(name, ScriptedModel(brain), tools=[pay])


async def resumed(whole: Whole, session: str = "s") -> Reply[Any]:
    """Approve everything that waits, until there is an answer."""
    while True:
        pending = whole.session(session).pending
        reply = await whole.resume(session, {waits.id: Approve() for waits in pending if waits.kind != "parked"})
        if reply.outcome != "suspended":
            return reply


@pytest.mark.parametrize("way", WAYS)
async def test_whatever_ends_the_call_the_conversation_goes_on(compose: Compose, named: str, way: str) -> None:
    """At each event in turn: the whole call waits for what a worker waits for, and continues when it is resumed."""
    step = 1 if THOROUGH else 3
    at, reached = 1 - step + [*WAYS].index(way) % step, True
    while reached:
        at += step
        did: list[str] = []
        store = MemoryStore() if at % 2 else None
        whole = compose(payer(did), Agent("bob", by_round("bob is done")), store=store)
        reached = await WAYS[way](whole, at)
        assert did == []
        await whole.history("s")
        if whole.session("s").pending:
            with contextlib.suppress(StepError):  # a step beside it was cancelled
                await resumed(whole)
        reply = await whole.call("and now?", session="s")
        if reply.outcome == "suspended":
            reply = await resumed(whole)
        assert reply.outcome == "completed"
        check_history(whole.session("s").messages)
    assert at > 8


@pytest.mark.parametrize("way", WAYS)
async def test_a_desk_waits_exactly_when_its_holder_does(way: str) -> None:
    """Its session and the holder's are suspended together, at each event in turn; once approved, the tool runs once."""
    at, reached, waited = 0, True, 0
    while reached:
        at += 1
        did: list[str] = []
        store = MemoryStore()
        ann = payer(did)
        desk = handoffs(ann, Agent("bob", by_round("bob is done")), store=store)
        reached = await WAYS[way](desk, at)
        states = {info.id: info.status == "suspended" for info in await store.sessions()}
        assert states.get("s/@ann", False) == states.get("s", False)
        if states.get("s"):
            waited += 1
            assert (await resumed(desk)).text == "ann is done"
            assert did == ["paid"]
            assert (await desk.call("thanks", session="s")).text == "ann is done"
    assert waited > 1


RESUMED: dict[str, Callable[[Whole, int], Any]] = {
    "leave": lambda desk, at: _left_again(desk, at, False),
    "leave with children": lambda desk, at: _left_again(desk, at, True),
    "interrupt": lambda desk, at: _resumed_with(desk, Places(at, lambda: desk.interrupt("s", "enough") and None, True)),
    "fail": lambda desk, at: _resumed_with(desk, Places(at, _fail, False)),
}


async def _left_again(desk: Whole, at: int, children: bool) -> bool:
    count = 0
    decisions = {waits.id: Approve() for waits in desk.session("s").pending}
    async with desk.resume_stream("s", decisions, children=children, buffer=0) as events:
        async for _ in events:
            count += 1
            if count == at:
                return True
    return False


async def _resumed_with(desk: Whole, hook: Places) -> bool:
    decisions = {waits.id: Approve() for waits in desk.session("s").pending}
    with contextlib.suppress(HookedError, StepError):
        await desk.resume("s", decisions, hooks=[hook])
    return hook.reached


@pytest.mark.parametrize("way", RESUMED)
async def test_a_resume_that_is_ended_waits_again_or_is_over(way: str) -> None:
    """The desk and its holder are both suspended, or neither is; the approved tool runs at most once per approval."""
    at, reached, waited = 0, True, 0
    while reached:
        at += 1
        did: list[str] = []
        store = MemoryStore()
        desk = asks_ann(payer(did), store=store)
        await desk.call("pay", session="s")
        reached = await RESUMED[way](desk, at)
        states = {info.id: info.status for info in await store.sessions()}
        assert states["s/@ann"] == states["s"]
        assert len(did) <= 1
        if states["s"] == "suspended":
            waited += 1
            assert did == []
            assert (await resumed(desk)).text == "ann is done"
        reply = await desk.call("thanks", session="s")
        if reply.outcome == "suspended":
            reply = await resumed(desk)
        assert reply.text == "ann is done"
    assert waited


def asks_ann(ann: Agent[Any], **options: Any) -> Whole:
    return handoffs(ann, Agent("bob", by_round("bob is done")), **options)


@pytest.mark.parametrize("nested", [False, True])
async def test_resuming_the_inner_session_resumes_the_whole(nested: bool) -> None:
    """The holder's own `resume` returns the holder's reply; the desk, and the desk's caller, continue too."""
    did: list[str] = []
    ann = payer(did)
    desk = asks_ann(ann)

    @workflow(desk)
    async def flow(task: str) -> str:
        return f"flow: {(await ask(desk, task, conversation=True)).text}"

    whole = flow if nested else desk
    assert (await whole.call("pay", session="s")).outcome == "suspended"
    inner = "s/@desk/@ann" if nested else "s/@ann"
    reply = await ann.resume(inner, {"p1": Approve()})
    assert (reply.text, reply.outcome, did) == ("ann is done", "completed", ["paid"])
    assert whole.session("s").pending == ()
    assert whole.session("s").messages[-1].text == ("flow: ann is done" if nested else "ann is done")
    with pytest.raises(UsageError, match="not suspended"):
        await ann.resume(inner, {"p1": Approve()})
    assert (await whole.call("thanks", session="s")).outcome == "completed"


async def test_the_inner_resume_gives_the_typed_output() -> None:
    """The reply of the inner `resume` has the agent's own `output`."""

    @tool(requires_approval=True)
    async def pay() -> str:
        return "paid"

    ann = Agent(
        "ann", ScriptedModel([use("p1", "pay"), '{"answer": 7}']), tools=[pay], output=Output(int, via="prompt")
    )
    lead = Agent("lead", by_round(use("w1", "ann", message="pay"), "led"), tools=[ann])
    [waits] = (await lead.call("go", session="s")).pending
    assert waits.within is not None
    reply = await ann.resume(f"s/{waits.within}", {"p1": Approve()})
    assert (reply.output, lead.session("s").messages[-1].text) == (7, "led")


async def test_the_inner_session_s_stream_has_the_events_of_the_whole() -> None:
    """A reader of the inner `resume_stream` gets the whole call to its end."""
    ann = payer([])
    desk = asks_ann(ann)
    await desk.call("pay", session="s")
    async with ann.resume_stream("s/@ann", {"p1": Deny("no")}, children=True) as events:
        seen = [event async for event in events]
    assert {event.source for event in seen} == {"", "ann"}
    assert isinstance(seen[-1], CallEnded)
    assert seen[-1].source == ""


async def test_the_inner_resume_says_what_else_the_whole_waits_for() -> None:
    """If the whole call waits for two, one alone is not enough, and values that cannot be passed on are refused;
    nothing has run.
    """
    did: list[str] = []
    ann, cat = payer(did), payer(did, "cat")

    @workflow(ann, cat)
    async def both(task: str) -> str:
        replies = await gather(ask(ann, task, conversation=True), ask(cat, task, conversation=True))
        return " ".join(reply.text for reply in replies)

    await both.call("pay", session="s")
    with pytest.raises(UsageError, match=r"Session 's': decisions are missing for \['call_.*/p1'\]"):
        await ann.resume("s/@ann", {"p1": Approve()})
    with pytest.raises(
        UsageError, match=r"belongs to session .s., so it is resumed without options=, hooks= and output="
    ):
        await ann.resume("s/@ann", {"p1": Approve()}, output=str)
    assert did == []
    assert (await resumed(both)).text == "ann is done cat is done"


@pytest.mark.parametrize("hook_of", ["step", "round"])
async def test_a_wait_that_a_hook_of_the_desk_has_passed_over_is_waited_for_again(hook_of: str) -> None:
    """A Stop ends the desk's call while the holder waits. The next message waits for the same decision, and is
    answered then.
    """
    did: list[str] = []
    stop = [True]

    @on("after_each_tool" if hook_of == "step" else "after_tool_round")
    def over(event: Event) -> Stop | None:
        return Stop("enough") if stop and stop.pop() else None

    desk = asks_ann(payer(did), hooks=[over])
    reply = await desk.call("pay", session="s")
    while reply.outcome == "stopped":
        reply = await desk.call("and now?", session="s")
    assert (reply.outcome, [waits.source for waits in reply.pending]) == ("suspended", ["ann"])
    assert (await resumed(desk)).text == "ann is done"
    assert did == ["paid"]


@pytest.mark.parametrize("kind", [PostActing, PostToolRound])
async def test_an_interrupted_reply_says_what_is_still_waited_for(kind: type[Event]) -> None:
    """The interrupt came after the holder's suspension: the events and the reply have the pending calls."""
    desk = asks_ann(payer([]))
    rounds: list[list[str]] = []

    @on(kind)
    def late(event: PostActing | PostToolRound) -> None:
        event.context.interrupt("enough")

    @on(observer=True)
    def watch(event: PostToolRound) -> None:
        rounds.append([result.state for result in event.tool_results])

    reply = await desk.call("pay", session="s", hooks=[late, watch])
    assert reply.outcome == "interrupted"
    assert [waits.source for waits in reply.pending] == ["ann"]
    assert reply.pending == desk.session("s").pending
    assert rounds == [["suspended"]]


async def test_a_failure_in_the_middle_suspends_the_top() -> None:
    """A hook fails on the desk's round, while the holder waits. The workflow around it waits too, and its events show
    that.
    """
    did: list[str] = []
    desk = asks_ann(payer(did))
    broken = [True]
    states: list[str] = []

    @workflow(desk)
    async def flow(task: str) -> str:
        return (await ask(desk, task)).text

    @on(scope="tree")
    def fails(event: PostToolRound) -> None:
        if event.source == "desk" and broken:
            broken.clear()
            raise HookedError

    @on(observer=True)
    def watch(event: PostActing) -> None:
        states.append(event.tool_result.state)

    reply = await flow.call("pay", session="s", hooks=[fails, watch])
    assert (reply.outcome, [waits.source for waits in reply.pending]) == ("suspended", ["desk/ann"])
    assert states == ["suspended"]
    assert (await resumed(flow)).text == "ann is done"


@pytest.mark.parametrize("how", ["fail", "interrupt"])
async def test_a_resume_that_ends_before_its_round_waits_again(how: str) -> None:
    """It ends while the system prompt of the asking agent is made: nothing has continued, and the next resume does."""
    did: list[str] = []
    broken: list[bool] = []

    def system(context: RunContext) -> str:
        if broken and how == "fail":
            raise HookedError
        if broken:
            context.interrupt("enough")
        return "You lead."

    lead = Agent("lead", by_round(use("w1", "ann", message="pay"), "led"), system=system, tools=[payer(did)])
    [waits] = (await lead.call("go", session="s")).pending
    broken.append(True)
    with contextlib.suppress(HookedError):
        assert (await lead.resume("s", {waits.id: Approve()})).pending == (waits,)
    broken.clear()
    assert (did, lead.session("s").pending) == ([], (waits,))
    assert (await resumed(lead)).text == "led"
    assert did == ["paid"]


async def test_a_step_that_was_refused_on_resuming_is_not_waited_for() -> None:
    """A hook of the asking agent denies the call on resuming, and the run is interrupted: it has ended."""

    @on(PreActing)
    def deny(event: PreActing) -> Deny:
        return Deny("not any more")

    @on(PostActing)
    def over(event: PostActing) -> None:
        event.context.interrupt("enough")

    lead = Agent("lead", by_round(use("w1", "ann", message="pay"), "led"), tools=[payer([])])
    [waits] = (await lead.call("go", session="s")).pending
    reply = await lead.resume("s", {waits.id: Approve()}, hooks=[deny, over])
    assert (reply.outcome, reply.pending) == ("interrupted", ())
    assert lead.session("s").pending == ()


async def test_an_earlier_question_is_finished_before_the_next_one() -> None:
    """The earlier question, in text, is answered first; then the new question, which requests a number."""
    asked: list[str] = []

    @tool(requires_approval=True)
    async def pay() -> str:
        return "paid"

    def brain(request: ModelRequest) -> Any:
        texts = [msg.text for msg in request.messages]
        asked.append([text for text in texts if not text.startswith("When you have")][-1])
        return {"pay": use("p1", "pay"), "paid": "It is paid."}.get(asked[-1], '{"answer": 7}')

    ann = Agent("ann", ScriptedModel(brain), tools=[pay])
    stop = [True]

    @workflow(ann, hooks=[after_tool_round(lambda event: Stop("enough") if stop and stop.pop() else None)])
    async def flow(task: str) -> str:
        output = Output(int, via="prompt") if task == "how many?" else None
        reply: Reply[Any] = await ask(ann, task, output=output, conversation=True)
        return str(reply.output) if output else reply.text

    assert (await flow.call("pay", session="s")).outcome == "stopped"
    assert (await flow.call("how many?", session="s")).outcome == "suspended"
    assert (await resumed(flow)).text == "7"
    assert asked == ["pay", "paid", "how many?"]


async def test_a_holder_that_hands_on_in_an_earlier_question_may_hand_on_again() -> None:
    """Each call of an agent has one handoff: that of the earlier question is not that of the next one."""
    stop = [True]

    def brain(request: ModelRequest) -> Any:
        last = request.messages[-1]
        if last.role == "user" and last.text == "pay":
            return use("p1", "pay")
        return use(f"h{len(request.messages)}", "transfer_to_bob", reason="his")

    @tool(requires_approval=True)
    async def pay() -> str:
        return "paid"

    ann = Agent("ann", ScriptedModel(brain), tools=[pay])
    over = after_tool_round(lambda event: Stop("enough") if stop and stop.pop() else None)
    desk = handoffs(ann, Agent("bob", by_round("bob is done")), hooks=[over])
    assert (await desk.call("pay", session="s")).outcome == "stopped"
    assert (await desk.call("and now?", session="s")).outcome == "suspended"
    assert (await resumed(desk)).text == "bob is done"


async def test_an_interrupted_call_that_waits_is_found_by_its_id() -> None:
    """An agent with a store keeps a waiting call in memory, with the sessions inside it, even if it was interrupted."""
    did: list[str] = []
    desk = asks_ann(payer(did), store=MemoryStore())

    @on(PostToolRound)
    def late(event: PostToolRound) -> None:
        event.context.interrupt("enough")

    await desk.call("pay", session="s", hooks=[late])
    for n in range(300):
        desk.session(f"other-{n}")
    gc.collect()
    assert [waits.source for waits in desk.session("s").pending] == ["ann"]


async def test_an_agent_keeps_no_session_that_its_caller_has_dropped() -> None:
    """Waiting sessions inside are held by their caller's session only."""
    ann = payer([])
    desk = asks_ann(ann)
    await desk.call("pay", session="s")
    inner = weakref.ref((full_session(desk.session("s")).inner or {})["@ann"])
    assert inner() is not None
    desk.forget("s")
    assert inner() is None


async def test_what_has_a_result_is_not_waited_for() -> None:
    """In every prefix of a run's facts, the calls that wait inside are those that have neither been entered again nor
    have a result.
    """

    @on(PreActing)
    def deny(event: PreActing) -> Deny | None:
        return Deny("not any more") if event.approval else None

    store = MemoryStore()
    rounds = [use("w1", "ann", message="pay"), use("w2", "cat", message="pay")], "led"
    lead = Agent("lead", by_round(*rounds), tools=[payer([]), payer([], "cat")], hooks=[deny], store=store)
    await lead.call("go", session="s")
    await resumed(lead)
    facts = tuple(store.load("s"))
    most = 0
    for n in range(len(facts)):
        machine = Machine.from_facts(facts[:n])
        most = max(most, len(inside := machine.waiting_inside()))
        assert inside.keys() <= {call.id for call in machine.open_calls} - machine.round.started.keys()
    assert most == 1
