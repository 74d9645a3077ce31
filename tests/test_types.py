"""The types are part of the product: pyright, strict, over package, samples and `tests/typing`.

`tests/typing/api.py` says what the checker infers for users, `tests/typing/wrong.py` what it refuses: there an error that
is no longer found is one itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_checker_finds_nothing() -> None:
    """Strict pyright is content, and the mistakes that it must find are found."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    quiet = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # or it asks the network for its newest version
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=quiet)
    assert done.returncode == 0, done.stdout + done.stderr
