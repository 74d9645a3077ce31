"""Reads tables of rules (`*.tsv`) in this folder."""

from pathlib import Path


def rows(table: str) -> list[list[str]]:
    """Read the rows of a table, without its header.

    Example:
        >>> rows("content_rules.tsv")[0][:2]
        ['openai', 'image']
    """
    text = Path(__file__).with_name(table).read_text("utf-8")
    return [line.split("\t") for line in text.splitlines()[1:]]
