"""A stored session as a run log: it has the content of a recorded log, as far as facts have it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from clocks import JumpingClock

from agentflow import (
    Agent,
    Answer,
    Approve,
    Deny,
    Hook,
    MemoryStore,
    PreActing,
    PreCall,
    Suspend,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.durable.agent import DurableAgent
from agentflow.errors import ModelError, StoreError, UsageError
from agentflow.plugins.redaction import Redaction
from agentflow.recording import RunLog, read_lines
from agentflow.recording.diffing import RunPart, calls_of, diff_runs
from agentflow.recording.recorder import Recorder
from agentflow.recording.recorder.export import export_log, lines_of_facts
from agentflow.recording.replay import Replay
from agentflow.state import SqlStore
from agentflow.terminal.cli.main import cli
from agentflow.testing import ScriptedModel


@tool(type="read")
async def look(x: int) -> str:
    """Look."""
    return f"result {x} for ada@example.com"


class Rules(Hook):
    guard = True

    def on_event(self, event: Any) -> Any:
        match event:
            case PreActing(tool_use=ToolUseBlock(input={"x": 2})):
                return Deny("not that")
            case PreActing(tool_use=ToolUseBlock(input={"x": 3})):
                return Suspend("may I?")
            case _:
                return event


def calls(*numbers: int) -> list[ToolUseBlock]:
    return [ToolUseBlock(f"t{n}", "look", {"x": n}) for n in numbers]


def told(log: RunLog) -> list[Any]:
    """Return what users read of a run; facts lack the deciding hook and the error."""

    def known(part: RunPart) -> Any:
        facts = {name: value for name, value in part.facts.items() if name not in ("decided", "error")}
        return part.kind, facts, part.usage, [known(one) for one in part.parts if one.facts.keys() - {"request"}]

    return [known(call) for call in calls_of(log)]


async def test_an_export_says_what_was_recorded(url: str) -> None:
    """Calls, rounds, requests, replies, tools, usage: of runs that end, are denied, wait, continue, fail."""
    recorder = Recorder()
    model = ScriptedModel([calls(1, 2), "Done.", calls(3), "Approved.", ModelError("down")])
    async with SqlStore(url) as store:
        agent = Agent("a", model, tools=[look], hooks=[Rules(), recorder], store=store)
        await agent.call("one", session="s")
        waits = await agent.call("two", session="s")
        await agent.resume(decisions={waits.pending[0].id: Approve()}, session="s")
        with pytest.raises(ModelError):
            await agent.call("three", session="s")
        exported = read_lines(await export_log(store, "s", agent="a"))
        assert told(exported) == told(recorder.log)
        assert exported.run_ids == recorder.log.run_ids
        assert exported.header.origin == "facts"
        one = read_lines(await export_log(store, "s", run_id=waits.run_id))
        assert [call.resumes for call in one.calls.values()] == [False, True]
        assert [use.facts["result"].partition(":")[0] for c in calls_of(one) for r in c.parts for use in r.parts] == [
            "suspended",
            "success",
        ]
        starts = [call.time for call in exported.calls.values()]
        assert starts == sorted(starts)
        assert abs(starts[0] - next(iter(recorder.log.calls.values())).time) < 60
        with pytest.raises(UsageError, match=f"has no run 'r'; its runs: {exported.run_ids[0]}"):
            await export_log(store, "s", run_id="r")
        with pytest.raises(StoreError, match="nobody"):
            await export_log(store, "nobody")


async def test_any_beginning_of_a_session_can_be_exported() -> None:
    """Wherever a process was killed. If a store has no times, the durations make the timeline."""
    store = MemoryStore()
    agent = Agent("a", ScriptedModel([calls(1, 2), "Done.", "Two."]), tools=[look], hooks=[Rules()], store=store)
    await agent.call("one", session="s")
    await agent.call("two", session="s")
    facts = store.load("s")
    for n in range(len(facts) + 1):
        log = read_lines(lines_of_facts(facts[:n], "s"))
        assert all(call.ended for call in calls_of(log)[:-1])
    whole = read_lines(lines_of_facts(facts, "s"))
    assert [call.facts["end"] for call in calls_of(whole)] == ["completed", "completed"]
    assert diff_runs(whole, read_lines(lines_of_facts(facts, "s"))).first is None
    decided = [entry.decision for entry in whole.events() if entry.type == "PreActing"]
    assert decided == [None, {"hook": "a hook", "verdict": {"verdict": "Deny", "reason": "not that"}}]
    with pytest.raises(StoreError, match="it was exported from stored facts"):
        Replay(whole)


async def test_a_call_that_a_hook_answered() -> None:
    """Its decision and its answer are in the export; other calls have none."""

    @on(PreCall)
    def answers(event: PreCall) -> Answer | None:
        return Answer("We are closed.") if event.input_messages[0].text == "Open?" else None

    store = MemoryStore()
    agent = Agent("a", ScriptedModel(["Hello."]), hooks=[answers], store=store)
    for text in ("Open?", "Hi"):
        await agent.call(text, session="s")
    log = read_lines(lines_of_facts(store.load("s"), "s"))
    first, second = [entry.decision for entry in log.events() if entry.type == "PreCall"]
    assert first is not None
    assert first["verdict"]["verdict"] == "Answer"
    assert second is None


async def test_without_times_the_durations_make_the_timeline() -> None:
    """The timeline begins at 0; a request precedes its reply by the model's time; a call lasts as long as its parts."""
    store = MemoryStore()
    clock = JumpingClock()
    model = ScriptedModel([[lambda: clock.sleep(2.0), *calls(1)], [lambda: clock.sleep(2.0), "Done."]])
    agent = Agent("a", model, tools=[look], store=store, clock=clock)
    await agent.call("one", session="s")
    log = read_lines(lines_of_facts(store.load("s"), "s"))
    assert [call.time for call in log.calls.values()] == [0.0]
    found = [(entry.type, entry.time) for entry in log.events() if entry.type in ("PreReasoning", "PostReasoning")]
    assert found == [("PreReasoning", 0.0), ("PostReasoning", 2.0), ("PreReasoning", 2.0), ("PostReasoning", 4.0)]
    assert [entry.fields["duration_ms"] for entry in log.events() if entry.type == "PostCall"] == [4000.0]


