"""Worker processes that tests start and kill."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import IO

from nursery import Nursery

__all__ = ["Worker", "Workers"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Worker:
    """A worker process.

    Attributes:
        pid: Its number.
        stdout: What it prints.
    """

    def __init__(self, nursery: Nursery, command: list[str], env: dict[str, str]) -> None:
        reading, writing = os.pipe()
        self.stdout: IO[str] = os.fdopen(reading)
        self._nursery = nursery
        try:
            self.pid = nursery.start(command, env, {1: writing})
        finally:
            os.close(writing)
        self._code: int | None = None

    def wait(self, seconds: float = 60) -> int:
        """Wait for its end, and return the exit code."""
        if self._code is None:
            self._code = self._nursery.code(self.pid, seconds)
        return self._code

    def wait_until_stopped(self) -> None:
        """Wait until it has stopped itself."""
        while not (state := self._nursery.state(self.pid))["stopped"]:
            assert state["code"] is None, f"the worker {self.pid} has ended: {state['code']}"
            time.sleep(0.01)

    def send_signal(self, sent: signal.Signals) -> None:
        """Send a signal to it, if it has not ended."""
        if self._code is None:
            os.kill(self.pid, sent)


class Workers:
    """Worker processes on one database.

    Attributes:
        log: Where their tools write.
    """

    def __init__(self, nursery: Nursery, url: str, log: Path, lease: float) -> None:
        self.log = log
        self._nursery = nursery
        self._url = url
        self._lease = lease
        self._alive: list[Worker] = []

    def start(self, program: Path = HERE / "program.py", **env: str) -> Worker:
        """Start a worker; `ready` waits until it works."""
        command = [str(program), self._url, str(self.log), env.get("LEASE", str(self._lease))]
        made = Worker(self._nursery, command, {**os.environ, "PYTHONPATH": str(ROOT), **env})
        self._alive.append(made)
        return made

    def ready(self, worker: Worker) -> Worker:
        """Wait until it works."""
        assert worker.stdout.readline() == "ready\n"
        return worker

    def is_frozen(self, worker: Worker) -> None:
        """Wait until it has stopped itself."""
        worker.wait_until_stopped()

    def thaw_and_end(self, worker: Worker) -> None:
        """Let a frozen worker continue, and end as at a deployment; wait for that."""
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGCONT)
        assert worker.wait() == 0

    def kill(self, worker: Worker) -> None:
        """`kill -9`."""
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdout.close()
        self._alive.remove(worker)

    @property
    def hold(self) -> Path:
        """While this file exists, tools that have written their line wait."""
        return self.log.with_name("hold")

    def waiting(self, hold: str) -> set[int]:
        """Return the processes with a tool that waits, since this was written to `hold`."""
        file = self.log.with_name("waiting")
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return {int(line[1]) for line in lines if line[0] == hold}

    def lines(self) -> list[list[str]]:
        """Return the lines that the tools have written."""
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def end(self) -> None:
        """Kill the remaining processes."""
        for worker in list(self._alive):
            self.kill(worker)
