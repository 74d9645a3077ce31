"""`agentflow replay`, `diff` and `explain`, as processes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from agentflow import Agent, Deny, Hook, PreActing, ToolUseBlock, tool
from agentflow.recording import load
from agentflow.recording.recorder import Recorder
from agentflow.testing import ScriptedModel

EVIL = "<script>alert(1)</script>\x1b[2J"

LOGS = '''
from dataclasses import dataclass

from agentflow import Agent, Deny, Hook, PreActing, tool


class Offline:
    name = "scripted"

    def stream(self, request):
        raise AssertionError("a replay has asked the model")


@tool(type="write")
async def delete(path: str) -> str:
    """Delete."""
    raise AssertionError("a replay has run a tool")


class Guard(Hook):
    guard = True

    def on_event(self, event):
        return Deny("never") if isinstance(event, PreActing) else event


class Needs(Hook):
    def __init__(self, what):
        raise AssertionError("it has no arguments")


guard = Guard()


@dataclass
class Order:
    item: str


free = Agent("shop", Offline(), tools=[delete])
clerk = Agent("clerk", Offline())
'''


class Guard(Hook):
    guard = True

    def on_event(self, event: Any) -> Any:
        return Deny("never") if isinstance(event, PreActing) else event


@dataclass
class Order:
    item: str


@pytest.fixture
async def logs(shop: Any) -> Any:
    """Two recorded runs: one that deletes, one that may not."""
    (shop.folder / "logs.py").write_text(LOGS, "utf-8")

    @tool(type="write")
    async def delete(path: str) -> str:
        """Delete."""
        return f"{path} is gone {EVIL}"

    for name, last, hooks in (("free", "Done.", []), ("guarded", "I may not.", [Guard()])):
        recorder = Recorder(shop.folder / f"{name}.jsonl")
        model = ScriptedModel([ToolUseBlock("t1", "delete", {"path": "x"}), last])
        await Agent("shop", model, tools=[delete], hooks=[*hooks, recorder]).call("go")
        recorder.close()
    return shop


def test_replay_says_whether_anything_has_changed(logs: Any) -> None:
    """Without a difference: exit code 0. With one more hook: the divergence, and 1; as JSON for machines. Nothing is
    asked, nothing runs.
    """
    same = logs("replay", "free.jsonl", "logs:free")
    assert (same.returncode, same.stdout, same.stderr) == (0, "the same as recorded\n", "")
    parted = logs("replay", "free.jsonl", "logs:free", "--hook", "logs:Guard")
    assert parted.returncode == 1
    assert parted.stdout.splitlines() == [
        "differs at PreActing (event 6, round 1): decision",
        "  recorded: (nothing)",
        "  now:      {'hook': 'Guard', 'verdict': {'verdict': 'Deny', 'reason': 'never'}}",
        "  by:       Guard",
    ]
    told = json.loads(logs("replay", "free.jsonl", "logs:free", "--hook", "logs:Guard", "--json").stdout)
    assert (told["divergence"]["event"], told["divergence"]["hooks"], told["outcome"]) == (
        "PreActing",
        ["Guard"],
        "interrupted",
    )
    assert logs("replay", "free.jsonl", "logs:free", "--hook", "logs:guard").stdout == parted.stdout
    later = logs("replay", "free.jsonl", "logs:free", "--hook", "logs:Guard", "--from", "7")
    assert "differs at PostActing" in later.stdout


async def test_a_typed_answer_is_replayed_with_its_type(logs: Any) -> None:
    """A log holds no Python type, so it is named; without it the call is another one, and departs."""
    recorder = Recorder(logs.folder / "order.jsonl")
    script = ['{"item": "tea"}']
    await Agent("clerk", ScriptedModel(script), hooks=[recorder]).call("Order tea", output=Order)
    recorder.close()
    same = logs("replay", "order.jsonl", "logs:clerk", "--output", "logs:Order")
    assert (same.returncode, same.stdout, same.stderr) == (0, "the same as recorded\n", "")
    assert logs("replay", "order.jsonl", "logs:clerk").returncode == 1


def test_nobody_is_there_to_be_asked(logs: Any) -> None:
    """The divergence is printed once, and the program ends as interrupted: it does not report success."""
    done = logs("replay", "free.jsonl", "logs:free", "--hook", "logs:Guard", "--ask")
    assert done.returncode == 130
    assert done.stdout.count("differs at") == 1
    assert "the same as recorded" not in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("answers", "told"),
    [("n\nn\n", []), ("n\ny\n", ["continued to: Done. (completed)"]), ("y\n", ["continued to: "])],
)
def test_who_is_asked_decides_how_it_continues(logs: Any, answers: str, told: list[str]) -> None:
    """With a live model, with the rest of the recording, or not at all; the difference is shown before, and once."""
    done = logs("replay", "free.jsonl", "logs:free", "--hook", "logs:Guard", "--ask", stdin=answers)
    difference, *rest = done.stdout.partition("  by:       Guard\n")
    assert (done.returncode, difference.count("differs at PreActing")) == (1, 1)
    after = "".join(rest).splitlines()[1:]
    assert len(after) == len(told)
    assert all(line.startswith(start) for line, start in zip(after, told, strict=True))
    as_json = logs("replay", "free.jsonl", "logs:free", "--hook", "logs:Guard", "--ask", "--json", stdin=answers)
    assert as_json.stderr.startswith("differs at PreActing")
    assert json.loads(as_json.stdout)["divergence"]["event"] == "PreActing"


def test_a_live_model_that_fails_is_told(logs: Any) -> None:
    """The divergence is followed by the result of the live run, an error too."""
    done = logs("replay", "free.jsonl", "logs:free", "--system", "Be brief.", "--model", "openai/gpt-5")
    assert done.returncode == 1
    assert "continued to: ModelError: There is no API key" in done.stdout


def test_diff_says_where_two_runs_part(logs: Any) -> None:
    """Aligned by rounds and calls: the first difference, its hook, and the outcome; control characters have no
    effect.
    """
    told = logs("diff", "free.jsonl", "guarded.jsonl")
    assert told.returncode == 1
    lines = told.stdout.splitlines()
    assert lines[:4] == [
        "they differ first at call of shop, round 1, delete: decided",
        "  - (nothing)",
        "  + Guard returned Deny (never)",
        "  by Guard",
    ]
    assert lines[-2:] == ["rounds 2 and 2", "tokens 0 and 0, cost unknown and unknown"]
    assert "\x1b" not in told.stdout
    data = json.loads(logs("diff", "free.jsonl", "guarded.jsonl", "--json").stdout)
    assert data["differences"][0]["hooks"] == ["Guard"]
    page = logs("diff", "free.jsonl", "guarded.jsonl", "--html", "-").stdout
    assert "<script" not in page
    assert "default-src 'none'" in page
    first = ["call of shop, round 1, delete: decided", "", "Guard returned Deny (never)", "Guard"]
    assert cells(page)[:8] == ["where", "free.jsonl", "guarded.jsonl", "hooks", *first]
    written = logs("diff", "free.jsonl", "guarded.jsonl", "--html", "page.html")
    assert (written.returncode, written.stdout) == (1, "written to page.html\n")
    assert (logs.folder / "page.html").read_text("utf-8") == page
    nowhere = logs("diff", "free.jsonl", "guarded.jsonl", "--html", "no/page.html")
    assert (nowhere.returncode, nowhere.stdout) == (2, "")
    assert nowhere.stderr == "agentflow: no/page.html cannot be written: No such file or directory.\n"
    same = logs("diff", "free.jsonl", "free.jsonl")
    assert (same.returncode, same.stdout.splitlines()[0]) == (0, "the runs are equal")
    assert json.loads(logs("diff", "free.jsonl", "free.jsonl", "--json").stdout)["differences"] == []


def cells(page: str) -> list[str]:
    """The texts of a page's table."""
    return re.findall(r"<t[hd]><bdi>(.*?)</bdi></t[hd]>", page, re.DOTALL)


