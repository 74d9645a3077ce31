"""The machine: the facts of a run, truncated anywhere as by a crash, are a state from which it continues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st
from laws_checks import check_history, check_request, check_wires
from laws_harness import World, facts_of, run
from laws_programs import Path, Program, journals

from agentflow.errors import UsageError
from agentflow.loop.history import fold_facts
from agentflow.loop.machine import Machine
from agentflow.loop.session import Session
from agentflow.loop.states import TRANSITIONS, State
from agentflow.vocabulary.events import PreActing
from agentflow.vocabulary.facts import (
    CallClosed,
    CallOpened,
    Fact,
    Injected,
    Reasoned,
    RoundClosed,
    RoundSuspended,
    SessionBegan,
    ToolDecided,
    ToolFinished,
    ToolStarted,
)
from agentflow.vocabulary.messages import Msg, ToolUseBlock
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.specs import Usage

CALL = Path("call")


class Crash:
    """The open round when the process ended, computed from the facts alone."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        self.decided: dict[str, ToolDecided] = {}
        self.started: set[str] = set()
        self.finished: dict[str, Any] = {}
        self.iterations = 0
        self.limit = 0
        for fact in facts:
            match fact:
                case CallOpened():
                    self.iterations, self.limit = 0, fact.max_iterations
                case Reasoned():
                    self.iterations = fact.iteration
                case ToolDecided():
                    self.decided[fact.tool_use_id] = fact
                case ToolStarted():
                    self.started.add(fact.tool_use_id)
                case ToolFinished():
                    self.finished[fact.tool_use_id] = fact.result
                case RoundClosed():
                    self.decided, self.started, self.finished = {}, set(), {}
                case RoundSuspended():
                    self.decided = {}  # calls without a result then are vetted again
                case _:
                    pass

    @property
    def uncertain(self) -> dict[str, ToolUseBlock]:
        """Return the calls that had begun and not ended."""
        return {i: self.decided[i].tool_use for i in self.started if i not in self.finished and i in self.decided}


async def check_resumed(program: Program, facts: list[Fact]) -> None:
    store = MemoryStore()
    store.append("s", facts)
    world = World(replace(program, hooks=(), replies=()), store)
    crash = Crash(facts)
    machine = Machine.from_facts(facts)
    assert machine.iteration == crash.iterations or not crash.limit
    before = tuple(machine.transcript.messages)
    action = machine.next()
    if action == "input":
        seen = await world.call(path=CALL)
    else:
        await world.session.acquire("test")  # what is pending is known when the session is loaded
        world.session.release()
        seen = await world.call(resume=world.decisions(), path=CALL)
    assert seen.error is None, f"{action}: {seen.error!r}"
    if action != "input":
        _check_vetting(crash, seen.observed)
        _check_results(crash, world)
        asked = len(world.model.requests)
        assert asked <= max(crash.limit - crash.iterations, 0) + 1, f"{asked} requests on a budget of {crash.limit}"
    for _ in range(5):  # each approval may lead to the next call that needs one
        if world.session.machine.state is State.SUSPENDED:
            seen = await world.call(resume=world.decisions(), path=CALL)
            assert seen.error is None, repr(seen.error)
    check_history(world.history)
    assert world.history[: len(before)] == before, "what was stored has changed"
    assert fold_facts(store.load("s")) == world.history
    for request in world.model.requests:
        check_request(request.messages)
        check_wires(request.messages, request.tools)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def _check_vetting(crash: Crash, events: Sequence[Any]) -> None:
    vetted = {e.tool_use.id for e in events if isinstance(e, PreActing)}
    twice = vetted & set(crash.decided)
    assert not twice, f"decided, and vetted again: {twice}"


