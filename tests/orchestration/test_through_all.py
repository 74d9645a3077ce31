"""What holds for every composition: events and their sources, budgets, hooks and deps, cancellation, approvals,
recordings, crashes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from compositions import Compose, by_round
from eventlog import use
from garbage import garbage_of
from laws_checks import check_history, check_request
from thorough import THOROUGH

from agentflow import (
    Agent,
    Approve,
    CallEnded,
    MemoryStore,
    ModelRequest,
    Msg,
    PreCall,
    PreReasoning,
    Session,
    on,
    tool,
)
from agentflow.agent.orchestration import StepError
from agentflow.errors import CallTimeoutError
from agentflow.loop.history import fold_events, fold_facts
from agentflow.plugins import Recorder, UsageLimits
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.testing.faults import Crash, ProcessDied
from agentflow.vocabulary.events import Event

LONG = 3600.0
"""Seconds that nobody waits."""

WORKERS = {
    "sequence": ["ann", "bob"],
    "fan_out": ["ann", "bob"],
    "race": ["ann"],
    "route": ["ann", "bob", "router"],
    "map_reduce": ["ann", "bob"],
    "planner": ["ann", "bob", "planner"],
    "group_chat": ["ann", "bob"],
    "handoff": ["ann", "first"],
    "supervisor": ["ann", "bob"],
    "nested": ["ann", "lead", "lead/inner", "lead/inner/bob"],
}
"""Whose calls end with an answer, by the `source` of their events."""


def worker(name: str, *rounds: Any, tools: Sequence[Any] = (), **options: Any) -> Agent[Any]:
    return Agent(name, by_round(*(rounds or (f"{name} says so.",))), tools=tools, **options)


async def read(agent: Agent[Any], **options: Any) -> list[Event]:
    async with agent.stream("go", session="s", children=True, **options) as events:
        return [event async for event in events]


def check_ended(events: Sequence[Event]) -> None:
    """Every call has ended once, with its last event; every history equals the fold of its events, and is legal."""
    calls: dict[str, list[Event]] = {}
    for event in events:
        calls.setdefault(event.call_id, []).append(event)
    for own in calls.values():
        assert [isinstance(event, CallEnded) for event in own] == [False] * (len(own) - 1) + [True]


async def check_sessions(store: MemoryStore) -> list[str]:
    """The stored sessions of the composition and of all workers are legal."""
    names: list[str] = []
    for info in await store.sessions():
        messages = tuple(fold_facts(store.load(info.id)))
        # The loser of a race that a crash met while its model was asked stays unfinished, with the question.
        check_history(messages, open_round=info.status != "idle" and bool(messages[-1].tool_uses))
        names.append(info.id)
    return names


def no_task_is_left() -> None:
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_one_stream_has_the_events_of_all(compose: Compose, named: str) -> None:
    """Each agent's events have its path as their source, every call ends once, and without a reader they are the
    same.
    """
    store = MemoryStore()
    whole = compose(worker("ann"), worker("bob"), store=store)
    events = await read(whole)
    check_ended(events)
    ended = {
        event.source for event in events if isinstance(event, CallEnded) and event.outcome in ("completed", "stopped")
    }
    assert sorted(ended) == ["", *WORKERS[named]]
    assert list(fold_events(event for event in events if event.source == "")) == list(await whole.history("s"))
    ids = await check_sessions(store)
    assert {one.partition("/")[0] for one in ids} == {"s"}
    quiet = await compose(worker("ann"), worker("bob")).call("go")
    assert quiet.text == (await whole.history("s"))[-1].text
    no_task_is_left()


async def test_requests_are_legal(compose: Compose) -> None:
    """The requests to each worker's model, in three calls of one session, are legal for every provider."""
    ann, bob = worker("ann"), worker("bob")
    seen: list[tuple[Msg, ...]] = []

    @on(PreReasoning, observer=True, scope="tree")
    def look(event: PreReasoning) -> None:
        if event.decision is None:
            seen.append(tuple(event.input_messages))

    whole = compose(ann, bob, hooks=[look])
    for _ in range(3):
        assert (await whole.call("go", session="s")).outcome == "completed"
    assert seen
    for messages in seen:
        check_request(messages)
    check_history(whole.session("s").messages)


