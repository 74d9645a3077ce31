"""The samples run offline and print what `tests/sample_output/` says, letter by letter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXPECTED = Path(__file__).parent / "sample_output"
SAMPLES = sorted((ROOT / "samples").glob("[0-9]*.py"))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_sample(sample: Path) -> None:
    """A sample ends well, warns of nothing and prints its text."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(sample)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    expected = (EXPECTED / f"{sample.stem}.txt").read_text("utf-8")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, expected, "")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_form(sample: Path) -> None:
    """A sample is one page with a docstring and a `main`."""
    text = sample.read_text("utf-8")
    assert text.startswith('"""')
    assert "def main() -> None:" in text
    assert text.endswith('if __name__ == "__main__":\n    main()\n')
    assert text.count("\n") < 80
