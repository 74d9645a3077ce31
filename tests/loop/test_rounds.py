"""Rounds: the order by tool types, the order of results, the limit on concurrency, and the schedules."""

import asyncio
from typing import Any

import pytest
from eventlog import Recorder, history, log, streamed, use
from hypothesis import given
from hypothesis import strategies as st

from agentflow import Agent, Approve, Hook, PostActing, PreActing, Stop, ToolSchedule, on, tool
from agentflow._support.virtual_time import VirtualClockLoop
from agentflow.errors import UsageError
from agentflow.testing import ScriptedModel
from agentflow.tools import Tool
from agentflow.vocabulary.events import Event


class Lab:
    """Tools of three types that take virtual seconds and record when they ran."""

    def __init__(self) -> None:
        self.intervals: dict[str, tuple[float, float]] = {}

    def tools(self) -> list[Tool[..., Any]]:
        async def work(at: str, seconds: float = 1) -> str:
            """Work."""
            loop = asyncio.get_running_loop()
            start = loop.time()
            await asyncio.sleep(seconds)
            self.intervals[at] = (round(start, 3), round(loop.time(), 3))
            return at

        kinds = ("research", "read", "write")
        return [tool(name=kind, type=kind)(work) for kind in kinds] + [tool(name="plain")(work)]

    @property
    def most(self) -> int:
        """Return how many ran at once."""
        times = [(start, 1) for start, _ in self.intervals.values()] + [(end, -1) for _, end in self.intervals.values()]
        now = most = 0
        for _, change in sorted(times):
            now += change
            most = max(most, now)
        return most


def run(calls: list[Any], **options: Any) -> tuple[Lab, list[str], Agent]:
    lab = Lab()
    agent = Agent("a", ScriptedModel([calls, "end"]), tools=lab.tools(), **options)
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        lines = runner.run(streamed(agent))
    return lab, lines, agent


MIXED = [
    use("w1", "write", at="w1"),
    use("r1", "read", at="r1"),
    use("s1", "research", at="s1"),
    use("w2", "plain", at="w2"),
    use("r2", "read", at="r2"),
    use("s2", "research", at="s2"),
]


def test_the_order_by_type() -> None:
    """Research tools run in parallel, then read tools in parallel, then write (and untyped) tools one by one."""
    lab, _, _ = run(MIXED)
    assert lab.intervals == {
        "s1": (0, 1),
        "s2": (0, 1),
        "r1": (1, 2),
        "r2": (1, 2),
        "w1": (2, 3),
        "w2": (3, 4),
    }


def test_in_call_order() -> None:
    """IN_CALL_ORDER: the model's order; adjacent calls of one parallel type run together."""
    calls = [
        use("r1", "read", at="r1"),
        use("r2", "read", at="r2"),
        use("w1", "write", at="w1"),
        use("r3", "read", at="r3"),
    ]
    lab, _, _ = run(calls, schedule=ToolSchedule.IN_CALL_ORDER)
    assert lab.intervals == {"r1": (0, 1), "r2": (0, 1), "w1": (1, 2), "r3": (2, 3)}


def test_sequential() -> None:
    """SEQUENTIAL: the model's order, one by one, whatever the types."""
    lab, _, _ = run(MIXED[1:4], schedule=ToolSchedule.SEQUENTIAL)
    assert lab.intervals == {"r1": (0, 1), "s1": (1, 2), "w2": (2, 3)}


def test_parallel() -> None:
    """PARALLEL: all at once, writes included."""
    lab, _, _ = run(MIXED, schedule=ToolSchedule.PARALLEL)
    assert set(lab.intervals.values()) == {(0, 1)}


