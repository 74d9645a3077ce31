"""Generated blocks of pages, each between two comments."""

from __future__ import annotations

from typing import Final

__all__ = ["with_block"]

END: Final = "<!-- end -->"


def with_block(page: str, module: str, text: str) -> str:
    """Return the page with a new text in the block that `python -m MODULE` writes.

    Args:
        page: The text of the page.
        module: The module that the first comment names.
        text: The new text of the block.

    Raises:
        ValueError: The page has no such block.
    """
    opening = f"<!-- python -m {module} -->\n"
    before, begin, rest = page.partition(opening)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"The page has no block between {opening.strip()!r} and {END!r}. Add the two comments.")
    return f"{before}{begin}{text}{end}{after}"
