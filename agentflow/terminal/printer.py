"""`Printer`: prints lines, streamed text and rendered Markdown, above the lines for active work.

Rules:

1. Complete lines are printed above the live lines. While a line is in progress, the live lines are removed.
2. Control characters, and those that the output's encoding lacks, are escaped: printing a model's text cannot end the call.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from typing import Final, TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.text import Text

from agentflow._support.shown import printable
from agentflow.terminal.live_lines import LiveLines
from agentflow.terminal.markdown import Blocks, lines_of, render_block

_PIPE_WIDTH = 160  # without a terminal, rich assumes 80 columns
_ASCII: Final = str.maketrans(
    {"→": ">", "✓": "+", "✗": "x", "⊘": "!", "■": "#", "‖": "=", "·": "-", "…": "~", "─": "-", "↻": "~"}
)


def make_console(file: TextIO | None = None) -> RichConsole:
    """Create a console that prints plain text in a pipe, and does not wrap or colour text by itself.

    Args:
        file: The output; standard output by default.
    """
    piped = not (file or sys.stdout).isatty()
    return RichConsole(file=file, highlight=False, markup=False, emoji=False, width=_PIPE_WIDTH if piped else None)


class Printer:
    """Prints text on a console.

    Args:
        console: The console.
        lines: Returns the lines for active work.
        draws: Whether the live lines can be used.
        markdown: Whether to render text as Markdown.
        hold: Whether to hold all output until the first streamed text.
        indent: The columns before streamed text.

    Attributes:
        live: The live lines.
        plain_ascii: Whether the output's encoding has only ASCII characters.
    """

    def __init__(
        self,
        console: RichConsole,
        lines: Callable[[], Group],
        *,
        draws: bool,
        markdown: bool,
        hold: bool,
        indent: int,
    ) -> None:
        self.live = LiveLines(console, self._live_lines)
        encoding: str | None = getattr(console.file, "encoding", None)  # None: text in memory accepts any character
        self._encoding = (encoding or "utf-8").lower()
        self.plain_ascii = not self._encoding.startswith(("utf", "cp65001"))
        self._console = console
        self._lines = lines
        self._markdown = markdown and draws and not self.plain_ascii
        self._held: list[Callable[[], None]] | None = [] if hold else None
        self._indent = " " * indent
        self._open = ""  # kind (text or thinking) and source of the line in progress
        self._fresh = True  # the cursor is at the start of a line
        self._blocks: Blocks | None = None  # text to render
        self._above = False  # a block has been printed above

    @property
    def has_open_line(self) -> bool:
        """Whether a line is in progress."""
        return bool(self._open)

    @property
    def has_open_block(self) -> bool:
        """Whether the last lines of a block are shown as plain text until it is complete."""
        return self._blocks is not None

    def line(self, label: str, text: str, style: str, note: str = "") -> None:
        """Print a line."""
        line = Text(end="\n")
        line.append(self._row(label), "dim")
        line.append(self._row(text), style)
        line.append(self._row(note), "bold yellow" if "⊘" in note else "dim")
        self.end_line()
        self.print(line)

    def stream(self, kind: str, source: str, label: str, text: str, style: str) -> None:
        """Print streamed text, continuing the line in progress if it has the same kind and source."""
        if self._markdown and kind == "text" and not source:
            self._render(text)
            return
        text = self.fit(text)
        kind = f"{kind} {source}"
        if self._open != kind:
            text = text.lstrip("\n")
            if not text:
                return
            self.end_line()
            self._open = kind
            thinks = "(thinking) " if kind.startswith("thinking") else ""
            self.print(Text(self._row(label).ljust(len(self._indent)) + thinks, "dim", end=""))
            self._fresh = False
        if self._fresh:
            text = self._indent + text
        body = text.rstrip("\n")
        last = len(text) - len(body)
        self.print(Text(body.replace("\n", f"\n{self._indent}") + "\n" * last, style, end=""))
        self._fresh = last > 0

    def _render(self, text: str) -> None:
        if self._blocks is None:
            text = text.lstrip("\n")
            if not text:
                return
            self.end_line()
            self._blocks, self._above = Blocks(), False
            self.release()
        for block in self._blocks.feed(text):
            self._put(block)

    def _put(self, block: str) -> None:
        try:
            shown = lines_of(render_block(block), self._console, 2)
        except Exception:  # noqa: BLE001, RUF100 - see rule 2
            shown = lines_of(Text(printable(block)), self._console, 2)
        above, self._above = self._above, True

        def put() -> None:
            self.live.refresh()  # remove the printed text from the preview
            if above:
                self._console.print()
            self._console.print(shown, soft_wrap=True, end="")

        self.live.write(put)

    def end_line(self) -> None:
        """End the line or block in progress."""
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            for block in blocks.rest():
                self._put(block)
        if self._open and not self._fresh:
            self.print(Text("", end="\n"))
        self._open, self._fresh = "", True

    def _row(self, text: str) -> str:
        """Return the text on one line; a name from a model may contain line breaks."""
        return self.fit(text).replace("\n", "\\n")

    def fit(self, text: str) -> str:
        """Escape the characters of a text that cannot be printed."""
        text = printable(text)
        if not self.plain_ascii:
            return text
        return text.translate(_ASCII).encode(self._encoding, "backslashreplace").decode(self._encoding)

    def print(self, text: Text) -> None:
        """Print text on which `fit` was called."""

        def put() -> None:
            if self._console.is_terminal or self._console.color_system is not None:
                self._console.print(text, soft_wrap=True, end=text.end)
            else:  # no layout is needed, and a tool may print thousands of lines
                self._console.file.write(text.plain + text.end)
                self._console.file.flush()

        if self._held is not None and not self._open:  # the model's text has not started
            self._held.append(put)
            return
        if self._held is not None:
            self.release()
        elif not text.end:
            self.live.remove()
        self.live.write(put)

    def release(self) -> None:
        """Print the held output."""
        held, self._held = self._held or [], None
        self.live.remove()
        for put in held:
            self.live.write(put)

    def _live_lines(self) -> Group:
        if self._blocks is None:
            return self._lines()
        size = self._console.size
        room, width = max(1, size.height // 2), max(8, size.width - 3)
        rows = [row for line in self._blocks.preview(room) for row in textwrap.wrap(self.fit(line), width) or [""]]
        return Group(*(Text(f"  {row}", no_wrap=True) for row in rows[-room:]))
