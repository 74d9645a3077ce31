"""The client of Monty's interpreter: it runs from its text in a process of its own, and reads and writes lines of JSON.

When its input is closed, it ends the interpreter and itself, even while a program runs.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import time
import tokenize
import traceback
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NoReturn

import pydantic_monty as monty

OWN = "<python-input-0>"
"""The file name in tracebacks of the code that `MontyRun.begin` runs first."""
MAX_SUSPENSIONS = 100_000
"""The maximum number of calls, sleeps and refused requests of a program."""
SLEEPS = ("time.sleep", "asyncio.sleep")
_BLOCKS = ("if", "for", "while", "with", "try", "else", "def", "class", "async")
"""The keywords of statements that may contain other statements on the same line."""


def exchange() -> None:
    """Placeholder for the function through which the program calls others; not called here."""


class ClientPipes:
    """Lines of JSON on standard input and output."""

    worker: int | None = None
    """The process id of the interpreter."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()  # notices a closed input while the program runs

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._lines.put(line)
        self.end(0)

    def receive(self) -> Any:
        return json.loads(self._lines.get())

    def send(self, line: str) -> None:
        sys.stdout.buffer.write(line.encode() + b"\n")
        sys.stdout.buffer.flush()

    def end(self, code: int) -> NoReturn:
        self.end_worker()
        os._exit(code)  # a normal exit can abort the process, because of the library's threads

    def end_worker(self) -> None:
        if self.worker is not None:
            with suppress(OSError):  # the interpreter has ended already
                os.kill(self.worker, signal.SIGTERM)


class MontyRun:
    """A run of the program."""

    def __init__(self, channel: ClientPipes, settings: dict[str, Any]) -> None:
        self.channel = channel
        self.settings = settings
        self.limit: int = settings["output"]
        self.printed = io.StringIO()

    def write(self, stream: str, text: str) -> None:
        # One character more than the limit is stored, to show that the limit was exceeded.
        self.printed.write(text[: self.limit + 1 - self.printed.tell()])
        if self.printed.tell() > self.limit:
            self.channel.end_worker()  # `run` then reports the limit instead of a crash

    def run(self, session: monty.MontySession) -> dict[str, str | None]:
        reason: str | None = None
        try:
            found = self.begin(session)
            while not isinstance(found, monty.MontyComplete):
                found = self.answer(found)
        except monty.MontyCrashedError as error:
            reason = f"The program was ended: {error}."
        except (monty.MontyRuntimeError, monty.MontySyntaxError) as error:
            reason = self.reason(error)
        text = self.printed.getvalue()
        if len(text) > self.limit:
            reason = f"MemoryError: the program printed more than {self.limit} characters"
        return {"output": text[: self.limit], "error": reason}

    def begin(self, session: monty.MontySession) -> monty.SyncSnapshot:
        """Run the code that defines the functions, then start the program.

        The functions are defined first, so that the program cannot replace the names that their code uses.
        """
        names = ["FunctionError", "together", *self.settings["functions"]]
        prepared = [
            self.settings["source"],
            "def __show__(value, repr=repr, print=print):",
            "    if value is not None:",
            "        print(repr(value))",
            f"__made__ = functions_of(__exchange__, RuntimeError, __parameters__, {self.settings['longest']})",
            *(f"{name} = __made__[{name!r}]" for name in names),
        ]
        inputs = {"__exchange__": exchange, "__parameters__": self.settings["functions"]}
        session.feed_run("\n".join(prepared), inputs=inputs)
        code: str = self.settings["code"]
        at = last_statement(code)
        if at is not None and is_expression(code[at:], session):
            code = f"{code[:at]}__show__(({code[at:]}\n))"
        return session.feed_start(code, print_callback=self.write)

    def answer(self, found: monty.SyncSnapshot) -> monty.SyncSnapshot:
        """Answer a request of the program: a function call, a sleep, or any other, which is refused."""
        assert not isinstance(found, monty.MontyComplete)
        if not isinstance(found, monty.FunctionSnapshot):
            return found.resume_auto()
        if found.function_name == exchange.__name__ and not found.is_os_function:
            match found.args:
                # The program can call `exchange` itself, and a line break would split its message in two.
                case (str() as message,) if "\n" not in message:
                    self.channel.send(message)
                case _:
                    self.channel.send("")  # not JSON, so the program is ended
            return found.resume({"return_value": json.dumps(self.channel.receive())})
        if found.function_name in SLEEPS and found.is_os_function:
            time.sleep(found.args[0])
            return found.resume({"return_value": None})
        return found.resume_auto()

    def reason(self, error: monty.MontyRuntimeError | monty.MontySyntaxError) -> str | None:
        """Return a traceback with only the program's lines, or None if the program exited without an error."""
        match error.exception():
            case SystemExit(code=ended):
                return f"SystemExit: {ended}" if ended else None
            case _:
                pass
        lines: list[str] = self.settings["code"].split("\n")
        frames = [
            ("<program>", frame.line, frame.function_name or "<module>", "".join(lines[frame.line - 1 : frame.line]))
            for frame in error.traceback()
            if frame.filename != OWN
        ][-20:]
        begin = ["Traceback (most recent call last):\n", *traceback.StackSummary.from_list(frames).format()]
        return "".join([*(begin if frames else []), error.display("type-msg")])[-8_000:].rstrip()


def last_statement(code: str) -> int | None:
    """Return the index of the last statement outside of any block, in characters; None if there is none."""
    depth, begins, start, line_begins = 0, True, None, True
    block = False  # whether the line begins with a keyword of `_BLOCKS`: then ";" separates statements of the block
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type in (tokenize.INDENT, tokenize.DEDENT):
                depth += 1 if token.type == tokenize.INDENT else -1
            elif token.type == tokenize.NEWLINE:
                begins = line_begins = True
            elif token.string == ";" and not block:
                begins = True
            elif begins and token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER):
                if line_begins:
                    block = token.string in _BLOCKS
                begins = line_begins = False
                start = token.start if depth == 0 else start
    except (tokenize.TokenError, SyntaxError):
        return None
    if start is None:
        return None
    return sum(len(line) + 1 for line in code.split("\n")[: start[0] - 1]) + start[1]


def is_expression(code: str, session: monty.MontySession) -> bool:
    try:
        session.feed_run(f"lambda: (\n{code}\n)")  # the code is parsed, but not run
    except (monty.MontyRuntimeError, monty.MontySyntaxError):
        return False
    return True


def run_program(channel: ClientPipes) -> dict[str, str | None]:
    """Run the program, which is the first message on standard input."""
    settings = channel.receive()
    limits = monty.ResourceLimits(
        max_memory=settings["memory"], max_feed_duration_secs=settings["seconds"], max_suspensions=MAX_SUSPENSIONS
    )
    policy = monty.OSPolicy(sleep="call_host", random_start={"seed": settings["code"]})
    with monty.Monty(max_processes=1) as pool, pool.checkout(limits=limits, os_policy=policy) as session:
        channel.worker = session.worker_pid
        try:
            return MontyRun(channel, settings).run(session)
        finally:
            channel.worker = None


def main() -> None:
    channel = ClientPipes()
    channel.send('"ready"')
    try:
        channel.send(json.dumps(run_program(channel)))
    except Exception as error:  # the library can raise any exception
        sys.stderr.write(str(error))
        sys.stderr.flush()
        channel.end(1)
    channel.end(0)


if __name__ == "__main__":
    main()
