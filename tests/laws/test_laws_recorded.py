"""The laws of replay under the conditions of users: default ids, files, folders and SQL, nested agents. No caller leaves early.

A bounded part of `soak_replay.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path as FilePath

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from laws_harness import run
from laws_programs import AroundPlan, HookPlan, Path, Piece, Program, programs
from laws_recorded import KEPT, STAYING, DefaultIds, acting_beside, program_departs, team_departs
from test_laws_replay import NAMES, lived, replayable
from thorough import THOROUGH

from agentflow.recording.entries import RequestEntry
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Replay


@pytest.mark.parametrize(
    "number",
    [*range(40 if THOROUGH else 15), 352, 682, 894, 2291, 4021610, 6062824, 7012010, 7023741, 8222214, 17629130],
)  # the last ones diverged once
def test_a_team_that_was_recorded_runs_again_as_it_did(number: int, tmp_path: FilePath) -> None:
    """It holds for sub-agents, workflows, handoffs, typed answers and MCP tools, with ids of any kind."""
    assert team_departs(number, KEPT[number % len(KEPT)], tmp_path) is None


@settings(max_examples=settings().max_examples // 4)
@given(programs(names=NAMES, paths=STAYING).map(replayable), st.sampled_from(KEPT))
def test_a_program_that_is_not_cut_runs_again_as_it_did(
    tmp_path_factory: pytest.TempPathFactory, program: Program, kept: str
) -> None:
    """It holds wherever the log is stored."""
    note(repr(program))
    assert program_departs(program, kept, tmp_path_factory.mktemp("logs")) is None


@settings(max_examples=settings().max_examples // 4)
@given(acting_beside(), st.sampled_from(KEPT))
def test_hooks_that_interrupt_inject_or_fail_beside_parallel_tools_do_so_in_their_turn(
    tmp_path_factory: pytest.TempPathFactory, program: Program, kept: str
) -> None:
    """It holds for hooks that are awaited, and that act in the same turn of the event loop as others."""
    note(repr(program))
    assert program_departs(program, kept, tmp_path_factory.mktemp("logs")) is None


def _beside(names: str, *hooks: HookPlan) -> Program:
    calls = tuple(
        Piece("call", id=f"t{n}", name=name, args='{"message": "go"}' if name == "helper" else '{"x": 1}')
        for n, name in enumerate(names.split())
    )
    return Program((calls,), hooks, (), Path("call"), 3, "PARALLEL", "fresh", "memory", False)


@pytest.mark.parametrize(
    "program",
    [
        _beside(
            "talk flow flow slow_look",
            HookPlan("PostActing", "Again", 1, "edit", "async", "abort"),
            HookPlan("ActingChunk", "interrupt", 3, "edit", "async", "skip", 5),
        ),
        _beside("helper read talk read", HookPlan("ActingChunk", "inject-interrupt", 1, "edit", "async", "skip", 10)),
        _beside("read slow_look helper flow", HookPlan("PreActing", "interrupt", 2, "edit", "async", "skip", 10)),
        _beside("slow_look helper read slow_look", HookPlan("PostActing", "junk", 2, "edit", "sync", None, 10)),
        _beside("slow_read slow_read slow_read", HookPlan("PostActing", "raise", 2, "edit", "sync", "abort", 300)),
        _beside("talk cleans cleans flow", HookPlan("PostActing", "raise-veto", 3, "edit", "async", "skip", 300)),
        _beside("cleans read", HookPlan("PostActing", "raise", 1, "edit", "async", None, 10)),
        replace(
            _beside("flow cleans", HookPlan("ActingChunk", "raise-cancelled", 1, "edit", "async", "abort", 200, True)),
            store="slow",
        ),
        replace(
            _beside(
                "helper slow_look slow_look",
                HookPlan("PostActing", "inject-interrupt", 2, "edit", "sync", "skip", 300),
                HookPlan("PostActing", "inject-interrupt", 2, "edit", "sync", "skip", 300),
            ),
            store="slow",
        ),
        _beside(
            "slow_look slow_look helper",
            HookPlan("PreActing", "inject-raise", 1, "edit", "sync", None, 10),
            HookPlan("PreActing", "interrupt", 1, "edit", "async", None, 5),
        ),
        _beside("helper helper talk", HookPlan("PostActing", "interrupt", 2, "edit", "mono", "skip", 300)),
        _beside(
            "read slow_read cleans",
            HookPlan("PreActing", "junk", 3, "edit", "async", "abort", 5),
            HookPlan("PreActing", "interrupt", 2, "edit", "async", "abort", 5),
        ),
    ],
    ids=lambda program: " + ".join(f"{plan.event} {plan.action}" for plan in program.hooks),
)
def test_these_hooks_act_in_their_turn(program: Program, tmp_path: FilePath) -> None:
    """Each of these once acted earlier in the replay than in the recording, or cancelled other calls elsewhere."""
    assert program_departs(program, "memory", tmp_path) is None


ASKED_BESIDE_OTHERS = (
    Piece("call", id="t6", name="helper", args='{"message": "boom and ask"}'),
    Piece("call", id="t3", name="save"),
)


def test_a_run_that_was_left_while_a_sub_agent_waited_is_resumed(tmp_path: FilePath) -> None:
    """The resume answers the sub-agent's question, which has another id in the replay, although no reply has named
    it.
    """
    program = Program(
        (ASKED_BESIDE_OTHERS, ASKED_BESIDE_OTHERS),
        hooks=(HookPlan("PostToolRound", "compact", 0, "guard", "async", "abort", 200, True),),
        arounds=(AroundPlan("PreActing", "tap", 0, 0.05),),
        path=Path("break", 29, None, True),
        max_iterations=3,
        schedule="PARALLEL",
        session="fresh",
        cleanup="beats",
    )
    assert program_departs(program, "memory", tmp_path) is None


def test_calls_that_wait_for_another_to_end_start_in_their_turn(tmp_path: FilePath) -> None:
    """Calls of a parallel round with a limit have the recorded numbers, although their results arrive at other times."""
    calls = (Piece("call", id="t1", name="slow_look"), Piece("call", id="t1", name="read"))
    doubled = HookPlan("PostReasoning", "calls:dup", 1, "edit", "sync", "abort", 10, True)
    program = Program(
        (calls, calls),
        hooks=(doubled, doubled),
        arounds=(AroundPlan("PreReasoning", "zip", 0, 5.0),),
        max_iterations=2,
        schedule="PARALLEL",
        session="fresh",
        cleanup="beats",
    )
    assert program_departs(program, "memory", tmp_path) is None


@pytest.mark.parametrize(
    ("hook", "path"),
    [
        (HookPlan("PreCall", "messages:reverse", 1, "edit", "async", "deny", 200), Path("cancel-call", 1, 0.503, True)),
        (HookPlan("PreCall", "AnswerNone", 1, "edit", "mono", None, 10), Path("interrupt", 1, 2.503)),
    ],
    ids=lambda part: getattr(part, "action", None),
)
def test_a_call_that_was_cancelled_before_its_recorder_saw_it(hook: HookPlan, path: Path, tmp_path: FilePath) -> None:
    """The cancellation is recorded before the effects of the hooks of its first event."""
    observer = HookPlan("PreCall", "AnswerNone", 1, "observer", "async", None, 100, True)
    program = Program(((),), (hook, observer), (), path, 2, "IN_CALL_ORDER", "fresh", "slow", False)
    assert program_departs(program, "memory", tmp_path) is None


def test_an_event_that_waited_for_its_turn_continues_after_an_interrupt(tmp_path: FilePath) -> None:
    """The Recorder does not await, so the run went on to its next checkpoint; the replay waits for the event's turn."""
    calls = (Piece("call", id="t6", name="again", args='{"y": 1}'), Piece("call", id="t6", name="again", args="null"))
    interrupt = HookPlan("Error", "interrupt", 1, "observer", "mono", "skip", 200)
    stop = HookPlan("Error", "Stop", 1, "observer", "async", "skip", 100)
    program = Program(((), calls), (interrupt, stop), (), Path("call"), 3, "PARALLEL", "fresh", "memory", False)
    assert program_departs(program, "memory", tmp_path) is None


