"""What durations count: the work of a tool, and separately the waits of its call."""

from __future__ import annotations

import asyncio
import io
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import THOROUGH

from agentflow import Agent, Approve, PostActing, RunContext, Session, ToolEmitter, ToolUseBlock, on, tool
from agentflow._support.virtual_time import run_virtual
from agentflow.agent import AgentRegistry
from agentflow.agent.agent_flux import AgentFlux
from agentflow.hooks.named import HookSource
from agentflow.plugins import Breakpoint, Pause
from agentflow.plugins.approval import Approval, ApprovalRequest
from agentflow.terminal.console import Console
from agentflow.testing import ScriptedModel
from agentflow.tools import Tool
from agentflow.vocabulary.events import ActingChunk, HookEvent, PostCall, PostToolRound, PreActing, PreReasoning
from agentflow.vocabulary.facts import TurnRecord
from agentflow.vocabulary.text import fields_of
from tests.support.clocks import LoopClock


@tool(type="write")
async def pay(cents: int) -> str:
    """Pay."""
    await asyncio.sleep(2)
    return "paid"


@tool(type="read", lock=True)
async def look() -> str:
    """Look, one at a time."""
    await asyncio.sleep(3)
    return "seen"


@tool(type="read")
async def steps(emitter: ToolEmitter) -> str:
    """Work and emit chunks, in two tasks at once."""

    async def step() -> None:
        await asyncio.sleep(1)
        await emitter.emit("step")

    await asyncio.gather(step(), step())
    await asyncio.sleep(1)
    return "done"


async def person(_request: ApprovalRequest) -> bool:
    await asyncio.sleep(30)
    return True


@on
async def slow_on_chunks(_event: ActingChunk) -> None:
    await asyncio.sleep(5)


def make(*names: str, hooks: HookSource = ()) -> Agent:
    """An agent that calls these tools in one round, with a virtual clock."""
    uses = [ToolUseBlock(f"t{n}", name, {"cents": n} if name == "pay" else {}) for n, name in enumerate(names)]
    return Agent("a", ScriptedModel([uses, "ok"]), tools=[pay, look, steps], hooks=hooks, clock=LoopClock())


def seconds(events: list[HookEvent]) -> list[tuple[float, float]]:
    """Return the working and waiting time of each tool call."""
    ends = [event for event in events if isinstance(event, PostActing)]
    return [(round(event.duration_ms / 1000, 6), round(event.waited_ms / 1000, 6)) for event in ends]


async def read(stream: AgentFlux) -> list[HookEvent]:
    return [event async for event in stream]


def test_a_person_who_approves_is_waited_for() -> None:
    """30 s of a person and 2 s of the tool are two numbers: in the event, the trace and the log line."""
    session = Session("s")
    traces: list[tuple[TurnRecord, ...]] = []

    @on(observer=True)
    def trace(event: PostActing) -> None:
        traces.append(event.context.trace.turns)

    events = run_virtual(read(make("pay", hooks=[Approval(ask=person), trace]).stream("go", session=session)))
    assert seconds(events) == [(2.0, 30.0)]
    ((turn,),) = traces
    assert (turn.duration_ms, turn.waited_ms) == (pytest.approx(2_000), pytest.approx(30_000))
    (ended,) = [event for event in events if isinstance(event, PostActing)]
    assert {"ms": 2_000, "waited_ms": 30_000}.items() <= fields_of(ended).items()


def test_who_is_refused_has_not_worked() -> None:
    """A call that a person refused has no working time, and neither has one that was cancelled while a person was
    asked.
    """

    async def refuses(request: ApprovalRequest) -> bool:
        await asyncio.sleep(30)
        return False

    assert seconds(run_virtual(read(make("pay", hooks=Approval(ask=refuses)).stream("go")))) == [(0.0, 30.0)]

    seen: list[tuple[float, float]] = []

    @on(observer=True)
    def note(event: PostActing) -> None:
        seen.extend(seconds([event]))

    async def cancelled() -> None:
        await make("pay", hooks=[Approval(ask=person), note]).call("go", timeout=10)

    with pytest.raises(TimeoutError):
        run_virtual(cancelled())
    assert seen == [(0.0, 10.0)]


def test_a_lock_is_waited_for() -> None:
    """Two calls of a tool with a lock work for three seconds each; the second one waits for the first."""
    assert seconds(run_virtual(read(make("look", "look").stream("go")))) == [(3.0, 0.0), (3.0, 3.0)]