async def test_long_texts_are_shortened_on_the_screen_and_whole_on_the_page(shop: Any) -> None:
    """What a run does not have is `(nothing)`."""
    for name, text in (("short", ""), ("long", "x" * 300)):
        recorder = Recorder(shop.folder / f"{name}.jsonl")
        await Agent("shop", ScriptedModel([text]), default_hooks=()).call("go", hooks=[recorder])
        recorder.close()
    lines = shop("diff", "short.jsonl", "long.jsonl").stdout.splitlines()
    assert lines[1:3] == ["  - (nothing)", f"  + {'x' * 199}…"]
    assert "x" * 300 in cells(shop("diff", "short.jsonl", "long.jsonl", "--html", "-").stdout)


def test_explain_says_which_hooks_shaped_a_message(logs: Any) -> None:
    """The message by its id, or the last reply; what is not there is said with what is."""
    assert "no hook shaped it" in logs("explain", "free.jsonl", "last").stdout
    unknown = logs("explain", "free.jsonl", "nope")
    assert unknown.returncode == 2
    assert "Its first messages: msg_" in unknown.stderr


async def test_what_shaped_a_message_is_data_and_a_table_too(logs: Any) -> None:
    """The result that a guard wrote; of the messages that there are, at most twenty are named."""
    log = load(logs.folder / "guarded.jsonl")
    shown = [log.message(ref).id for ref in log.message_refs()]
    said = [logs("explain", "guarded.jsonl", ref).stdout for ref in shown]
    [by_guard] = [message for message, text in zip(shown, said, strict=True) if "Guard" in text]
    data = json.loads(logs("explain", "guarded.jsonl", by_guard, "--json").stdout)
    assert [record["hook"] for record in (*data["changes"], *data["request_changes"])] == ["Guard"]
    table = cells(logs("explain", "guarded.jsonl", by_guard, "--html", "-").stdout)
    assert (len(table), table[:3]) == (4, ["hook", "effect", "Guard"])
    assert logs("explain", "guarded.jsonl", "last").stdout == said[-1]
    recorder = Recorder(logs.folder / "many.jsonl")
    script = [*[ToolUseBlock(f"t{n}", "none", {}) for n in range(11)], "Done."]
    await Agent("shop", ScriptedModel(script), max_iterations=20).call("go", hooks=[recorder])
    recorder.close()
    unknown = logs("explain", "many.jsonl", "nope").stderr
    assert unknown.partition("Its first messages: ")[2].count("msg_") == 20


def test_mistakes_are_one_line(logs: Any) -> None:
    """No such file, no such run, no such hook."""
    for arguments, said in (
        (("replay", "none.jsonl", "logs:free"), "No such file"),
        (("replay", "free.jsonl", "logs:free", "--run", "r"), "has no run 'r'"),
        (("replay", "free.jsonl", "logs:free", "--hook", "logs:Nope"), "has no 'Nope'"),
        (
            ("replay", "free.jsonl", "logs:free", "--hook", "logs:Needs"),
            "logs:Needs cannot be created without arguments (",
        ),
        (("replay", "free.jsonl", "logs:free", "--output", "logs:Nope"), "has no 'Nope'"),
        (("replay", "free.jsonl", "logs:free", "--output", "Order"), "Use module:name, such as shop.orders:Order."),
        (("replay", "free.jsonl", "logs:free", "--output", "logs:free"), "cannot create a JSON schema for it"),
        (("replay", "free.jsonl", "logs:free", "--without", "Nope"), "has no hook 'Nope'"),
        (("diff", "logs.py", "free.jsonl"), "is not a run log"),
    ):
        ran = logs(*arguments)
        assert ran.returncode == 2, arguments
        assert said in ran.stderr
        assert ran.stderr.count("\n") == 1
