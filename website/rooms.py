"""The table of the package's folders on the page "Architecture", drawn from the source.

`python -m website.rooms` writes it; a test compares it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

from website.blocks import with_block

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "architecture.md"
PACKAGE: Final = ROOT / "agentflow"
EVERYWHERE: Final = {"_support", "vocabulary"}
"""Left out of the column of imports: almost all import them."""


def imported() -> dict[str, set[str]]:
    """Return the folders of the package, and the others that each imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.glob("*/**/*.py"):
        room = path.relative_to(PACKAGE).parts[0]
        found[room] |= set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentflow"):
                names = [node.module or ""] if node.module != "agentflow" else [f".{name.name}" for name in node.names]
                found[room] |= {name.split(".")[1] for name in names} - {room, "errors"}
    return dict(found)


def purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    source = (PACKAGE / room / "__init__.py").read_text("utf-8")
    text = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
    return text.partition(" (`docs/")[0].partition(" See `docs/")[0].partition(" Loaded on first")[0].rstrip(".")


def table() -> str:
    """Return the table; each folder is below those that import it."""
    rooms = imported()
    above: dict[str, int] = {}

    def height(room: str) -> int:
        if room not in above:
            above[room] = 1 + max((height(one) for one in rooms[room]), default=-1)
        return above[room]

    def imports_of(room: str) -> str:
        return " ".join(sorted(rooms[room] - EVERYWHERE))

    ordered = sorted(rooms, key=lambda room: (-height(room), room))
    lines = ["| Folder | What it is | Imports |", "|---|---|---|"]
    lines += [f"| `{room}/` | {purpose(room)} | {imports_of(room)} |" for room in ordered]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the current table."""
    return with_block(page, "website.rooms", table())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
