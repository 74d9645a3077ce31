"""An environment for each side: made once by venv and pip, kept in a folder, made again when its requirements change.

Rules:

1. Nothing is built from source: a side without available wheels is named with pip's reason, and the race continues.
2. agentflow's is an editable install of this repository: a change of its code needs no new one, other dependencies do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.pinned import Entry

__all__ = ["ROOT", "Unavailable", "default_place", "python_of"]

ROOT = Path(__file__).resolve().parents[2]
_PYTHON = Path("Scripts/python.exe") if os.name == "nt" else Path("bin/python")


class Unavailable(Exception):  # noqa: N818 - the reason is printed
    """Why a side cannot take part."""


def default_place() -> Path:
    """The default folder of environments: the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "agentflow-peers"


def python_of(entry: Entry, place: Path) -> Path:
    """The interpreter of a side's environment, which is made if it is not there.

    Raises:
        Unavailable: It cannot be installed.
    """
    home = place / f"{entry.name}-{sys.version_info.major}.{sys.version_info.minor}"
    python, mark = home / _PYTHON, home / "peers.json"
    project = (ROOT / "pyproject.toml").read_text("utf-8") if "." in entry.requirements else ""
    wanted = json.dumps([*entry.requirements, sys.version, project])
    if not (python.exists() and mark.exists() and mark.read_text("utf-8") == wanted):
        _make(entry, home, python)
        mark.write_text(wanted, "utf-8")
    return python


def _make(entry: Entry, home: Path, python: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(home)])
    wanted = [item for name in entry.requirements for item in (["--editable", str(ROOT)] if name == "." else [name])]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    _run([*pip, "--only-binary", ":all:", *wanted])


def _run(command: list[str]) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    ended = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ended.stderr.splitlines()
        raise Unavailable(" ".join(errors[:1])[:300] or f"pip ended with {ended.returncode}")
