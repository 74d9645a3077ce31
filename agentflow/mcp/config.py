"""Read the usual JSON file of servers: `{"mcpServers": {"name": {"command": ..., "args": [...], "env": {...}}}}`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, cast

from pydantic_core import from_json

from agentflow._support.shown import one_line
from agentflow._support.values import frozen
from agentflow.errors import UsageError

# `${env:NAME}` is VS Code's form, `${NAME:-default}` that of shells.
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
# The names of transports in the files of different clients, and the field that each requires.
_KINDS = {
    "stdio": "command",
    "http": "url",
    "streamable-http": "url",
    "streamableHttp": "url",
    "streamable_http": "url",
}


@frozen
class ServerEntry:
    """A server in a file."""

    name: str
    command: str | None
    args: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    url: str | None
    headers: Mapping[str, str]


def read_config(path: str | PathLike[str]) -> list[ServerEntry]:
    """Read the servers of a file, except those with `"disabled": true`.

    Raises:
        UsageError: The file is unreadable, or an entry is invalid.
    """
    try:
        data: object = from_json(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"The MCP servers of {os.fspath(path)!r} cannot be read: {one_line(str(error))}.") from error
    top = cast("Mapping[str, object]", data if isinstance(data, Mapping) else {})
    # VS Code calls the field "servers".
    servers = top["mcpServers"] if "mcpServers" in top else top.get("servers")
    if not isinstance(servers, Mapping):
        raise UsageError(f'{os.fspath(path)!r} has no "mcpServers": {{"name": {{"command": "...", "args": []}}}}.')
    found = cast("Mapping[str, object]", servers)
    return [
        _entry(f"{os.fspath(path)!r}, server {name!r}", name, cast("Mapping[str, object]", entry))
        for name, entry in found.items()
        if not (isinstance(entry, Mapping) and cast("Mapping[str, object]", entry).get("disabled") is True)
    ]


def _entry(where: str, name: str, data: object) -> ServerEntry:
    if not isinstance(data, Mapping):
        raise UsageError(f'{where}: expected {{"command": ...}} or {{"url": ...}}, not {type(data).__name__}.')
    entry = cast("Mapping[str, Any]", data)
    kind = entry.get("type", entry.get("transport"))
    if kind is not None and not (isinstance(kind, str) and kind in _KINDS):
        raise UsageError(f"{where}: unknown type {one_line(str(kind))!r}. Use one of {', '.join(_KINDS)}.")
    command, url = _text(where, entry, "command"), _text(where, entry, "url")
    needed = _KINDS.get(kind or "", "command" if command is not None else "url")
    if (command is None) == (url is None) or entry.get(needed) is None:
        raise UsageError(f'{where}: give either a "command" (with "args", "env", "cwd") or a "url" (with "headers").')
    args = cast("object", entry.get("args", []))
    if not isinstance(args, list):
        raise UsageError(f'{where}: "args" must be a list of strings.')
    return ServerEntry(
        name,
        command,
        tuple([_expanded(where, "args", arg) for arg in cast("list[object]", args)]),
        _texts(where, entry, "env"),
        _text(where, entry, "cwd"),
        url,
        _texts(where, entry, "headers"),
    )


def _text(where: str, entry: Mapping[str, Any], key: str) -> str | None:
    return None if entry.get(key) is None else _expanded(where, key, entry[key])


def _texts(where: str, entry: Mapping[str, Any], key: str) -> dict[str, str]:
    values: object = entry.get(key) or {}
    if not isinstance(values, Mapping):
        raise UsageError(f'{where}: "{key}" must be a mapping of strings.')
    return {
        name: _expanded(where, f"{key}.{name}", value) for name, value in cast("Mapping[str, object]", values).items()
    }


def _expanded(where: str, key: str, value: object) -> str:
    """Replace references to environment variables. Error messages do not contain values, which may be secrets."""
    if not isinstance(value, str):
        raise UsageError(f'{where}: "{key}" must be a string, not {type(value).__name__}.')

    def fill(match: re.Match[str]) -> str:
        default = cast("str | None", match[2])
        found = os.environ.get(match[1], default)
        if found is None:
            raise UsageError(f'{where}: "{key}" refers to the environment variable {match[1]}, which is not set.')
        return found

    return _VARIABLE.sub(fill, value)
