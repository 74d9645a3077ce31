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
"""Not shown in the column of imports, since almost all folders import them."""


def imported() -> dict[str, set[str]]:
    """Return the folders of the package, and for each the other folders that it imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.glob("*/**/*.py"):
        folder = path.relative_to(PACKAGE).parts[0]
        found[folder] |= set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentflow"):
                names = [node.module or ""] if node.module != "agentflow" else [f".{name.name}" for name in node.names]
                found[folder] |= {name.split(".")[1] for name in names} - {folder, "errors"}
    return dict(found)


def purpose(folder: str) -> str:
    """Return the purpose of a folder: the first paragraph of its docstring, without references to pages."""
    source = (PACKAGE / folder / "__init__.py").read_text("utf-8")
    text = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
    return text.partition(" (`docs/")[0].partition(" See `docs/")[0].partition(" Loaded on first")[0].rstrip(".")


def table() -> str:
    """Return the table; each folder is below those that import it."""
    folders = imported()
    heights: dict[str, int] = {}

    def height(folder: str) -> int:
        if folder not in heights:
            heights[folder] = 1 + max((height(other) for other in folders[folder]), default=-1)
        return heights[folder]

    def imports_of(folder: str) -> str:
        return " ".join(sorted(folders[folder] - EVERYWHERE))

    ordered = sorted(folders, key=lambda folder: (-height(folder), folder))
    lines = ["| Folder | What it is | Imports |", "|---|---|---|"]
    lines += [f"| `{folder}/` | {purpose(folder)} | {imports_of(folder)} |" for folder in ordered]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the current table."""
    return with_block(page, "website.rooms", table())


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
