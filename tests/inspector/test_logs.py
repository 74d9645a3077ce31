"""Run logs in files and folders: the list of runs, several runs in a file, damaged logs, and the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from inspected import clerk, client, lines_of, serving
from nursery import Nursery

from agentflow import Agent, Hook, PostActing, PreReasoning, ToolUseBlock
from agentflow.errors import StoreError, UsageError
from agentflow.plugins import Breakpoint, Pause, Recorder
from agentflow.recording.diffing import diff_runs
from agentflow.recording.reading import RunLogError, load, read_lines
from agentflow.serve.inspector import export
from agentflow.serve.inspector.comparing import compare
from agentflow.serve.inspector.logs import Logs, RunRow
from agentflow.serve.inspector.one_file import PAGE, bundle, page_with
from agentflow.serve.inspector.pauses import _shown
from agentflow.terminal.cli.inspect_command import inspect
from agentflow.testing import ScriptedModel

ROOT = Path(__file__).parents[2]


def told(run: RunRow, *names: str) -> tuple[Any, ...]:
    row = run.as_dict()
    return tuple([row[name] for name in names])


async def test_the_list_of_runs(runs: Path) -> None:
    """The newest first, with input, outcome and usage; sub-agents are part of their caller's run."""
    logs = Logs([runs])
    newest, oldest = logs.runs()
    said = told(
        newest, "agent", "prompt", "outcome", "rounds", "tools", "tokens", "cost", "errors", "decided", "problem"
    )
    assert said == ("clerk", "What is a bread?", "completed", 4, 4, 150, 0.002, 1, 1, "")
    assert newest.started > oldest.started
    assert newest.seconds > 0
    assert newest.id != oldest.id


async def test_several_runs_in_a_file(tmp_path: Path) -> None:
    """Each is a run of its own: with its own lines, and those that all refer to."""
    file = tmp_path / "all.jsonl"
    recorder = Recorder(file)
    for name in ("one", "two"):
        agent = clerk(recorder, script=[f"I am {name}."])
        await agent.call(f"Hello {name}")
    recorder.close()
    logs = Logs([file])
    two, one = logs.runs()
    assert (one.prompt, two.prompt) == ("Hello one", "Hello two")
    for run, other in ((one, two), (two, one)):
        source = logs.source(run.id)
        assert source is not None
        lines, behind = source.lines()
        entries = [json.loads(line) for line in lines.splitlines()]
        assert {entry["run"] for entry in entries if entry["kind"] == "call"} == {run.run}
        assert other.run not in {entry.get("run") for entry in entries}
        assert [entry["type"] for entry in entries if entry["kind"] == "event"][-1] == "CallEnded"
        assert behind == file.stat().st_size
        assert source.lines(behind) == (b"", behind)
    assert logs.source("nothing") is None


def test_a_line_is_handed_out_when_it_is_whole(tmp_path: Path) -> None:
    """New lines appear later; a file is read again only if it has changed."""
    file = tmp_path / "run.jsonl"
    text = lines_of("one", "two")
    file.write_text(text[:-20], "utf-8")
    logs = Logs([tmp_path])
    (run,) = logs.runs()
    assert run.outcome == ""
    source = logs.source(run.id)
    assert source is not None
    lines, behind = source.lines()
    assert lines.endswith(b"\n")
    stamp = logs.stamp()
    assert stamp == logs.stamp()
    file.write_text(text, "utf-8")
    assert stamp != logs.stamp()
    assert (lines + source.lines(behind)[0]).decode() == text
    assert logs.runs()[0].outcome == "completed"


@pytest.mark.parametrize(
    "damage",
    [
        "nothing of this is JSON\n",
        '{"kind": "call"}\n',
        "[1, 2]\n",
        '{"kind": "event", "type": "CallEnded"}\n\x00\n',
        "{" * 9999,
    ],
)
def test_a_damaged_file_is_in_the_list(tmp_path: Path, damage: str) -> None:
    """A damaged log is one row with the message of `load`, even if only one line is damaged; the others are listed."""
    (tmp_path / "a.jsonl").write_text(damage, "utf-8")
    (tmp_path / "b.jsonl").write_text(lines_of("one").replace("\n", f"\n{damage}\n", 3), "utf-8")
    (tmp_path / "c.jsonl").write_text(lines_of("one"), "utf-8")
    (tmp_path / "empty.jsonl").write_text("", "utf-8")
    runs = Logs([tmp_path]).runs()
    why: dict[str, str] = {}
    for name in ("a.jsonl", "b.jsonl"):
        with pytest.raises(RunLogError) as refused:
            load(tmp_path / name)
        why[name] = str(refused.value).replace(f"{tmp_path}/", "")
    assert {run.file: run.problem for run in runs} == {**why, "c.jsonl": ""}
    assert len(runs) == 3


