"""Blocks of pages that are drawn from the source, between two comments."""

from __future__ import annotations

from typing import Final

__all__ = ["with_block"]

END: Final = "<!-- end -->"


def with_block(page: str, module: str, text: str) -> str:
    """Return the page with another text in the block that `python -m MODULE` writes.

    Raises:
        ValueError: The page has no such block.
    """
    opening = f"<!-- python -m {module} -->\n"
    before, begin, rest = page.partition(opening)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no block between {opening.strip()!r} and {END!r}")
    return f"{before}{begin}{text}{end}{after}"
