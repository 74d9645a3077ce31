"""The process that the tests' worker processes come from: it has loaded what they need, so that a start is a fork.

`nursery.py FD`: on that socket it is told what to start (with the file that is its standard output) or whose state is wanted,
a line of JSON each, and answers with one. A worker is a process like any other: it has its environment, its arguments, and its
program is run as `__main__`.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import socket
import sys
from typing import Any

import program


def become(files: list[int], start: list[str], env: dict[str, str]) -> None:
    """Be the worker, to its end."""
    os.dup2(files[0], sys.stdout.fileno())
    os.close(files[0])
    os.environ.clear()
    os.environ.update(env)
    sys.argv = start
    runpy.run_path(start[0], run_name="__main__")


def state(pid: int) -> dict[str, Any]:
    """Whether it has ended, or has been stopped since it was last asked for."""
    changed, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    stopped = bool(changed) and os.WIFSTOPPED(status)
    return {"stopped": stopped, "code": os.waitstatus_to_exitcode(status) if changed and not stopped else None}


def serve(asked: socket.socket) -> None:
    """Do as told, until nobody is there any more."""
    while True:
        text, files, _, _ = socket.recv_fds(asked, 2**20, 1)
        if not text:
            return
        order = json.loads(text)
        if "state" in order:
            answer = state(order["state"])
        else:
            pid = os.fork()
            if not pid:
                asked.close()
                become(files, **order)
                return
            os.close(files[0])
            answer = {"pid": pid}
        asked.sendall(json.dumps(answer).encode())


if __name__ == "__main__":
    assert program
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