@pytest.mark.parametrize("cap", [1, 2, 3, 7])
def test_the_cap_on_concurrency(cap: int) -> None:
    """At most as many tools run as the limit allows, and never fewer while calls wait."""
    calls = [use(f"t{i}", "read", at=f"t{i}") for i in range(6)]
    lab, _, _ = run(calls, schedule=ToolSchedule.BY_TYPE.limit(cap))
    assert lab.most == min(cap, 6)
    assert max(end for _, end in lab.intervals.values()) == -(-6 // cap)


def test_a_cap_of_nothing_is_refused() -> None:
    """A limit below one is a UsageError."""
    with pytest.raises(UsageError, match="max_concurrency=0"):
        ToolSchedule.BY_TYPE.limit(0)


def test_results_in_call_order_delivered_as_they_finish() -> None:
    """PostActing events come in the order of completion; the round and the history have the results in call order."""
    calls = [
        use("t1", "read", at="slow", seconds=3),
        use("t2", "read", at="fast", seconds=1),
        use("t3", "read", at="mid", seconds=2),
    ]
    _, lines, agent = run(calls)
    assert [text for text in lines if text.startswith("PostActing")] == [
        "PostActing t2 success 'fast'",
        "PostActing t3 success 'mid'",
        "PostActing t1 success 'slow'",
    ]
    assert "PostToolRound t1 success 'slow'; t2 success 'fast'; t3 success 'mid'" in lines
    assert history(agent.session())[2] == "tool: t1 success 'slow'; t2 success 'fast'; t3 success 'mid'"


def test_results_are_delivered_while_siblings_run() -> None:
    """The reader gets a result as soon as it exists, not at the end of the round."""
    times: dict[str, float] = {}

    async def read(agent: Agent) -> None:
        async for event in agent.stream("go"):
            if isinstance(event, PostActing):
                times[event.tool_use.id] = round(asyncio.get_running_loop().time(), 3)

    calls = [use("t1", "read", at="slow", seconds=3), use("t2", "read", at="fast", seconds=1)]
    agent = Agent("a", ScriptedModel([calls, "end"]), tools=Lab().tools())
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(read(agent))
    assert times == {"t2": 1, "t1": 3}


class Rename(Hook):
    """Renames calls."""

    def __init__(self, **names: str) -> None:
        self.names = names

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PreActing) and event.tool_use.id in self.names:
            event.tool_use = event.tool_use.replace(name=self.names[event.tool_use.id])
        return event


def test_a_renamed_call_runs_as_its_new_type() -> None:
    """A read that a hook turned into a write waits for the writes, and runs one by one with them."""
    calls = [
        use("t1", "read", at="t1"),
        use("t2", "read", at="t2"),
        use("t3", "read", at="t3"),
        use("t4", "write", at="t4"),
    ]
    lab, lines, _ = run(calls, hooks=[Rename(t1="write", t2="write")])
    assert lab.intervals["t3"] == (0, 1)
    writes = sorted(lab.intervals[name] for name in ("t1", "t2", "t4"))
    assert writes == [(1, 2), (2, 3), (3, 4)]
    assert sum(text.startswith("PreActing") for text in lines) == 4
    assert sum(text.startswith("PostActing") for text in lines) == 4


KINDS = st.sampled_from(["research", "read", "write", "plain"])


@pytest.mark.parametrize("schedule", [ToolSchedule.BY_TYPE, ToolSchedule.IN_CALL_ORDER, ToolSchedule.SEQUENTIAL])
@given(st.lists(st.tuples(KINDS, KINDS), min_size=1, max_size=4))
def test_each_call_runs_once_whatever_it_is_renamed_to(schedule: ToolSchedule, kinds: list[tuple[str, str]]) -> None:
    """Hooks may rename any calls of a round: each runs once, under its new name. By type, a write runs alone; the other
    schedules keep the order of the calls.
    """
    names = [f"t{number}" for number in range(len(kinds))]
    calls = [use(name, first, at=name) for name, (first, _) in zip(names, kinds, strict=True)]
    renamed = {name: second for name, (_, second) in zip(names, kinds, strict=True)}
    ran: list[tuple[str, str]] = []

    @on(PostActing)
    def note(event: PostActing) -> None:
        ran.append((event.tool_use.name, event.tool_result.text))

    lab, _, _ = run(calls, hooks=[Rename(**renamed), note], schedule=schedule)
    assert sorted(ran) == sorted((kind, name) for name, kind in renamed.items())
    spans = [lab.intervals[name] for name in names]
    if schedule is not ToolSchedule.BY_TYPE:
        assert spans == sorted(spans)
        return
    for name, (start, end) in zip(names, spans, strict=True):
        if renamed[name] in ("write", "plain"):
            assert [other for other in spans if other[0] < end and start < other[1]] == [(start, end)]


class After(Hook):
    """Answers the end of one call with a verdict."""

    def __init__(self, id: str, verdict: Any) -> None:  # noqa: A002
        self.id, self.verdict = id, verdict

    def on_event(self, event: Any) -> Any:
        return self.verdict if isinstance(event, PostActing) and event.tool_use.id == self.id else event


