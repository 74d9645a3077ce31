"""Random compositions of agents, with faults: the laws hold, and without faults the composition answers as its parts
do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from itertools import count, product
from typing import Any, Literal

import pytest
from compositions import by_round
from eventlog import use
from hypothesis import given, settings
from hypothesis import strategies as st
from laws_checks import check_history

from agentflow import Agent, Approve, CallEnded, Deny, Hook, MemoryStore, PreActing, PreCall, PreReasoning, Stop, tool
from agentflow.agent.orchestration import Hub, StepError, ask, gather, race, workflow
from agentflow.loop.history import fold_facts

Leaf = Literal["says", "works", "waits", "fails"]
Way = Literal["sequence", "gather", "settled", "race", "hub", "supervisor"]

FAILS = "(fails)"


@dataclass(frozen=True)
class Tree:
    """A worker, or several trees that work together in one of the ways."""

    what: Leaf | Way
    below: tuple[Tree, ...] = ()

    def may_give(self) -> set[str]:
        """Return the possible answers; `FAILS` is none."""
        if not self.below:
            return {FAILS} if self.what == "fails" else {self.what}
        parts = [one.may_give() for one in self.below]
        if self.what == "supervisor":
            return {"done"}
        if self.what == "race":
            return (set.union(*parts) - {FAILS}) or {FAILS}
        if self.what == "settled":
            return {" ".join("-" if one == FAILS else one for one in chosen) for chosen in product(*parts)}
        return {FAILS if FAILS in chosen else " ".join(chosen) for chosen in product(*parts)}


LEAVES = st.sampled_from(["says", "works", "waits", "fails"]).map(Tree)
WAYS = st.sampled_from(["sequence", "gather", "settled", "race", "hub", "supervisor"])
TREES = st.recursive(
    LEAVES, lambda below: st.builds(Tree, WAYS, st.lists(below, min_size=1, max_size=3).map(tuple)), max_leaves=6
)


@tool
async def look(at: str) -> str:
    """Look."""
    await asyncio.sleep(0)
    return at


@tool(requires_approval=True)
async def pay(at: str) -> str:
    """Pay."""
    return at


def make(tree: Tree, numbers: Any, **options: Any) -> Agent[Any]:
    """Return the agent of a tree."""
    name = f"{tree.what}{next(numbers)}"
    match tree.what:
        case "says" | "works" | "waits" | "fails":
            rounds: dict[Leaf, Any] = {
                "says": ["says"],
                "works": [[use("l1", "look", at="x"), use("l2", "look", at="y")], "works"],
                "waits": [use("p1", "pay", at="x"), "waits"],
                "fails": [LookupError("nothing there")],
            }
            return Agent(name, by_round(*rounds[tree.what]), tools=[look, pay], default_hooks=(), **options)
        case _:
            pass
    below = [make(one, numbers) for one in tree.below]
    if tree.what == "supervisor":
        calls = [use(f"w{n}", one.name, message="go") for n, one in enumerate(below)]
        return Agent(name, by_round(calls, "done"), tools=below, default_hooks=(), **options)

    @workflow(*below, name=name, max_concurrency=2, **options)
    async def whole(task: str) -> str:
        match tree.what:
            case "sequence":
                return " ".join([(await ask(one, task)).text for one in below])
            case "race":
                return (await race(*[ask(one, task) for one in below])).text
            case "hub":
                hub = Hub(below)
                return " ".join([(await hub.ask(one)).text for one in below])
            case "settled":
                got = await gather(*[ask(one, task) for one in below], return_exceptions=True)
                return " ".join("-" if isinstance(one, StepError) else one.text for one in got)
            case _:
                return " ".join(reply.text for reply in await gather(*[ask(one, task) for one in below]))

    return whole


class Meddler(Hook):
    """Injects a fault at one event of the tree, and counts calls that begin and end."""

    scope = "tree"

    def __init__(self, at: int | None, how: str) -> None:
        self.at = at
        self.how = how
        self.opened: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._seen = 0

    def on_event(self, event: Any) -> Any:
        if isinstance(event, CallEnded):
            self.ended[event.call_id] += 1
            return event
        assert not self.ended[event.call_id], f"{type(event).__name__} behind CallEnded"
        self.opened[event.call_id] = 1
        self._seen += 1
        if self._seen != self.at:
            return event
        match event, self.how:
            case _, "raise":
                raise RuntimeError("raised by the meddler")
            case _, "interrupt":
                event.context.interrupt("by the meddler")
            case PreActing() | PreCall() | PreReasoning(), "deny":
                return Deny("denied by the meddler")
            case PreReasoning(), "stop":
                return Stop("stopped by the meddler")
            case _:
                pass
        return event


async def run(tree: Tree, meddler: Meddler) -> tuple[str, MemoryStore]:
    """Call it, approve what waits, and return the answer."""
    store = MemoryStore()
    agent = make(tree, count(), store=store, hooks=[meddler])
    try:
        reply = await agent.call("go", session="s")
        for _ in range(40):
            if reply.outcome != "suspended":
                break
            reply = await agent.resume("s", {waits.id: Approve() for waits in reply.pending})
        answer = reply.text
    except (StepError, LookupError):
        answer = FAILS
    except Exception as error:
        if "meddler" not in str(error):
            raise
        answer = str(error)
    return answer, store


async def check(tree: Tree, meddler: Meddler) -> str:
    """Run it, and check the laws."""
    answer, store = await run(tree, meddler)
    assert meddler.opened == meddler.ended
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    for info in await store.sessions():
        check_history(tuple(fold_facts(store.load(info.id))), open_round=info.status != "idle")
    return answer


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_without_faults_the_whole_is_what_its_parts_are(tree: Tree) -> None:
    """Every call ends once, all histories are legal, no task is left, and the answer is one that the tree may give."""
    assert asyncio.run(check(tree, Meddler(None, ""))) in tree.may_give()


@settings(max_examples=100, deadline=None)
@given(TREES, st.integers(1, 60), st.sampled_from(["raise", "interrupt", "deny", "stop"]))
def test_with_faults_the_laws_hold(tree: Tree, at: int, how: str) -> None:
    """A hook that raises, interrupts, denies or stops at any event of any agent breaks no law."""
    asyncio.run(check(tree, Meddler(at, how)))


@pytest.mark.parametrize("how", ["raise", "interrupt", "deny", "stop"])
def test_the_meddler_meddles(how: str) -> None:
    """The injected faults have an effect: the composition does not give its answer."""
    tree = Tree("sequence", (Tree("says"), Tree("works")))
    answers = {asyncio.run(check(tree, Meddler(at, how))) for at in range(1, 8)}
    assert answers - tree.may_give()