def test_a_log_that_is_damaged_while_it_is_shown_says_so(tmp_path: Path) -> None:
    """A damaged log is no longer served; if a file was replaced by another run's, it is read again."""
    file = tmp_path / "run.jsonl"
    file.write_text(lines_of("one"), "utf-8")
    logs = Logs([tmp_path])
    (run,) = logs.runs()
    source = logs.source(run.id)
    assert source is not None
    _, behind = source.lines()
    with file.open("a") as more:
        more.write('{"kind": "event", "type": "Nonsense"}\n')
    assert source.lines(behind) == (b"", behind)
    assert "line 7, is not a run log entry" in source.problem
    assert logs.runs()[0].problem == source.problem
    file.write_text(lines_of("two", "three", "four"), "utf-8")
    assert [run.problem for run in logs.runs()] == [""]


@pytest.mark.parametrize("lines", [None, 4], ids=["finished", "growing"])
def test_a_log_that_is_replaced_is_read_from_its_beginning(tmp_path: Path, lines: int | None) -> None:
    """At once: the rest of another log is no continuation of the first one."""
    file = tmp_path / "run.jsonl"
    file.write_text("".join(lines_of("one").splitlines(keepends=True)[:lines]), "utf-8")
    logs = Logs([file])
    assert [told(run, "outcome", "problem") for run in logs.runs()] == [("" if lines else "completed", "")]
    file.write_text(lines_of(*["another one"] * 7), "utf-8")
    assert [told(run, "rounds", "problem") for run in logs.runs()] == [(7, "")]


def test_a_line_that_is_not_written_yet_is_read_when_it_is(tmp_path: Path) -> None:
    """However many of its characters are there at a look: the list, and the lines that the page gets."""
    whole = lines_of("one", "two").encode()
    begin = whole.rindex(b"\n", 0, -1) + 1
    for length in range(len(whole) - begin):
        file = tmp_path / f"{length}.jsonl"
        file.write_bytes(whole[: begin + length])
        logs = Logs([file])
        (run,) = logs.runs()
        source = logs.source(run.id)
        assert source is not None
        assert (told(run, "rounds", "outcome", "problem"), source.torn) == ((2, "", ""), 0)
        first, position = source.lines()
        file.write_bytes(whole)
        rest, _ = source.lines(position)
        assert [told(each, "outcome", "problem") for each in logs.runs()] == [("completed", "")]
        assert (first, rest, source.torn) == (whole[:begin], whole[begin:], 0)


@pytest.mark.parametrize("text", ["x" * 500, "word " * 100, "  two\n\nlines "])
async def test_the_list_shows_how_the_input_begins(tmp_path: Path, text: str) -> None:
    """On one line, of at most 200 characters."""
    recorder = Recorder(tmp_path / "run.jsonl")
    await clerk(recorder, script=["Yes."]).call(text)
    recorder.close()
    (run,) = Logs([tmp_path]).runs()
    assert run.prompt == " ".join(text.split())[:200]


class Edits(Hook):
    """Changes the text of results."""

    events = (PostActing,)

    def __init__(self, before: str, after: str, *, shadow: bool = False) -> None:
        self.before, self.after, self.shadow = before, after, shadow

    def on_event(self, event: PostActing) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - `events` narrows the type
        text = event.tool_result.text.replace(self.before, self.after)
        event.tool_result = replace(event.tool_result, content=text)


async def test_two_runs_are_compared_event_by_event(tmp_path: Path) -> None:
    """By their values and by what hooks did to them; a hook in the shadow did nothing. The differences are the command's."""

    numbers = count()

    async def lines(*hooks: Hook, paths: Sequence[str] = ("/a",)) -> bytes:
        path = tmp_path / f"{next(numbers)}.jsonl"
        recorder = Recorder(path)
        agent = clerk(
            *hooks,
            recorder,
            script=[*[ToolUseBlock(f"t{n}", "delete_file", {"path": path}) for n, path in enumerate(paths)], "Done."],
        )
        await agent.call("Tidy up")
        recorder.close()
        return path.read_bytes()

    def told(one: bytes, other: bytes) -> list[str]:
        """The events that differ, and how."""
        found = compare(one, other)
        logs = [read_lines(side.split(b"\n")) for side in (one, other)]
        assert found["differences"] == [asdict(each) for each in diff_runs(*logs).differences]
        sides = [list(log.events()) for log in logs]
        for side, events in enumerate(sides):
            assert [pair[side] for pair in found["pairs"] if pair[side] is not None] == [*range(len(events))]
        return [
            f"{sides[1 if one is None else 0][other if one is None else one].type} {how}"
            for one, other, how in found["pairs"]
            if how != "same"
        ]

    plain, again = await lines(), await lines()
    assert told(plain, again) == []
    assert told(plain, await lines(Edits("gone", "kept", shadow=True))) == []
    assert told(plain, await lines(Edits("gone", "kept"))) == [
        "PostActing changed",
        "PostToolRound changed",
        "PreReasoning changed",
    ]
    assert told(plain, await lines(Edits("gone", "kept"), Edits("kept", "gone"))) == ["PostActing changed"]
    longer = await lines(paths=("/b", "/a"))  # the call after the additional one has another id, and is the same
    for pair, side in (((longer, plain), "left"), ((plain, longer), "right")):
        kinds = [line for line in told(*pair) if "Acting" in line or "Round" in line]
        assert kinds == [f"{kind} {side}" for kind in ("PreToolRound", "PreActing", "PostActing", "PostToolRound")]


