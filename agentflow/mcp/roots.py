"""The folders in which servers may work (MCP's roots), checked both when they are passed and when a function returns them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from os import PathLike, fspath
from pathlib import Path
from typing import TypeAlias, cast

from pydantic import FileUrl, ValidationError

from agentflow.errors import UsageError
from agentflow.mcp.sdk import types

Folders: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]
Roots: TypeAlias = Folders | Callable[[], Folders | Awaitable[Folders]]
"""Folders and files, as paths or `file://` URIs; or a function that returns them whenever a server asks."""


def folders_of(folders: Folders) -> tuple[types.Root, ...]:
    """Convert roots for the protocol; a relative path is resolved against the working directory.

    Raises:
        UsageError: A root is neither a path nor a `file://` URI.

    Example:
        >>> [(root.name, str(root.uri)) for root in folders_of(["/srv/notes", "file:///srv/code"])]
        [('notes', 'file:///srv/notes'), ('code', 'file:///srv/code')]
    """
    if isinstance(folders, str | PathLike):
        folders = [folders]
    if not isinstance(cast("object", folders), Iterable):
        raise UsageError(f"roots={folders!r}: pass paths or file:// URIs, or a function that returns them.")
    return tuple([_root(folder) for folder in folders])


def _root(folder: str | PathLike[str]) -> types.Root:
    text: object = fspath(folder) if isinstance(cast("object", folder), str | PathLike) else folder
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"roots: {folder!r} is neither a path nor a file:// URI.")
    try:
        uri = text if "://" in text else Path(text).absolute().as_uri()
        return types.Root(uri=FileUrl(uri), name=uri.rstrip("/").rpartition("/")[2] or None)
    except (ValidationError, ValueError) as error:
        raise UsageError(f"roots: {text!r} is neither a path nor a file:// URI.") from error


async def listed_roots(roots: Roots) -> types.ListRootsResult:
    """Return the current roots.

    Raises:
        UsageError: The function returned an invalid root.
    """
    current = roots() if callable(roots) else roots
    if isinstance(current, Awaitable):
        current = await current
    return types.ListRootsResult(roots=list(folders_of(current)))
