"""A replay keeps the order of concurrent work: injections, hooks of parallel tools, races."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from clocks import LoopClock
from recorded_programs import kinds

from agentflow import Agent, Hook, RunContext, ToolUseBlock, tool
from agentflow.agent.orchestration import StepError, ask, race, workflow
from agentflow.recording.entries import HookEntry, MarkEntry
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Replay, ReplayResult
from agentflow.recording.replay.clock import ReplayClock
from agentflow.recording.replay.order import Key, Order, Progress
from agentflow.recording.replay.script_reader import read_script
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.vocabulary.events import HookEvent, PostActing


class Times(Hook):
    """Records the time of each event."""

    observer = True

    def __init__(self) -> None:
        self.seen: list[tuple[str, float]] = []

    def on_event(self, event: HookEvent) -> None:
        self.seen.append((type(event).__name__, round(asyncio.get_running_loop().time(), 6)))


def recorded_and_replayed(make: Any) -> tuple[Recorder, ReplayResult]:
    """Record a run of the agent of `make`, and replay it, both in virtual time: each event has the same time.

    In real time it does not wait, so that the recorded order alone decides; the events are the same there.
    """
    recorder, live_times, times = Recorder(), Times(), Times()

    async def live() -> float:
        await make(recorder, live_times).call("Go on")
        return asyncio.get_running_loop().time()

    async def again() -> tuple[ReplayResult, float]:
        return await Replay(recorder.log).arun(make(times)), asyncio.get_running_loop().time()

    seconds = run_virtual(live())
    result, seconds_again = run_virtual(again())
    assert times.seen == live_times.seen
    assert kinds(result.log) == kinds(recorder.log)
    assert seconds_again == pytest.approx(seconds)
    unpaced = Times()
    done = asyncio.run(Replay(recorder.log).arun(make(unpaced)))
    assert done.divergence is None, str(done)
    assert [kind for kind, _ in unpaced.seen] == [kind for kind, _ in live_times.seen]
    return recorder, result


def marks(recorder: Recorder) -> list[str]:
    return [entry.what for entry in recorder.log.entries if isinstance(entry, MarkEntry)]


def test_each_chunk_comes_when_it_came() -> None:
    """The chunks of a model and of a tool, between whole seconds too."""

    def waits(seconds: float) -> Any:
        return lambda: asyncio.sleep(seconds)

    @tool
    async def count() -> AsyncIterator[str]:
        """Count."""
        for n in range(3):
            await asyncio.sleep(0.35)
            yield f"{n}"

    def make(*hooks: Hook) -> Agent:
        script = [["One", waits(0.25), " two", waits(1.5), ToolUseBlock("t1", "count", {})], [waits(0.4), "Done."]]
        return Agent("a", ScriptedModel(script), tools=[count], hooks=hooks, clock=LoopClock())

    _, done = recorded_and_replayed(make)
    assert done.divergence is None, str(done)


@pytest.mark.parametrize("beside", [False, True])
def test_only_entries_of_others_between_two_steps_of_a_work_keep_them_apart(beside: bool) -> None:
    """A model's or tool's own chunks do not; those of a parallel tool do."""

    def waits(seconds: float) -> Any:
        return lambda: asyncio.sleep(seconds)

    @tool(type="read")
    async def count(name: str, each: float) -> AsyncIterator[str]:
        """Count."""
        for n in range(3):
            await asyncio.sleep(each)
            yield f"{name}{n}"

    recorder = Recorder()
    uses = [ToolUseBlock(f"t{each}", "count", {"name": f"{each}-", "each": each}) for each in (0.35, 0.3)[: 1 + beside]]
    said = [["One", waits(0.25), " two", waits(0.25), *uses], ["Done."]]
    agent = Agent("a", ScriptedModel(said), tools=[count], hooks=[recorder], clock=LoopClock())
    run_virtual(agent.call("Go"))
    script = read_script(recorder.log)
    queues = [*script.replies.values(), *script.works.values()]
    works = sorted((work for queue in queues for work in queue), key=lambda work: work.n)
    apart = [[step.apart for step in (*work.pieces, work.end_due) if step is not None] for work in works]
    parallel = [[True, True, True, False], [False, True, True, False]]
    assert apart == [[False] * (5 + beside), *(parallel if beside else [[False] * 4]), [False] * 3]


def test_tools_and_hooks_that_inject_beside_each_other_do_so_in_the_same_order() -> None:
    """Two parallel tools inject at the same moment, and a hook of the first result runs between them."""

    @tool(type="read")
    async def note(name: str, context: RunContext) -> str:
        await asyncio.sleep(0.2)
        context.inject(f"from {name}", keep=False)
        return name

    class Minds(Hook):
        observer = True

        def on_event(self, event: HookEvent) -> None:
            if isinstance(event, PostActing):
                event.context.inject(f"mind {event.tool_use.input['name']}", keep=False)

    def make(*hooks: Hook) -> Agent:
        uses = [ToolUseBlock(f"t{name}", "note", {"name": name}) for name in "ab"]
        return Agent("a", ScriptedModel([uses, "Done."]), tools=[note], hooks=[*hooks, Minds()], clock=LoopClock())

    recorder, done = recorded_and_replayed(make)
    assert done.divergence is None, str(done)
    assert marks(recorder).count("injected") == 4


@pytest.mark.parametrize("ticks", range(1, 6))
def test_hooks_of_parallel_tools_begin_in_the_same_order(ticks: int) -> None:
    """A hook counts its calls after another hook took a few steps of the loop: the log has the order in which it
    began.
    """

    @tool(type="read")
    async def look(name: str) -> str:
        await asyncio.sleep(0.2)
        return name

    class Pauses(Hook):
        observer = True
        priority = 10

        async def on_event(self, event: HookEvent) -> None:
            if isinstance(event, PostActing) and event.tool_use.input["name"] == "a":
                for _ in range(ticks):
                    await asyncio.sleep(0)

    class Counts(Hook):
        observer = True

        def __init__(self) -> None:
            self.calls = 0

        async def on_event(self, event: HookEvent) -> None:
            if isinstance(event, PostActing):
                self.calls += 1
                number = self.calls
                await asyncio.sleep(0.3)
                event.context.inject(f"call {number}: {event.tool_use.input['name']}")

    def make(*hooks: Hook) -> Agent:
        uses = [ToolUseBlock(f"t{name}", "look", {"name": name}) for name in "abc"]
        return Agent(
            "a", ScriptedModel([uses, "Done."]), tools=[look], hooks=[*hooks, Pauses(), Counts()], clock=LoopClock()
        )

    recorder, done = recorded_and_replayed(make)
    assert done.divergence is None, str(done)
    assert "began" in marks(recorder)


def test_an_observer_after_the_recorder_has_no_place_in_the_order() -> None:
    """The recorder has written its event already; in a replay the observer runs before the event is compared, and
    must not wait.
    """

    class Last(Hook):
        observer = True
        priority = 2000

        async def on_event(self, event: HookEvent) -> None:
            await asyncio.sleep(0.1)

    def make(*hooks: Hook) -> Agent:
        return Agent("a", ScriptedModel(["Done."]), hooks=[*hooks, Last()], clock=LoopClock())

    recorder, done = recorded_and_replayed(make)
    assert done.divergence is None, str(done)
    assert marks(recorder) == []


def test_a_race_is_decided_in_its_turn() -> None:
    """The events of a loser between the winner's answer and the end of the race occur in the replay, too."""

    @tool(type="write")
    async def save() -> str:
        await asyncio.sleep(0.1)
        return "saved"

    def make(*hooks: Hook) -> Agent:
        one, two = (
            Agent(name, ScriptedModel([[ToolUseBlock("t1", "save", {})], "Done."]), tools=[save], clock=LoopClock())
            for name in ("one", "two")
        )

        @workflow(one, two, name="flow", hooks=hooks, clock=LoopClock())
        async def flow(q: str) -> str:
            try:
                return (await race(ask(one, q), ask(two, q))).text
            except StepError as error:
                return f"{error.step} {error.state}"

        return flow

    recorder, done = recorded_and_replayed(make)
    assert done.divergence is None, str(done)
    assert "decided" in marks(recorder)


