"""The page of evaluations in a real Chromium: the list, one beside an earlier one, its runs, damaged files, hostile texts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from browser import Page
from inspected import client, opened, serving

from agentflow import Agent
from agentflow.plugins import Recorder
from agentflow.serve.inspector.evaluations import Evaluations
from agentflow.testing import Case, ScriptedModel, Trial
from agentflow.testing.evaluation import Dataset, Grade

HEAD = '{"form": "agentflow.evaluation", "dataset": "d", "agent": "a"'
HOSTILE = "<img src=x onerror='window.hacked = 1'>\u202e</script><script>window.hacked = 2</script>"


def graded(trial: Trial) -> Grade:
    """Grade an answer."""
    return Grade(score=len(trial.text) / 10, label="long" if len(trial.text) > 5 else "short", reason="Its length.")


async def write(folder: Path, name: str, answers: dict[str, str], *cases: Case, at: int = 0) -> None:
    """Evaluate an agent that answers so, with a recorder, and write the results at a time."""
    recorder = Recorder(folder)
    agent = Agent("clerk", ScriptedModel(lambda request: answers[request.messages[-1].text]), hooks=[recorder])
    report = await Dataset("refunds", cases, [graded], task=agent).evaluate(repeats=2)
    recorder.close()
    report.save(folder / name)
    os.utime(folder / name, (at, at))


def test_at_most_a_thousand_files_are_listed(tmp_path: Path) -> None:
    """The newest ones, whatever their folder."""
    for number in range(1_001):
        (tmp_path / f"{number:04}.json").write_text(f'{HEAD}, "trials": []}}', "utf-8")
    assert len(Evaluations([tmp_path]).rows()) == 1_000
    later = tmp_path / "later"
    later.mkdir()
    newest = later / "newest.json"
    newest.write_text(f'{HEAD}, "trials": []}}', "utf-8")
    os.utime(newest, (4_000_000_000, 4_000_000_000))
    rows = Evaluations([later, tmp_path]).rows()
    assert (len(rows), rows[0]["file"]) == (1_000, "newest.json")


@pytest.fixture
async def results(tmp_path: Path) -> Path:
    """A folder with two evaluations, of which the later is worse and has another case, a damaged file and another one."""
    folder = tmp_path / "runs"
    folder.mkdir()
    first, second, third = (
        Case("1 + 2?", "3", name="a sum"),
        Case("Open?", "At nine.", name="hours"),
        Case("Hi", name="greets"),
    )
    await write(folder, "before.json", {"1 + 2?": "3", "Open?": "At nine."}, first, second, at=1_000_000)
    await write(
        folder,
        "after.json",
        {"1 + 2?": "4, I think", "Open?": "At nine.", "Hi": "Hello."},
        first,
        second,
        third,
        at=2_000_000,
    )
    (folder / "broken.json").write_text('{"form": "agentflow.evaluation", "trials": [{"na', "utf-8")
    (folder / "settings.json").write_text('{"form": "other"}', "utf-8")
    return folder


def told(row: dict[str, Any] | None, *names: str) -> tuple[Any, ...]:
    assert row is not None
    return tuple(row.get(name) for name in names)


# ---- the files


async def test_the_list_and_one(results: Path) -> None:
    """The newest first; each case with its rate, how it changed, and its run; a damaged file with the reason."""
    os.utime(results / "broken.json", (3_000_000, 3_000_000))
    found = Evaluations([results])
    broken, after, before = found.rows()
    assert told(broken, "file", "dataset") == ("broken.json", None)
    assert "JSON" in broken["problem"]
    names = ("file", "dataset", "agent", "cases", "trials", "passed", "problem")
    assert told(after, *names) == ("after.json", "refunds", "clerk", 3, 6, 4, "")
    assert told(before, *names) == ("before.json", "refunds", "clerk", 2, 4, 4, "")
    run = json.loads((results / "after.json").read_text())["trials"][0]["run"]
    one = found.one(after["id"], before["id"], {run: "log1"})
    assert one is not None
    assert [told(case, "name", "status", "before", "rate") for case in one["cases_"]] == [
        ("a sum", "worse", 1.0, 0.0),
        ("hours", "same", 1.0, 1.0),
        ("greets", "new", None, 1.0),
    ]
    assert one["cases_"][0]["scores"] == {"graded": [0.1, 1.0]}
    assert [trial["log"] for case in one["cases_"] for trial in case["trials"]] == ["log1", "", "", "", "", ""]
    back = found.one(before["id"], after["id"], {})
    assert back is not None
    assert [case["status"] for case in back["cases_"]] == ["better", "same", "missing"]
    assert told(found.one(before["id"], broken["id"], {}), "baseline") == ("",)
    assert found.one("../before", "", {}) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSON"),
        ("\xff", "JSON"),
        ("[" * 100_000, "recursion limit"),
        ('HEAD, "trials": []}', "no trials"),
        ('HEAD, "trials": [{"name": "x"}]}', "passed"),
        ('{"form": "agentflow.evaluation", "dataset": 1, "agent": "a", "trials": 2}', "dataset"),
        (
            'HEAD, "trials": [{"name": "x", "passed": true, "seconds": NaN}]}',
            "not JSON",
        ),
        ('{"form": "agentflow.evaluation", "x": "' + "x" * 50_000_000, "larger than"),
    ],
)
def test_damaged_files(tmp_path: Path, text: str, why: str) -> None:
    """Each is a row that says why, and cannot be opened."""
    (tmp_path / "a.json").write_text(text.replace("HEAD", HEAD), "latin-1")
    found = Evaluations([tmp_path])
    (row,) = found.rows()
    assert why in row["problem"]
    assert found.one(row["id"], "", {}) == row


def test_other_files(tmp_path: Path) -> None:
    """Other JSON is left out, a missing folder is empty, and a file that changes is read again."""
    for name, text in (("a.json", "[]"), ("b.json", '{"form": "other"}'), ("c.json", "1")):
        (tmp_path / name).write_text(text)
    found = Evaluations([tmp_path, tmp_path / "none"])
    assert found.rows() == []
    (tmp_path / "a.json").write_text("[1")
    assert [row["file"] for row in found.rows()] == ["a.json"]
    (tmp_path / "d.json").symlink_to(tmp_path / "nothing")
    assert [row["file"] for row in found.rows()] == ["a.json"]


async def test_the_token_is_needed(results: Path) -> None:
    """As for runs."""
    async with serving(results) as (inspector, link), client(link) as (http, base):
        name = Evaluations([results]).rows()[-1]["id"]
        for path in ("api/evaluations", f"api/evaluations/{name}"):
            for cookie, status in (({}, 403), ({"authorization": f"Bearer {inspector.token}"}, 200)):
                async with http.get(f"{base}{path}", headers=cookie) as answer:
                    assert answer.status == status


# ---- the page

ROWS = "[...document.querySelectorAll('tbody tr:not([hidden])')].map(row => [...row.cells].map(cell => cell.innerText))"


async def ready(page: Page, view: str) -> None:
    await page.until(f"document.querySelector('main').dataset.ready === '{view}'")


@pytest.mark.ci
async def test_from_the_list_to_a_run(results: Path) -> None:
    """The list, an evaluation beside the one before it, a case's repeats, and the recorded run of one."""
    os.utime(results / "broken.json", (500_000, 500_000))
    async with serving(results) as (_, link), opened(link) as page:
        await page.click("#actions a")
        await ready(page, "evaluations")
        rows = await page.js(ROWS)
        assert [[row[0].split("\n")[0], row[1], *row[3:6]] for row in rows] == [
            ["refunds", "2 failed", "67 %", "3", "6"],
            ["refunds", "passed", "100 %", "2", "4"],
            ["broken.json", "damaged", "", "", ""],
        ]
        await page.click("tbody a")
        await ready(page, "evaluation")
        assert [row[:4] for row in await page.js(ROWS)] == [
            ["a sum", "0 of 2", "worse was 100 %", "graded 1 (was 0.1), graded: long"],
            ["hours", "2 of 2", "", "graded 0.8, graded: long"],
            ["greets", "2 of 2", "new", "graded 0.6, graded: long"],
        ]
        await page.click(".fold")
        opened_row = (await page.js(ROWS))[1][0]
        assert "expected '3', got '4, I think'" in opened_row
        assert "graded: Its length." in opened_row
        assert await page.js("document.querySelector('.fold').getAttribute('aria-expanded')") == "true"
        await page.js("(s => { s.value = ''; s.dispatchEvent(new Event('input')); })(document.querySelector('select'))")
        await page.until("!document.body.innerText.includes('worse')")
        await page.click(".fold")
        await page.click(".trial a")
        await ready(page, "run")
        assert "4, I think" in await page.js("document.body.innerText")