def test_hooks_and_the_reader_of_chunks_are_waited_for() -> None:
    """The handling of a chunk is no working time of the tool, and counts once if several tasks emit."""
    assert seconds(run_virtual(read(make("steps", hooks=slow_on_chunks).stream("go")))) == [(2.0, 5.0)]


def test_a_call_that_is_sent_to_another_tool_waits_for_its_hooks_too() -> None:
    """The hooks of the tool that finally runs count as those of the first tool."""

    @on
    async def slow(event: PreActing) -> None:
        await asyncio.sleep(7)

    @tool(type="write")
    async def other() -> str:
        """Another one."""
        await asyncio.sleep(1)
        return "other"

    other.hook(slow)

    @on
    def rename(event: PreActing) -> None:
        event.tool_use = event.tool_use.replace(name="other", input={})

    agent = Agent(
        "a", ScriptedModel([ToolUseBlock("t", "pay"), "ok"]), tools=[pay, other], hooks=rename, clock=LoopClock()
    )
    assert seconds(run_virtual(read(agent.stream("go")))) == [(1.0, 7.0)]


def test_the_terminal_says_what_was_waited() -> None:
    """The line of a result has the tool's own time, followed by its waits from half a second."""

    def answering(seconds: float) -> Approval:
        async def answer(_request: ApprovalRequest) -> bool:
            await asyncio.sleep(seconds)
            return True

        return Approval(ask=answer)

    async def shown(hooks: HookSource) -> list[str]:
        file = io.StringIO()
        await Console(make("pay", hooks=hooks).stream("go"), file=file)
        return [line.strip() for line in file.getvalue().splitlines() if "pay: paid" in line]

    assert run_virtual(shown(Approval(ask=person))) == ["✓ pay: paid  2.0 s  (waited 30.0 s)"]
    assert run_virtual(shown(answering(0.5))) == ["✓ pay: paid  2.0 s  (waited 500 ms)"]
    assert run_virtual(shown(answering(0.25))) == run_virtual(shown(())) == ["✓ pay: paid  2.0 s"]


class Branch(NamedTuple):
    """A part of a random program of waits and work: what one tool call does.

    Attributes:
        asks: The seconds that a person takes to approve it.
        works: The seconds for which it works, if it calls no agent.
        inner: The parallel tool calls of the agent that it calls.
    """

    asks: int
    works: int
    inner: tuple[Branch, ...] = ()


seconds_of = st.integers(0, 9)
leaves = st.tuples(seconds_of, seconds_of).map(lambda drawn: Branch(*drawn))


def above(inner: st.SearchStrategy[Branch]) -> st.SearchStrategy[Branch]:
    parts = st.lists(inner, min_size=1, max_size=3).map(tuple)
    return leaves | st.tuples(seconds_of, parts).map(lambda drawn: Branch(drawn[0], 0, drawn[1]))


def timeline(branch: Branch) -> list[bool]:
    """Return, for each second of a tool call, whether it waited: while everything inside it waits."""
    if not branch.inner:
        return [True] * branch.asks + [False] * branch.works
    inside = [timeline(one) for one in branch.inner]
    waiting = [
        all(one[second] for one in inside if second < len(one)) for second in range(max(len(one) for one in inside))
    ]
    return [True] * branch.asks + waiting


def agent_of(name: str, parts: tuple[Branch, ...], hooks: HookSource = ()) -> Agent:
    """An agent whose model asks for one tool call per branch, in parallel."""
    tools: list[Tool[..., Any]] = []
    for number, part in enumerate(parts):
        if part.inner:
            tools.append(agent_of(f"{name}_{number}", part.inner).as_tool(type="read"))
            continue

        async def leaf(seconds: int, message: str = "") -> str:
            await asyncio.sleep(seconds)
            return "done"

        tools.append(tool(name=f"{name}_{number}", description="Work.", type="read", seconds=part.works)(leaf))
    asked = {f"{name}_{number}": part.asks for number, part in enumerate(parts)}

    @on(priority=1)
    async def person_asked(event: PreActing) -> None:
        if wait := asked.get(event.tool_use.name):
            await asyncio.sleep(wait)

    uses = [ToolUseBlock(f"t{number}", f"{name}_{number}", {"message": "go"}) for number in range(len(parts))]
    return Agent(name, ScriptedModel([uses, "ok"]), tools=tools, hooks=[person_asked, hooks], clock=LoopClock())


