"""Worker processes that tests start and kill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["Workers"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Workers:
    """Worker processes on one database.

    Attributes:
        log: Where their tools write.
    """

    def __init__(self, url: str, log: Path, lease: float) -> None:
        self.log = log
        self._url = url
        self._lease = lease
        self._alive: list[subprocess.Popen[str]] = []

    def start(self, program: Path = HERE / "program.py", **env: str) -> subprocess.Popen[str]:
        """Start one; `ready` waits until it works."""
        command = [
            sys.executable,
            str(program),
            self._url,
            str(self.log),
            env.get("LEASE", str(self._lease)),
        ]
        made = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, stdout=subprocess.PIPE, stderr=None, text=True
        )
        self._alive.append(made)
        return made

    def ready(self, worker: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """Wait until it works."""
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        return worker

    def kill(self, worker: subprocess.Popen[str]) -> None:
        """`kill -9`."""
        worker.kill()
        worker.wait()
        if worker.stdout is not None:
            worker.stdout.close()
        self._alive.remove(worker)

    def lines(self) -> list[list[str]]:
        """What the tools have written."""
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def end(self) -> None:
        """Kill what is left."""
        for worker in list(self._alive):
            self.kill(worker)
