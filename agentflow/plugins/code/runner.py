"""The main module of `Bubblewrap`'s process: it limits the process, then runs the program.

It is passed as text, and imports only the standard library.

The program could write to the channel itself, but would gain nothing: a message can only call functions or end the program.
"""

from __future__ import annotations

import ast
import io
import json
import linecache
import os
import resource
import sys
import traceback
from typing import Any

NAME = "<program>"


class FunctionError(Exception):
    """A function failed, or was refused."""


class Printed(io.StringIO):
    """Collects the printed text, up to a limit."""

    limit = 0

    def write(self, text: str) -> int:
        room = self.limit - self.tell()
        super().write(text[: max(0, room)])
        if room < len(text):
            raise MemoryError(f"the program printed more than {self.limit} characters")
        return len(text)


class Channel:
    """Lines of JSON over the original standard input and output. The program gets the null device instead."""

    def __init__(self) -> None:
        self._reads, self._writes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)

    def receive(self) -> dict[str, Any]:
        return json.loads(self._line())

    def send(self, message: object) -> None:
        self._write(json.dumps(message).encode())

    def exchange(self, message: str) -> str:
        """Call functions, and return their results."""
        self._write(message.encode())
        return self._line().decode()

    def _line(self) -> bytes:
        line = self._reads.readline()
        if not line:
            os._exit(1)  # the other side has closed the pipe
        return line

    def _write(self, line: bytes) -> None:
        self._writes.write(line + b"\n")
        self._writes.flush()


def limit_process(limits: dict[str, int]) -> None:
    for limit, number in limits.items():
        kind = getattr(resource, limit)
        hard = resource.getrlimit(kind)[1]
        number = number if hard == resource.RLIM_INFINITY else min(number, hard)  # a limit cannot exceed the hard one
        resource.setrlimit(kind, (number, number))


def main() -> None:
    """Run the program, which is the first message on standard input."""
    channel = Channel()
    channel.send("ready")
    settings = channel.receive()
    limit_process(settings["limits"])
    Printed.limit = settings["output"]
    sys.stdout = sys.stderr = output = Printed()
    own: dict[str, Any] = {}
    exec(settings["source"], own)
    names: dict[str, Any] = {"__name__": "__main__"}
    names |= own["functions_of"](channel.exchange, FunctionError, settings["functions"], settings["longest"])
    try:
        reason = run(settings["code"], names, output)
        output.limit = sys.maxsize  # finalizers of the program's objects may print more
        text = output.getvalue()
    except MemoryError as problem:  # no memory is left even for a traceback
        text, reason = "", f"MemoryError: {problem}"
    names.clear()  # free the memory of the program, because the message needs some
    channel.send({"output": text, "error": reason})
    os._exit(0)


def run(code: str, names: dict[str, Any], output: Printed) -> str | None:
    """Run the program, and print the value of its last statement if that is an expression.

    Returns:
        The reason why it failed; None if it did not.
    """
    # Tracebacks show lines from this cache. Without a modification time, the entry is not checked against a file.
    linecache.cache[NAME] = (len(code), None, code.splitlines(keepends=True), NAME)
    try:
        tree = ast.parse(code, NAME)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, NAME, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), NAME, "eval"), names)
            if value is not None:
                print(repr(value), file=output)
    except SystemExit as ended:
        return None if ended.code in (None, 0) else f"SystemExit: {ended.code}"
    except BaseException as error:  # whatever the model's program raises is its result
        # The traceback begins with frames of this file, which are skipped.
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename != NAME:
            frame = frame.tb_next
        return "".join(traceback.format_exception(type(error), error, frame, limit=-20))[-8_000:].rstrip()
    return None


if __name__ == "__main__":
    main()