@given(parts=st.lists(above(above(leaves)), min_size=1, max_size=3).map(tuple))
@settings(max_examples=100 if THOROUGH else 40, deadline=None)
def test_law_a_tool_call_waits_while_all_that_runs_in_it_waits(parts: tuple[Branch, ...]) -> None:
    """At any depth, and for parallel calls, each second is either work or waiting, and counts once."""
    found = dict(run_virtual(measured(agent_of("a", parts))))
    expected = {f"a_{number}": timeline(part) for number, part in enumerate(parts)}
    assert found == {name: (line.count(False), line.count(True)) for name, line in expected.items()}


async def measured(agent: Agent) -> list[tuple[str, tuple[float, float]]]:
    events = [event async for event in agent.stream("go") if isinstance(event, PostActing)]
    return [(event.tool_use.name, seconds([event])[0]) for event in events]


def test_a_person_in_a_sub_agent_of_a_sub_agent_is_waited_for() -> None:
    """Depth 2: a person approves for 30 s while a sibling works for 5 s, so 25 s are waited in each tool above."""
    middle = agent_of("middle", (Branch(30, 2), Branch(0, 5)))
    outer = Agent(
        "outer",
        ScriptedModel([ToolUseBlock("m", "middle", {"message": "go"}), "ok"]),
        tools=[middle.as_tool()],
        clock=LoopClock(),
    )
    top = Agent(
        "top",
        ScriptedModel([ToolUseBlock("o", "outer", {"message": "go"}), "ok"]),
        tools=[outer.as_tool()],
        clock=LoopClock(),
    )
    assert run_virtual(measured(top)) == [("outer", (7.0, 25.0))]


def test_a_person_whom_an_asked_agent_waits_for_is_waited_for() -> None:
    """`agent.ask` in a tool: the question is a part of the tool call. A turn that is sent is not."""
    agents = AgentRegistry()
    agents.register(agent_of("peer", (Branch(30, 2),)))

    @tool(type="write")
    async def consult(context: RunContext) -> str:
        """Ask another agent."""
        await asyncio.sleep(1)
        return (await asker.ask("peer", "go")).text

    asker = Agent(
        "asker",
        ScriptedModel([ToolUseBlock("c", "consult"), "ok"]),
        tools=[consult],
        clock=LoopClock(),
        agents=agents,
    )
    assert run_virtual(measured(asker)) == [("consult", (3.0, 30.0))]


@pytest.mark.parametrize("kind", [PreReasoning, PostActing, PostToolRound, PostCall])
def test_a_debugger_that_pauses_a_sub_agent_is_waited_for(kind: type[HookEvent]) -> None:
    """While a debugger pauses any event of the sub-agent, its caller's tool does not work."""
    pauses: list[str] = []

    async def debugger(pause: Pause) -> None:
        pauses.append(type(pause.event).__name__)
        await asyncio.sleep(40)
        pause.resume()

    inner = agent_of("inner", (Branch(0, 2),), Breakpoint(kind, ask=debugger))
    top = Agent(
        "top",
        ScriptedModel([ToolUseBlock("i", "inner", {"message": "go"}), "ok"]),
        tools=[inner.as_tool()],
        clock=LoopClock(),
    )
    (found,) = run_virtual(measured(top))
    assert pauses
    assert found == ("inner", (2.0, 40.0 * len(pauses)))


def test_a_suspended_sub_agent_does_not_work() -> None:
    """The hours until a person decides are in no duration: resumed work is timed from the start, in each tool above."""
    inner = agent_of("inner", (Branch(0, 2),), Approval(suspend=True))
    top = Agent(
        "top",
        ScriptedModel([ToolUseBlock("i", "inner", {"message": "go"}), "ok"]),
        tools=[inner.as_tool()],
        clock=LoopClock(),
    )

    async def resumed() -> list[list[tuple[float, float]]]:
        first = await read(top.stream("go"))
        (waits,) = top.session().pending
        await asyncio.sleep(36_000)
        second = await read(top.resume_stream(decisions={waits.id: Approve()}))
        return [seconds(first), seconds(second)]

    assert run_virtual(resumed()) == [[(0.0, 0.0)], [(2.0, 0.0)]]