def test_a_tool_that_interrupts_the_run_does_so_in_its_turn() -> None:
    """The result that came before the interrupt is in the replay too."""

    @tool(type="read")
    async def look() -> str:
        await asyncio.sleep(0.5)
        return "seen"

    @tool(type="read")
    async def stop(context: RunContext) -> str:
        await asyncio.sleep(1)
        context.interrupt("enough")
        await asyncio.sleep(1)
        return "never"

    def make(*hooks: Hook) -> Agent:
        uses = [ToolUseBlock("t1", "look", {}), ToolUseBlock("t2", "stop", {})]
        return Agent("a", ScriptedModel([uses]), tools=[look, stop], hooks=hooks, clock=LoopClock())

    _, done = recorded_and_replayed(make)
    assert done.divergence is None, str(done)


def test_the_failure_of_a_hook_is_found_by_its_whole_name() -> None:
    """The name of a hook may be the last word of another hook's name."""
    event: Key = ("event", "c", 0)
    order = Order()
    order.add_failure(
        HookEntry(hook="the guard", event="PreCall", call="c", seq=1, error={"type": "ValueError", "message": "no"})
    )
    order.add_event("c", 0, "PreCall", "", 1, 0.0)
    order.settle()
    progress = Progress(order, ReplayClock(0.0), lambda: False)
    assert progress.next_failure(event, "guard") is None
    assert progress.next_failure(event, "the guard") == ("failed", "c 1 the guard", 0)
    assert progress.next_failure(event, "the guard") is None


def test_the_clock_jumps_forward_only_and_wakes_what_waits_for_its_time() -> None:
    """No time passes meanwhile; a jump to an earlier time has no effect."""

    async def main() -> tuple[float, float, float]:
        clock, loop = ReplayClock(100), asyncio.get_running_loop()
        assert clock.now() == 100
        waiting = [asyncio.create_task(clock.reach(time)) for time in (104, 105)]
        await asyncio.sleep(0)
        clock.jump(105)
        clock.jump(104)
        now = clock.now()
        await asyncio.gather(*waiting)
        return now, clock.now(), loop.time()

    assert run_virtual(main()) == (105, 105, 0)
