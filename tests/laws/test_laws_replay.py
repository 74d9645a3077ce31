"""The law of replay: any random program that nobody cuts, recorded and run again, gives the same events."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws_harness import World, run
from laws_programs import Path, Program, programs

from agentflow.plugins.recorder import Recorder
from agentflow.replay import Replay, Replayed
from agentflow.runlog import RunLog

SOAK = os.environ.get("AGENTFLOW_LAWS") == "soak"
EXAMPLES = 2_000 if SOAK else 60
PATHS = st.sampled_from([Path("call"), Path("stream"), Path("stream", slow_reader=True)])
LONELY = ("recurse", "cancel", "late", "beside", "background", "swallow", "hedge", "at-once", "race")
"""What hooks do that no recording holds: they call the agent themselves, cancel the task, or leave their stage."""


def replayable(program: Program) -> Program:
    """The program without what a recording cannot hold."""
    hooks = tuple(plan for plan in program.hooks if plan.action not in LONELY)
    arounds = tuple(plan for plan in program.arounds if plan.action not in LONELY)
    return replace(program, hooks=hooks, arounds=arounds, session="fresh")


def recorded(program: Program) -> RunLog:
    """The log of a program's call, and of what goes on with it."""
    recorder = Recorder()

    async def main() -> None:
        world = World(program)
        world.agent.hook(recorder)
        await world.call()

    run(main)
    return recorder.log


def played(log: RunLog, program: Program, **options: Any) -> Replayed:
    async def main() -> Replayed:
        world = World(program, record=False)
        return await Replay(log).arun(world.agent, **options)

    return run(main)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(paths=PATHS).map(replayable))
def test_a_program_that_was_recorded_runs_again_as_it_did(program: Program) -> None:
    """Same events, same order, whatever hooks and tools did."""
    log = recorded(program)
    if not log.calls:
        return
    made = played(log, program)
    assert made.departure is None, f"{made.departure}\n{program}"