def test_a_renamed_call_that_a_stop_overtakes_is_closed() -> None:
    """L2: a read that a hook turned into a write has fired PreActing; if it is stopped before the writes run, it
    fires PostActing.
    """
    calls = [use("t1", "read", at="t1"), use("t2", "read", at="t2"), use("t3", "write", at="t3")]
    lab, lines, agent = run(calls, hooks=[Rename(t1="write"), After("t2", Stop("enough"))])
    assert list(lab.intervals) == ["t2"]
    not_run = "denied 'Not run: the call was stopped.'"
    assert lines[5:] == [
        "PreActing t1:write(at='t1')",
        "PreActing t2:read(at='t2')",
        "PostActing t2 success 't2' -> Stop(After)",
        f"PostActing t1 {not_run}",
        f"PostToolRound t1 {not_run}; t2 success 't2'; t3 {not_run}",
        "PostCall stopped 'enough'",
        "CallEnded stopped",
    ]
    assert history(agent.session())[2:] == [
        f"tool: t1 {not_run}; t2 success 't2'; t3 {not_run}",
        "assistant: enough",
    ]


def test_renamed_calls_that_a_failure_overtakes_are_closed() -> None:
    """L2: if a hook fails and ends the call, the reader gets the PostActing of all waiting calls, however many there
    are.
    """

    class Fails(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostActing) and event.tool_use.id == "t0":
                raise ValueError("broken")
            return event

    waiting = [f"t{number}" for number in range(1, 13)]
    calls = [use(name, "read", at=name) for name in ["t0", *waiting]]
    agent = Agent(
        "a", ScriptedModel([calls]), tools=Lab().tools(), hooks=[Rename(**dict.fromkeys(waiting, "write")), Fails()]
    )
    seen: list[Event] = []

    async def main() -> None:
        with pytest.raises(ValueError, match="broken"):
            await agent.stream("go").tap(seen.append).to_list()

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())
    ends = [event.original_tool_use.id for event in seen if isinstance(event, PostActing)]
    assert sorted(ends) == sorted(event.tool_use.id for event in seen if isinstance(event, PreActing))
    assert ends == ["t0", *waiting]
    assert log(seen)[-1] == "CallEnded failed ValueError: broken"


def test_each_call_that_waits_is_closed_although_a_hook_breaks_on_all() -> None:
    """L2: a hook that raises at the end of each call does not prevent PostActing of the next ones."""

    class Fails(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostActing):
                if event.tool_use.id == "t0":
                    return Stop("enough")
                raise ValueError(event.tool_use.id)
            return event

    waiting = ["t1", "t2", "t3"]
    calls = [use(name, "read", at=name) for name in ["t0", *waiting]]
    rename = Rename(**dict.fromkeys(waiting, "write"))
    recorder = Recorder()
    agent = Agent("a", ScriptedModel([calls]), tools=Lab().tools(), hooks=[rename, Fails(), recorder])

    async def main() -> None:
        with pytest.raises(ValueError, match="t1"):
            await agent.call("go")

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())
    ends = [event.original_tool_use.id for event in recorder.seen if isinstance(event, PostActing)]
    assert ends == ["t0", *waiting]
    results = agent.session().messages[2].tool_results
    assert [block.state for block in results] == ["success", "denied", "interrupted", "interrupted"]


def test_a_renamed_call_that_a_suspend_overtakes_is_closed_and_runs_later() -> None:
    """L2: if another call suspends the round first, its PostActing says so, and the resume runs it once."""
    lab = Lab()
    asks = tool(name="asks", type="read", requires_approval=True)(lab.tools()[0].function)
    calls = [use("t1", "read", at="t1"), use("t2", "asks", at="t2")]
    agent = Agent("a", ScriptedModel([calls, "end"]), tools=[*lab.tools(), asks], hooks=[Rename(t1="write")])

    async def main() -> None:
        lines = await streamed(agent)
        waits = "suspended 'Suspended: waits for a decision.'"
        assert lines[5:] == [
            "PreActing t1:write(at='t1')",
            "PreActing t2:asks(at='t2')",
            f"PostActing t2 {waits}",
            f"PostActing t1 {waits}",
            f"PostToolRound t1 {waits}; t2 {waits}",
            "PostCall suspended ''",
            "CallEnded suspended",
        ]
        reply = await agent.resume(agent.session(), {"t2": Approve()})
        assert reply.text == "end"

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())
    assert sorted(lab.intervals) == ["t1", "t2"]
    assert history(agent.session())[2] == "tool: t1 success 't1'; t2 success 't2'"


def test_an_unknown_tool_counts_as_a_write() -> None:
    """A call of an unknown tool is vetted with the writes, after the reads."""
    _, lines, _ = run([use("t1", "nothing"), use("t2", "read", at="t2")])
    assert [text.split("(")[0] for text in lines if text.startswith("PreActing")] == [
        "PreActing t2:read",
        "PreActing t1:nothing",
    ]


