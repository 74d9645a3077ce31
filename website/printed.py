"""The outputs of commands in `docs/cli.md`: `python -m website.printed` updates them, and a test compares.

Only values that depend on the machine are replaced: durations.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["BLOCKS", "PAGE", "main", "with_output"]

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"


def _parts_of_demo(printed: str) -> str:
    """Return the lines of a call that runs, of a call that is vetoed, and of the totals."""
    lines = printed.splitlines()
    first = next(n for n, line in enumerate(lines) if "→ read_file" in line)
    vetoed = next(n for n, line in enumerate(lines) if "vetoed by" in line)
    totals = next(n for n, line in enumerate(lines) if line.startswith("  outcome"))
    shown = [*lines[first : first + 2], "…", *lines[vetoed : vetoed + 2], "…", *lines[totals : totals + 6]]
    steady = re.sub(r"(?m)^(  time +).*$", r"\g<1>0.3 s", "\n".join(shown))
    return re.sub(r"  (?:<1|\d+) ms$", "  <1 ms", steady, flags=re.MULTILINE)


BLOCKS: dict[str, Callable[[str], str]] = {
    "agentflow demo": _parts_of_demo,
    "agentflow new my-shop": str.rstrip,
}
"""The commands, each with the function that returns the part of its output to show."""


def with_output(page: str) -> str:
    """Return the page with the current outputs.

    Raises:
        ValueError: The page has no block for a command.
    """
    for command, shown in BLOCKS.items():
        start = f"```console\n$ {command}\n"
        before, found, after = page.partition(start)
        if not found:
            raise ValueError(f"docs/cli.md has no block that begins with `$ {command}`. Add it.")
        rest = after.partition("\n```")[2]
        page = f"{before}{start}{shown(_printed_by(command))}\n```{rest}"
    return page


def _printed_by(command: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", *command.split()]
        ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, encoding="utf-8", check=True)
    return ran.stdout


def main() -> None:
    """Write the page with the current outputs."""
    PAGE.write_text(with_output(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