def test_a_hook_begins_in_its_turn_although_the_hook_before_it_takes_less_time(tmp_path: FilePath) -> None:
    """The replay does not write to the slow store, so the first hook ends early. The second is called first elsewhere."""
    calls = (Piece("call", id="t4", name="flow", args="{}"), Piece("call", id="t4", name="injects", args="[1]"))
    compact = HookPlan("PostActing", "compact", 1, "edit", "async", None, 100)
    complete = HookPlan("PostActing", "complete", 1, "edit", "mono", "skip", 100)
    program = Program(
        (calls,),
        (compact, complete),
        path=Path("cancel-stream", 5, None, True),
        max_iterations=1,
        session="fresh",
        store="slow",
        cleanup="beats",
    )
    assert program_departs(program, "memory", tmp_path) is None


@pytest.mark.parametrize(
    "program",
    [
        Program(((),), (), (AroundPlan("PreReasoning", "zip", 0, 5.0),), Path("close"), 3, "BY_TYPE", "fresh"),
        Program(
            ((Piece("call", id="t3", name="again", args='{"y": 1}'),),),
            (
                HookPlan("PostActing", "hang", 1, "guard", "mono", "skip", 100),
                HookPlan("PreActing", "interrupt", 0, "edit", "mono", None, 100),
            ),
            (),
            Path("call"),
            3,
            "IN_CALL_ORDER",
            "fresh",
        ),
    ],
    ids=["a request that was never sent", "a guard that hangs in cleanup"],
)
def test_work_that_was_stopped_early_is_passed_over(program: Program, tmp_path: FilePath) -> None:
    """The replay does not wait for what the cancelled run did not reach."""
    assert program_departs(program, "memory", tmp_path) is None


