"""The calls that a recorded run made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agentflow import Agent, ToolUseBlock, tool
from agentflow.agent.orchestration import ask, gather, step, use, workflow
from agentflow.recording import Recorder, load, run_graph
from agentflow.testing import ScriptedModel


@tool
async def add(a: int) -> int:
    """Add."""
    if a == 2:
        raise ValueError("two")
    return a


def today() -> str:
    return "today"


def agent(name: str, *replies: Any) -> Agent[Any]:
    return Agent(name, ScriptedModel(list(replies)), tools=[add])


async def test_what_ran(tmp_path: Path) -> None:
    """Each agent and tool is listed below its caller, with calls, failures and model calls; a step that did not run
    is not drawn.
    """
    counting = agent("counting", [ToolUseBlock("t1", "add", {"a": 1}), ToolUseBlock("t2", "add", {"a": 2})], "Done.")
    other, unused = agent("other", "One.", "Two."), agent("unused")

    @workflow(counting, other, unused, add, hooks=[recorder := Recorder(tmp_path / "run.jsonl")])
    async def team(topic: str) -> str:
        await gather(ask(counting, topic), ask(other, topic))
        await step(today)
        await use(add, a=3)
        return (await ask(other, topic)).text if topic else (await ask(unused, topic)).text

    await team.call("go")
    recorder.close()
    found = run_graph(load(tmp_path / "run.jsonl"))
    assert re.sub(r"[\d.]+ m?s\b", "TIME", str(found)).splitlines() == [
        "team: 1 call, TIME (agent)",
        "├─ counting: 1 call, 2 model calls, TIME (agent)",
        "│  └─ add: 2 calls, 1 error, TIME (tool)",
        "├─ other: 2 calls, 2 model calls, TIME (agent)",
        "├─ step today: 1 call, TIME (tool)",
        "└─ add: 1 call, TIME (tool)",
    ]
    assert len(found.mermaid().splitlines()) == 12


async def test_a_log_that_ends_early(tmp_path: Path) -> None:
    """A call without an end is unfinished."""
    one = agent("one", ToolUseBlock("t1", "add", {"a": 1}), "Done.")
    await one.call("go", hooks=[recorder := Recorder(tmp_path / "run.jsonl")])
    recorder.close()
    lines = (tmp_path / "run.jsonl").read_text().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(lines) if '"type":"PostActing"' in line)
    (tmp_path / "cut.jsonl").write_text("".join(lines[: cut + 1]))
    whole, part = (
        re.sub(r"\d+ ms", "TIME", str(run_graph(load(tmp_path / f"{name}.jsonl")))) for name in ("run", "cut")
    )
    assert whole.splitlines() == ["one: 1 call, 2 model calls, TIME (agent)", "└─ add: 1 call, TIME (tool)"]
    assert part.splitlines() == ["one: 1 call, 1 unfinished, 1 model call, TIME (agent)", "└─ add: 1 call, TIME (tool)"]
