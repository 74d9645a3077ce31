"""Pictures of the terminal: the screen of a program in a real pty, as SVG. `python -m website.screens` writes `docs/screens/`.

The pictures contain times, so no test compares them: draw them again when the output has changed, and look at them.
"""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

import pyte

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs" / "screens"
WIDE, HIGH = 8.45, 19.0
COLOURS: Final = {
    "default": "#d8dee9",
    "red": "#f0777f",
    "green": "#8fd18a",
    "brown": "#ecc873",
    "magenta": "#c79be0",
    "cyan": "#7ccfd8",
    "8a8a8a": "#8a93a5",
}
"""By the names of the emulator, which calls yellow brown. Dim text is shown in one of the 256 colours, a grey."""

PROGRAM: Final = '''
import asyncio
from agentflow import Agent, Console, ModelChunk, ToolUseBlock, Usage, tool
from agentflow.errors import ModelError
from agentflow.plugins import ModelRetry
from agentflow.testing import ScriptedModel

@tool(type="read")
async def read_logs(host: str):
    """Read logs."""
    for n in range(1, 41):
        await asyncio.sleep(0.05)
        yield f"{host}: {n * 250:,} lines\\n" if n < 40 else f"{host}: no space left on device"

@tool(type="read")
async def search(query: str) -> str:
    """Search."""
    await asyncio.sleep(2.2)
    return "a disk that is full stops the log, then the server"

async def a_moment():
    await asyncio.sleep(0.7)

def used(tokens):
    return ModelChunk(usage=Usage(input_tokens=tokens, output_tokens=tokens // 12, cost=tokens * 2.1e-6))

def call(id, name, **arguments):
    return ToolUseBlock(id, name, arguments)

researcher = Agent("researcher", ScriptedModel([
    [a_moment, call("s", "search", query="no space left on device"), used(800)],
    ["A full disk stops the log first, ", "and then the server.", used(900)],
], name="openai/gpt-5-mini"), description="Looks things up.", tools=[search])
operator = Agent("operator", ScriptedModel([
    [a_moment, "I read the logs of both hosts, ", "and ask the researcher.", call("a", "read_logs", host="web-1"),
     call("b", "read_logs", host="web-2"), call("c", "researcher", message="Why does a server stop?"), used(1200)],
    ModelError("overloaded", retryable=True, retry_after=9.0),
], name="openai/gpt-5"), tools=[read_logs, researcher], hooks=[ModelRetry()])

async def main():
    await Console(operator.stream("Why did the site stop?", children=True), children=False)

asyncio.run(main())
'''

SCENES: Final = {
    "running": (r"search\(.* 1 s", "Three tools at work, a sub-agent below the one that asks it"),
    "retry": (r"attempt 2 in 6 s", "A retry that counts down"),
}
"""For each picture, a pattern for the text on the screen at which it is taken, and its title."""


def watched(command: list[str], until: str, rows: int, columns: int) -> pyte.Screen:
    """Run a program in a terminal until a pattern matches the text on its screen; return the screen."""
    screen = pyte.Screen(columns, rows)
    stream = pyte.Stream(screen)
    process, terminal = pty.fork()
    if process == 0:
        ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        keep = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        os.execve(command[0], command, {**keep, "TERM": "xterm-256color"})
    end = time.monotonic() + 60
    try:
        while not re.search(until, "\n".join(screen.display)):
            if time.monotonic() > end or not select.select([terminal], [], [], 10)[0]:
                raise TimeoutError(f"The screen does not match {until!r}: {screen.display}")
            text = os.read(terminal, 65536).decode("utf-8", "replace")
            # The emulator does not support dim text.
            stream.feed(re.sub(r"(\x1b\[(?:\d+;)*)2((?:;\d+)*m)", r"\g<1>38;5;245\g<2>", text))
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(terminal)
    return screen


def runs(line: Any, columns: int) -> Iterator[tuple[int, str, Any]]:
    """Yield the parts of a row that have the same style: column, text, and a character with the style."""
    begin, text = 0, ""
    for column in range(columns + 1):
        char = line[column] if column < columns else None
        before = line[begin]
        if char is None or (char.fg, char.bold, char.italics) != (before.fg, before.bold, before.italics):
            if text.strip():
                yield begin, text, before
            begin, text = column, ""
        if char is not None:
            text += char.data


def drawn(screen: pyte.Screen, title: str) -> str:
    """Return a screen as SVG, in the viewer's own monospaced font."""
    last = max(row for row, text in enumerate(screen.display) if text.strip())
    wide, high = screen.columns * WIDE + 32, (last + 1) * HIGH + 58
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:g}" height="{high:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect x="0.5" y="0.5" width="{wide - 1:g}" height="{high - 1:g}" rx="9" fill="#232834" stroke="#3b4252"/>',
        *(
            f'<circle cx="{20 + 17 * n}" cy="19" r="5.5" fill="{c}"/>'
            for n, c in enumerate(("#f0777f", "#ecc873", "#8fd18a"))
        ),
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="14">',
    ]
    for row in range(last + 1):
        for column, text, char in runs(screen.buffer[row], screen.columns):
            kept = text.rstrip()
            lead = len(kept) - len(kept.lstrip())
            x, y, length = 16 + (column + lead) * WIDE, 52 + row * HIGH, len(kept.lstrip()) * WIDE
            look = f'fill="{COLOURS.get(char.fg, COLOURS["default"])}"'
            look += ' font-weight="bold"' * char.bold + ' font-style="italic"' * char.italics
            parts.append(
                f'<text x="{x:.1f}" y="{y:g}" textLength="{length:.1f}" xml:space="preserve" {look}>'
                f"{escape(kept.lstrip())}</text>"
            )
    return "\n".join([*parts, "</g>", "</svg>", ""])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, (moment, shows) in SCENES.items():
        seen = watched([sys.executable, "-c", PROGRAM], moment, 24, 92)
        (FOLDER / f"{name}.svg").write_text(drawn(seen, shows), "utf-8")
        print(f"docs/screens/{name}.svg")
