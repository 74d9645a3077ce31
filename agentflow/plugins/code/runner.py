"""The first code inside the sandbox, passed as text: limits the process, then runs the program. It imports only the standard
library.

The program could write to the channel itself, which grants it nothing: all that the channel can do is to call functions.
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
    """Keeps what is printed, up to a limit."""

    limit = 0

    def write(self, text: str) -> int:
        room = self.limit - self.tell()
        super().write(text[: max(0, room)])
        if room < len(text):
            raise MemoryError(f"the program printed more than {self.limit} characters")
        return len(text)


def main() -> None:
    """Run the program that comes first over standard input."""
    reads, writes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)

    def send(message: object) -> None:
        line = json.dumps(message).encode()
        if len(line) > given["longest"]:
            raise ValueError(f"a message of {len(line)} bytes is too long; at most {given['longest']} are possible")
        writes.write(line + b"\n")
        writes.flush()

    def call(pending: list[LaterCall]) -> list[Any]:
        send({"calls": [{"name": one.name, "arguments": one.arguments} for one in pending]})
        line = reads.readline()
        if not line:
            os._exit(1)
        return json.loads(line)["results"]

    def value_of(result: dict[str, Any]) -> Any:
        if result["error"] is not None:
            raise FunctionError(result["error"])
        return result["value"]

    class LaterCall:
        def __init__(self, name: str, arguments: dict[str, object]) -> None:
            self.name = name
            self.arguments = arguments

    class Function:
        def __init__(self, name: str, parameters: list[str]) -> None:
            self.__name__ = name
            self._parameters = parameters

        def later(self, *args: object, **kwargs: object) -> LaterCall:
            if len(args) > len(self._parameters):
                raise TypeError(f"{self.__name__}() takes at most {len(self._parameters)} arguments, not {len(args)}")
            return LaterCall(self.__name__, {**dict(zip(self._parameters, args)), **kwargs})  # noqa: B905 - checked above

        def __call__(self, *args: object, **kwargs: object) -> Any:
            return value_of(call([self.later(*args, **kwargs)])[0])

    def together(*pending: LaterCall) -> list[Any]:
        for one in pending:
            if not isinstance(one, LaterCall):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
                raise TypeError("together() takes calls such as search.later(text='bees')")
        return [value_of(result) for result in call(list(pending))] if pending else []

    given: dict[str, Any] = json.loads(reads.readline())
    for limit, number in given["limits"].items():
        kind = getattr(resource, limit)
        hard = resource.getrlimit(kind)[1]
        number = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(kind, (number, number))
    Printed.limit = given["output"]
    sys.stdout = sys.stderr = output = Printed()
    names: dict[str, Any] = {"__name__": "__main__", "FunctionError": FunctionError, "together": together}
    names.update((name, Function(name, parameters)) for name, parameters in given["functions"].items())
    try:
        error = run(given["code"], names, output)
        output.limit = sys.maxsize
        text, reason = output.getvalue(), error
    except MemoryError as problem:  # no memory is left even for a traceback
        text, reason = "", f"MemoryError: {problem}"
    names.clear()
    send({"output": text, "error": reason})
    os._exit(0)


def run(code: str, names: dict[str, Any], output: Printed) -> str | None:
    """Run the program, and print the value of its last line; return why it failed."""
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
    except BaseException as error:
        place = error.__traceback__
        while place is not None and place.tb_frame.f_code.co_filename != NAME:
            place = place.tb_next
        return "".join(traceback.format_exception(type(error), error, place, limit=-20))[-8_000:].rstrip()
    return None


if __name__ == "__main__":
    main()
