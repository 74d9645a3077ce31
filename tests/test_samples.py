"""The samples run offline and print exactly what `tests/sample_output/` contains."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nursery import Nursery

ROOT = Path(__file__).parent.parent
EXPECTED = Path(__file__).parent / "sample_output"
SAMPLES = sorted((ROOT / "samples").glob("[0-9]*.py"))
COOKBOOK = sorted(
    {*(ROOT / "samples" / "cookbook").glob("*.py")} - {ROOT / "samples" / "cookbook" / "testing_it_all.py"}
)
HOOKS = sorted((ROOT / "samples" / "hooks").glob("[0-9]*.py"))

ORIGINAL_LINES = {
    "01_log_each_tool": 8,
    "02_reflect_after_the_round": 9,
    "03_approve_before_the_round": 7,
    "04_prompt_enhancer": 12,
    "05_stream_printer": 11,
    "06_multi_event": 20,
    "07_database_log": 16,
    "08_conditional_interception": 13,
    "09_chain_of_thought": 4,
}
"""The number of lines of the original hook, without blank lines, imports and the creation of the agent."""

SAID = {"07_approval": "25\n", "cookbook/approvals_at_the_terminal": "y\nn I still need it\n"}
"""The input at the terminal."""

OFFLINE = "# ---- the offline run"


DURATION = re.compile(r"<1 ms|\d+ ms|\d+\.\d+ s\b")


def name_of(sample: Path) -> str:
    """A sample as tests are named by it."""
    return str(sample.relative_to(ROOT / "samples").with_suffix(""))


PROCESSES = {"10_crash_and_resume", "11_two_workers", "13_mcp", "17_a2a", "17_editor"}
"""Samples that start processes, which takes seconds."""


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(sample, id=name_of(sample), marks=[pytest.mark.ci] if name_of(sample) in PROCESSES else [])
        for sample in (*SAMPLES, *HOOKS, *COOKBOOK)
    ],
)
def test_sample(sample: Path, commands: Nursery) -> None:
    """A sample succeeds without a warning and prints its text."""
    ran = commands.run([str(sample)], dict(os.environ), SAID.get(name_of(sample), ""), ignored=[])
    if "needs bubblewrap" in ran.stdout:
        pytest.skip(ran.stdout)
    expected = (EXPECTED / f"{name_of(sample)}.txt").read_text("utf-8")
    assert (ran.returncode, DURATION.sub("TIME", ran.stdout), ran.stderr) == (0, DURATION.sub("TIME", expected), "")


@pytest.mark.parametrize("sample", [*SAMPLES, *HOOKS], ids=name_of)
def test_form(sample: Path) -> None:
    """A sample is one page with a docstring and a `main`."""
    text = sample.read_text("utf-8")
    assert text.startswith('"""')
    assert "def main() -> None:" in text
    assert text.endswith('if __name__ == "__main__":\n    main()\n')
    assert text.count("\n") < 80


@pytest.mark.parametrize("sample", HOOKS, ids=name_of)
def test_a_hook_is_as_short_as_its_original_or_shorter(sample: Path) -> None:
    """Each example of a hook, without the part that runs it offline, is at most as long as the original."""
    text = sample.read_text("utf-8")
    tree = ast.parse(text)
    end = text[: text.index(OFFLINE)].count("\n")
    nodes = [n for n in tree.body if n.lineno <= end and not isinstance(n, ast.Import | ast.ImportFrom | ast.Expr)]
    first = min(decorator.lineno for node in nodes for decorator in (*getattr(node, "decorator_list", ()), node))
    lines = [line for line in text.splitlines()[first - 1 : end] if line.strip()]
    assert len(lines) <= ORIGINAL_LINES[sample.stem]


def test_all_worked_examples_are_there() -> None:
    """Nine examples, none more and none less."""
    assert [sample.stem for sample in HOOKS] == sorted(ORIGINAL_LINES)


@pytest.mark.ci
@pytest.mark.parametrize("place", ["cookbook/testing_it_all.py", "repo_assistant"])
def test_the_tests_of_a_sample_pass(place: str) -> None:
    """The recipe about tests, and those of the larger samples, are run as their pages say."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(ROOT / "samples" / place)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


RECIPES = sorted((ROOT / "docs" / "cookbook").glob("*.md"))


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_a_recipe_shows_what_its_file_says(page: Path) -> None:
    """A page of the cookbook links to its sample, and quotes it exactly."""
    text = page.read_text("utf-8")
    samples = [
        (page.parent / target).read_text("utf-8") for target in re.findall(r"\]\(([./]+samples/[^)]+\.py)\)", text)
    ]
    assert samples
    for shown in re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        assert _stripped(shown) in _stripped("".join(samples))


def _stripped(code: str) -> str:
    return "\n".join(line.strip() for line in code.splitlines())


def test_each_recipe_has_its_page() -> None:
    """Each sample of the cookbook has a page."""
    told = "".join(page.read_text("utf-8") for page in RECIPES)
    assert [
        sample.name for sample in (ROOT / "samples" / "cookbook").glob("*.py") if f"{sample.name})" not in told
    ] == []
