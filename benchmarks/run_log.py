"""How large a run log is, how long it takes to write and to load, and the cost of an event: `python -m benchmarks.run_log`.

A run of 100 rounds with 500 chunks each. On the loop: processor time of its thread, with a recorder and without.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from agentflow import Agent, ToolUseBlock, tool
from agentflow.recording import RunLog, load
from agentflow.recording.entries import ChunksEntry, EventEntry
from agentflow.recording.recorder import Recorder
from agentflow.testing import ScriptedModel

ROUNDS, CHUNKS = 100, 500


@tool(type="read")
async def look(x: int) -> str:
    """Look."""
    return f"result {x} " * 5


def _seconds(folder: str | None) -> float:
    """The processor time of the run, recorded into a folder or not."""
    words = [f"word{n} " for n in range(CHUNKS)]
    script = [[*words, ToolUseBlock(f"t{n}", "look", {"x": n})] for n in range(ROUNDS - 1)]
    recorder = None if folder is None else Recorder(f"{folder}/")
    hooks = [] if recorder is None else [recorder]
    agent = Agent("a", ScriptedModel([*script, words]), tools=[look], hooks=hooks, max_iterations=2 * ROUNDS)
    began = time.process_time()
    asyncio.run(agent.call("go").resolve())
    if recorder is not None:
        recorder.close()
    return time.process_time() - began


def _on_the_loop(rounds: int, chunks: int, recorder: Recorder | None) -> tuple[float, int]:
    """The processor time of the event loop's thread for a run, without that of the writer's; and how many events it had."""
    words = [f"word{n} " for n in range(chunks)]
    script = [[*words, ToolUseBlock(f"t{n}", "look", {"x": n})] for n in range(rounds - 1)]
    hooks = [] if recorder is None else [recorder]
    agent = Agent("a", ScriptedModel([*script, words]), tools=[look], hooks=hooks, max_iterations=2 * rounds)

    async def timed() -> float:
        began = time.thread_time()
        await agent.call("go").resolve()
        return time.thread_time() - began

    seconds = asyncio.run(timed())
    log = None if recorder is None else recorder.log
    return seconds, 0 if log is None else sum(len(e.pieces) if isinstance(e, ChunksEntry) else 1 for e in _events(log))


def _events(log: RunLog) -> list[ChunksEntry | EventEntry]:
    return [entry for entry in log.entries if isinstance(entry, ChunksEntry | EventEntry)]


def _cost(rounds: int, chunks: int, times: int = 7) -> tuple[float, int, float]:
    """The cost of an event on the loop, in microseconds: the least addition, over some runs in turns.

    And the number of events, and the cost of a round without a recorder.
    """
    bare, recorded, events = [], [], 0
    for _ in range(times):
        bare.append(_on_the_loop(rounds, chunks, None)[0])
        with TemporaryDirectory() as folder:
            recorder = Recorder(f"{folder}/", max_records=100_000)
            seconds, events = _on_the_loop(rounds, chunks, recorder)
            recorded.append(seconds)
            recorder.close()
    return (min(recorded) - min(bare)) / events * 1e6, events, min(bare) / rounds * 1e6


def main() -> None:
    """Print it."""
    with TemporaryDirectory() as folder:
        unrecorded, recorded = _seconds(None), _seconds(folder)
        (path,) = Path(folder).glob("*.jsonl")
        began = time.process_time()
        log = load(path)
        loading = time.process_time() - began
        events = ROUNDS * CHUNKS
        print(f"{ROUNDS} rounds, {events} chunks: {path.stat().st_size / 1e6:.2f} MB, {len(log.entries)} entries")
        chunk = (recorded - unrecorded) / events * 1e6
        print(f"run: {unrecorded:.2f} s without, {recorded:.2f} s with ({chunk:.1f} µs a chunk, writing too)")
        print(f"load: {loading:.2f} s")
    for what, rounds, chunks in (("streamed", 20, 500), ("rounds of a tool", 500, 1)):
        cost, events, bare = _cost(rounds, chunks)
        print(
            f"on the loop, {what}: {cost:.1f} µs an event ({events} events; a round without a recorder: {bare:.0f} µs)"
        )


if __name__ == "__main__":
    main()