def test_a_chunk_comes_before_its_hook_that_was_cancelled(tmp_path: FilePath) -> None:
    """A hook of a chunk runs when the call is interrupted; the chunk itself came before."""
    program = Program(
        ((Piece("think", "hm"),),),
        hooks=(HookPlan("ReasoningChunk", "raise-base", 1, "edit", "async", "deny", 200, False),),
        arounds=(AroundPlan("PreReasoning", "deadline", 1, 5.0),),
        path=Path("interrupt", 2, None, False),
        max_iterations=3,
        session="fresh",
        cleanup="quiet",
    )
    assert program_departs(program, "memory", tmp_path) is None


@pytest.mark.parametrize(
    "program",
    [
        Program(
            (),
            tuple(
                HookPlan("ReasoningChunk", *acts) for acts in (("compact", 1, "edit", "async"), ("sleep", 1, "guard"))
            ),
            (AroundPlan("PreCall", "deadline", 1),),
            Path("close", 2, 2.503),
            1,
            session="fresh",
            cleanup="beats",
        ),
        replace(
            _beside("helper flow"), arounds=(AroundPlan("PreCall", "timeout", 1),), path=Path("stream", 0, None, True)
        ),
        replace(
            _beside(
                "talk slow_look",
                HookPlan("PreActing", "inject", 2, "edit", "async", "skip", 10),
                HookPlan("ActingChunk", "inject-interrupt", 1, "edit", "mono", None, 300),
            ),
            arounds=(AroundPlan("PreToolRound", "zip", 1),),
        ),
    ],
    ids=["a cancelled wait for the end", "a limit in the instant of a chunk", "an interrupt below a wrapper"],
)
def test_a_wrapper_cancels_in_its_turn(program: Program, tmp_path: FilePath) -> None:
    """Its time limit, or an interrupt that passes through it, takes effect after the steps recorded before it."""
    assert program_departs(program, "memory", tmp_path) is None


def test_a_replay_does_not_wait_for_a_request_that_it_does_not_reach() -> None:
    """A task of an operator sent it when the run was cancelled already; the replay may cancel the task first."""
    program = Program(
        (),
        (HookPlan("PreCall", "messages:dup", style="async"),),
        (AroundPlan("PreReasoning", "switch", 0, 0.5),),
        Path("cancel-task", 3),
        session="fresh",
        earlier=True,
    )
    recorder = Recorder()
    run(lambda: lived(program, recorder, team=DefaultIds))
    assert any(isinstance(entry, RequestEntry) for entry in recorder.log.entries)

    async def play() -> tuple[str, float]:
        began = asyncio.get_running_loop().time()
        done = await Replay(recorder.log).arun(DefaultIds(program).agent)
        return str(done), asyncio.get_running_loop().time() - began

    assert run(play) == ("the same as recorded", 0)
