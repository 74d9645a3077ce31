"""The race: each side in a process of its own, in turns (A B C A B C ...), on one core.

Rules:

1. A process runs all rows of one side once, in its own environment; a row shows the median of the processes, with the
   least and the most of them.
2. A side that cannot be installed, started or asked for a row is in the report with the reason.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import ROOT, Unavailable, python_of
from benchmarks.peers.pinned import Entry, named
from benchmarks.report import environment

__all__ = ["Race", "cores", "race", "serving"]


def cores() -> tuple[int | None, int | None]:
    """The core of the sides and that of the server; None if the system offers no choice."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    free = sorted(os.sched_getaffinity(0))
    return free[0], free[-1]


class Race:
    """The measurements: one report per side, with a list of figures for each row."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.sides: dict[str, dict[str, Any]] = {
            entry.name: {
                "label": entry.label,
                "why": entry.why,
                "requirements": list(entry.requirements),
                "versions": {},
                "figures": {},
                "work": {},
                "failed": {},
            }
            for entry in entries
        }

    def unavailable(self, name: str, reason: str) -> None:
        """Note that a side cannot take part."""
        self.sides[name]["unavailable"] = reason

    def add(self, name: str, report: dict[str, Any]) -> None:
        """Add the results of one process of a side."""
        side = self.sides[name]
        for key in ("versions", "work", "failed", "hooks", "notes"):
            side[key] = report[key]
        for row, value in report["figures"].items():
            side["figures"].setdefault(row, []).append(float(f"{value:.4g}"))

    def as_json(self, rounds: int) -> dict[str, Any]:
        """The whole, for the file."""
        machine = environment()
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{machine['cpus']} x {machine['processor']}, {platform.system()}, one core for the frameworks",
            "python": machine["python"],
            "rounds": rounds,
            "sides": self.sides,
        }


@contextmanager
def serving(python: Path, core: int | None):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", "benchmarks.peers.server"]
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        if core is not None:
            os.sched_setaffinity(server.pid, {core})
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.stdin.close()
            server.wait(20)


def _measure(entry: Entry, python: Path, url: str, core: int | None, quick: bool) -> dict[str, Any]:
    command = [str(python), "-m", "benchmarks.peers.runner", entry.module, "--wire", url]
    command += ["--packages", *entry.packages] + (["--quick"] if quick else [])
    if core is not None:
        command += ["--core", str(core)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
        "PYTHONPATH": str(ROOT)
    }
    try:
        with tempfile.TemporaryDirectory() as folder:  # some sides write into the folder that they run in
            ended = subprocess.run(
                command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
            )
    except subprocess.TimeoutExpired as error:
        raise Unavailable("did not end within ten minutes") from error
    if ended.returncode:
        raise Unavailable(f"did not start: {ended.stderr.strip().splitlines()[-1][:300]}")
    return json.loads(ended.stdout.splitlines()[-1])


def race(
    entries: Sequence[Entry],
    place: Path,
    rounds: int,
    *,
    quick: bool = False,
    say: Callable[[str], None] = print,
    keep: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, Any]:
    """Make the environments, run the sides in turns, keep the report after each turn of all, and return it."""
    found = Race(entries)
    pythons: dict[str, Path] = {}
    for entry in entries:
        say(f"{entry.label}: {', '.join(entry.requirements)}")
        try:
            pythons[entry.name] = python_of(entry, place)
        except Unavailable as error:
            found.unavailable(entry.name, str(error))
            say(f"  cannot be installed: {error}")
    ours, theirs = cores()
    with serving(python_of(named("agentflow"), place), theirs) as url:
        for number in range(rounds):
            for entry in entries:
                if entry.name not in pythons:
                    continue
                try:
                    found.add(entry.name, _measure(entry, pythons[entry.name], url, ours, quick))
                except Unavailable as error:
                    found.unavailable(entry.name, str(error))
                    del pythons[entry.name]
                    say(f"  {entry.label}: {error}")
            keep(found.as_json(number + 1))
            say(f"round {number + 1} of {rounds}: {', '.join(pythons)}")
    return found.as_json(rounds)
