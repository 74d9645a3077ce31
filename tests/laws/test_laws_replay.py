"""The laws of replay: a recorded random program replays without divergence, and a divergence is found at its place."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from clocks import LoopClock
from hypothesis import given, note, settings
from hypothesis import strategies as st
from laws_harness import World, run
from laws_programs import ACTS, TOOLS, AroundPlan, HookPlan, Path, Piece, Program, hook_plans, programs
from test_laws_paths import normal

from agentflow import Agent, RunContext, ToolUseBlock, tool
from agentflow.errors import StoreError
from agentflow.loop.states import State
from agentflow.recording import RunLog
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Divergence, Replay, ReplayResult
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest

TURNS = 3
LONELY = ("recurse",)
"""What hooks do that no recording holds: they call the agent themselves."""


class Team(World):
    """A program's agent that can ask another one.

    Attributes:
        asked: What its model was asked.
    """

    def __init__(self, program: Program) -> None:
        self.asked: list[str] = []
        super().__init__(program)

    def _say(self, request: ModelRequest) -> list[Any]:
        said = normal([request.messages, request.tools, request.options, request.model])
        self.asked.append(_FREE.sub("", f"{len(self.seen.observed)} {said}"))
        return super()._say(request)

    def make_tools(self) -> list[Any]:
        mine = super().make_tools()
        tools = [tool for tool in mine if tool.name in ("slow_look", "talk", "boom", "ask")]
        return [*mine, consults, Agent("helper", ScriptedModel(_helps), tools=tools, clock=LoopClock())]


@tool(type="read")
async def consults(context: RunContext, x: int = 0) -> str:
    """Make two side calls at once, and a third one."""
    replies = await asyncio.gather(context.complete(f"consult {x}"), context.complete(f"consult {x} again"))
    await asyncio.sleep(0.3)
    return (await context.complete(" ".join(reply.text for reply in replies))).text


def _helps(request: ModelRequest) -> list[Any]:
    if request.messages[-1].role == "tool":
        return ["Helped."]
    asked = request.messages[-1].text
    wanted = [name for name in ("boom", "ask") if name in asked]
    return [*[ToolUseBlock(f"h{n}", name, {"x": n}) for n, name in enumerate(("slow_look", "talk", *wanted))]]


def replayable(program: Program) -> Program:
    """Return the program without the parts that a recording cannot hold."""
    hooks = tuple(plan for plan in program.hooks if plan.action not in LONELY)
    arounds = tuple(plan for plan in program.arounds if plan.action not in LONELY)
    replies = tuple(
        tuple(
            replace(piece, args='{"message": "boom and ask"}' if piece.id > "t3" else '{"message": "go"}')
            if piece.name == "helper"
            else piece
            for piece in reply
            if piece.name != "recurses"
        )
        for reply in program.replies
    )
    path = program.path
    if path.kind == "close-elsewhere":  # where that meets the run cannot be seen
        path = replace(path, kind="close")
    if path.timeout is not None:  # the call's limit and that of a wrapper never end in one instant of a real clock
        path = replace(path, timeout=path.timeout + 0.003)
    return replace(program, replies=replies, hooks=hooks, arounds=arounds, path=path, session="fresh")


def _is_refused(plan: HookPlan | AroundPlan) -> bool:
    """Whether a hook may do what no recording holds: it cancels the task in which it runs, or reads twice at the same time
    what can be read only once."""
    once = isinstance(plan, AroundPlan) and plan.stage in ("PreCall", "PreToolRound")
    return plan.action == "cancel" or (once and plan.action in ("hedge", "at-once"))


def refused(program: Program, error: StoreError) -> bool:
    """Whether a recording of this program is refused rightly."""
    return "cannot be replayed exactly" in str(error) and any(map(_is_refused, (*program.hooks, *program.arounds)))


async def lived(program: Program, *hooks: Any, team: type[Team] = Team) -> Team:
    """Make a program's call and its continuations."""
    world = team(program)
    for hook in hooks:
        world.agent.hook(hook)
    await world.call()
    if program.path.kind == "break":
        await world.settle()
    for turn in range(TURNS):
        if world.session.machine.state is not State.SUSPENDED:
            break
        await world.call(resume=world.decisions(turn), path=Path("call"))
    return world


def recorded(program: Program) -> tuple[RunLog, Team]:
    """Return the log of a program's run, and its world."""
    recorder = Recorder()
    world = run(lambda: lived(program, recorder))
    return recorder.log, world


def played(log: RunLog, program: Program, **options: Any) -> tuple[ReplayResult, World]:
    """Replay a log with a program's agent."""

    async def main() -> tuple[ReplayResult, World]:
        world = Team(program)
        return await Replay(log).arun(world.agent, **options), world

    return run(main)


_FREE = re.compile(r"#\d+|(?<=CancelledError)\([^)]*\)|[\"']|\\+ud83d\\+ude00|\U0001f600")
"""What may differ: ids of messages and calls, the words of a cancellation, and how a character is written."""

