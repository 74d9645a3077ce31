"""`import agentflow` loads nothing that a program may never use."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys
import reactivex, pydantic, loguru
before = set(sys.modules)
import agentflow
print(*sorted(name for name in sys.modules if name not in before and not name.startswith("agentflow")))
"""


def test_the_root_imports_nothing_beyond_what_it_stands_on() -> None:
    """Above `reactivex`, `pydantic` and `loguru`, only modules of our own: what pydantic puts off stays put off."""
    ended = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == []
