"""How large a run log is, and how long it takes to write and to load: `python -m benchmarks.run_log`.

A run of 100 rounds with 500 chunks each.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from agentflow import Agent, ToolUseBlock, tool
from agentflow.plugins.recorder import Recorder
from agentflow.runlog import load
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


def main() -> None:
    """Print it."""
    with TemporaryDirectory() as folder:
        bare, recorded = _seconds(None), _seconds(folder)
        (path,) = Path(folder).glob("*.jsonl")
        began = time.process_time()
        log = load(path)
        loading = time.process_time() - began
        events = ROUNDS * CHUNKS
        print(f"{ROUNDS} rounds, {events} chunks: {path.stat().st_size / 1e6:.2f} MB, {len(log.entries)} entries")
        print(
            f"run: {bare:.2f} s without, {recorded:.2f} s with ({(recorded - bare) / events * 1e6:.1f} µs a chunk, writing too)"
        )
        print(f"load: {loading:.2f} s")


if __name__ == "__main__":
    main()
