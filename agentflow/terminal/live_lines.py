"""`LiveLines`: redrawn lines at the bottom of a terminal, and the output above them.

Only one thread writes at a time. While a question is open, output waits.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live

from agentflow.plugins.approval.terminal import questions

_REDRAW: Final = 0.1
"""Seconds between two redraws."""


class LiveLines:
    """Lines at the bottom of a terminal.

    Args:
        console: The console; if it writes to a file, only `write` is used.
        lines: Returns the current lines.
    """

    def __init__(self, console: RichConsole, lines: Callable[[], Group]) -> None:
        self._console = console
        self._lines = lines
        self._waiting: list[Callable[[], None]] = []  # output that waits for the end of a question
        self._live: Live | None = None
        self._removed = Event()  # ends the thread that redraws `_live`
        self._unwatch: Callable[[], object] | None = None

    def write(self, put: Callable[[], None]) -> None:
        """Write after all earlier output, and after the end of an open question."""
        with questions.terminal:
            self._waiting.append(put)
            if not questions.pending:
                self.write_waiting()

    def write_waiting(self) -> None:
        """Write the waiting output, even if a question is open."""
        with questions.terminal:
            waiting, self._waiting = self._waiting, []
            for put in waiting:
                put()

    def show(self) -> None:
        """Show the lines until they are removed, unless a question is open."""
        with questions.terminal:
            if questions.pending:
                return
            self.write_waiting()
            if self._live is not None:
                return
            # Rich's own thread is not used for redrawing: it erases lines that another thread prints at the same time.
            self._live = Live(console=self._console, get_renderable=self._lines, auto_refresh=False, transient=True)
            self._unwatch = questions.watch(self.remove)
            self._removed = Event()
            self._live.start(refresh=True)
            redraw = Thread(
                target=self._redraw, args=(self._live, self._removed), name="agentflow: screen", daemon=True
            )
            redraw.start()

    def _redraw(self, live: Live, removed: Event) -> None:
        while not removed.wait(_REDRAW):
            with questions.terminal:
                if not removed.is_set():  # removed while this thread waited for the lock
                    live.refresh()

    def refresh(self) -> None:
        """Redraw the lines now, if they are shown."""
        if self._live is not None:
            self._live.refresh()

    def remove(self) -> None:
        """Remove the lines."""
        with questions.terminal:
            live, self._live = self._live, None
            unwatch, self._unwatch = self._unwatch, None
            if unwatch is not None:
                unwatch()
            if live is not None:
                self._removed.set()
                live.stop()
