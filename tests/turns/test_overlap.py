"""What runs at the same time, shown by recorded intervals of a logical clock: start and end each take one tick."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import combinations, count
from typing import Any

import pytest
from eventlog import use
from turnlog import Log

from agentflow import Agent, PostActing, PreActing, ToolSchedule, Turn, on, tool
from agentflow.errors import UsageError
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools import Tool


class Recording:
    """Makes tools that record their start and end."""

    def __init__(self) -> None:
        self.ticks: Iterator[int] = count()
        self.spans: dict[str, tuple[int, int]] = {}
        self.inside = 0
        self.most = 0

    async def work(self, who: str, steps: int = 3) -> str:
        begun = next(self.ticks)
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            for _ in range(steps):
                await asyncio.sleep(0)
        finally:
            self.inside -= 1
            self.spans[who] = (begun, next(self.ticks))
        return who

    def tool(self, name: str, **options: Any) -> Tool[..., Any]:
        async def working(who: str, steps: int = 3) -> str:
            """Work."""
            return await self.work(who, steps)

        return tool(name=name, **options)(working)

    def overlap(self, one: str, other: str) -> bool:
        (a, b), (c, d) = self.spans[one], self.spans[other]
        return a < d and c < b

    def overlaps(self, names: list[str]) -> list[bool]:
        return [self.overlap(one, other) for one, other in combinations(names, 2)]

    def before(self, earlier: list[str], later: list[str]) -> bool:
        return max(self.spans[name][1] for name in earlier) < min(self.spans[name][0] for name in later)


def tools_of(recording: Recording) -> list[Tool[..., Any]]:
    return [recording.tool(kind, type=kind) for kind in ("research", "read", "write")]


async def run_round(recording: Recording, calls: list[Any], streamed: bool, **options: Any) -> Agent:
    agent = Agent("a", ScriptedModel([calls, "done"]), tools=options.pop("tools", tools_of(recording)), **options)
    if streamed:
        async with agent.stream("go") as events:
            async for _ in events:
                pass
    else:
        await agent.call("go")
    return agent


pytestmark = pytest.mark.parametrize("streamed", [False, True], ids=["called", "streamed"])


async def test_eight_reads_all_overlap(streamed: bool) -> None:
    """Each overlaps with each."""
    recording = Recording()
    names = [f"r{i}" for i in range(8)]
    await run_round(recording, [use(name, "read", who=name) for name in names], streamed)
    assert all(recording.overlaps(names))


async def test_twelve_writes_never_overlap(streamed: bool) -> None:
    """They run one by one, in call order."""
    recording = Recording()
    names = [f"w{i}" for i in range(12)]
    await run_round(recording, [use(name, "write", who=name) for name in names], streamed)
    assert not any(recording.overlaps(names))
    assert sorted(recording.spans, key=lambda name: recording.spans[name]) == names


MIXED = [
    use("w1", "write", who="w1"),
    use("r1", "read", who="r1"),
    use("s1", "research", who="s1"),
    use("w2", "write", who="w2"),
    use("r2", "read", who="r2"),
    use("s2", "research", who="s2"),
]


async def test_research_before_reads_before_writes(streamed: bool) -> None:
    """This holds for any order of the calls; results are in call order."""
    recording = Recording()
    agent = await run_round(recording, MIXED, streamed)
    assert recording.before(["s1", "s2"], ["r1", "r2"])
    assert recording.before(["r1", "r2"], ["w1"])
    assert recording.before(["w1"], ["w2"])
    assert recording.overlap("s1", "s2")
    assert recording.overlap("r1", "r2")
    results = agent.session().messages[2].tool_results
    assert [result.text for result in results] == ["w1", "r1", "s1", "w2", "r2", "s2"]


@pytest.mark.parametrize(
    ("schedule", "together"),
    [
        (ToolSchedule.BY_TYPE, {("r1", "r2"), ("s1", "s2")}),
        (ToolSchedule.IN_CALL_ORDER, set[tuple[str, str]]()),
        (ToolSchedule.SEQUENTIAL, set[tuple[str, str]]()),
        (ToolSchedule.PARALLEL, set(combinations(sorted(["w1", "r1", "s1", "w2", "r2", "s2"]), 2))),
    ],
    ids=lambda value: value.policy if isinstance(value, ToolSchedule) else "",
)
async def test_each_policy(schedule: ToolSchedule, together: set[tuple[str, str]], streamed: bool) -> None:
    """By type; in call order, where nothing here is adjacent to a call of its kind; one by one; all at once."""
    recording = Recording()
    await run_round(recording, MIXED, streamed, schedule=schedule)
    pairs = {pair for pair in combinations(sorted(recording.spans), 2) if recording.overlap(*pair)}
    assert pairs == together
    if schedule.policy in ("in_call_order", "sequential"):
        assert sorted(recording.spans, key=lambda name: recording.spans[name]) == ["w1", "r1", "s1", "w2", "r2", "s2"]


async def test_neighbours_in_call_order(streamed: bool) -> None:
    """Adjacent reads overlap; a write between them separates them."""
    recording = Recording()
    kinds = {"r1": "read", "r2": "read", "w1": "write", "r3": "read", "r4": "read"}
    calls = [use(name, kind, who=name) for name, kind in kinds.items()]
    await run_round(recording, calls, streamed, schedule=ToolSchedule.IN_CALL_ORDER)
    pairs = {pair for pair in combinations(kinds, 2) if recording.overlap(*pair)}
    assert pairs == {("r1", "r2"), ("r3", "r4")}
    assert recording.before(["r1", "r2"], ["w1"])
    assert recording.before(["w1"], ["r3", "r4"])


@pytest.mark.parametrize("cap", [1, 3])
async def test_the_cap_on_concurrency(cap: int, streamed: bool) -> None:
    """At most that many at a time, and as many as that; they begin in call order."""
    recording = Recording()
    names = [f"r{i}" for i in range(10)]
    calls = [use(name, "read", who=name) for name in names]
    await run_round(recording, calls, streamed, schedule=ToolSchedule.BY_TYPE.limit(cap))
    assert recording.most == cap
    assert sorted(recording.spans, key=lambda name: recording.spans[name][0]) == names


async def test_results_are_delivered_as_they_finish_and_stand_in_call_order(streamed: bool) -> None:
    """The fastest tool's `PostActing` comes first; the history is in the model's order."""
    recording, log = Recording(), Log()
    calls = [
        use("slow", "read", who="slow", steps=9),
        use("mid", "read", who="mid", steps=5),
        use("fast", "read", who="f"),
    ]
    agent = await run_round(recording, calls, streamed, hooks=[log])
    delivered = [event.tool_use.id for event in log.seen if isinstance(event, PostActing)]
    results = agent.session().messages[2].tool_results
    assert delivered == ["fast", "mid", "slow"]
    assert [result.tool_use_id for result in results] == ["slow", "mid", "fast"]


@pytest.mark.parametrize("type_", ["read", "write"])
async def test_one_that_fails_loses_none_of_the_others(type_: str, streamed: bool) -> None:
    """All calls have their results; one of them is an error."""
    recording = Recording()

    @tool(type=type_, name="fails")
    async def fails() -> str:
        raise ValueError("broken")

    calls = [use("1", "work", who="a"), use("2", "fails"), use("3", "work", who="b"), use("4", "unknown")]
    agent = await run_round(recording, calls, streamed, tools=[recording.tool("work", type=type_), fails])
    states = [result.state for result in agent.session().messages[2].tool_results]
    assert (states, sorted(recording.spans)) == (["success", "error", "success", "not_found"], ["a", "b"])


async def test_a_locked_read_tool_never_overlaps_with_itself(streamed: bool) -> None:
    """The others of its type continue meanwhile."""
    recording = Recording()
    locked = recording.tool("locked", type="read", lock=True)
    calls = [use("l1", "locked", who="l1"), use("l2", "locked", who="l2"), use("r1", "read", who="r1", steps=9)]
    await run_round(recording, calls, streamed, tools=[locked, *tools_of(recording)])
    assert not recording.overlap("l1", "l2")
    assert recording.overlap("l1", "r1")
    assert recording.overlap("l2", "r1")


async def test_a_locked_tool_that_agents_and_turns_share(streamed: bool) -> None:
    """Of 100 concurrent runs, by calls of several agents, queues and by hand, no two overlap."""
    recording = Recording()
    locked = recording.tool("locked", type="read", lock=True)
    work: list[Any] = []
    for number in range(5):
        calls = [use(f"c{number}-{i}", "locked", who=f"c{number}-{i}") for i in range(10)]
        work.append(run_round(recording, calls, streamed, tools=[locked]))
    for number in range(5):
        agent = Agent(f"q{number}", ScriptedModel([]), tools=[locked.renamed("mine")])
        for i in range(5):
            await agent.put(Turn(agent.tools[0], {"who": f"q{number}-{i}"}))

        async def drain(agent: Agent = agent) -> None:
            async for _ in agent.run():
                pass

        work.append(drain())
    work.extend(Turn(locked, {"who": f"t{i}"}).returning() for i in range(25))
    await asyncio.gather(*work)
    assert (len(recording.spans), recording.most) == (100, 1)
    assert locked.lock is not None
    assert not locked.lock.locked


async def test_a_call_that_a_hook_renames_runs_as_its_new_type(streamed: bool) -> None:
    """A read that is turned into a write waits for the writes, and does not overlap with them."""
    recording = Recording()

    @on(PreActing)
    def careful(event: PreActing) -> None:
        if event.tool_use.id == "x":
            event.tool_use = event.tool_use.replace(name="write")

    calls = [use("x", "read", who="x"), use("r1", "read", who="r1"), use("w1", "write", who="w1")]
    agent = await run_round(recording, calls, streamed, hooks=[careful])
    assert recording.before(["r1"], ["x", "w1"])
    assert not recording.overlap("x", "w1")
    assert [result.text for result in agent.session().messages[2].tool_results] == ["x", "r1", "w1"]


async def run_agents(recording: Recording, streamed: bool, *tools: Tool[..., Any], **options: Any) -> None:
    """One reply calls two agents with these tools of their own; each records its start and end."""

    def sub(name: str) -> Agent:
        async def think() -> None:
            await recording.work(name)

        return Agent(name, ScriptedModel([[think, "done"]]), tools=tools)

    calls = [use(name, name, message="go") for name in "ab"]
    await run_round(recording, calls, streamed, tools=[sub(name).as_tool(**options) for name in "ab"])


@pytest.mark.parametrize(
    ("kinds", "options", "together"),
    [
        ([], {}, True),
        (["research"], {}, True),
        (["read", "research"], {}, True),
        (["read", "write"], {}, False),
        (["write"], {"type": "read"}, True),
        ([], {"type": "write"}, False),
    ],
    ids=str,
)
async def test_agents_as_tools_are_as_strict_as_their_tools(
    kinds: list[str], options: dict[str, Any], together: bool, streamed: bool
) -> None:
    """Agents that only read run in parallel; `as_tool(type=...)` overrides that."""
    recording = Recording()
    await run_agents(recording, streamed, *(recording.tool(kind, type=kind) for kind in kinds), **options)
    assert recording.overlap("a", "b") is together


async def test_an_agent_of_agents_is_as_strict_as_they_are(streamed: bool) -> None:
    """This holds however deep the writing one is."""

    def over(*tools: Any) -> Agent:
        return Agent("over", ScriptedModel([]), tools=tools)

    recording = Recording()
    types = [over(over(recording.tool("own", type=kind))).as_tool().type for kind in ("research", "read", "action")]
    assert types == ["research", "read", "write"]
    with pytest.raises(UsageError, match="Tool 'over' has type='fast'; use one of"):
        over().as_tool(type="fast")


@pytest.mark.parametrize("cap", [0, -1])
def test_a_cap_below_one_is_refused(cap: int, streamed: bool) -> None:
    """At least one tool has to run."""
    with pytest.raises(UsageError, match="max_concurrency"):
        ToolSchedule.BY_TYPE.limit(cap)
