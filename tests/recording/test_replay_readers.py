"""A run waits for its reader; a recording has the duration, and a replay waits as long, however fast it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clocks import LoopClock

from agentflow import Agent, Hook, ModelChunk, PreActing, PreReasoning, ToolResultBlock, ToolUseBlock, tool
from agentflow.hooks import ModelSource, ToolSource
from agentflow.reactive import Flux, Mono
from agentflow.recording.entries import ChunksEntry, EventEntry, MarkEntry, PiecesEntry
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Replay, ReplayResult
from agentflow.testing import ScriptedModel, run_virtual


class Limit(Hook):
    """Limits the time of a model's reply or of a tool."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        async def limited() -> AsyncIterator[ModelChunk]:
            async with asyncio.timeout(self.seconds):
                async for chunk in source:
                    yield chunk

        return Flux(limited)

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        async def limited() -> Any:
            async with asyncio.timeout(self.seconds):
                return await source

        return Mono(limited)


@tool(type="read")
async def count(to: int) -> AsyncIterator[str]:
    """Count."""
    for number in range(to):
        yield f"{number} "


def agent_of(*hooks: Hook, calls: int = 1) -> Agent:
    uses = [ToolUseBlock(f"t{n}", "count", {"to": 3 + n}) for n in range(calls)]
    script = ScriptedModel([uses, ["One, ", "two, ", "three, ", "four."]])
    return Agent("a", script, tools=[count], hooks=hooks, clock=LoopClock())


def read_slowly(make: Any, pause: float, buffer: int, where: Path | None = None) -> tuple[Recorder, ReplayResult]:
    """Return a recorded run whose reader pauses after each event, and its replay."""
    recorder = Recorder(where)

    async def live() -> None:
        async with make(recorder).stream("Go on", buffer=buffer) as events:
            try:
                async for _ in events:
                    await asyncio.sleep(pause)
            except Exception as error:
                recorder_error.append(type(error))

    async def again() -> ReplayResult:
        return await Replay(recorder.log).arun(make())

    recorder_error: list[type[Exception]] = []
    run_virtual(live())
    recorder.close()
    return recorder, run_virtual(again())


def times(entries: Any) -> list[tuple[str, float]]:
    """Return the events, each with its time since the first."""
    events = [entry for entry in entries if isinstance(entry, EventEntry)]
    return [(entry.type, round(entry.time - events[0].time, 6)) for entry in events]


@pytest.mark.parametrize("buffer", [0, 1, 8])
@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("seconds", [0.15, 0.35, 100.0])
def test_time_limits_expire_where_they_did(seconds: float, calls: int, buffer: int) -> None:
    """The reader's pauses use up the limits of a model's reply and of tools, alone and in parallel."""

    def make(*hooks: Hook) -> Agent:
        return agent_of(Limit(seconds), *hooks, calls=calls)

    recorder, done = read_slowly(make, 0.1, buffer)
    assert str(done) == "the same as recorded"
    assert times(done.log.entries) == times(recorder.log.entries)


def test_pauses_after_chunks_need_no_entries_of_their_own() -> None:
    recorder, done = read_slowly(agent_of, 0.25, 0)
    log = recorder.log
    chunks = [entry for entry in log.entries if isinstance(entry, ChunksEntry)]
    pieces = [entry for entry in log.entries if isinstance(entry, PiecesEntry)]
    assert [entry.paused for entry in (chunks[-1], *pieces)] == [(250.0,) * 5, (250.0,) * 3]
    assert len(chunks) == 2
    assert not [entry for entry in log.entries if isinstance(entry, MarkEntry) and entry.seq == chunks[-1].seq]
    assert str(done) == "the same as recorded"


def test_a_reader_who_is_fast_leaves_no_trace() -> None:
    recorder, done = read_slowly(agent_of, 0.0, 8)
    assert not [entry for entry in recorder.log.entries if isinstance(entry, MarkEntry)]
    assert not any(entry.paused for entry in recorder.log.entries if isinstance(entry, ChunksEntry | PiecesEntry))
    assert str(done) == "the same as recorded"


@pytest.mark.parametrize("file", [False, True], ids=["in memory", "in a file"])
@pytest.mark.parametrize(("pause", "calls", "recorded"), [(1e-5, 1, False), (1e-5, 3, True), (0.001, 1, True)])
def test_a_wait_is_recorded_if_it_can_matter(
    pause: float, calls: int, recorded: bool, file: bool, tmp_path: Path
) -> None:
    """If anything else happened meanwhile, however short it was; or if it took a millisecond."""
    where = tmp_path / "run.jsonl" if file else None
    recorder, done = read_slowly(partial(agent_of, calls=calls), pause, 1, where)
    waits = [entry for entry in recorder.log.entries if isinstance(entry, MarkEntry) and entry.what == "read"]
    assert (bool(waits), str(done)) == (recorded, "the same as recorded")


@pytest.mark.parametrize("how", ["called", "read", "closed"])
def test_a_replay_has_the_result_of_its_call(how: str) -> None:
    """The reply of a call, read as a stream or not; a stream that its reader closed is cancelled in the replay too."""
    recorder = Recorder()

    async def live() -> str:
        agent = agent_of(recorder)
        if how == "called":
            return (await agent.call("Go on")).text
        async with agent.stream("Go on") as events:
            async for event in events:
                if how == "closed" and isinstance(event, PreActing):
                    return ""
            return (await events.reply()).text

    text = run_virtual(live())
    done = Replay(recorder.log).run(agent_of())
    assert str(done) == "the same as recorded"
    assert (done.reply and done.reply.text, type(done.error)) == (
        (text, type(None)) if how != "closed" else (None, asyncio.CancelledError)
    )
