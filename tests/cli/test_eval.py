"""`agentflow eval` as a process: results, baseline and gate, over a wire server too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

YAML = """\
name: sums
checks:
  - within: {rounds: 1, tokens: 500}
  - tools: []
  - short
cases:
  - {name: one, input: "1 + 2?", expected: "3"}
  - {name: two, input: "2 + 2?", expected: "4"}
"""

MODULE = """
import os

from agentflow import Agent
from agentflow.testing import ScriptedModel
from agentflow.testing.evaluation import Dataset


def short(trial):
    return len(trial.text)


def brain(request):
    asked = request.messages[-1].text
    return "3" if asked == "1 + 2?" else os.environ.get("ANSWER", "4")


number = 3
sums = Dataset.read("sums.yaml", checks=[short], task=Agent("clerk", ScriptedModel(brain)))
"""


MANY = """
import asyncio
from pathlib import Path

from agentflow import Agent, PreReasoning, on
from agentflow.testing import ScriptedModel
from agentflow.testing.evaluation import Case, Dataset

running, most = 0, 0


@on(PreReasoning)
async def counts(event: PreReasoning) -> None:
    global running, most
    running += 1
    most = max(most, running)
    for _ in range(100):  # all other calls that may run begin
        await asyncio.sleep(0)
    running -= 1
    Path("most.txt").write_text(str(most))


agent = Agent("a", ScriptedModel(lambda request: "Hi."), hooks=[counts])
many = Dataset("many", [Case(f"case {n}") for n in range(12)], task=agent)
"""


@pytest.fixture
def sums(shop: Any) -> Any:
    """A folder with a dataset."""
    Path(shop.folder, "sums.yaml").write_text(YAML, "utf-8")
    Path(shop.folder, "evals.py").write_text(MODULE, "utf-8")
    return shop


def test_the_table_the_files_and_the_gate(sums: Any) -> None:
    """The first run is the baseline; the same again passes; a worse one fails, and says why."""
    first = sums("eval", "evals:sums", "--save", "b.json", "--save", "b.xml")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines()[0].strip() == "clerk: 2 of 2 passed"
    suite = ElementTree.parse(sums.folder / "b.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")
    assert sums("eval", "evals:sums", "--baseline", "b.json", "--repeats", "3").returncode == 0
    sums.environment["ANSWER"] = "5"
    worse = sums("eval", "evals:sums", "--baseline", "b.json", "--json")
    assert (worse.returncode, json.loads(worse.stdout)["problems"]) == (1, ["two: passed 100%, now 0%"])
    alone = sums("eval", "evals:sums")
    assert (alone.returncode, alone.stderr) == (1, "agentflow: the pass rate is 50%, but should be at least 100%\n")
    assert sums("eval", "evals:sums", "--min-rate", "0.5", "--save", "new.json").returncode == 0
    assert sums("eval", "evals:sums", "--baseline", "new.json").returncode == 0
    assert sums("eval", "evals:sums", "--baseline", "new.json", "--min-rate", "0.6").returncode == 1


@pytest.mark.parametrize(("arguments", "most"), [([], 8), (["--concurrency", "9"], 9), (["--concurrency", "1"], 1)])
def test_at_most_some_calls_run_at_once(sums: Any, arguments: list[str], most: int) -> None:
    """As many as `--concurrency` says, by default 8."""
    Path(sums.folder, "many.py").write_text(MANY, "utf-8")
    done = sums("eval", "many:many", *arguments)
    assert (done.returncode, done.stderr, Path(sums.folder, "most.txt").read_text("utf-8")) == (0, "", str(most))


def test_the_schema(sums: Any) -> None:
    """It is written without a call, and names the dataset's own checks."""
    done = sums("eval", "evals:sums", "--schema", "schema.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    schema = json.loads((sums.folder / "schema.json").read_text("utf-8"))
    assert schema["$defs"]["check"]["anyOf"][-1]["enum"] == ["short"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["evals:number"], "evals:number is of type int, not a Dataset."),
        (
            ["evals:sums", "--baseline", "none.json"],
            "The baseline none.json cannot be read: No such file or directory.",
        ),
        (["evals:sums", "--baseline", "other.json"], "The baseline is of the dataset 'other', not 'sums'."),
        (["evals:sums", "--save", "no/such.json"], "No such file or directory"),
    ],
)
def test_what_is_refused(sums: Any, arguments: list[str], error: str) -> None:
    """One line and exit code 2; a baseline is read before the first call."""
    other = {"form": "agentflow.evaluation", "dataset": "other", "agent": "a", "trials": []}
    Path(sums.folder, "other.json").write_text(json.dumps(other), "utf-8")
    done = sums("eval", *arguments)
    assert (done.returncode, error in done.stderr, done.stderr.count("\n")) == (2, True, 1)


def test_a_file_that_is_wrong(sums: Any) -> None:
    """The line of the YAML file is in the error."""
    Path(sums.folder, "sums.yaml").write_text(YAML.replace("rounds: 1", "rounds: one"), "utf-8")
    done = sums("eval", "evals:sums")
    assert done.returncode == 2
    assert "sums.yaml, line 3: checks[0].within.rounds: Input should be a valid integer." in done.stderr
