"""Comparison of an evaluation with a baseline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentflow import Msg
from agentflow.errors import UsageError
from agentflow.testing.evaluation import Case, CaseResult, Dataset, Evaluation, compare, read_baseline
from agentflow.testing.evaluation.comparing import Change
from agentflow.vocabulary.messages import DataBlock


def task(answers: Mapping[str, Sequence[str]]) -> Any:
    """A function that answers each input with the next of its values."""
    left = {key: iter(values) for key, values in answers.items()}
    return lambda text: next(left[text])


def length(trial: Any) -> float:
    return float(len(trial.text))


async def run(
    answers: Mapping[str, Sequence[str]], *cases: Case, name: str = "letters", checks: Any = (length,)
) -> Evaluation:
    repeats = len(next(iter(answers.values())))
    given = cases or tuple(Case(key, "x", key) for key in answers)
    return await Dataset(name, given, checks, task(answers), repeats).evaluate(concurrency=1)


@pytest.fixture
async def baseline(tmp_path: Path) -> Path:
    """Cases that pass always, sometimes and never."""
    path = tmp_path / "baseline.json"
    (await run({"always": "xxxxx", "often": "xxxxy", "never": "yyyyy"})).save(path)
    return path


async def test_cases_are_compared_by_their_rates(baseline: Path) -> None:
    """Worse, better and the same; a tolerance; the table; scores that do not change."""
    report = await run({"always": "xxxxy", "often": "xxxxy", "never": "xyyyy"})
    found = compare(report, baseline)
    assert found.changes == (
        Change("always", "worse", 1.0, 0.8),
        Change("often", "same", 0.8, 0.8),
        Change("never", "better", 0.0, 0.2),
    )
    assert found.problems == ("always: passed 100%, now 80%",)
    assert compare(report, baseline, tolerance=0.2).problems == ()
    assert [line.split("│")[1:-1] for line in str(found).splitlines() if "always" in line] == [
        [" always           ", " worse  ", " 100%    ", " 80%     "]
    ]
    assert (round(found.rate.mean, 6), found.scores["length"].mean, found.cost) == (0.0, 0.0, (None, None))


async def test_what_cannot_be_compared_fails(baseline: Path) -> None:
    """A case that is missing or has another input, a check that breaks, a score that is gone; a new case is only listed."""

    def broken(trial: Any) -> Any:
        raise KeyError("x")

    cases = (Case("always", "x", "always"), Case("often", "x", "often", (broken,)), Case("never", "y", "never"))
    report = await run(
        {"always": "x", "often": "x", "never": "y", "new": "x"}, *cases, Case("new", "x", "new"), checks=()
    )
    found = compare(report, baseline)
    assert [(change.name, change.status) for change in found.changes] == [
        ("always", "same"),
        ("often", "worse"),
        ("never", "changed"),
        ("new", "new"),
        ("always, score length", "missing"),
        ("often, score length", "missing"),
    ]
    assert found.problems[:1] == ("often: a check could not be evaluated",)
    assert "never: its input or expected output differs from the baseline" in found.problems
    fewer = compare(await run({"always": "x"}), baseline)
    assert list(fewer.problems) == [
        "often: it is only in the baseline",
        "never: it is only in the baseline",
    ]


async def test_a_score_is_worse_if_the_difference_is_certain(baseline: Path) -> None:
    """Differences of the cases' means below zero, not a single lower one."""
    lower = await run({"always": ("x",), "often": ("x",), "never": ("",)})
    found = compare(lower, baseline, tolerance=0.9)
    assert (found.scores["length"].mean, found.problems) == (pytest.approx(-1 / 3), ())

    def half(trial: Any) -> float:
        return 0.5

    half.__name__ = "length"
    report = await run({"always": "x", "often": "x", "never": "y"}, checks=(half,))
    assert compare(report, baseline).problems == ("score length: -0.5",)


async def test_a_baseline_of_something_else_is_refused(baseline: Path) -> None:
    """Of another dataset, without a common case, or no results at all."""
    other = await run({"always": "x"}, name="digits")
    with pytest.raises(UsageError, match="is of the dataset 'letters', not 'digits'"):
        compare(other, baseline)
    with pytest.raises(UsageError, match="has no case of this evaluation"):
        compare(await run({"else": "x"}), baseline)
    with pytest.raises(UsageError, match="at least 0 and below 1"):
        compare(await run({"always": "x"}), baseline, tolerance=1)


def test_a_file_that_has_no_results_is_refused(tmp_path: Path) -> None:
    """Other forms, wrong types, JSON that is none, no file."""
    trial = {"form": "agentflow.evaluation", "dataset": "letters", "agent": "a", "trials": [{"name": 3}]}
    for text in ("", "[1]", '{"form": "agentflow.backtest"}', json.dumps(trial), "[" * 9999):
        (tmp_path / "wrong.json").write_text(text, "utf-8")
        with pytest.raises(UsageError, match="contains no results of an evaluation"):
            read_baseline(tmp_path / "wrong.json")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_baseline(tmp_path / "none.json")


def test_the_digest_of_a_case_does_not_depend_on_the_order_of_a_set() -> None:
    """Equal sets can print their items in different orders, which also differ between processes."""
    ours, theirs = (CaseResult(Case(items), ()) for items in ({0, 8}, {8, 0}))
    assert ours.digest == theirs.digest


def test_the_digest_of_a_case_depends_on_its_images() -> None:
    """The digest of a message that is only text is the same as in older files of results."""
    texts = [Msg.user("What is this?"), Msg.user("What is this?", id="other")]
    images = [Msg.user("What is this?", DataBlock.from_bytes(content, "image/png")) for content in (b"cat", b"dog")]
    digests = [CaseResult(Case(message), ()).digest for message in (*texts, *images)]
    assert digests[0] == digests[1] == "57f438d55085a6ff"
    assert len(set(digests)) == 3
