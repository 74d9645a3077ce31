"""What durations count: a tool's work, and apart from it what its call waited for."""

from __future__ import annotations

import asyncio
import io

import pytest

from agentflow import Agent, PostActing, Session, ToolEmitter, ToolUseBlock, on, tool
from agentflow.agent.agent_flux import AgentFlux
from agentflow.hooks.named import HookSource
from agentflow.plugins.approval import Approval, ApprovalRequest
from agentflow.plugins.logging import fields_of
from agentflow.terminal.console import Console
from agentflow.testing import ScriptedModel
from agentflow.testing.virtual_time import run_virtual
from agentflow.vocabulary.events import ActingChunk, HookEvent, PreActing
from agentflow.vocabulary.facts import TurnRecord
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
    """Work, and say so, from two tasks at once."""

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
    """An agent that calls these tools in one round; its clock is virtual."""
    uses = [ToolUseBlock(f"t{n}", name, {"cents": n} if name == "pay" else {}) for n, name in enumerate(names)]
    return Agent("a", ScriptedModel([uses, "ok"]), tools=[pay, look, steps], hooks=hooks, clock=LoopClock())


def seconds(events: list[HookEvent]) -> list[tuple[float, float]]:
    """What each tool call worked and waited."""
    ends = [event for event in events if isinstance(event, PostActing)]
    return [(round(event.duration_ms / 1000, 6), round(event.waited_ms / 1000, 6)) for event in ends]


async def read(stream: AgentFlux) -> list[HookEvent]:
    return [event async for event in stream]


def test_a_person_who_approves_is_waited_for() -> None:
    """30 s of a person's and 2 s of the tool's are two numbers: in the event, the trace, the log line."""
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
    """A call that a person refused worked for no time, and one that was cancelled while it was asked about likewise."""

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
    """What is done with a chunk is no work of the tool's, and counts once where it emits from several tasks."""
    assert seconds(run_virtual(read(make("steps", hooks=slow_on_chunks).stream("go")))) == [(2.0, 5.0)]


def test_a_call_that_is_sent_to_another_tool_waits_for_its_hooks_too() -> None:
    """The chain of the tool that runs in the end counts as the first one."""

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
    """The line of a result has the tool's own time; what it waited stands beside it, if it is worth a word."""

    async def shown(hooks: HookSource) -> list[str]:
        file = io.StringIO()
        await Console(make("pay", hooks=hooks).stream("go"), file=file)
        return [line.strip() for line in file.getvalue().splitlines() if "pay: paid" in line]

    assert run_virtual(shown(Approval(ask=person))) == ["✓ pay: paid  2.0 s  (waited 30.0 s)"]
    assert run_virtual(shown(())) == ["✓ pay: paid  2.0 s"]