@pytest.mark.parametrize("calls", [2, 6, 40])
async def test_a_reader_gets_the_events_of_a_parallel_round_in_their_order(calls: int) -> None:
    """If no hook and no store waits, `seq` increases by one from event to event, however many tools wait to deliver
    one: a waiting tool is not overtaken by a later one.
    """

    @tool(type="read")
    async def add(a: int) -> int:
        """Add."""
        await asyncio.sleep(0)
        return a + 1

    agent = Agent("a", ScriptedModel([[use(str(n), "add", a=n) for n in range(calls)], "x"]), tools=[add])
    order = [event.seq async for event in agent.stream("go")]
    assert order == list(range(1, len(order) + 1))


async def test_a_reader_gets_the_events_that_an_interrupt_finds_waiting() -> None:
    """An event on its way to the reader when its tool was cancelled still arrives."""

    @tool(type="read")
    async def look() -> str:
        """Look."""
        await asyncio.sleep(1)
        return "seen"

    @on(PreActing)
    def interrupts(event: PreActing) -> None:
        if event.tool_use.id == "t11":
            event.context.interrupt("enough")

    seen: list[Event] = []
    observer = on(Event, observer=True)(seen.append)
    calls = [use(f"t{n}", "look") for n in range(12)]
    agent = Agent("a", ScriptedModel([calls]), tools=[look], hooks=[interrupts, observer])
    read = [event async for event in agent.stream("go")]
    assert [event.seq for event in read] == [event.seq for event in seen]
    assert sum(isinstance(event, PreActing) for event in read) > 8


def test_a_slow_reader_slows_parallel_tools() -> None:
    """Tools that emit in parallel wait for the reader: at most a few chunks are on their way."""
    from agentflow import ActingChunk, ToolEmitter

    emitted: list[int] = []

    @tool(type="read")
    async def emits(emitter: ToolEmitter) -> str:
        """Emit."""
        for number in range(100):
            await emitter.emit(number)
            emitted.append(number)
        return "done"

    async def read() -> int:
        agent = Agent("a", ScriptedModel([[use("t1", "emits"), use("t2", "emits")], "end"]), tools=[emits])
        async with agent.stream("go") as events:
            async for event in events:
                if isinstance(event, ActingChunk):
                    for _ in range(50):
                        await asyncio.sleep(0)
                    return len(emitted)
        return -1

    with asyncio.Runner() as runner:
        assert runner.run(read()) <= 16


@pytest.mark.parametrize("watched", [False, True])
def test_a_moved_call_that_a_stop_overtakes_is_closed(watched: bool) -> None:
    """A call that hooks gave a later type has fired PreActing. If a Stop comes before that type's turn, the call does
    not run, and fires PostActing (law L2).
    """

    class Stops(Hook):
        def on_event(self, event: Any) -> Any:
            return Stop("enough") if isinstance(event, PostActing) and event.tool_use.id == "t2" else event

    lab, recorder = Lab(), Recorder()
    calls = [use("t1", "read", at="t1"), use("t2", "read", at="t2")]
    agent = Agent("a", ScriptedModel([calls]), tools=lab.tools(), hooks=[Rename(t1="write"), Stops(), recorder])
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(streamed(agent) if watched else agent.call("go").resolve())
    assert list(lab.intervals) == ["t2"]
    assert [text for text in log(recorder.seen) if "Acting" in text] == [
        "PreActing t1:write(at='t1')",
        "PreActing t2:read(at='t2')",
        "PostActing t2 success 't2' -> Stop(Stops)",
        "PostActing t1 denied 'Not run: the call was stopped.'",
    ]
    assert history(agent.session())[2] == "tool: t1 denied 'Not run: the call was stopped.'; t2 success 't2'"


async def test_research_then_reads_in_parallel_then_writes_one_by_one() -> None:
    """They run in the order of the table, whatever the order of the calls; submit runs among the reads."""
    order: list[str] = []

    def make(name: str, kind: str) -> Any:
        @tool(name=name, type=kind)
        async def made() -> str:
            order.append(f"+{name}")
            await asyncio.sleep(0)
            order.append(f"-{name}")
            return name

        return made

    kinds = {"bash": "action", "submit": "read", "write_file": "write", "research_codebase": "research", "grep": "read"}
    tools = [make(name, kind) for name, kind in kinds.items()]
    await Agent("a", ScriptedModel([[use(name, name) for name in kinds], "done"]), tools=tools).call("go")
    assert order == [
        *("+research_codebase", "-research_codebase"),
        *("+submit", "+grep", "-submit", "-grep"),
        *("+bash", "-bash", "+write_file", "-write_file"),
    ]
