"""The samples run offline and print what `tests/sample_output/` says, letter by letter."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXPECTED = Path(__file__).parent / "sample_output"
SAMPLES = sorted((ROOT / "samples").glob("[0-9]*.py"))
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
"""How many lines the same hook takes where it comes from: blank lines, imports and the making of the agent apart."""

SAID = {"07_approval": "25\n"}
"""What is typed at the terminal."""

OFFLINE = "# ---- to run it here, offline"


def name_of(sample: Path) -> str:
    """A sample as tests are named by it."""
    return str(sample.relative_to(ROOT / "samples").with_suffix(""))


@pytest.mark.parametrize("sample", [*SAMPLES, *HOOKS], ids=name_of)
def test_sample(sample: Path) -> None:
    """A sample ends well, warns of nothing and prints its text."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(sample)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        input=SAID.get(name_of(sample), ""),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    expected = (EXPECTED / f"{name_of(sample)}.txt").read_text("utf-8")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, expected, "")


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
    """Each worked example of a hook (what stands before the part that runs it offline) is not longer than the original."""
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