async def test_the_page_gets_comparisons_and_exports(runs: Path) -> None:
    """As data and as a file with the name of its run; an unknown run is refused."""
    async with serving(runs) as (inspector, link), client(link) as (http, base):
        headers = {"authorization": f"Bearer {inspector.token}"}
        async with http.get(f"{base}api/runs", headers=headers) as response:
            one, other = await response.json()
        async with http.get(f"{base}api/diff/{one['id']}/{other['id']}", headers=headers) as response:
            files = [runs / run["file"] for run in (one, other)]
            assert await response.json() == json.loads(json.dumps(compare(*[file.read_bytes() for file in files])))
        async with http.get(f"{base}api/runs/{one['id']}/export", headers=headers) as response:
            assert response.headers["content-disposition"] == f'attachment; filename="{one["run"]}.html"'
            assert one["run"] in await response.text()
        async with http.get(f"{base}api/diff/{one['id']}/nothing", headers=headers) as response:
            assert response.status == 404


def test_runs_are_found_by_what_was_said(tmp_path: Path) -> None:
    """It ignores case, counts each text once, and follows a growing log."""
    for name in ("bread", "Butter"):
        (tmp_path / f"{name}.jsonl").write_text(lines_of(f"A {name}", 'is "fine" ☂'), "utf-8")
    logs = Logs([tmp_path])
    ids = {run.file: run.id for run in logs.runs()}
    assert logs.search("BUTTER") == [ids["Butter.jsonl"]]
    assert logs.search('"fine" ☂') == [ids["Butter.jsonl"], ids["bread.jsonl"]]
    assert logs.search("message") == []


async def test_the_list_says_what_can_be_filtered(runs: Path) -> None:
    """Tools that were called, and hooks that did something, each once."""
    newest, oldest = Logs([runs]).runs()
    assert set(newest.called) == {"read_page", "checker", "delete_file"}
    assert len(newest.called) == 3
    assert set(oldest.hooks) == {"redirect", "KeepFiles", "AddDate", "Shorten"}
    assert "Shorten" not in newest.hooks


def test_a_list_of_many_logs_comes_in_portions(tmp_path: Path) -> None:
    """Each call continues after the last one; nothing is read twice."""
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text(lines_of("one"), "utf-8")
    logs = Logs([tmp_path])
    assert (logs.runs(seconds=0), logs.left) == ([], 3)
    assert (len(logs.runs()), logs.left) == (3, 0)
    assert len(logs.runs(seconds=0)) == 3


@pytest.mark.parametrize("place", [0, 3], ids=["first line", "a later writer"])
async def test_a_log_of_a_newer_form_is_refused(tmp_path: Path, place: int) -> None:
    """The list, the request, the export and the command refuse it, like all readers of run logs."""
    header = '{"kind":"log","form":"agentflow.run-log","version":99,"writer":"w"}\n'
    lines = lines_of("one").splitlines(keepends=True)
    file = tmp_path / "newer.jsonl"
    file.write_text("".join([*lines[:place], header, *lines[place or 1 :]]), "utf-8")
    why = "newer.jsonl is a run log of form 99; this agentflow reads forms up to 1. Upgrade agentflow."
    with pytest.raises(RunLogError, match=re.escape(why)):
        load(file)
    assert [run.problem for run in Logs([tmp_path]).runs()] == [why]
    for arguments in ([file], [tmp_path], [file, tmp_path]):
        with pytest.raises(StoreError, match=re.escape(why)):
            export(tmp_path / "x.html", *arguments)
    assert str(CliRunner().invoke(inspect, [str(file)], standalone_mode=False).exception) == why
    async with serving(tmp_path) as (inspector, link), client(link) as (http, base):
        http.headers["authorization"] = f"Bearer {inspector.token}"
        async with http.get(f"{base}api/runs") as response:
            (run,) = await response.json()
        async with http.get(f"{base}api/runs/{run['id']}") as response:
            assert (response.status, await response.text()) == (409, why)


