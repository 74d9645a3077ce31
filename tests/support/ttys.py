"""A terminal for tests: a program in a pty, and a screen emulator that shows what a person would see."""

from __future__ import annotations

import codecs
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyte
from nursery import Nursery

try:
    import fcntl
    import pty
    import struct
    import termios
except ImportError:  # Windows
    pty = None

__all__ = ["LIMIT", "Terminal", "have_terminals"]

LIMIT = 30.0
ROWS, COLUMNS = 200, 120
"""High enough that nothing scrolls away."""

have_terminals = pty is not None


class Terminal:
    """A process that believes in a person at a terminal.

    Args:
        command: The program and its arguments.
        folder: Where it runs.
        environment: What it sees; `TERM` is set.
        rows, columns: The size of the terminal.
        nursery: Where it comes from: then the command is a file (`.py`) or a module, and arguments.
        ignored: The warnings that are not errors in it, if it comes from there.

    Attributes:
        raw: All that it has printed.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: str | Path,
        environment: dict[str, str],
        rows: int = ROWS,
        columns: int = COLUMNS,
        nursery: Nursery | None = None,
        ignored: Sequence[str] = (),
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self.screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._nursery = nursery
        given = {name: value for name, value in environment.items() if name not in ("COLUMNS", "LINES")}
        given["TERM"] = "xterm-256color"
        if nursery is None:
            self.pid, self._fd = pty.fork()
            if self.pid == 0:
                os.chdir(folder)
                os.execve(command[0], list(command), given)
            self._set_size(rows, columns)
        else:
            self._fd, theirs = pty.openpty()
            self._set_size(rows, columns)
            files = dict.fromkeys(range(3), theirs)
            more = {"cwd": str(folder), "ignored": [*ignored], "terminal": True}
            self.pid = nursery.start(list(command), given, files, **more)
            os.close(theirs)
        self.raw = ""
        self._seen = 0

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, rows: int, columns: int) -> None:
        """Resize the window; the system notifies the program."""
        self.screen.resize(rows, columns)
        self._set_size(rows, columns)

    # ---- what is to be seen

    @property
    def shown(self) -> str:
        """Return the screen's rows, without trailing blanks (except those before the cursor)."""
        rows = [row.rstrip() for row in self.screen.display]
        cursor = self.screen.cursor
        rows[cursor.y] = rows[cursor.y].ljust(cursor.x)
        return "\n".join(rows).rstrip("\n")

    def wait_for(self, text: str) -> str:
        """Read until a text is on the screen after the previous one; return the text in between."""

        def found() -> str | None:
            place = self.shown.find(text, self._seen)
            if place < 0:
                return None
            start, self._seen = self._seen, place + len(text)
            return self.shown[start : self._seen]

        return self.wait_until(found, repr(text))

    def see(self, text: str) -> None:
        """Read until a text that may go away again is on the screen, such as a line of what runs."""
        self.wait_until(lambda: text if text in self.shown[self._seen :] else None, repr(text))

    def wait_until(self, found: Callable[[], str | None], what: str = "it") -> str:
        """Read until something is found on the screen."""
        end = time.monotonic() + LIMIT
        while True:
            if (there := found()) is not None:
                return there
            left = end - time.monotonic()
            assert left > 0, f"{what} did not come within {LIMIT:g} s; on the screen:\n{self.shown}"
            assert self._read(left), f"the program ended before {what} came; on the screen:\n{self.shown}"

    def _read(self, seconds: float) -> bool:
        """Take in what it prints within a time; False: it has ended."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, seconds))
        if not ready:
            return True
        try:
            piece = os.read(self._fd, 4096)
        except OSError:  # Linux's way to say that the other side is gone
            return False
        text = self._decoder.decode(piece)
        self.raw += text
        self._stream.feed(text)
        return bool(piece)

    # ---- what a person does

    def type(self, text: str) -> None:
        """Press keys; "\\x03" is Ctrl-C, which the terminal turns into a signal."""
        os.write(self._fd, text.encode())

    def end(self, again: str = "") -> int:
        """Wait for the exit code; what is still printed is read.

        `again` is pressed every five seconds until then: a second Ctrl-C tears down what ends slowly.
        """
        end = time.monotonic() + LIMIT
        pressed = time.monotonic()
        while self._read(min(1.0, max(0.0, end - time.monotonic()))):
            assert time.monotonic() < end, f"the program did not end within {LIMIT:g} s; on the screen:\n{self.shown}"
            if again and time.monotonic() - pressed > 5:
                pressed = time.monotonic()
                self.type(again)
        return self._wait()

    def _wait(self) -> int:
        pid, self.pid = self.pid, 0
        if self._nursery is not None:
            return self._nursery.code(pid)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        """Close everything."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()
        os.close(self._fd)
