"""`backtest`: what a change would have decided on recorded runs, and which runs are not comparable."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from agentflow import Agent, Deny, Hook, HookEvent, HookResult, PostActing, PreActing, ToolUseBlock, Usage, tool
from agentflow.errors import StoreError, UsageError
from agentflow.recording import BacktestReport, Recorder, Variant
from agentflow.recording.backtest import backtest
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import ModelChunk
from agentflow.vocabulary.messages import ToolState


class Offline:
    """A model that fails if it is called."""

    name = "scripted"

    def stream(self, request: Any) -> Any:
        raise AssertionError("a backtest has called the model")


@tool(type="write")
async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


@tool(type="write", name="delete")
async def forbidden(path: str) -> str:
    """Delete a file."""
    raise AssertionError("a backtest has run a tool")


class Guard(Hook):
    """Refuses paths that begin with a text."""

    guard = True
    begin = "/"
    reason = "never the root"

    def on_event(self, event: HookEvent) -> HookResult:
        if isinstance(event, PreActing) and str(event.tool_use.input.get("path")).startswith(self.begin):
            return Deny(self.reason)
        return event


class Old(Guard):
    """Refuses the folder /etc."""

    begin = "/etc"


class New(Guard):
    """Refuses all absolute paths, with the text of `Old`."""


class Wordy(Old):
    """Decides as `Old`, with another reason."""

    reason = "\x1b[31mplease do not"


class Boom(Hook):
    """Fails."""

    def on_event(self, event: HookEvent) -> HookResult:
        if not isinstance(event, PreActing):
            return event
        raise ValueError("boom")


class Edits(Hook):
    """Changes arguments."""

    def on_event(self, event: HookEvent) -> HookResult:
        if isinstance(event, PreActing):
            event.tool_use = ToolUseBlock(event.tool_use.id, "delete", {"path": "b"})
        return event


class Judge(Hook):
    """Calls a model."""

    async def on_event(self, event: HookEvent) -> HookResult:
        if isinstance(event, PreActing):
            await event.context.complete([], source="judge")
        return event


def script(path: str) -> ScriptedModel:
    first, last = (ModelChunk(usage=Usage(input_tokens=n, output_tokens=20, cost=0.01)) for n in (50, 100))
    return ScriptedModel([[ToolUseBlock("t1", "delete", {"path": path}), first], ["Done.", last]])


def record(folder: Path, *paths: str, hooks: tuple[Hook, ...] = (Old(),), name: str = "clerk", **more: Any) -> None:
    """Record a run for each path."""
    folder.mkdir(exist_ok=True)
    for n, path in enumerate(paths):
        recorder = Recorder(folder / f"{n}.jsonl", **more)
        Agent(name, script(path), tools=[delete], hooks=[*hooks, recorder]).call("go").block()
        recorder.close()


def variant(**options: Any) -> Callable[[], Variant]:
    """The agent as recorded, without a model and with a tool that fails."""
    return lambda: Variant(Agent("clerk", Offline(), tools=[forbidden], hooks=[Old()]), **options)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    record(tmp_path / "runs", "a.txt", "/etc/hosts", "/home", "/home")
    return tmp_path / "runs"


def short(report: BacktestReport) -> list[tuple[Any, ...]]:
    """Summarise each run: its log, its status, and its change or the reason."""
    rows: list[tuple[Any, ...]] = []
    for each in report.results:
        row: tuple[Any, ...] = (Path(each.log).stem, each.status)
        if each.status == "changed":
            row += (each.kind, each.event, each.tool, each.recorded, each.now, each.refused)
        rows.append(row)
    return rows


def test_a_guard_that_is_exchanged(runs: Path) -> None:
    """If the new guard decides as the old one, with its text, nothing has changed. A new refusal is reported."""
    report = backtest([runs], variant(hooks=[New()], without=["Old"]))
    refusal = ("decision", "PreActing", "delete", "", "New: Deny", True)
    assert short(report) == [("0", "same"), ("1", "same"), ("2", "changed", *refusal), ("3", "changed", *refusal)]
    one = report.of("refused")[0]
    assert (one.reason, one.outcome, one.tokens, one.rest_tokens, one.cost, one.rest_cost) == (
        "never the root",
        "completed",
        190,
        120,
        0.02,
        0.01,
    )
    ids = [each.run for each in report.results]
    assert str(report).splitlines() == [
        "4 runs: 2 as recorded, 2 changed, 0 not comparable",
        "possible false refusals: 2",
        "",
        "   runs  refused  tokens  cost     event             recorded       now",
        "1  2     2        240     $0.0200  PreActing delete  (no decision)  New: Deny",
        "",
        "tokens, cost: spent by the recorded runs after this event; no more can be saved",
        "",
        "1. never the root",
        f"   {runs}/2.jsonl  {ids[2]}",
        f"   {runs}/3.jsonl  {ids[3]}",
    ]


class Sets(Hook):
    """Gives the result of each tool a state."""

    def __init__(self, state: ToolState) -> None:
        self.state: ToolState = state

    def on_event(self, event: HookEvent) -> None:
        if isinstance(event, PostActing):
            event.tool_result = replace(event.tool_result, state=self.state)


@pytest.mark.parametrize("state", [state for state in get_args(ToolState) if state != "suspended"])
def test_only_a_recorded_success_can_be_refused_wrongly(tmp_path: Path, state: ToolState) -> None:
    """A new refusal counts as a possible false one if the tool had succeeded; with any other result it does not."""
    record(tmp_path / "runs", "/home", hooks=(Sets(state),))
    one = backtest([tmp_path / "runs"], variant(hooks=[New()])).results[0]
    assert (one.status, one.now, one.refused) == ("changed", "New: Deny", state == "success")


def test_the_most_frequent_change_is_first(runs: Path) -> None:
    """Changes are ranked by the number of runs, then by the cost of the rest."""
    report = backtest([runs], variant(hooks=[Edits()]))
    assert [len(group) for group in report.groups] == [4]
    report = backtest([runs], variant(hooks=[New()], without=["Old"], system=None))
    one = report.results[1:2] + backtest([runs / "0.jsonl"], variant(system="Be brief.")).results
    ranked = BacktestReport((*one, *report.results)).groups
    assert [(group[0].event, len(group)) for group in ranked] == [("PreActing", 2), ("PreReasoning", 1)]


def test_nothing_changed(runs: Path) -> None:
    """The agent as recorded behaves as it did."""
    assert short(backtest([runs], variant())) == [(str(n), "same") for n in range(4)]


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({"without": ["Old"]}, {"1": ("decision", "PreActing", "delete", "Old: Deny", "", False)}),
        (
            {"hooks": [Wordy()], "without": ["Old"]},
            {"1": ("wording", "PreActing", "delete", "Old: Deny", "Wordy: Deny", False)},
        ),
        ({"hooks": [Edits()]}, {"0": ("edit", "PreActing", "delete", "a.txt", "b", False)}),
    ],
    ids=["removed", "worded", "edited"],
)
def test_kinds_of_change(tmp_path: Path, options: Any, changes: Any) -> None:
    """A removed guard, another text, other arguments. Escapes of a reason are not printed."""
    record(tmp_path, "a.txt", "/etc/hosts")
    report = backtest([tmp_path], variant(**options))
    found = {row[0]: row[2:] for row in short(report) if row[1] == "changed"}
    assert {name: found.get(name) for name in changes} == changes
    assert "\x1b" not in str(report)


def test_a_hook_that_fails(runs: Path) -> None:
    """A hook that raises counts as a refusal, with its error as the reason."""
    report = backtest([runs / "0.jsonl"], variant(hooks=[Boom()]))
    assert short(report) == [("0", "changed", "decision", "PreActing", "delete", "", "Boom: failed", True)]
    assert report.results[0].reason == "boom"


def test_another_prompt(runs: Path) -> None:
    """Without a live model a run with another prompt ends at its first request: the rest is unknown."""
    report = backtest([runs], variant(system="Be brief."))
    assert {row[1:4] for row in short(report)} == {("changed", "edit", "PreReasoning")}
    assert {each.rest_tokens for each in report.results} == {190}


def test_a_live_model_continues(runs: Path) -> None:
    """With a model each changed run continues, and its outcome and usage are compared."""
    last = ModelChunk(usage=Usage(input_tokens=5, output_tokens=1, cost=0.001))

    def make() -> Variant:
        agent = Agent("clerk", Offline(), tools=[forbidden], hooks=[Old()])
        return Variant(agent, hooks=[New()], without=["Old"], model=ScriptedModel([["I may not.", last]]))

    report = backtest([runs], make)
    assert [(each.new_outcome, each.new_tokens, each.new_cost) for each in report.of("changed")] == [
        ("completed", 76, 0.011)
    ] * 2
    assert str(report).splitlines()[-1] == "continued live: 2 runs, 2 completed, 152 tokens instead of 380"


# ---- runs that are not comparable


def test_a_judge_needs_a_model(runs: Path) -> None:
    """The result of a hook that calls a model is not guessed."""
    report = backtest([runs / "0.jsonl"], variant(hooks=[Judge()]))
    assert report.results[0].reason == (
        "the change needs a request (judge) that is not in the recording; set a model to continue"
    )


def test_reasons(tmp_path: Path) -> None:
    """Damaged, newer, foreign, digest-only and empty logs, and runs that the agent does not repeat, are never counted
    as unchanged.
    """
    record(tmp_path / "runs", "a.txt", "b.txt")
    record(tmp_path / "other", "a.txt", name="scribe")
    record(tmp_path / "digests", "a.txt", short=0)
    record(tmp_path / "drift", "/etc/x", hooks=())
    folder = tmp_path / "runs"
    newer = (folder / "0.jsonl").read_text("utf-8").replace('"version":1', '"version":99', 1)
    lines = (folder / "0.jsonl").read_text("utf-8").splitlines(keepends=True)
    for name, text in (
        ("newer", newer),
        ("torn", "".join(lines[:5] + lines[6:])),
        ("empty", ""),
        ("binary", "\x00\xff"),
        ("bomb", "[" * 100_000),
    ):
        (folder / f"{name}.jsonl").write_text(text, "utf-8")
    report = backtest([tmp_path], variant(hooks=[New()], without=["Old"]))
    found = {Path(each.log).relative_to(tmp_path).with_suffix("").as_posix(): each for each in report.results}
    assert {name: each.status for name, each in found.items()} == {
        **dict.fromkeys(["runs/0", "runs/1"], "same"),
        **dict.fromkeys(
            ["runs/newer", "runs/torn", "runs/empty", "runs/binary", "runs/bomb", "other/0", "digests/0", "drift/0"],
            "incomparable",
        ),
    }
    says = {
        "runs/newer": "form 99",
        "other/0": "it is a run of the agent 'scribe', not 'clerk'",
        "digests/0": "digests instead of texts",
        "drift/0": "the agent differs from the recording without the change too",
    }
    assert {name: text in found[name].reason for name, text in says.items()} == dict.fromkeys(says, True)


# ---- results, sources


def test_an_interrupted_backtest_continues(runs: Path, tmp_path: Path) -> None:
    """Results in the file are not computed again, unless the log has changed; other settings are refused."""
    file, made = tmp_path / "r.jsonl", [0]

    def make() -> Variant:
        made[0] += 1
        return variant(hooks=[New()], without=["Old"])()

    whole = backtest([runs], make, results=file)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:3])[:-5])  # killed while it wrote
    made[0] = 0
    assert (backtest([runs], make, results=file), made) == (whole, [1 + 3])
    (runs / "0.jsonl").write_bytes((runs / "1.jsonl").read_bytes())
    assert (backtest([runs], make, results=file).of("same")[0].run, made) == (whole.results[1].run, [1 + 3 + 1 + 1])
    with pytest.raises(UsageError, match=r"other settings \(.*system.*\)"):
        backtest([runs], variant(hooks=[New()], without=["Old"], system="x"), results=file)


@pytest.mark.parametrize(
    "text",
    [
        "hello\n",
        "[1]\n",
        '{"form": 1}\n',
        '{"form":"other","settings":{}}\n',
        '{"form":"agentflow.backtest","settings":{}}\n3\n',
    ],
)
def test_a_damaged_file_of_results(runs: Path, tmp_path: Path, text: str) -> None:
    """Nothing is read from a file that does not hold results, and the file is kept."""
    file = tmp_path / "r.jsonl"
    file.write_text(text, "utf-8")
    with pytest.raises(StoreError, match="does not contain backtest results"):
        backtest([runs], variant(), results=file)
    assert file.read_text("utf-8") == text


def test_wrong_arguments(tmp_path: Path) -> None:
    """No runs, a missing file, an unknown hook, impossible numbers."""
    for none in ([tmp_path], tmp_path, str(tmp_path)):
        with pytest.raises(UsageError, match="no run logs"):
            backtest(none, variant())
    with pytest.raises(StoreError, match="No such file"):
        backtest([tmp_path / "no.jsonl"], variant())
    with pytest.raises(UsageError, match=r"no hook 'Missing'\. Its hooks: .*Old"):
        backtest([tmp_path], variant(without=["Missing"]))
    for more in ({"workers": -1}, {"limit": 0}, {"limit": float("nan")}):
        with pytest.raises(UsageError, match="are invalid; workers must be at least 0"):
            backtest([tmp_path], variant(), **more)


def make_clerk() -> Variant:
    """A module-level function, as worker processes need it."""
    return Variant(Agent("clerk", Offline(), tools=[delete]))


def test_a_process_that_does_not_start(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the limit for the start of a process, not that for a run."""
    monkeypatch.setattr(sys.modules["agentflow.recording.backtest.backtest"], "_START", 0.001)
    with pytest.raises(UsageError, match=r"exceeded the limit of 0.001 s before its first run"):
        backtest(runs, make_clerk, workers=1, limit=30)


