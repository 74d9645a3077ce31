"""Recorded runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from inspected import record


@pytest.fixture
async def runs(tmp_path: Path) -> Path:
    """A folder with two runs, of which one has a hook less."""
    folder = tmp_path / "runs"
    await record(folder)
    return folder
