"""Worker processes that tests start and kill."""

from __future__ import annotations

import os
import signal
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

    def is_frozen(self, worker: subprocess.Popen[str]) -> None:
        """Wait until it has stopped itself."""
        _, status = os.waitpid(worker.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def thaw_and_end(self, worker: subprocess.Popen[str]) -> None:
        """Let a frozen worker go on, and end as it would at a deploy; wait until it has."""
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGCONT)
        assert worker.wait(60) == 0

    def kill(self, worker: subprocess.Popen[str]) -> None:
        """`kill -9`."""
        worker.kill()
        worker.wait()
        if worker.stdout is not None:
            worker.stdout.close()
        self._alive.remove(worker)

    @property
    def hold(self) -> Path:
        """While this file exists, tools that have written their line wait."""
        return self.log.with_name("hold")

    def waiting(self, hold: str) -> set[int]:
        """The processes that have a tool which waits, since this was written into `hold`."""
        file = self.log.with_name("waiting")
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return {int(line[1]) for line in lines if line[0] == hold}

    def lines(self) -> list[list[str]]:
        """What the tools have written."""
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def end(self) -> None:
        """Kill what is left."""
        for worker in list(self._alive):
            self.kill(worker)
