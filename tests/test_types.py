"""The types are part of the product: pyright, strict, over package, samples and `tests/typing`.

`tests/typing/typical.py` is what users write, `api.py` beside it says what the checker infers for them, `wrong.py` what it
refuses: there an error that is no longer found is one itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from docs_blocks import write_blocks

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parent.parent


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    """Return pyright's report on a folder with its own settings."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", str(folder)]
    quiet = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # or it asks the network for its newest version
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=quiet)


@pytest.mark.timeout(1800)  # pyright takes minutes on a busy machine
def test_the_checker_finds_nothing() -> None:
    """Strict pyright is content, and the mistakes that it must find are found."""
    done = checked(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(1800)
def test_the_checker_finds_nothing_in_the_docs(tmp_path: Path) -> None:
    """Each block of README and docs passes strict pyright as a program of its own."""
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "reportMissingTypeStubs": "none"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    assert write_blocks(tmp_path) > 150
    done = checked(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
