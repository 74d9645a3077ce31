"""Docstrings, comments and pages use the words that well-known Python libraries use, about as often as they do.

Rates are per 10,000 words. The upper limits are just above the rates of this project, and at most twice the range found in
trio, httpx, structlog and anyio. Print the table with `python -m tests.test_plain_words [FOLDER ...]`, or
`pytest -s tests/test_plain_words.py`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "agentflow"
FENCE = re.compile(r"^ *```(.*?)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

AT_MOST = {
    "what": 14,
    "where": 10,
    "somebody|nobody|anybody": 2,
    "behind": 1,
    "told|tells|telling": 2,
    "stands|stand": 1,
    "pieces?": 2,
    "whoever": 0.5,
    "anew": 0.5,
    "any more": 0.5,
    "as far as": 0.5,
    "is over|are over": 0.5,
    "comes to|came to": 0.5,
    "in (?:the )?place of": 0.5,
    "gone on with|goes on|go on": 0.5,
    "gives|gave": 3,
    "whose": 4,
    "cut": 2,
    "words": 5,
    "lets? go": 0.5,
    "must not|may not|shall": 7,
    "cannot": 13,
}
AT_LEAST = {"if": 32, "should": 4.5}

TOOLS = ("benchmarks", "website")
"""Folders of tools, which state few conditions: the lower limits do not hold for them."""

COLUMNS = [*AT_MOST, *AT_LEAST]

# Folders that have not been rewritten yet, each with a ceiling for every word of AT_MOST, in that order. Delete a
# folder's row when it meets the limits, and rename it with its folder. "top" is the modules directly in agentflow/.
PENDING = """
"""


COMMENT = re.compile(r"(?:^|[ \t])(#[ !:].*)$", re.MULTILINE)


def prose(source: str) -> str:
    """Return the docstrings and comments of a module, in lower case."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    found += COMMENT.findall(source)  # tokens would be exact, and take most of this file's time
    return "\n".join(found).lower()


def page_prose(text: str) -> str:
    """Return a Markdown page in lower case, of its code only docstrings and comments of Python blocks."""
    blocks = [source for language, source in FENCE.findall(text) if language == "python"]
    outside = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)
    return "\n".join([re.sub(r"`[^`\n]*`", "", outside).lower(), *map(prose, blocks)])


@cache
def prose_by_folder() -> dict[str, str]:
    """Return the prose of each folder of the package, of the whole package as "all", of the pages and of the samples."""
    folders: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        folder, *rest = path.relative_to(PACKAGE).parts
        text = prose(path.read_text("utf-8"))
        folders[folder if rest else "top"].append(text)
        folders["all"].append(text)
    for name in TOOLS:
        folders[name] = [prose(path.read_text("utf-8")) for path in sorted((ROOT / name).rglob("*.py"))]
    folders["samples"] = [prose(path.read_text("utf-8")) for path in sorted((ROOT / "samples").rglob("*.py"))]
    folders["docs"] = [page_prose(path.read_text("utf-8")) for path in sorted((ROOT / "docs").rglob("*.md"))]
    for name in ("README", "CHANGELOG"):
        folders[name] = [page_prose((ROOT / f"{name}.md").read_text("utf-8"))]
    return {folder: "\n".join(texts) for folder, texts in folders.items()}


@cache
def size(text: str) -> int:
    return len(re.findall(r"[a-z']+", text))


@cache
def count(word: str, text: str) -> int:
    return len(re.findall(rf"\b(?:{word})\b", text))


def rate(word: str, text: str) -> float:
    return 10_000 * count(word, text) / max(size(text), 1)


def pending() -> dict[str, dict[str, int]]:
    rows = [line.split() for line in PENDING.splitlines() if line]
    return {folder: dict(zip(AT_MOST, map(int, ceilings), strict=True)) for folder, *ceilings in rows}


def exceeded(text: str, at_least: Iterable[str] = AT_LEAST) -> list[str]:
    """List the words that a text uses too often, or not often enough. Allowed counts are rounded."""
    words = size(text) / 10_000
    return [
        *(
            f"{word!r} {count(word, text)}x, at most {round(n * words)}"
            for word, n in AT_MOST.items()
            if count(word, text) > round(n * words)
        ),
        *(
            f"{word!r} {count(word, text)}x, at least {int(AT_LEAST[word] * words)}"
            for word in at_least
            if count(word, text) < int(AT_LEAST[word] * words)
        ),
    ]


def table(*folders: str) -> str:
    """Return the rates of these folders, or of all, as a table."""
    texts = {name: text for name, text in prose_by_folder().items() if name in folders or not folders}
    lines = [f"{'words per 10,000':26}{'limit':>7}" + "".join(f"{name[:6]:>7}" for name in texts)]
    for word in COLUMNS:
        limit = f"<={AT_MOST[word]}" if word in AT_MOST else f">={AT_LEAST[word]}"
        lines.append(f"{word:26}{limit:>7}" + "".join(f"{rate(word, text):7.1f}" for text in texts.values()))
    lines.append(f"{'words':33}" + "".join(f"{size(text):7}" for text in texts.values()))
    lines.append(f"{'limits exceeded':33}" + "".join(f"{len(exceeded(text)):7}" for text in texts.values()))
    return "\n".join(lines)


@pytest.mark.ci
def test_rates_of_the_folders() -> None:
    """Each folder meets the limits, unless it is pending: then no word gets more frequent."""
    print("\n" + table())
    rows = pending()
    problems: dict[str, list[str]] = {}
    for folder, text in prose_by_folder().items():
        if folder in rows:
            problems[folder] = [
                f"{word!r} {rate(word, text):.1f} per 10,000 words, at most {ceiling} while pending"
                for word, ceiling in rows[folder].items()
                if rate(word, text) > ceiling
            ]
        elif folder != "all" or not rows:
            problems[folder] = exceeded(text, () if folder in TOOLS else AT_LEAST)
    assert {folder: words for folder, words in problems.items() if words} == {}


def test_prose_of_a_page() -> None:
    """The text of a page counts, without code, except docstrings and comments of Python blocks."""
    page = "Write `what`:\n\n```python\nwhat = 1  # Why\n```\n\n```console\n$ what\n```\n"
    assert page_prose(page).split() == ["write", ":", "#", "why"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Module."""\nx = 1  # Why\n', "module.\n# why"),
        ('def f():\n    """Doc."""\n    return "not prose"\n', "doc."),
    ],
)
def test_prose_is_docstrings_and_comments(source: str, expected: str) -> None:
    assert "\n".join(line for line in prose(source).splitlines() if line) == expected


if __name__ == "__main__":
    print(table(*sys.argv[1:]))
