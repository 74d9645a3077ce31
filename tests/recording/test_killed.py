"""A process that is killed during recorded runs: flushed lines are there, can be read, replayed and inspected."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from thorough import THOROUGH

from agentflow import Agent, ModelChunk, ToolUseBlock, Usage, tool
from agentflow.recording import RunLog
from agentflow.recording.diffing import diff_runs
from agentflow.recording.entries import ChunksEntry, EventEntry, StartedEntry
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Replay
from agentflow.serve.inspector.logs import Logs
from agentflow.serve.inspector.stored_runs import load_named
from agentflow.testing import ScriptedModel

PARENT = """
import asyncio, os, signal, sys
from random import Random
from agentflow import Agent, ToolUseBlock, tool
from agentflow.recording.recorder import Recorder
from agentflow.plugins.redaction import Redaction
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel

where, times = sys.argv[1], int(sys.argv[2])
redaction = Redaction()

def child(number, pipe):
    @tool(type="read")
    async def look(x: int) -> str:
        "Look."
        recorder.flush()
        os.write(pipe, b".")  # what was seen up to here is written
        return "mail ada@example.com now"

    recorder = Recorder(SqlStore(where) if "://" in where else where, interval=0.002, redaction=redaction)
    replies = [[*[f"word{n} " for n in range(20)], "ada@exam", "ple.com ", ToolUseBlock(f"t{n}", "look", {"x": n})]
               for n in range(1000)]
    ids = iter(range(10**9))
    agent = Agent("a", ScriptedModel(replies), tools=[look], hooks=[recorder], max_iterations=2000,
                  new_id=lambda prefix: f"{prefix}{number}_{next(ids)}")
    asyncio.run(agent.call("go").resolve())

for number in range(times):
    random = Random(number)
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            child(number, writes)
        finally:
            os._exit(9)
    os.close(writes)
    flushed = 0
    while flushed < random.randint(1, 6):
        flushed += len(os.read(reads, 1))
    for _ in range(random.randrange(20_000)):
        pass
    os.kill(pid, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    os.set_blocking(reads, False)
    flushed += len(os.read(reads, 1000))
    os.close(reads)
    print(number, flushed, flush=True)
"""


@tool(type="read")
async def look(x: int) -> str:
    """Look."""
    return ""


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["folder", "sqlite", "postgresql"])
async def test_a_killed_process_loses_what_came_since_the_last_flush(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Many times, at any moment: the log has what was flushed, breaks off anywhere after it, and holds no secret."""
    times = (10 if THOROUGH else 5) // (2 if kind == "postgresql" else 1)
    where = f"{tmp_path}/runs/" if kind == "folder" else f"sqlite:///{tmp_path}/runs.db"
    if kind == "postgresql":
        server = request.getfixturevalue("postgres")
        where = server.url_of("killed")
        server.execute("CREATE DATABASE killed")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", PARENT, where, str(times), stdout=subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert process.returncode == 0
    flushed = [int(line.split()[1]) for line in told.decode().splitlines()]
    assert len(flushed) == times
    runs = {run.run: run for run in await asyncio.to_thread(Logs([where]).runs)}
    assert len(runs) == times
    for number, least in enumerate(flushed):
        (run_id,) = [run for run in runs if run.startswith(f"run_{number}_")]
        assert (runs[run_id].outcome, runs[run_id].problem, runs[run_id].prompt) == ("", "", "go")
        name = f"{where}{run_id}.jsonl" if kind == "folder" else f"{where}#{run_id}"
        log = await asyncio.to_thread(load_named, name)
        assert len([entry for entry in log.entries if isinstance(entry, StartedEntry)]) >= least
        pieces = [str(piece) for entry in log.entries if isinstance(entry, ChunksEntry) for piece in entry.pieces]
        assert "".join(pieces).count("word19") >= least
        assert "ada@" not in repr(log.entries)
        done = await Replay(log).arun(Agent("a", ScriptedModel([]), tools=[look], max_iterations=2000))
        assert done.divergence is None, str(done)


async def test_a_run_that_was_cut_is_not_the_same_as_a_whole_one() -> None:
    """Wherever its log ends, a comparison reports after what, and counts the usage of its rounds; two runs cut alike
    are equal.
    """

    @tool
    async def look(x: int) -> str:
        """Look."""
        return f"result {x}"

    recorder = Recorder()
    usage = Usage(input_tokens=5, model_calls=1)
    script = [[ToolUseBlock("t1", "look", {"x": 1}), ModelChunk(usage=usage)], ["Done.", ModelChunk(usage=usage)]]
    inner = Agent("inner", ScriptedModel(script), tools=[look], description="Looks.")
    ask = ToolUseBlock("t0", "inner", {"message": "go"})
    await Agent("outer", ScriptedModel([ask, "Done."]), tools=[inner], hooks=[recorder]).call("go")
    whole = recorder.log
    events = [entry for entry in whole.entries if isinstance(entry, EventEntry)]

    def cut_before(event: EventEntry) -> RunLog:
        return RunLog(whole.entries[: whole.entries.index(event)])

    told: dict[str, tuple[str, int]] = {}
    for event in events[1:]:
        log = cut_before(event)
        assert diff_runs(log, log).first is None
        found = diff_runs(whole, log)
        ends = [each.other for each in found.differences if each.what == "end" and each.where == "call of outer"]
        told[f"{event.type} {whole.calls[event.call].source}".strip()] = *ends, found.usage[1].total_tokens
    behind = "none: the log breaks off after"
    assert told["CallEnded"] == (f"{behind} PostCall, round 2", 10)
    assert told["PostActing"] == (f"{behind} PreActing, round 1", 10)
    assert told["PostActing inner"] == (f"{behind} PreActing, round 1", 5)
    assert told["PostReasoning"] == (f"{behind} PreReasoning, round 2", 10)
    (end,) = diff_runs(whole, cut_before(events[-1])).differences
    assert (end.what, end.one) == ("end", "completed")
