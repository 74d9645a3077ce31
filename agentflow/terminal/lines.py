"""What a person types, line by line: at a terminal with editing and a history of lines, from a pipe as it comes.

Rules:

1. The event loop goes on while a line is awaited.
2. The end of the input, Ctrl-D and Ctrl-C at the prompt are an `EOFError`.
3. In a pipe there is no prompt: what is printed is the agent's.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterable, Callable
from contextlib import suppress
from typing import Any, Protocol, TextIO, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.output import create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from agentflow.ground.shown import printable

__all__ = ["GivenLines", "Lines", "PipedLines", "TerminalLines", "standard_input"]

_PIECE = 65_536


class Lines(Protocol):
    """Where lines come from."""

    person: bool
    """Whether somebody types them at a terminal."""

    async def read(self, prompt: str) -> str:
        """The next line, without its end.

        Args:
            prompt: What is shown in front of it.

        Raises:
            EOFError: There is none.
        """
        ...


class TerminalLines:
    """Lines that a person types; the arrow keys bring back the earlier ones."""

    person = True

    def __init__(self) -> None:
        # Where standard output is a pipe, the person sees standard error.
        output = create_output(sys.stdout if sys.stdout.isatty() else sys.stderr)
        if isinstance(output, Vt100_Output):
            output.enable_cpr = False  # nothing here asks where the cursor is, and not every terminal answers
        self._talk: PromptSession[str] = PromptSession(output=output)
        self._asked: PromptSession[str] = PromptSession(output=output)

    async def read(self, prompt: str) -> str:
        """See `Lines`; only what is said to the agent is remembered, and not what answers a question."""
        asking = self._talk if prompt == SAY else self._asked
        shown = FormattedText([("bold", printable(prompt))])
        try:
            return await asking.prompt_async(shown, handle_sigint=False)
        except KeyboardInterrupt:
            raise EOFError from None


class PipedLines:
    """Lines of a file or a pipe, read in a thread.

    Args:
        file: From where.
    """

    person = False

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._buffer = b""
        self._lock = threading.Lock()

    async def read(self, prompt: str) -> str:
        """See `Lines`."""
        line = await _in_thread(self._next)
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def _next(self) -> str:
        with self._lock:
            file = self._file
            if file is None:
                return ""
            try:
                number = file.fileno()
            except (OSError, ValueError):  # no file of the system's: a text in memory
                return file.readline()
            # Past the file's own buffer: a thread that waits in it would keep Python from ending.
            while b"\n" not in self._buffer and (piece := os.read(number, _PIECE)):
                self._buffer += piece
            line, end, self._buffer = self._buffer.partition(b"\n")
            return (line + end).decode(file.encoding or "utf-8", "replace")


class GivenLines:
    """Lines that a program gives, shown as if they were typed.

    Args:
        lines: The lines.
        echo: Shows one.
    """

    person = False

    def __init__(self, lines: AsyncIterable[str], echo: Callable[[str], object]) -> None:
        self._lines = aiter(lines)
        self._echo = echo

    async def read(self, prompt: str) -> str:
        """See `Lines`."""
        try:
            line = await anext(self._lines)
        except StopAsyncIteration:
            raise EOFError from None
        self._echo(f"{prompt}{line}")
        return line


SAY = "you> "
"""The prompt in front of what is said to the agent."""


def standard_input() -> Lines:
    """Standard input, as a terminal or as a pipe."""
    given = cast("TextIO | None", sys.stdin)  # None without a console
    if given is None or given.closed or not given.isatty():
        return PipedLines(None if given is None or given.closed else given)
    return TerminalLines()


async def _in_thread(work: Callable[[], str]) -> str:
    """Run blocking work in a daemon thread: one that waits for input must not keep the program from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[str] = loop.create_future()

    def settle(set_it: Callable[[Any], object], value: object) -> None:
        if not done.done():
            set_it(value)

    def run() -> None:
        try:
            settled = (done.set_result, work())
        except BaseException as error:  # noqa: BLE001, RUF100 - it is raised where the line is awaited
            settled = (done.set_exception, error)
        with suppress(RuntimeError):  # the loop has gone
            loop.call_soon_threadsafe(settle, *settled)

    threading.Thread(target=run, name="agentflow: input", daemon=True).start()
    return await done
