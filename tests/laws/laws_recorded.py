"""Records a random program in one of the destinations, replays it, and returns where the replay diverges."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from pathlib import Path as FilePath
from typing import Any

from hypothesis import strategies as st
from laws_harness import run
from laws_programs import HookPlan, Path, Piece, Program, programs
from laws_teams import Team, called
from test_laws_replay import NAMES, lived, refused, replayable, told
from test_laws_replay import Team as ProgramTeam

from agentflow._support.ids import new_id
from agentflow.errors import StoreError
from agentflow.recording import RunLog, load
from agentflow.recording.entries import EventEntry
from agentflow.recording.keeping import load_from
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Replay, ReplayResult
from agentflow.state import SqlStore

__all__ = ["KEPT", "STAYING", "acting_beside", "program_departs", "team_departs"]

KEPT = ("memory", "file", "folder", "file", "memory", "file", "folder", "file", "memory", "sql")
"""Where logs are kept, in turn."""
STAYING = st.builds(Path, st.sampled_from(["call", "stream"]), slow_reader=st.booleans())
"""Callers who stay to the end."""
_NUMBER = count(1).__next__
_SEQ = re.compile(r"\bseq: \d+")
_WAITED = "decision: Decided(verdict=None, hook=Last, error=CancelledError)"
_DECISION = re.compile(r"decision: (None|Decided\(.*?error=\w+\))")

_ACTING = ["interrupt", "inject-interrupt", "inject", "inject-transient", "inject-raise", "raise", "raise-veto", "junk"]
_BESIDE = st.builds(
    lambda event, action, nth, style, failure, priority: HookPlan(
        event, action, nth, "edit", style, failure, priority, False
    ),
    st.sampled_from(["PreActing", "PostActing", "ActingChunk"]),
    st.sampled_from(_ACTING),
    st.integers(1, 3),
    st.sampled_from(["sync", "async", "async", "mono"]),
    st.sampled_from([None, "abort", "skip"]),
    st.sampled_from([5, 10, 300]),
)
_PARALLEL = st.lists(
    st.sampled_from(["slow_look", "slow_read", "helper", "talk", "flow", "read", "cleans"]), min_size=2, max_size=4
)


@st.composite
def acting_beside(draw: st.DrawFn) -> Program:
    """A program in which hooks interrupt the call, inject or fail beside parallel tools."""
    program, hooks = draw(programs(names=NAMES, paths=STAYING)), draw(st.lists(_BESIDE, min_size=1, max_size=2))
    calls = tuple(Piece("call", id=f"t{n}", name=name, args='{"x": 1}') for n, name in enumerate(draw(_PARALLEL)))
    hooks = (*program.hooks, *hooks)
    return replayable(replace(program, replies=(calls, *program.replies), hooks=hooks, schedule="PARALLEL"))


class DefaultIds(ProgramTeam):
    """A program's agent with default ids."""

    def new_id(self, prefix: str) -> str:
        return new_id(prefix)


async def _recorded(kept: str, folder: FilePath, live: Callable[[Recorder], Coroutine[Any, Any, Any]]) -> RunLog | None:
    """Return the log of a run, or None if no call has begun."""
    place = folder / f"{_NUMBER()}"
    if kept == "memory":
        recorder = Recorder()
        await live(recorder)
        return recorder.log if recorder.log.calls else None
    if kept == "sql":
        async with SqlStore(f"sqlite:///{place}.db") as store:
            recorder = Recorder(store)
            await live(recorder)
            await asyncio.to_thread(recorder.close)
            logs = await asyncio.wrap_future(store.logs())
            return await load_from(store, logs[0].run_id) if logs else None
    recorder = Recorder(place if kept == "folder" else place.with_suffix(".jsonl"))
    await live(recorder)
    recorder.close()
    paths = (
        [*place.glob("*.jsonl")]
        if kept == "folder"
        else [path for path in [place.with_suffix(".jsonl")] if path.exists()]
    )
    log = load(paths[0]) if paths else None
    for path in paths:
        path.unlink()
    return log


def _ended(log: RunLog) -> int:
    return sum(isinstance(entry, EventEntry) and entry.type == "CallEnded" for entry in log.entries)


def _same(now: list[str], was: list[str]) -> bool:
    """Whether a replay has the same events, apart from their numbers, which it does not compare.

    An observer after the Recorder waits for the event's turn. If the run is cancelled meanwhile, that is the event's decision
    afterwards; the log has the one before.
    """
    pairs = zip(now, was, strict=False)
    without = [tuple(_DECISION.sub("", event) for event in pair) if _WAITED in pair[0] else pair for pair in pairs]
    return len(now) == len(was) and all(_SEQ.sub("", event) == _SEQ.sub("", other) for event, other in without)


def program_departs(program: Program, kept: str, folder: FilePath) -> str | None:
    """Return where the replay of a program diverges, or None."""
    worlds: list[ProgramTeam] = []

    async def live(recorder: Recorder) -> None:
        worlds.append(await lived(program, recorder, team=DefaultIds))

    async def play(log: RunLog) -> tuple[ReplayResult, ProgramTeam]:
        world = DefaultIds(program)
        return await Replay(log).arun(world.agent), world

    log = run(lambda: _recorded(kept, folder, live))
    if log is None:
        return None
    try:
        done, again = run(lambda: play(log))
    except StoreError as error:
        if refused(program, error):
            return None
        raise
    if done.divergence is None and not _same(told(again), told(worlds[0])):
        return "the events differ, and no divergence is found"
    return None if done.divergence is None else str(done)


def team_departs(number: int, kept: str, folder: FilePath) -> str | None:
    """Return where the replay of a team diverges, or None."""

    async def play(log: RunLog) -> str | None:
        team = Team(number)
        async with team.agent:
            done = await Replay(log).arun(team.agent, output=team.output)
        if done.divergence is None and team.ran:
            return f"{team.ran} have run in the replay"
        if done.divergence is None and _ended(done.log) != _ended(log):
            return "a call has not ended in the replay, and no divergence is found"
        return None if done.divergence is None else str(done)

    log = run(lambda: _recorded(kept, folder, lambda recorder: called(Team(number), recorder)))
    return None if log is None else run(lambda: play(log))
