"""Programs of a user's at a terminal, as the terminal's own tests run them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "terminal_programs", Path(__file__).parent.parent / "terminal/conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
_programs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_programs)
program = _programs.program
