"""`agentflow backtest` as a process, which judges runs in further ones."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agentflow import Agent, ToolUseBlock, tool
from agentflow.recording import Recorder
from agentflow.testing import ScriptedModel

GUARDS = '''
import asyncio
import os

from agentflow import Agent, Deny, Hook, PreActing, tool


class Offline:
    name = "scripted"

    def stream(self, request):
        raise AssertionError("a backtest has called the model")


@tool(type="write")
async def delete(path: str) -> str:
    """Delete."""
    raise AssertionError("a backtest has run a tool")


class Guard(Hook):
    guard = True

    def on_event(self, event):
        if isinstance(event, PreActing):
            print("seen")
            if event.tool_use.input["path"] == "/":
                return Deny("never the root")
        return event


class Spin(Hook):
    def on_event(self, event):
        while isinstance(event, PreActing) and event.tool_use.input["path"] == "/":
            pass


class Sleepy(Hook):
    async def on_event(self, event):
        while isinstance(event, PreActing) and event.tool_use.input["path"] == "/":
            await asyncio.sleep(1)


class Dies(Hook):
    def on_event(self, event):
        if isinstance(event, PreActing) and event.tool_use.input["path"] == "/":
            os._exit(7)


clerk = Agent("clerk", Offline(), tools=[delete])
'''


@pytest.fixture
async def runs(shop: Any) -> Any:
    """Two runs and a damaged log."""
    (shop.folder / "guards.py").write_text(GUARDS, "utf-8")
    (shop.folder / "runs").mkdir()

    @tool(type="write")
    async def delete(path: str) -> str:
        """Delete."""
        return f"{path} is gone"

    for name, path in (("free", "a.txt"), ("root", "/")):
        recorder = Recorder(shop.folder / "runs" / f"{name}.jsonl")
        model = ScriptedModel([ToolUseBlock("t1", "delete", {"path": path}), "Done."])
        await Agent("clerk", model, tools=[delete], hooks=[recorder]).call("go")
        recorder.close()
    (shop.folder / "runs" / "torn.jsonl").write_text("hello\n", "utf-8")
    return shop


def test_the_table_and_the_gate(runs: Any) -> None:
    """What a new guard changes, with an exit code for a gate; as JSON. Its output is not in ours."""
    plain = runs("backtest", "runs/", "guards:clerk", "--hook", "guards:Guard", "--workers", "1")
    assert plain.returncode == 0
    lines = re.sub(r"run_\w+", "ID", plain.stdout).splitlines()
    assert lines[0] == "3 runs: 1 as recorded, 1 changed, 1 not comparable"
    assert lines[4].split() == [
        "1",
        "1",
        "1",
        "0",
        "unknown",
        "PreActing",
        "delete",
        "(no",
        "decision)",
        "Guard:",
        "Deny",
    ]
    assert lines[8:13] == ["1. never the root", "   runs/root.jsonl  ID", "", "not comparable:", lines[12]]
    done = runs(
        "backtest",
        "runs/",
        "guards:clerk",
        "--hook",
        "guards:Guard",
        "--workers",
        "2",
        "--json",
        "--fail-if",
        "refused",
    )
    told = json.loads(done.stdout)
    assert (done.returncode, told["same"], told["changed"], told["refused"], told["incomparable"]) == (1, 1, 1, 1, 1)
    assert told["groups"][0]["runs"] == [["runs/root.jsonl", told["results"][1]["run"]]]


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        pytest.param("Spin", "its process exceeded the limit of 6 s", marks=pytest.mark.ci),
        pytest.param("Sleepy", "its process exceeded the limit of 6 s", marks=pytest.mark.ci),
        ("Dies", "its process ended with code 7"),
    ],
)
def test_a_hook_that_does_not_return(runs: Any, hook: str, reason: str) -> None:
    """A run that blocks, waits without an end or ends its process is not comparable, and not stored; the others are."""
    options = ["--hook", f"guards:{hook}", "--workers", "1", "--limit", "6", "--results", "r.jsonl", "--json"]
    told = json.loads(runs("backtest", "runs/", "guards:clerk", *options).stdout)
    assert [(each["log"], each["status"]) for each in told["results"]] == [
        ("runs/free.jsonl", "same"),
        ("runs/root.jsonl", "incomparable"),
        ("runs/torn.jsonl", "incomparable"),
    ]
    assert told["results"][1]["reason"] == reason
    stored = [json.loads(line) for line in (runs.folder / "r.jsonl").read_text("utf-8").splitlines()[1:]]
    assert [each["log"] for each in stored] == ["runs/free.jsonl", "runs/torn.jsonl"]


def test_wrong_names(runs: Any) -> None:
    """One line, and exit code 2."""
    for arguments, says in (
        (["guards:nobody"], "has no 'nobody'"),
        (["guards:clerk", "--without", "Guard"], "has no hook 'Guard'"),
    ):
        done = runs("backtest", "runs/", *arguments)
        assert (done.returncode, says in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr
