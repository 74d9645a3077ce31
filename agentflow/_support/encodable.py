"""Make text encodable as UTF-8."""

from __future__ import annotations


def encodable(text: str) -> str:
    r"""Join the halves of surrogate pairs, which streams may split, and replace lone halves, which UTF-8 does not allow.

    Example:
        >>> encodable("\ud83d" + "\ude00 and \ud83d")
        '😀 and �'
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
