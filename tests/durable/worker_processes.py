"""Worker processes that tests start and kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

__all__ = ["Nursery", "Worker", "Workers"]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Nursery:
    """The process that workers come from; see `nursery.py`."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "nursery.py"), str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                pass_fds=[theirs.fileno()],
            )

    def ask(self, files: tuple[int, ...] = (), **order: Any) -> dict[str, Any]:
        """Give an order; what was answered."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(order).encode()], files)
            return json.loads(self._socket.recv(2**16))

    def end(self) -> None:
        """It ends when it is left alone."""
        self._socket.close()
        assert self._process.wait(60) == 0


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
            self.pid: int = nursery.ask((writing,), start=command, env=env)["pid"]
        finally:
            os.close(writing)
        self._code: int | None = None

    def _state(self) -> dict[str, Any]:
        return self._nursery.ask(state=self.pid)

    def wait(self, seconds: float = 60) -> int:
        """Wait for its end; the exit code."""
        until = time.monotonic() + seconds
        while self._code is None:
            self._code = self._state()["code"]
            if self._code is None:
                assert time.monotonic() < until, f"the worker {self.pid} did not end within {seconds:g} s"
                time.sleep(0.01)  # another process is waited for
        return self._code

    def wait_until_stopped(self) -> None:
        """Wait until it has stopped itself."""
        while not (state := self._state())["stopped"]:
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
        """Start one; `ready` waits until it works."""
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
        """Let a frozen worker go on, and end as it would at a deploy; wait until it has."""
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