_UNSEEN = re.compile(r"Decided\(verdict=None, hook=observer [^,]*, error=CancelledError\)")
"""An observer behind the recorder was cut: the recorder cannot have seen it."""


def told(world: World) -> list[str]:
    """Return the events of a world as text."""
    return [_UNSEEN.sub("None", _FREE.sub("", line)) for line in normal(seen_by(world))]


def seen_by(world: World) -> list[Any]:
    """Return all events of a world as its last observer got them: an `Error` of another observer comes before its
    event.
    """
    return [event for seen in world.calls or [world.seen] for event in seen.last]


NAMES = (*TOOLS, "helper", "helper", "helper", "consults", "consults")


READ_SLOWLY = Program(
    ((Piece("call", id="t1", name="look", args='{"x": "no"}'), Piece("call", id="t2", name="look")),),
    path=Path("stream", slow_reader=True),
    session="fresh",
)
"""The reader holds up the error of the first call, so the second begins before the first has its `PostActing`."""


def test_the_order_of_parallel_calls_that_a_slow_reader_has_decided_is_kept() -> None:
    """The replay's reader is never slow, but the events come in the same order."""
    check_same(READ_SLOWLY)


@pytest.mark.parametrize("outer", ["hedge", "at-once"])
def test_attempts_that_a_race_cancelled_before_they_started_do_not_start(outer: str) -> None:
    """Each of two attempts is a race of two more; a second one starts only if the first one's chunk comes later."""
    races = AroundPlan("PreReasoning", "hedge", 0, 0.0)
    talks = (Piece("call", id="t1", name="talk"), Piece("call", id="t2", name="talk"))
    check_same(Program((talks[:1], talks), arounds=(AroundPlan("PreReasoning", outer, 0), races), cleanup="beats"))
    check_same(Program((talks[:1], talks), arounds=(AroundPlan("PreReasoning", outer, 0), races)))


