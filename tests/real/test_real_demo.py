"""`agentflow demo --real`: the whole agent of the demo, on a real model in a process of its own."""

import subprocess
import sys

import pytest


@pytest.mark.timeout(1_000)  # the model's process has a low priority, so a busy machine hardly runs it
def test_the_demo_keeps_the_files_whatever_a_real_model_says() -> None:
    """Five rounds, a guard that vetoes, files that are still there; exit code 0."""
    command = [sys.executable, "-m", "agentflow", "demo", "--real"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Gemma 3 270M at http://127.0.0.1:" in done.stdout
    assert "list_files" in done.stdout
    assert done.stdout.rstrip().endswith("All 3 files still exist.")