def test_an_export_says_what_it_holds(tmp_path: Path) -> None:
    """One run, or two."""
    with pytest.raises(UsageError, match="no argument has 0"):
        export(tmp_path / "x.html")
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text(lines_of("one"), "utf-8")
    with pytest.raises(UsageError, match=r"has 3\. Choose one or two of c\.jsonl, b\.jsonl, a\.jsonl\."):
        export(tmp_path / "x.html", tmp_path)
    (tmp_path / "notes.txt").write_text("nothing of this is JSON\n", "utf-8")
    for arguments in (["notes.txt"], ["a.jsonl", "notes.txt"]):
        with pytest.raises(StoreError, match=r"^notes\.txt is not a run log: it has no line with form="):
            export(tmp_path / "x.html", *[tmp_path / name for name in arguments])
    assert not (tmp_path / "x.html").exists()


def test_an_export_names_ten_logs_to_choose_from(tmp_path: Path) -> None:
    """And one run is enough for an export."""
    for number in range(12):
        (tmp_path / f"{number:02}.jsonl").write_text(lines_of("one"), "utf-8")
    with pytest.raises(UsageError, match=r"has 12\. Choose one or two of ([0-9]+\.jsonl, ){9}[0-9]+\.jsonl\."):
        export(tmp_path / "x.html", tmp_path)
    assert "run_1" in export(tmp_path / "x.html", tmp_path / "00.jsonl").read_text("utf-8")


def test_the_page_loads_nothing_and_holds_no_markup_of_others() -> None:
    """No address of elsewhere in its files, no way to make markup of a text; in an export no text ends a script."""
    for path in PAGE.iterdir():
        source = path.read_text("utf-8")
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", source) == [], path.name
        assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", source) == []
    assert "</script" not in bundle()
    page = page_with([("run", b"</script><!--<script>", 0)])
    assert page.count("</script") == 2
    assert page.count("<!--") == 0


def test_the_wheel_brings_the_page(tmp_path: Path) -> None:
    """An installed inspector has all its files, and the command its module beside the package."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    if subprocess.run(build, cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip("needs hatchling")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    assert {f"agentflow/serve/inspector/page/{path.name}" for path in PAGE.iterdir()} <= names
    assert "agentflow_command.py" in names


# ---- the command


def test_the_command_exports(tmp_path: Path, commands: Nursery) -> None:
    """One file; errors are on one line."""
    (tmp_path / "run.jsonl").write_text(lines_of("one"), "utf-8")

    def ran(*arguments: str) -> tuple[int, str, str]:
        done = commands.run(["agentflow", "inspect", *arguments], dict(os.environ), cwd=str(ROOT))
        return done.returncode, done.stdout, done.stderr

    file = tmp_path / "report.html"
    assert ran(str(tmp_path), "--export", str(file)) == (
        0,
        f"{file} is complete; open it in a browser\n",
        "",
    )
    assert file.read_text("utf-8").startswith("<!doctype html>")
    unwritable = str(tmp_path / "no-folder" / "x.html")
    assert ran(str(tmp_path), "--export", unwritable) == (
        2,
        "",
        f"agentflow: {unwritable} cannot be written: No such file or directory.\n",
    )
    code, _, said = ran("nothing-there")
    assert (code, said) == (
        2,
        "agentflow: There is no run log or folder 'nothing-there'. Use --live if it will be created later.\n",
    )
    code, _, said = ran(str(tmp_path), "--host", "0.0.0.0")
    assert (code, "Pass --name" in said) == (2, True)


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_the_command_serves_until_ctrl_c(tmp_path: Path) -> None:
    """It prints the link, and ends without a traceback; a folder may come later."""
    started = [sys.executable, "-m", "agentflow", "inspect", str(tmp_path / "later"), "--live"]
    with subprocess.Popen(started, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.match(r"inspector  http://127\.0\.0\.1:\d+/\?token=[\w-]{43}\n", line)
        assert process.stdout.readline() == "           Press Ctrl-C to stop\n"
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=30)
    assert (out, error, process.returncode) == ("", "", 0)


async def test_a_pause_shows_the_path_of_its_agent() -> None:
    """That of a sub-agent begins with the calls that it is part of."""
    shown: list[str] = []

    async def attend(pause: Pause) -> None:
        shown.append(_shown(pause)["agent"])
        pause.resume()

    point = Breakpoint(PreReasoning, ask=attend)
    inner = Agent("inner", ScriptedModel(["Fine."]), hooks=[point])
    script = ScriptedModel([ToolUseBlock("t", "inner", {"message": "Hm?"}), "Ok."])
    await Agent("outer", script, tools=[inner.as_tool()], hooks=[point]).call("Ask.")
    assert shown == ["outer", "inner/inner", "outer"]
