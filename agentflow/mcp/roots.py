"""The folders that servers are told to work in (MCP's roots): checked when they are given, or when a function gives them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from os import PathLike, fspath
from pathlib import Path
from typing import TypeAlias, cast

from pydantic import FileUrl, ValidationError

from agentflow.errors import UsageError
from agentflow.mcp.sdk import types

__all__ = ["Folders", "Roots", "folders_of", "listed_roots"]

Folders: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]
Roots: TypeAlias = Folders | Callable[[], Folders | Awaitable[Folders]]
"""Folders and files, as paths or `file://` addresses; or a function that gives them whenever a server asks."""


def folders_of(given: Folders) -> tuple[types.Root, ...]:
    """Roots as the protocol has them; a path that is not absolute is one below the working directory.

    Raises:
        UsageError: One is neither a path nor a `file://` address.

    Example:
        >>> [(root.name, str(root.uri)) for root in folders_of(["/srv/notes", "file:///srv/code"])]
        [('notes', 'file:///srv/notes'), ('code', 'file:///srv/code')]
    """
    if isinstance(given, str | PathLike):
        given = [given]
    if not isinstance(cast("object", given), Iterable):
        raise UsageError(f"roots={given!r}: they are paths or file:// addresses, or a function that gives them.")
    return tuple([_root(one) for one in given])


def _root(one: str | PathLike[str]) -> types.Root:
    text: object = fspath(one) if isinstance(cast("object", one), str | PathLike) else one
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"roots: {one!r} is neither a path nor a file:// address.")
    try:
        uri = text if "://" in text else Path(text).absolute().as_uri()
        return types.Root(uri=FileUrl(uri), name=uri.rstrip("/").rpartition("/")[2] or None)
    except (ValidationError, ValueError) as error:
        raise UsageError(f"roots: {text!r} is neither a path nor a file:// address.") from error


async def listed_roots(roots: Roots) -> types.ListRootsResult:
    """The roots now.

    Raises:
        UsageError: The function gave what is no root.
    """
    given = roots() if callable(roots) else roots
    if isinstance(given, Awaitable):
        given = await given
    return types.ListRootsResult(roots=list(folders_of(given)))
