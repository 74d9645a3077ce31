"""The program that kills and freezes workers, for as long as a test may take."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from worker_processes import ROOT

pytestmark = pytest.mark.ci


def test_workers_that_are_killed_and_frozen_lose_and_repeat_nothing() -> None:
    """`python -m benchmarks.workers --quick`, on both databases: the exit code shows that nothing was lost, repeated
    or falsely reported.
    """
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "benchmarks.workers", "--quick"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    lines = [line.split() for line in ran.stdout.splitlines()]
    for name in ("lost", "falsely failed", "effects repeated"):
        assert [int(line[-1]) for line in lines if " ".join(line[:-1]) == name] == [0, 0], ran.stdout
