"""Match patterns of names, such as `"delete_*"`; cached, because the same few are matched repeatedly."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache


@lru_cache(maxsize=1024)
def fits(patterns: tuple[str, ...], name: str) -> bool:
    """Whether one of the patterns matches a name.

    Example:
        >>> fits(("read_*", "list_*"), "read_file")
        True
    """
    return any(pattern == name or fnmatchcase(name, pattern) for pattern in patterns)
