"""The laws of replay as users record: default ids, files, folders and SQL, agents within agents; nobody leaves before the end.

A bounded part of `soak_replay.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from laws_programs import Program, programs
from laws_recorded import KEPT, STAYING, program_departs, team_departs
from test_laws_replay import NAMES, replayable


@pytest.mark.parametrize("number", [*range(40), 352, 682, 894, 2291, 8222214])  # the last ones diverged once
def test_a_team_that_was_recorded_runs_again_as_it_did(number: int, tmp_path: Path) -> None:
    """Sub-agents, workflows, hand-offs, typed answers and MCP tools, with ids of any kind."""
    assert team_departs(number, KEPT[number % len(KEPT)], tmp_path) is None


@settings(max_examples=settings().max_examples // 4)
@given(programs(names=NAMES, paths=STAYING).map(replayable), st.sampled_from(KEPT))
def test_a_program_that_is_not_cut_runs_again_as_it_did(
    tmp_path_factory: pytest.TempPathFactory, program: Program, kept: str
) -> None:
    """Wherever its log is kept."""
    note(repr(program))
    assert program_departs(program, kept, tmp_path_factory.mktemp("logs")) is None
