"""The sample `samples/repo_assistant` at a real terminal: questions, a no with its reason, and the screen behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nursery import Nursery
from ttys import Terminal, have_terminals

ROOT = Path(__file__).parents[2]


def test_a_person_says_yes_and_no(program: Any, tmp_path: Path, commands: Nursery) -> None:
    """Allowed tools run, others do not, and the model receives the reason."""
    if not have_terminals:
        pytest.skip("needs a pty")
    folder = tmp_path / "repository"
    command = ["samples.repo_assistant", "--folder", str(folder)]
    at = Terminal(command, ROOT, program.environment, nursery=commands)
    program.opened.append(at)
    at.wait_for("repo_assistant wants to run edit_file (no rule allows it)")
    at.wait_for("  new: (1 - discount / 100)")
    at.wait_for("n [reason] = no: ")
    at.type("y\r")
    at.wait_for("✓ edit_file: shop/prices.py: replaced 1 lines by 1.")
    at.wait_for("repo_assistant wants to run write_file (no rule allows it)")
    at.wait_for("n [reason] = no: ")
    at.type("n not now\r")
    at.wait_for("⊘ write_file (denied by Approval): not now")
    at.wait_for("⊘ bash (denied by ShellApproval)")
    at.wait_for("── completed · 7 rounds · 10 tool calls")
    assert at.end() == 0
    assert "discount / 100" in (folder / "shop" / "prices.py").read_text("utf-8")
    assert (folder / "CHANGES.md").read_text("utf-8") == "# Changes\n"
    assert "Traceback" not in at.shown