class Uneven(Hook):
    """Takes long for one run; a process that has evaluated another one dies soon after it."""

    def on_event(self, event: HookEvent) -> HookResult:
        if isinstance(event, PreActing):
            if event.tool_use.input["path"] == "slow":
                time.sleep(2)
            else:
                threading.Timer(0.5, os._exit, (3,)).start()
        return event


def make_uneven() -> Variant:
    """See `Uneven`."""
    return Variant(Agent("clerk", Offline(), tools=[delete], hooks=[Uneven()]))


def test_a_process_without_work_is_ended(tmp_path: Path) -> None:
    """Its death, while another process still works, is no failure."""
    record(tmp_path / "runs", "slow", "fast", hooks=())
    assert short(backtest(tmp_path / "runs", make_uneven, workers=2)) == [("0", "same"), ("1", "same")]


def test_runs_in_a_store_and_in_one_file(tmp_path: Path) -> None:
    """A store, and a file with several runs, are tested run by run."""
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db")
    for keeps in (store, tmp_path / "all.jsonl"):
        recorder = Recorder(keeps)
        for path in ("a.txt", "/home"):
            Agent("clerk", script(path), tools=[delete], hooks=[Old(), recorder]).call("go").block()
        recorder.close()
    for source in (store, tmp_path / "all.jsonl"):
        report = backtest([source], variant(hooks=[New()]))
        assert sorted(row[1] for row in short(report)) == ["changed", "same"]


def test_a_decision_in_a_sub_agent(tmp_path: Path) -> None:
    """A change in a sub-agent has its source, and the cost of the rest is counted from there."""

    def boss(model: Any, inner: Any, *hooks: Hook, does: Any = delete) -> Agent:
        helper = Agent("helper", inner, tools=[does], description="Helps.")
        return Agent("boss", model, tools=[helper.as_tool()], hooks=hooks)

    usage = ModelChunk(usage=Usage(input_tokens=10, output_tokens=1))
    recorder = Recorder(tmp_path / "boss.jsonl")
    call = ToolUseBlock("h1", "helper", {"message": "delete /home"})
    boss(ScriptedModel([call, ["Done.", usage]]), script("/home"), recorder).call("go").block()
    recorder.close()
    guard = New()
    guard.scope = "tree"
    report = backtest([tmp_path], lambda: Variant(boss(Offline(), Offline(), does=forbidden), hooks=[guard]))
    one = report.results[0]
    assert (one.status, one.source, one.tool, one.now, one.refused, one.rest_tokens) == (
        "changed",
        "helper",
        "delete",
        "New: Deny",
        True,
        131,
    )
