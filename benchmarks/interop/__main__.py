"""`python -m benchmarks.interop`: others' clients and agents on our wire servers, as a table.

Each group gets an environment of its own, made with the first run; the versions are pinned here and printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

from benchmarks.interop.driven import CLIENTS, Row, drive

PINNED = {
    "clients": ["openai==3.54.0", "anthropic==2.12.0"],
    "agents": [
        "pydantic-ai-slim[openai,anthropic]==2.68.0",
        "openai-agents==0.24.0",
        "langgraph==1.2.22",
        "langchain-openai==1.7.3",
        "langchain-anthropic==1.7.7",
    ],
}


def environment(home: Path, name: str) -> Path:
    """An environment with what is pinned, made if it is not there."""
    place = home / name
    if not (place / "bin" / "python").exists():
        print(f"making {place}: {' '.join(PINNED[name])}", flush=True)
        venv.create(place, with_pip=True)
        subprocess.run([place / "bin" / "python", "-m", "pip", "install", "--quiet", *PINNED[name]], check=True)
    return place


def rows(home: Path) -> Iterator[Row]:
    """All cases."""
    for script, name in CLIENTS.items():
        yield from drive(script, environment(home, name) / "bin" / "python")


def main() -> None:
    """Parse the command line and run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interop", description=__doc__)
    parser.add_argument(
        "--home", type=Path, default=cache / "agentflow" / "interop", help="where environments are made"
    )
    home: Path = parser.parse_args().home
    failed = 0
    who = ""
    for row in rows(home):
        if row.who != who:
            who = row.who
            print(f"\n{who} {' '.join(f'{name} {number}' for name, number in row.versions.items())}", flush=True)
        failed += not row.ok
        print(f"  {'ok    ' if row.ok else 'FAILED'} {row.case}{'' if row.ok else ': ' + row.why}", flush=True)
    print(f"\n{failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