@settings(max_examples=settings().max_examples // 3)
@given(programs(names=NAMES).map(replayable))
def test_a_program_that_was_recorded_runs_again_as_it_did(program: Program) -> None:
    """Whatever hooks, tools, sub-agents and callers did before the end: the same events in the same order."""
    note(repr(program))
    check_same(program)


def check_same(program: Program) -> None:
    """Check that the replay of a program equals its recording."""
    log, world = recorded(program)
    if not log.calls:
        return
    try:
        made, again = played(log, program)
    except StoreError as error:
        if refused(program, error):
            return
        raise
    assert made.divergence is None, str(made)
    assert told(again) == told(world)


def _chunk_fails(action: str, **more: Any) -> HookPlan:
    return HookPlan("ReasoningChunk", action, style="async", **more)


_FAILING_OBSERVER = _chunk_fails("half-edit-raise", role="observer", on_failure="abort", serial=True)
CUT = {
    "interrupted-between-two-failing-observers-of-a-chunk": Program(
        (), (_FAILING_OBSERVER,) * 3, path=Path("interrupt", 3, 2.5)
    ),
    "interrupted-by-a-tool-beside-others-where-nobody-reads": Program(
        ((Piece("call", name="halt"), Piece("call", name="injects"), Piece("call", id="t5", name="halt")),)
    ),
    "interrupted-while-a-chunk's-hook-has-just-failed": Program(
        (), (_chunk_fails("Recover", role="guard", priority=200),), path=Path("interrupt", 1)
    ),
    "two-sub-agents-interrupted-beside-each-other": Program(
        ((Piece("call", name="helper", args='{"message": "go"}'),) * 2,),
        path=Path("interrupt", 5, 0.5),
        schedule="PARALLEL",
    ),
    "cancelled-in-the-second-of-two-hooks": Program(
        (),
        (
            HookPlan("PreReasoning", "messages:rotate", style="async", on_failure="abort", priority=10, serial=True),
            HookPlan("PreReasoning", "messages:reverse", style="async", on_failure="abort", priority=10),
        ),
        path=Path("cancel-call", 2),
    ),
    "cancelled-behind-its-end": Program(
        (),
        (HookPlan("CallEnded", "raise-veto", style="async", on_failure="deny", priority=10),),
        path=Path("cancel-call", 1),
    ),
    "interrupted-by-an-observer-behind-a-guard-that-failed": Program(
        (),
        (
            HookPlan("PostCall", "interrupt", role="observer", style="mono", on_failure="skip"),
            HookPlan("PostCall", "Stop", role="guard", style="async", on_failure="deny", priority=10),
        ),
        path=Path("stream"),
    ),
    "cancelled-between-two-failing-observers": Program(
        (),
        (HookPlan("PostReasoning", "RecoverBad", role="observer", style="async", nth=0),) * 2,
        path=Path("cancel-stream", 2),
    ),
    "left-between-a-hook-that-failed-and-one-that-ends-the-call": Program(
        (),
        (
            HookPlan("PreReasoning", "AnswerBad", style="mono", on_failure="skip", priority=10),
            HookPlan("PreReasoning", "junk", role="observer", style="mono", on_failure="abort", priority=10),
        ),
        path=Path("break", 1),
    ),
    "a-sub-agent-under-a-layer-whose-time-is-over": Program(
        ((Piece("call", id="t4", name="helper", args='{"message": "boom and ask"}'),),),
        arounds=(AroundPlan("PreToolRound", "timeout", 0, 5.0),),
        max_iterations=1,
    ),
    "cancelled-while-a-model-cleans-up-behind-a-whole-reply": Program((), path=Path("cancel-call", 1), cleanup="beats"),
    "two-tools-of-which-the-first-takes-its-time-to-clean-up": Program(
        ((Piece("call", id="t1", name="cleans"), Piece("call", id="t2", name="slow_look")),),
        path=Path("close", 7),
        schedule="PARALLEL",
    ),
    "left-between-two-steps-of-tools-beside-each-other": Program(
        (
            (
                Piece("call", name="injects", args='{"x": "no"}'),
                Piece("call", id="t4", name="slow_read", args='{"y": 1}'),
                Piece("call", id="t2", name="cleans", args="null"),
            ),
        ),
        (
            HookPlan("PostActing", "AnswerCalls", role="observer", style="async", priority=10, nth=1),
            HookPlan("PostActing", "result:empty", role="observer", style="async", nth=2),
            HookPlan("PostActing", "result:empty", role="observer", style="async", nth=2),
        ),
        path=Path("throw", 10, 0.5),
        max_iterations=1,
    ),
    "the-reader-throws-at-the-error-of-a-chunk's-hook": Program(
        (), (_chunk_fails("Answer", on_failure="abort"),), path=Path("throw", 2, slow_reader=True)
    ),
}


@pytest.mark.parametrize("program", CUT.values(), ids=CUT)
def test_a_run_that_was_cut_is_cut_at_the_same_place(program: Program) -> None:
    """The end reaches first what it reached in the recording: the reader, a hook, a tool, or the next step."""
    check_same(replayable(program))


TIMED = ("sleep", "hang", "timeout", "deadline", "complete")
TO_THE_END = st.builds(Path, st.sampled_from(["call", "stream"]))
"""No reader leaves: how far a run is at that moment depends on how often its hooks are awaited, so two live runs part there."""


def _shows(plan: HookPlan) -> bool:
    """Whether the effect of a hook shows in its own event. The failure of an observer shows in the next one
    (docs/replay.md).
    """
    return plan.action not in TIMED and (plan.role, plan.action) != ("observer", "raise-base")


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Program, Program]:
    """Draw a program, and the same one with one hook exchanged, removed or added."""
    program = replayable(draw(programs(names=NAMES, paths=TO_THE_END)))
    program = replace(
        program,
        hooks=tuple(p for p in program.hooks if _shows(p) and not _is_refused(p)),
        arounds=tuple(p for p in program.arounds if p.action not in TIMED and not _is_refused(p)),
    )
    acts = tuple(act for act in ACTS if act not in (*LONELY, *TIMED, "cancel"))
    new = draw(st.one_of(st.just(()), hook_plans(acts).filter(_shows).map(lambda plan: (plan,))))
    at = draw(st.integers(0, len(program.hooks)))
    return program, replace(program, hooks=(*program.hooks[:at], *new, *program.hooks[at + 1 :]))


@settings(max_examples=settings().max_examples // 5)
@given(exchanges())
def test_the_first_departure_is_where_two_runs_really_part(pair: tuple[Program, Program]) -> None:
    """With one hook exchanged, replay reports the first event at which a live run of the other program differs."""
    program, other = pair
    note(f"{program!r}\n{other!r}")
    log, world = recorded(program)
    if not log.calls:
        return
    _, lives = recorded(other)
    found = played(log, other)[0].divergence
    check_divergence(found, world, lives)


def check_divergence(found: Divergence | None, world: Team, lives: Team) -> None:
    """Compare the divergence found by replay with that of two live runs."""
    was, now = told(world), told(lives)
    same = next((n for n, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    if found is None:
        assert was == now, f"nothing found, and they part: {was[same:][:1]}\n{now[same:][:1]}"
        return
    if found.no_data or found.event.startswith("request"):
        # It shows in requests to models and tools before an event can report it.
        assert (was, world.asked, world.ran) != (now, lives.asked, lives.ran), f"they do not part: {found}"
        return
    events = seen_by(world) if same < len(was) else seen_by(lives)
    assert same < len(events), f"they do not part: {found}"
    assert (found.event, found.seq) == (type(events[same]).__name__, events[same].seq), (
        f"{found}\n{was[same:][:1]}\n{now[same:][:1]}"
    )
