"""Input lines: from a terminal with editing and a history, from a pipe, or from a program.

Rules:

1. The event loop runs while a line is awaited.
2. End of input, Ctrl-D and Ctrl-C at the prompt raise `EOFError`.
3. In a pipe no prompt is printed: the output contains only the agent's text.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncIterable, Callable
from typing import Protocol, TextIO, cast

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.output import create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from agentflow._support.daemon import in_daemon
from agentflow._support.shown import printable

_READ_SIZE = 65_536


class Lines(Protocol):
    """A source of input lines."""

    person: bool
    """Whether a person types the lines in a terminal."""

    async def read(self, prompt: str) -> str:
        """Read the next line, without its line ending.

        Args:
            prompt: The text to show before the line.

        Raises:
            EOFError: There are no more lines.
        """
        ...


def prompt_session() -> PromptSession[str]:
    """Create an editor for typed lines, with its own history."""
    # If standard output is a pipe, the user sees standard error.
    output = create_output(sys.stdout if sys.stdout.isatty() else sys.stderr)
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False  # not needed, and not every terminal reports the cursor position
    return PromptSession(output=output)


class TerminalLines:
    """Lines that a person types; the arrow keys recall earlier ones."""

    person = True

    def __init__(self) -> None:
        self._talk = prompt_session()
        self._session = prompt_session()

    async def read(self, prompt: str) -> str:
        """Read a line; see `Lines`. The history contains messages to the agent, but not answers to questions."""
        asking = self._talk if prompt == SAY else self._session
        shown = FormattedText([("bold", printable(prompt))])
        try:
            # Keep our own Ctrl-C handler, not the editor's.
            return await asking.prompt_async(shown, handle_sigint=False)
        except KeyboardInterrupt:
            raise EOFError from None


class PipedLines:
    """Lines of a file or a pipe, read in a thread.

    Args:
        file: The file.
    """

    person = False

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self._buffer = b""
        self._lock = threading.Lock()

    async def read(self, prompt: str) -> str:
        """See `Lines`."""
        line = await in_daemon(self._next)  # waiting for input must not keep the program from exiting
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
            except (OSError, ValueError):  # not a system file, but text in memory
                return file.readline()
            # Bypass the file's buffer: Python cannot exit while a thread waits in it.
            while b"\n" not in self._buffer and (piece := os.read(number, _READ_SIZE)):
                self._buffer += piece
            line, end, self._buffer = self._buffer.partition(b"\n")
            return (line + end).decode(file.encoding or "utf-8", "replace")


class ProgramLines:
    """Lines from a program, shown as if they were typed.

    Args:
        lines: The lines.
        echo: Shows a line.
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
"""The prompt for messages to the agent."""


def standard_input() -> Lines:
    """Return standard input, as a terminal or as a pipe."""
    file = cast("TextIO | None", sys.stdin)  # None without a console
    if file is None or file.closed or not file.isatty():
        return PipedLines(None if file is None or file.closed else file)
    return TerminalLines()
