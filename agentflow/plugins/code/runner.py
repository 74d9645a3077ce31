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


class LaterCall:
    """A call of a function that has not been made."""

    def __init__(self, name: str, arguments: dict[str, object]) -> None:
        self.name = name
        self.arguments = arguments


class Channel:
    """Lines of JSON over what was standard input and output; the program gets neither."""

    longest = sys.maxsize

    def __init__(self) -> None:
        self._reads, self._writes = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)

    def receive(self) -> dict[str, Any]:
        line = self._reads.readline()
        if not line:
            os._exit(1)
        return json.loads(line)

    def send(self, message: object) -> None:
        line = json.dumps(message).encode()
        if len(line) > self.longest:
            raise ValueError(f"a message of {len(line)} bytes is too long; at most {self.longest} are possible")
        self._writes.write(line + b"\n")
        self._writes.flush()

    def call(self, *pending: LaterCall) -> list[Any]:
        """Make calls at the same time."""
        self.send({"calls": [{"name": one.name, "arguments": one.arguments} for one in pending]})
        return [value_of(result) for result in self.receive()["results"]]

    def together(self, *pending: LaterCall) -> list[Any]:
        for one in pending:
            if not isinstance(one, LaterCall):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
                raise TypeError("together() takes calls such as search.later(text='bees')")
        return self.call(*pending) if pending else []


def value_of(result: dict[str, Any]) -> Any:
    if result["error"] is not None:
        raise FunctionError(result["error"])
    return result["value"]


class Function:
    """A function of the agent, for the program."""

    def __init__(self, channel: Channel, name: str, parameters: list[str]) -> None:
        self.__name__ = name
        self._channel = channel
        self._parameters = parameters

    def later(self, *args: object, **kwargs: object) -> LaterCall:
        if len(args) > len(self._parameters):
            raise TypeError(f"{self.__name__}() takes at most {len(self._parameters)} arguments, not {len(args)}")
        return LaterCall(self.__name__, {**dict(zip(self._parameters, args)), **kwargs})  # noqa: B905 - checked above

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._channel.call(self.later(*args, **kwargs))[0]


def limit_process(limits: dict[str, int]) -> None:
    for limit, number in limits.items():
        kind = getattr(resource, limit)
        hard = resource.getrlimit(kind)[1]
        number = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(kind, (number, number))


def main() -> None:
    """Run the program that comes first over standard input."""
    channel = Channel()
    given = channel.receive()
    channel.longest = given["longest"]
    limit_process(given["limits"])
    Printed.limit = given["output"]
    sys.stdout = sys.stderr = output = Printed()
    names: dict[str, Any] = {"__name__": "__main__", "FunctionError": FunctionError, "together": channel.together}
    names.update((name, Function(channel, name, parameters)) for name, parameters in given["functions"].items())
    try:
        reason = run(given["code"], names, output)
        output.limit = sys.maxsize
        text = output.getvalue()
    except MemoryError as problem:  # no memory is left even for a traceback
        text, reason = "", f"MemoryError: {problem}"
    names.clear()
    channel.send({"output": text, "error": reason})
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
    except BaseException as error:  # whatever the model's program raises is its result
        place = error.__traceback__
        while place is not None and place.tb_frame.f_code.co_filename != NAME:
            place = place.tb_next
        return "".join(traceback.format_exception(type(error), error, place, limit=-20))[-8_000:].rstrip()
    return None


if __name__ == "__main__":
    main()