async def test_secrets_can_be_taken_out() -> None:
    """The rules are those of a recorder."""
    store = MemoryStore()
    agent = Agent("a", ScriptedModel([calls(1), "Done."]), tools=[look], store=store)
    await agent.call("I am bob@example.com", session="s")
    text = "\n".join(await export_log(store, "s", redaction=Redaction()))
    assert "example.com" not in text
    assert text.count("<email>") >= 2


async def test_the_command_exports_a_durable_run(tmp_path: Path) -> None:
    """By the id of its run, from the database that store and workers share; a missing run is reported on one line."""
    url = f"sqlite:///{tmp_path}/data.db"
    async with SqlStore(url) as store:
        agent = Agent("a", ScriptedModel([calls(1), "Done."]), tools=[look], store=store)
        async with DurableAgent(agent, url) as durable, durable.worker():
            reply = await durable.call("go", session="s")

    def ran(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["export", *arguments], standalone_mode=False)
        return done.return_value or 0, done.output + ("" if done.exception is None else str(done.exception))

    def commands() -> None:
        code, text = ran(url, "--run", reply.run_id, "--agent", "a")
        assert code == 0
        (call,) = calls_of(read_lines(text.splitlines()))
        assert (call.name, call.facts["reply"], call.facts["end"], len(call.parts)) == ("a", "Done.", "completed", 2)
        file = tmp_path / "run.jsonl"
        assert ran(url, "s", "-o", str(file)) == (0, f"written to {file}\n")
        assert file.read_text("utf-8").count("\n") == text.count("\n")
        assert "contains no run 'r'" in ran(url, "--run", "r")[1]
        assert "Most recent sessions: s." in ran(url)[1]
        assert "There is no database" in ran(f"sqlite:///{tmp_path}/none.db", "s")[1]

    await asyncio.to_thread(commands)
