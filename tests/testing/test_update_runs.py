"""`pytest --update-runs`, run as a command."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from nursery import Nursery

from agentflow import Agent, Hook, HookEvent, HookResult, Msg, PostReasoning
from agentflow.recording.recorder import Recorder
from agentflow.testing import RunChangedError, ScriptedModel, assert_replays


class Shouts(Hook):
    def on_event(self, event: HookEvent) -> HookResult:
        if isinstance(event, PostReasoning):
            event.reasoning_result = Msg.assistant(event.reasoning_result.text.upper())
        return event


TEST = """
from agentflow import Agent
from agentflow.testing import ScriptedModel, assert_replays

def test_the_run():
    assert_replays("run.jsonl", Agent("a", ScriptedModel([])))
"""


async def test_update_runs_shows_what_has_changed_and_writes_it(tmp_path: Path, commands: Nursery) -> None:
    """Without the flag the test fails, and the file stays; with it the divergence is shown, and the file updated."""
    run = tmp_path / "run.jsonl"
    await Agent("a", ScriptedModel(["Hello!"]), hooks=[Shouts(), Recorder(run)]).call("Hi")
    recorded = run.read_bytes()
    agent = Agent("a", ScriptedModel([]))  # it has lost its hook
    with pytest.raises(RunChangedError, match="run pytest --update-runs"):
        await asyncio.to_thread(assert_replays, run, agent)
    assert run.read_bytes() == recorded

    (tmp_path / "test_it.py").write_text(TEST, "utf-8")
    command = ["pytest", "-q", "-s", "-p", "no:cacheprovider", "--update-runs", str(tmp_path)]
    done = await asyncio.to_thread(commands.run, command, dict(os.environ), cwd=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "differs at PostReasoning" in done.stdout
    assert run.read_bytes() != recorded
    assert (await asyncio.to_thread(assert_replays, run, agent)).divergence is None
