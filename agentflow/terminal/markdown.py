"""Render a model's text as Markdown on a terminal, block by block while it streams.

Rules:

1. Printed output is final: a block (a paragraph, a list, a table, a code block) is rendered once it is complete; until
   then its last lines are shown at the bottom as plain text.
2. The text is untrusted: HTML is shown and not interpreted, a link shows its address, and control characters are escaped,
   even those written as references such as `&#x202e;`.
3. The cost of a chunk does not depend on the length of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment, Segments
from rich.text import Text

from agentflow._support.shown import printable

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM: Final = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_MAX_BLOCK: Final = 50_000
"""The maximum number of characters of a rendered block; a longer one is shown as plain text."""

_MAX_DEPTH: Final = 15
"""The maximum nesting of lists and quotations."""

_PREVIEW: Final = 4_000
"""The number of characters of the last line that are examined."""


class Blocks:
    """Splits streamed text into Markdown blocks.

    Example:
        >>> blocks = Blocks()
        >>> [*blocks.feed("# One\\n\\nTw"), *blocks.feed("o\\n\\nThree")], blocks.rest()
        (['# One'], ['Two', 'Three'])
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._tail: list[str] = []
        self._blank = False
        self._fence = ""

    def feed(self, text: str) -> Iterator[str]:
        """Add text, and yield the blocks that are now complete."""
        first, *others = text.split("\n")
        self._tail.append(first)
        for line in others:
            yield from self._take("".join(self._tail))
            self._tail = [line]

    def _take(self, line: str) -> Iterator[str]:
        if self._fence:
            self._lines.append(line)
            closing = line.strip()
            if len(closing) >= len(self._fence) and set(closing) == {self._fence[0]}:  # CommonMark: at least as long
                self._fence = ""
            return
        if not line.strip():
            self._blank = bool(self._lines)
            return
        if self._blank and not self._continues(line):
            yield self._truncate()
        if self._blank:
            self._lines.append("")
            self._blank = False
        fence = _FENCE.match(line)
        if fence is not None:
            self._fence = fence[1]
        self._lines.append(line)

    def _continues(self, line: str) -> bool:
        """Whether a line after a blank one continues the block, because it is indented or the next item of a list."""
        return line[0] in " \t" or (_ITEM.match(self._lines[0]) is not None and _ITEM.match(line) is not None)

    def _truncate(self) -> str:
        block, self._lines, self._blank = "\n".join(self._lines), [], False
        return block

    def rest(self) -> list[str]:
        """Return the remaining blocks; called at the end of the text."""
        last = "".join(self._tail)
        blocks = [*self._take(last)] if last else []
        self._tail, self._fence = [], ""
        return [*blocks, self._truncate()] if self._lines else blocks

    def preview(self, rows: int) -> list[str]:
        """Return the last lines of the incomplete block."""
        last = "".join(self._tail[-_PREVIEW:])[-_PREVIEW:]
        return [*self._lines[-rows:], *([last] if last else [])][-rows:]


class _Heading(Heading):
    """A heading that is aligned left instead of centred."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}


def _parser() -> MarkdownIt:
    # Disable references: `[1]: http://example.com` would disappear from the output.
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")


def render_block(block: str) -> RenderableType:
    """Render a block of Markdown; if it fails or the block is very long, return it as plain text.

    Args:
        block: Text from a model.
    """
    plain = Text(printable(block))
    if len(block) > _MAX_BLOCK:
        return plain
    try:
        shown = _Markdown("", hyperlinks=False, code_theme="ansi_dark")
        shown.parsed = _parser().parse(block)
        if any(token.level > _MAX_DEPTH for token in shown.parsed):  # the parser drops deeper levels
            return plain
        _escape(shown.parsed)
    except Exception:  # noqa: BLE001, RUF100 - a model's text should not end the call
        return plain
    return shown


def lines_of(shown: RenderableType, console: Console, indent: int) -> Segments:
    """Render to lines for a console, without rich's trailing blanks.

    Args:
        shown: The renderable, such as the result of `render_block`.
        console: The console to print on.
        indent: Columns before each line.
    """
    options = console.options.update(width=max(8, console.width - indent))
    lines = console.render_lines(shown, options, pad=False)
    for line in lines:
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            line.insert(0, Segment(" " * indent))
    full = [n for n, line in enumerate(lines) if line]
    visible = lines[full[0] : full[-1] + 1] if full else []
    return Segments([segment for line in visible for segment in (*line, Segment.line())])


def _escape(tokens: Iterable[Token]) -> None:
    """Escape control characters in all text to be shown."""
    for token in tokens:
        token.content = printable(token.content)
        token.info = printable(token.info)
        token.attrs = {
            name: printable(value) if isinstance(value, str) else value for name, value in token.attrs.items()
        }
        _escape(token.children or ())
