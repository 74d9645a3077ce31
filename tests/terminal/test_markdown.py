"""A model's Markdown on a terminal: rendered block by block, and text all the same."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console as RichConsole

from agentflow.terminal.markdown import Blocks, lines_of, render_block

TEXT = """# Prices

Here is **what** I
found:

- apple

- bread

    and more

1. one

```python
def f():

    return 1
```

| a | b |
|---|---|
| 1 | 2 |

The end."""

BLOCKS = [
    "# Prices",
    "Here is **what** I\nfound:",
    "- apple\n\n- bread\n\n    and more\n\n1. one",
    "```python\ndef f():\n\n    return 1\n```",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "The end.",
]


def cut(pieces: list[str]) -> list[str]:
    blocks = Blocks()
    found = [block for piece in pieces for block in blocks.feed(piece)]
    return [*found, *blocks.rest()]


def shown(block: str, width: int = 40) -> str:
    """The printed output of a block, with the terminal's control sequences."""
    console = RichConsole(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width)
    console.print(lines_of(render_block(block), console, 2), soft_wrap=True, end="")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_blocks_are_the_same_however_the_text_comes(size: int) -> None:
    """A block ends at the beginning of the next one; code keeps its empty lines, a list its items."""
    assert cut([TEXT[n : n + size] for n in range(0, len(TEXT), size)]) == BLOCKS


@given(st.lists(st.text("ab \n`~-1.#|\t", max_size=12), max_size=12))
def test_nothing_is_lost_or_made_up(pieces: list[str]) -> None:
    """All lines with content come once, in order, however the text is split."""
    text = "".join(pieces)
    blocks = cut(pieces)
    assert blocks == cut([text])
    lines = [line for line in "\n".join(blocks).split("\n") if line.strip()]
    assert lines == [line for line in text.split("\n") if line.strip()]


def test_a_block_is_there_as_soon_as_the_next_begins() -> None:
    """The last lines of an incomplete block are shown unchanged."""
    blocks = Blocks()
    assert list(blocks.feed("One\n\n")) == []
    assert list(blocks.feed("Two\nthr")) == ["One"]
    assert list(blocks.feed("ee\nfour")) == []
    assert blocks.preview(2) == ["three", "four"]
    assert blocks.rest() == ["Two\nthree\nfour"]
    assert blocks.preview(5) == []


def test_it_is_rendered() -> None:
    """Bold, code, lists and tables as on a page; headings at the left; no blanks at the ends of lines."""
    assert "**" not in shown("**what**")
    assert "\x1b[1m" in shown("**what**")
    assert shown("- apple\n- bread").count("•") == 2
    assert "|" not in shown("| a | b |\n|---|---|\n| 1 | 2 |")
    assert all(line == line.rstrip() for line in shown("# Title\n\nwords").split("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[2J",
        "&#27;[2J and &#x1b;[2J",
        "&#x202e;evil",
        "[here](http://x/%E2%80%AE 't')",
        "<http://x/%E2%80%AE>",
        "`\x1b[2J`",
        "```\x1b]0;title\x07\n\x1b[2J\n```",
        "![alt\x1b[2J](http://x/\x9b)",
        "| \x1b[2J | &#x202e; |\n|---|---|\n| 1 | 2 |",
    ],
)
def test_it_steers_no_terminal(text: str) -> None:
    """Neither control characters nor what Markdown would make of references to them; links are text with their address."""
    raw = shown(text, 100)
    assert "\x1b[2J" not in raw
    assert not {"\u202e", "\x9b", "\x07"} & set(raw)
    assert "\x1b]" not in raw  # no title, and no link whose address is hidden


def test_html_and_addresses_are_shown() -> None:
    """Removed text would be hidden from the reader."""
    assert "<script>alert(1)</script>" in shown("<script>alert(1)</script>", 100)
    assert "a <b>bold</b> word" in shown("a <b>bold</b> word", 100)
    assert "http://evil.com" in shown("[your bank](http://evil.com)", 100)
    assert "http://source.com" in shown("[1]: http://source.com", 100)


def test_what_cannot_be_rendered_is_shown_as_it_is() -> None:
    """A very long block, and one that is nested beyond reason."""
    assert "*" * 60_000 in "".join(shown("*" * 60_000, 100).split())
    assert ">" in shown("> " * 5_000 + "deep", 100)


PROGRAM = """
from agentflow import Agent, Console
from agentflow.testing import ScriptedModel
text = TEXT
words = [text[n : n + 5] for n in range(0, len(text), 5)]

async def main():
    await Console(Agent("a", ScriptedModel([words])).stream("Hi"), **OPTIONS)

import asyncio
asyncio.run(main())
"""


def test_at_a_terminal(program: Any) -> None:
    """The reply is shown rendered, once, without the preview; or as it was written."""
    source = PROGRAM.replace("TEXT", repr(TEXT))
    at = program.at_terminal(source.replace("OPTIONS", "{}"))
    at.wait_for("completed")
    assert [" ".join(line.split()) for line in at.shown.splitlines() if line.strip("─ ")][1:-1] == [
        "Prices",
        "Here is what I found:",
        "• apple",
        "• bread",
        "and more",
        "1 one",
        "def f():",
        "return 1",
        "a b",
        "1 2",
        "The end.",
    ]
    assert [line.rstrip() for line in at.shown.splitlines() if "Here is" in line] == ["  Here is what I found:"]
    raw = program.at_terminal(source.replace("OPTIONS", "{'markdown': False}"))
    raw.wait_for("completed")
    assert "Here is **what** I" in raw.shown
