"""The laws' harness, a part of the tests: programs as data, a world that runs them, and its checks."""

from __future__ import annotations

import sys
from pathlib import Path as _File

_TESTS = _File(__file__).parents[2] / "tests"
sys.path.extend(str(_TESTS / folder) for folder in ("support", "laws") if str(_TESTS / folder) not in sys.path)

from laws_checks import HELD, TAKEN, check_brackets, check_chunks, check_ended, check_request, law  # noqa: E402
from laws_harness import Recorder, Seen, World  # noqa: E402
from laws_programs import (  # noqa: E402
    ACTS,
    AROUND_ACTS,
    EDITS,
    EVENTS,
    STAGES,
    TOOLS,
    VERDICTS,
    AroundPlan,
    HookPlan,
    Path,
    Piece,
    Program,
)
from laws_whole import check_program  # noqa: E402
from memory import memory_folder  # noqa: E402

__all__ = [
    "ACTS",
    "AROUND_ACTS",
    "EDITS",
    "EVENTS",
    "HELD",
    "STAGES",
    "TAKEN",
    "TOOLS",
    "VERDICTS",
    "AroundPlan",
    "HookPlan",
    "Path",
    "Piece",
    "Program",
    "Recorder",
    "Seen",
    "World",
    "check_brackets",
    "check_chunks",
    "check_ended",
    "check_program",
    "check_request",
    "law",
    "memory_folder",
]
