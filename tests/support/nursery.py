"""A process that other processes come from: it has imported what they need, so that a start is a fork.

`nursery.py FD MODULE...`: on that socket it receives orders, a line of JSON each, and answers with one: what to start (with the
files that are its standard streams), or whose state is wanted. A program is a process like any other: it has its environment,
its folder, its arguments, and is run as `__main__`.
"""

from __future__ import annotations

import builtins
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

ROOT = Path(__file__).parents[2]


class Nursery:
    """Starts programs in a process that has imported some modules.

    Args:
        modules: The modules.
        paths: Folders to import from, besides the repository's.
    """

    def __init__(self, *modules: str, paths: tuple[Path, ...] = ()) -> None:
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *modules],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT))), "PYTHONUTF8": "1"},
                pass_fds=[theirs.fileno()],
            )

    def start(self, start: list[str], env: dict[str, str], files: dict[int, int], **more: Any) -> int:
        """Start a program; its process id.

        Args:
            start: A file (`.py`) or a module, and arguments.
            env: Its environment.
            files: Open files, by the number that they have there: 1 is its standard output.
            more: Its folder, `cwd`; the warnings that are not errors there, `ignored`: otherwise no warning is an error;
                whether its standard input is a `terminal` of its own.
        """
        return self._ask(tuple(files.values()), start=start, env=env, numbers=list(files), **more)["pid"]

    def run(
        self, start: list[str], env: dict[str, str], stdin: str = "", seconds: float = 60, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end, for which it has some seconds; `more` as for `start`."""
        with TemporaryFile("w+", encoding="utf-8") as typed, TemporaryFile() as out, TemporaryFile() as err:
            typed.write(stdin)
            typed.seek(0)
            pid = self.start(start, env, {0: typed.fileno(), 1: out.fileno(), 2: err.fileno()}, **more)
            code = self.code(pid, seconds)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(start, code, out.read().decode(), err.read().decode())

    def state(self, pid: int) -> dict[str, Any]:
        """Whether a program has ended, or has stopped since the last check."""
        return self._ask(state=pid)

    def code(self, pid: int, seconds: float = 60) -> int:
        """Wait for the end of a program, and return its exit code."""
        until = time.monotonic() + seconds
        while (code := self.state(pid)["code"]) is None:
            assert time.monotonic() < until, f"the process {pid} did not end within {seconds:g} s"
            time.sleep(0.01)  # another process is waited for
        return code

    def _ask(self, files: tuple[int, ...] = (), **order: Any) -> dict[str, Any]:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(order).encode()], files)
            return json.loads(self._socket.recv(2**16))

    def end(self) -> None:
        """It ends when it is left alone."""
        self._socket.close()
        assert self._process.wait(60) == 0


# ---- in the nursery's process


def become(
    files: list[int],
    start: list[str],
    env: dict[str, str],
    numbers: list[int],
    cwd: str | None = None,
    ignored: list[str] | None = None,
    terminal: bool = False,
) -> None:
    """Be the program, to its end."""
    if terminal:
        import fcntl
        import termios

        os.setsid()
        fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)
    for file, number in zip(files, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
        if number < 3:  # the stream that was there has the position of the nursery's file, if that had one
            encoding = env.get("PYTHONIOENCODING", "utf-8")
            stream = open(number, "w" if number else "r", encoding=encoding, closefd=False)  # noqa: SIM115
            setattr(sys, ("stdin", "stdout", "stderr")[number], stream)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = start
    if cwd is not None:
        os.chdir(cwd)
        sys.path[0] = cwd
    if ignored is not None:
        warnings.simplefilter("error")
        for name in ignored:
            warnings.simplefilter("ignore", getattr(builtins, name))
    if start[0].endswith(".py"):
        sys.path[0] = str(Path(start[0]).parent)
        runpy.run_path(start[0], run_name="__main__")
    else:
        runpy.run_module(start[0], run_name="__main__", alter_sys=True)


def state(pid: int) -> dict[str, Any]:
    """Whether it has ended, or has been stopped since the last check."""
    changed, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    stopped = bool(changed) and os.WIFSTOPPED(status)
    return {"stopped": stopped, "code": os.waitstatus_to_exitcode(status) if changed and not stopped else None}


def serve(orders: socket.socket) -> None:
    """Follow orders until the other side closes."""
    while True:
        text, files, _, _ = socket.recv_fds(orders, 2**20, 3)
        if not text:
            return
        order = json.loads(text)
        if "state" in order:
            answer = state(order["state"])
        else:
            pid = os.fork()
            if not pid:
                orders.close()
                become(files, **order)
                return
            for file in files:
                os.close(file)
            answer = {"pid": pid}
        orders.sendall(json.dumps(answer).encode())


if __name__ == "__main__":
    for module in sys.argv[2:]:
        import_module(module)
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
