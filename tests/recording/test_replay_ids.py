"""Whatever makes the ids, however agents are nested and wherever it is recorded: the same run."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import recorded_programs
from recorded_programs import PROGRAMS, RAN, file_of

from agentflow import Hook, Msg, PostReasoning, ToolUseBlock
from agentflow.recording import RunLog, load
from agentflow.recording.keeping import load_from
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Replay
from agentflow.state import SqlStore

_HERE = Path(recorded_programs.__file__)
Place = tuple[Recorder, Callable[[], Any]]


@asynccontextmanager
async def _places(kind: str, folder: Path) -> AsyncIterator[Place]:
    """A recorder that writes to a kind of destination, and its reader."""
    match kind:
        case "memory":
            recorder = Recorder()
            yield recorder, lambda: recorder.log
        case "file":
            yield Recorder(folder / "run.jsonl"), lambda: load(folder / "run.jsonl")
        case "folder":
            yield Recorder(folder / "runs"), lambda: load(next((folder / "runs").glob("*.jsonl")))
        case _:
            async with SqlStore(f"sqlite:///{folder}/runs.db") as store:

                async def read() -> RunLog:
                    (kept,) = await asyncio.wrap_future(store.logs())
                    return await load_from(store, kept.run_id)

                yield Recorder(store), read


@pytest.mark.parametrize("kind", ["memory", "file", "folder", "sql"])
@pytest.mark.parametrize("name", PROGRAMS)
async def test_the_same_run_again(name: str, kind: str, tmp_path: Path) -> None:
    """No event differs, no tool runs, and the log can be read from wherever it was written to."""
    async with _places(kind, tmp_path) as (recorder, read):
        await PROGRAMS[name].record(recorder)
        recorder.close()
        log = read()
        done_log: RunLog = log if isinstance(log, RunLog) else await log
    RAN.clear()
    done = await PROGRAMS[name].replay(done_log)
    assert done.divergence is None, str(done)
    assert done.error is None
    assert RAN == []


class Renames(Hook):
    """Gives a tool call another argument."""

    def on_event(self, event: Any) -> None:
        if isinstance(event, PostReasoning) and event.reasoning_result.tool_uses:
            (use,) = event.reasoning_result.tool_uses
            event.reasoning_result = Msg.assistant([ToolUseBlock("mine", use.name, {"a": 1, "b": 3})])


async def test_what_stands_beside_an_id_counts() -> None:
    """Ids of calls are not compared, but the call that has one is."""
    program = PROGRAMS["no id"]
    recorder = Recorder()
    await program.record(recorder)
    done = await Replay(recorder.log).arun(program.make(), hooks=[Renames()])
    assert done.divergence is not None
    assert (done.divergence.event, done.divergence.field) == ("PostReasoning", "reasoning_result.content[0].input.b")


def _python(version: str) -> str | None:
    """Return a Python of this version with the package's dependencies, or None."""
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    beside = Path(sys.prefix).parent.glob("*/bin/python")  # .ci/run makes an environment for each version
    named = os.environ.get(f"AGENTFLOW_PYTHON_{version.replace('.', '')}")
    found = [named, shutil.which(f"python{version}"), *sorted(roots.glob(f"{version}.*/bin/python")), *beside]
    asks = f"import sys, agentflow.recording.replay; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
    for python in found:
        if python and subprocess.run([python, "-c", asks], capture_output=True, check=False).returncode == 0:
            return str(python)
    return None


@pytest.mark.ci
def test_recorded_on_one_python_and_replayed_on_another(tmp_path: Path) -> None:
    """3.12 records, 3.13 replays; `AGENTFLOW_PYTHON_312` and `AGENTFLOW_PYTHON_313` name Pythons in other places."""
    older, newer = _python("3.12"), _python("3.13")
    if older is None or newer is None:
        pytest.skip("needs Python 3.12 and 3.13, each with agentflow installed")
    for python, what in ((older, "record"), (newer, "replay")):
        ended = subprocess.run(
            [python, str(_HERE), what, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, ended.stderr
    told = dict(line.split(": ", 1) for line in ended.stdout.splitlines())
    assert told == dict.fromkeys(PROGRAMS, "the same as recorded")


RECORDED = Path(__file__).parent / "recorded_on_3_12"


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_log_of_an_earlier_day(name: str) -> None:
    """Logs that Python 3.12 wrote, in another process, are replayed by the Python of this test."""
    done = await PROGRAMS[name].replay(file_of(RECORDED, name))
    assert done.divergence is None, str(done)