def _check_results(crash: Crash, world: World) -> None:
    results = {r.tool_use_id: r for m in world.history for r in m.tool_results}
    for done, result in crash.finished.items():
        assert results.get(done, result) == result, f"the result of {done} has changed"
    for started, use in crash.uncertain.items():
        if started in results:
            unknown = results[started].text.startswith("Outcome unknown")
            assert unknown == (use.name != "again"), f"{use}: {results[started]}"
    ran = {use.name for use in crash.uncertain.values()} - {"again"}
    others = {d.tool_use.name for i, d in crash.decided.items() if i not in crash.started}
    undecided = {u.name for m in world.history for u in m.tool_uses if u.id not in crash.decided}
    for name in ran - others - undecided:
        assert world.ran[name] == 0, f"{name} ran again although nobody knows whether it did"


@settings(max_examples=settings().max_examples // 2)  # each example is some fifteen runs
@given(journals())
def test_facts_cut_at_every_prefix_are_resumed(program: Program) -> None:
    """The transcript is legal, the budget holds, no decision is made twice, and no unsafe tool runs twice."""
    note(repr(program))
    facts = run(lambda: facts_of(program))
    for cut in range(len(facts) + 1):
        note(f"cut at {cut}: {[type(f).__name__ for f in facts[:cut]]}")
        run(lambda cut=cut: check_resumed(program, facts[:cut]))


def _state(machine: Machine) -> list[Any]:
    """Return the whole state of a machine."""
    transcript = machine.transcript
    slots = [name for kind in Machine.__mro__[:-1] for name in kind.__slots__]
    known = [getattr(machine, name) for name in slots if name != "transcript"]
    return [
        *deepcopy(known),
        tuple(transcript.messages),
        transcript.open_round,
        transcript.waiting,
        set(transcript.used_ids),
    ]


def _refused(act: Callable[..., object], *facts: Fact) -> bool:
    try:
        act(*facts)
    except UsageError:
        return True
    return False


STRANGE: list[Fact] = [
    CallOpened("other", "call_x", (Msg.assistant([ToolUseBlock("t1", "look", {})]),), 3),
    CallOpened("other", "call_x", (Msg.user("hi"),), 3, Msg.assistant([ToolUseBlock("t9", "look", {})])),
    SessionBegan((Msg.user("hi"), Msg.assistant([ToolUseBlock("t9", "look", {})]))),
    Injected("run_1", (Msg.assistant([ToolUseBlock("t9", "look", {})]),)),
    Reasoned("run_1", 1, Msg.assistant([ToolUseBlock("t9", "look", {})]), Usage(), 0.0, summary=True),
    CallClosed("run_1", "call_1", "completed", Msg.assistant([ToolUseBlock("t9", "look", {})])),
]


@given(journals(), st.data())
def test_what_the_machine_refuses_changes_nothing_and_is_not_stored(program: Program, data: st.DataObject) -> None:
    """For any fact in any state: `check` predicts `apply`, a refused fact changes nothing, and a session's store folds.

    It holds the facts that the machine has accepted.
    """
    note(repr(program))
    facts = run(lambda: facts_of(program))
    renamed = [fact._replace(run_id="other") if hasattr(fact, "run_id") else fact for fact in facts]
    pool = [*facts, *renamed, *STRANGE]
    cut = data.draw(st.integers(0, len(facts)))
    machine = Machine.from_facts(facts[:cut])
    for strange in pool:
        before = _state(machine)
        refused = _refused(machine.check, strange)
        assert _state(machine) == before, f"check({strange}) changed something"
        trial = Machine.from_facts(facts[:cut])
        to = TRANSITIONS[trial.state].get(type(strange))
        assert _refused(trial.apply, strange) == refused, strange
        assert refused or trial.state is to or (isinstance(to, dict) and trial.state in to.values()), (strange, to)
        if refused:
            assert _state(trial) == before, f"{strange} was refused and changed something"
    store = MemoryStore()
    store.append("s", facts[:cut])
    session = Session("s", store=store)

    async def recorded() -> None:
        await session.acquire("test")
        for strange in data.draw(st.lists(st.lists(st.sampled_from(pool), min_size=1, max_size=3), max_size=6)):
            stored = len(store.load("s"))
            if _refused(session.record, *strange):
                assert len(store.load("s")) == stored, f"{strange} was refused and stored"
            assert fold_facts(store.load("s")) == tuple(session.messages)

    run(recorded)
