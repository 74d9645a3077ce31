"""`python -m benchmarks.interop`: others' clients and agents on our wire servers, our adapters on others' servers, as tables.

Each group gets an environment of its own, made with the first run; the versions are pinned here and printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

from benchmarks.interop.driven import CLIENTS, Row, drive
from benchmarks.interop.driving import drive_server
from benchmarks.interop.servers import SERVERS

PINNED = {
    "clients": ["openai==3.54.0", "anthropic==2.12.0"],
    "agents": [
        "pydantic-ai-slim[openai,anthropic]==2.68.0",
        "openai-agents==0.24.0",
        "langgraph==1.2.22",
        "langchain-openai==1.7.3",
        "langchain-anthropic==1.7.7",
    ],
    "litellm-proxy": ["litellm[proxy]==1.105.3"],
    "fakellm": ["fakellm==0.3.5"],
}
FROM_NPM = {"aimock": ["@copilotkit/aimock@1.43.0"]}


def environment(home: Path, name: str) -> Path:
    """An environment with the pinned packages, made if it is missing."""
    place = home / name
    ready = place / ".ready"
    if ready.exists():
        return place
    wanted = PINNED.get(name) or FROM_NPM[name]
    print(f"making {place}: {' '.join(wanted)}", flush=True)
    if name in FROM_NPM:
        place.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--prefix", place, "--silent", "--no-fund", "--no-audit", "--ignore-scripts"]
    else:
        venv.create(place, with_pip=True)
        install = [place / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *wanted], check=True)
    ready.touch()
    return place


def clients(home: Path) -> Iterable[Row]:
    """Others' clients and agents on our servers."""
    for script, name in CLIENTS.items():
        yield from drive(script, environment(home, name) / "bin" / "python")


def servers(home: Path) -> Iterable[Row]:
    """Our adapters on others' servers."""
    for server in SERVERS:
        wanted = PINNED.get(server.name) or FROM_NPM[server.name]
        for row in drive_server(server, environment(home, server.name)):
            row.versions = {"": ", ".join(wanted)}
            yield row


def show(rows: Iterable[Row]) -> int:
    """Print cases as they come; how many failed that should not."""
    failed, who = 0, ""
    for row in rows:
        if row.who != who:
            who = row.who
            versions = " ".join(f"{name} {number}".strip() for name, number in row.versions.items())
            print(f"\n{who}: {versions}", flush=True)
        bad = row.ok == bool(row.theirs)  # also if a known failure of another project has been fixed
        failed += bad
        mark = "FAILED" if bad else "theirs" if row.theirs else "ok    "
        print(f"  {mark} {row.case}{f': {row.theirs or row.why}' if bad or row.theirs else ''}", flush=True)
    return failed


def main() -> None:
    """Parse the command line and run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interop", description=__doc__)
    parser.add_argument(
        "--home", type=Path, default=cache / "agentflow" / "interop", help="where environments are made"
    )
    parser.add_argument("--only", choices=("clients", "servers"), help="one half")
    chosen = parser.parse_args()
    failed = 0
    for half, rows in {"clients": clients, "servers": servers}.items():
        if chosen.only in (None, half):
            print({"clients": "\nOthers' clients, our servers", "servers": "\nOur adapters, others' servers"}[half])
            failed += show(rows(chosen.home))
    print(f"\n{failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
