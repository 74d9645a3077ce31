"""The Python blocks of README and docs, as files that a type checker reads.

A block is a program of its own. One with `await` at its top level stands for the body of an `async def main()`: what comes from
the first `await` on is put into one.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN_ONLY = "# pyright: " + ", ".join(
    f"reportUnused{kind}=false" for kind in ("Class", "Function", "Variable", "Expression")
)
"""An example may define what it does not use."""


def write_blocks(folder: Path) -> int:
    """Write each block into a file of its own, named for its page and line; say how many there are."""
    count = 0
    for page in PAGES:
        text = page.read_text("utf-8")
        for found in FENCE.finditer(text):
            line = text.count("\n", 0, found.start(1)) + 1
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
            (folder / f"{name}_{line}.py").write_text(f"{SHOWN_ONLY}\n{_as_module(found[1])}", "utf-8")
            count += 1
    return count


def _as_module(source: str) -> str:
    code = compile(source, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if not code.co_flags & inspect.CO_COROUTINE:
        return source
    statements = ast.parse(source).body
    first = next(number for number, statement in enumerate(statements) if _awaits(statement))
    lines = source.splitlines(keepends=True)
    start = statements[first].lineno - 1
    shared = sorted(_bound(statements[:first]) & _bound(statements[first:]))
    head = "\n\nasync def the_example() -> None:\n" + (f"    global {', '.join(shared)}\n" if shared else "")
    return "".join(lines[:start]) + head + textwrap.indent("".join(lines[start:]), "    ")


def _bound(statements: list[ast.stmt]) -> set[str]:
    """The names that are assigned at the top level."""
    names: set[str] = set()
    open_ones: list[ast.AST] = list(statements)
    while open_ones:
        node = open_ones.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.comprehension):
            open_ones.extend(ast.iter_child_nodes(node))
    return names


def _awaits(statement: ast.stmt) -> bool:
    one = ast.Module([statement], [])
    code = compile(one, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return bool(code.co_flags & inspect.CO_COROUTINE)