async def test_a_budget_holds_for_the_whole_tree(compose: Compose, named: str) -> None:
    """No more model calls are made than allowed, by any agent; the whole call ends with the reason."""
    made: list[str] = []

    @on(PreReasoning, observer=True, scope="tree")
    def count(event: PreReasoning) -> None:
        if event.decision is None:
            made.append(event.source)

    whole = compose(worker("ann"), worker("bob"), hooks=[UsageLimits(model_calls=1), count])
    reply = await whole.call("go")
    assert reply.outcome == ("completed" if named == "race" else "stopped")  # of a race, one is enough
    assert named == "race" or reply.text == "Usage limit reached: 1 of 1 model calls are used in this run."
    assert reply.usage.model_calls == 1
    assert len(made) == 1
    check_history(whole.session().messages)


async def test_hooks_of_the_tree_and_deps_reach_the_workers(compose: Compose, named: str) -> None:
    """A hook with `scope="tree"` handles each worker's call, and its tools get the objects passed as `deps=`."""
    seen: list[str] = []

    @tool
    async def look(ledger: Path) -> str:
        return f"{ledger}"

    @on(PreCall, scope="tree")
    def note(event: PreCall) -> None:
        seen.append(event.source)

    def made(name: str) -> Agent[Any]:
        return worker(name, use("t1", "look"), f"{name} has looked.", tools=[look])

    whole = compose(made("ann"), made("bob"), hooks=[note])
    reply = await whole.call("go", deps=Path("/ledger"))
    assert reply.outcome == "completed"
    assert set(WORKERS[named]) <= set(seen)


@pytest.mark.parametrize("how", ["timeout", "interrupt", "cancel", "leave"])
def test_a_whole_that_is_ended_ends_all(compose: Compose, how: str) -> None:
    """A time limit, an interrupt, a cancelled task, an abandoned stream: every call has ended, and no task is left."""

    @tool(timeout=None)
    async def hang() -> str:
        await asyncio.sleep(LONG)
        return "never"

    async def main() -> None:
        store = MemoryStore()
        hangs = [worker(name, use("t1", "hang"), "?", tools=[hang]) for name in ("ann", "bob")]
        seen: list[Event] = []

        @on(observer=True, scope="tree")
        def watch(event: PreCall | CallEnded) -> None:
            seen.append(event)

        whole = compose(hangs[0], hangs[1], store=store, hooks=[watch])
        if how == "timeout":
            with pytest.raises(CallTimeoutError):
                await whole.call("go", session="s", timeout=5)
        elif how == "interrupt":
            calling = asyncio.create_task(_awaited(whole))
            await asyncio.sleep(1)
            assert whole.interrupt("s", "enough")
            assert (await calling).outcome == "interrupted"
        elif how == "cancel":
            calling = asyncio.create_task(_awaited(whole))
            await asyncio.sleep(1)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
        else:
            async with whole.stream("go", session="s", children=True) as events:
                async for event in events:
                    if event.source.endswith(("ann", "bob")) and type(event).__name__ == "PreActing":
                        break
        opened = Counter(event.call_id for event in seen if isinstance(event, PreCall))
        ended = Counter(event.call_id for event in seen if isinstance(event, CallEnded))
        assert opened == ended
        assert len(opened) > 1
        assert asyncio.get_running_loop().time() < LONG
        await check_sessions(store)
        no_task_is_left()

    run_virtual(main())


async def _awaited(whole: Agent[Any], timeout: float | None = None) -> Any:
    return await whole.call("go", session="s", timeout=timeout)


@pytest.mark.parametrize("how", ["timeout", "interrupt", "fail"])
def test_the_session_goes_on_behind_it(compose: Compose, how: str) -> None:
    """However the call ended, the next one on its session completes, and requests to models are legal."""

    async def main() -> None:
        bad = [True]

        async def trouble() -> None:
            if bad.pop(0) if bad else False:
                if how == "fail":
                    raise LookupError("nothing there")
                await asyncio.sleep(LONG)

        def brain(request: ModelRequest) -> Any:
            check_request(request.messages)
            return [trouble, "well"]

        ann, bob = (Agent(name, ScriptedModel(brain), default_hooks=()) for name in ("ann", "bob"))
        whole = compose(ann, bob)
        calling = asyncio.create_task(_awaited(whole, None if how != "timeout" else 5))
        await asyncio.sleep(1)
        if how == "interrupt" and not calling.done():
            whole.interrupt("s", "enough")
        with contextlib.suppress(StepError, CallTimeoutError):
            await calling
        reply = await whole.call("again", session="s")
        assert reply.outcome == "completed"
        check_history(whole.session("s").messages)

    run_virtual(main())