@pytest.mark.ci
async def test_hostile_fields_are_text(tmp_path: Path) -> None:
    """Each field of a file is text on both pages; ids of runs lead nowhere else."""
    trial: dict[str, Any] = {
        **dict.fromkeys(("name", "case", "run", "answer", "outcome"), HOSTILE),
        **{key: [HOSTILE] for key in ("failures", "errors", "tools")},
        **{key: {HOSTILE: HOSTILE} for key in ("labels", "reasons")},
        "scores": {HOSTILE: 1},
        "passed": False,
    }
    whole = {"form": "agentflow.evaluation", "dataset": HOSTILE, "agent": HOSTILE, "trials": [trial]}
    (tmp_path / "<b>x.json").write_text(json.dumps(whole), "utf-8")
    (tmp_path / "<i>y.json").write_text(
        json.dumps({**whole, "trials": [{**trial, HOSTILE: 1, "passed": HOSTILE}]}), "utf-8"
    )
    async with serving(tmp_path) as (_, link), opened(f"{link}#/evaluations") as page:
        marks = "[window.hacked ?? null, document.querySelectorAll('main img, main script, main b, main i').length]"
        assert await page.js(marks) == [None, 0]
        await page.click("tbody a")
        await ready(page, "evaluation")
        await page.click(".fold")
        assert await page.js(marks) == [None, 0]
        shown = await page.js("document.querySelector('main').innerText")
        assert (shown.count("<img src=x"), shown.count("\u202e")) == (16, 0)