@pytest.mark.parametrize("saved", [False, True])
async def test_a_worker_that_waits_for_a_person_suspends_the_whole(compose: Compose, named: str, saved: bool) -> None:
    """The whole call suspends with paths as keys; resumed, also from a saved session, only the waiting calls
    continue.
    """
    did: list[str] = []

    def make() -> Agent[Any]:
        @tool(requires_approval=True)
        async def pay(who: str) -> str:
            did.append(who)
            return "paid"

        ann = worker("ann", use("p1", "pay", who="ann"), "ann has paid.", tools=[pay])
        return compose(ann, worker("bob"))

    whole = make()
    session: Any = "s"
    reply = await whole.call("go", session=session)
    times = 0
    while reply.outcome == "suspended":
        times += 1
        assert all("/" in waits.id and waits.source.endswith("ann") for waits in reply.pending)
        assert len(did) == did.count("ann")
        if saved:
            held = whole.session(session) if isinstance(session, str) else session
            session, whole = Session.from_json(held.to_json()), make()
        reply = await whole.resume(session, {waits.id: Approve() for waits in reply.pending})
        assert times < 10
    assert reply.outcome == "completed"
    expected = {"map_reduce": 3, "group_chat": 2, "race": 0}.get(named, 1)
    assert len(did) == expected
    check_history(whole.session(session).messages if isinstance(session, str) else session.messages)


@pytest.mark.parametrize("error", [ValueError("ann is broken"), None])
async def test_who_has_failed_is_said(compose: Compose, named: str, error: Exception | None) -> None:
    """A failed worker fails the whole call with its name and reason, unless a model or another worker handles that."""
    whole = compose(Agent("ann", ScriptedModel(lambda request: error or "ann can."), default_hooks=()), worker("bob"))
    if error is None or named in ("race", "supervisor"):
        assert (await whole.call("go")).outcome == "completed"
    else:
        with pytest.raises(StepError, match="ann is broken") as failed:
            await whole.call("go")
        assert (failed.value.step, failed.value.state) == ("ann", "error")
        if named == "fan_out":
            assert failed.value.others == (("bob", "success"),)
    check_history(whole.session().messages)


async def test_a_recording_tells_of_all(compose: Compose, named: str) -> None:
    """The effects of hooks in each worker's call are recorded, with the call they belong to."""
    recorder = Recorder(every_call=True)
    recorder.scope = "tree"

    @on(PreCall, scope="tree")
    def note(event: PreCall) -> None:
        pass

    whole = compose(worker("ann"), worker("bob"), hooks=[recorder, note])
    await whole.call("go")
    assert {"", *WORKERS[named]} <= {record.source for record in recorder.records}


@pytest.mark.parametrize("stopped", [False, True])
async def test_nothing_is_left_for_the_collector(compose: Compose, stopped: bool) -> None:
    """A call that ended by itself or by a budget leaves no cyclic garbage."""
    whole = compose(worker("ann"), worker("bob"), hooks=[UsageLimits(model_calls=1)] if stopped else [])
    await whole.call("go")
    assert await garbage_of(lambda: whole.call("go")) == []


def _nth(name: str, request: ModelRequest) -> str:
    """Return the nth line of an agent that remembers how often it has spoken."""
    return f"{name} says {1 + sum(msg.role == 'assistant' for msg in request.messages)}"


@pytest.mark.ci
async def test_a_crash_at_any_point_is_recovered_from(compose: Compose, named: str) -> None:
    """A process dies before or after any commit or model call: the next one continues, and has the same answer."""

    def make(crash: Crash, store: MemoryStore) -> Agent[Any]:
        def dying(name: str) -> Agent[Any]:
            return Agent(name, crash.model(ScriptedModel(partial(_nth, name))), default_hooks=())

        return compose(dying("ann"), dying("bob"), store=crash.store(store))

    whole = Crash()
    answer = (await make(whole, MemoryStore()).call("go", session="s")).text
    answers = {"ann says 1", "bob says 1"} if named == "race" else {answer}
    for point in range(1, len(whole.points) + 1, 1 if THOROUGH else 3):
        store, crash = MemoryStore(), Crash(point)
        with pytest.raises((ProcessDied, BaseExceptionGroup)):
            await make(crash, store).call("go", session="s")
        agent = make(Crash(), store)
        ended = [info.status for info in await store.sessions() if info.id == "s"]
        if not ended:
            reply = await agent.call("go", session="s")
            text = reply.text
        elif ended == ["idle"]:
            text = (await agent.history("s"))[-1].text
        else:
            text = (await agent.resume("s")).text
        assert text in answers, point
        await check_sessions(store)
        assert len([msg for msg in await agent.history("s") if msg.role == "user"]) == 1
