"""`Frames`: the protocol's messages as lines of JSON on a pair of streams.

Rules:

1. An invalid line does not end the connection: it is answered with an error of JSON-RPC.
2. A line longer than the limit is skipped without buffering it.
3. `_meta` is removed: the official package passes its keys as arguments, next to the validated ones.
4. After the peer has closed the stream, sending raises; it never waits.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from agentflow._support.json_text import read_json_text
from agentflow._support.logs import logger

MAX_FRAME = 32 * 1024 * 1024
"""The maximum length of a line, in bytes; a prompt contains its images."""
_PARSE_ERROR = -32700
_INVALID_REQUEST = -32600


class Frames:
    """A transport of the official package over two streams of bytes.

    Args:
        reader: The client's messages, with the `limit` `MAX_FRAME`.
        writer: The messages to the client.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None after the client has closed the stream."""
        while True:
            try:
                line = await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as overrun:
                if await self._skipped(overrun):
                    await self._refuse(_PARSE_ERROR, f"Parse error: a line is longer than {MAX_FRAME} bytes")
                    continue
                return None
            except (asyncio.IncompleteReadError, ConnectionError):
                return None  # an incomplete line is not a message
            if line.isspace():
                continue
            try:
                message: object = read_json_text(line, constants=False)
            except ValueError:
                await self._refuse(_PARSE_ERROR, "Parse error: a line must be one JSON value")
                continue
            found = _message(message)
            if found is not None:
                return found
            await self._refuse(_INVALID_REQUEST, "Invalid request: a message must be an object with a method or an id")

    async def _skipped(self, overrun: asyncio.LimitOverrunError) -> bool:
        """Read to the end of a line that is too long; return False if the stream ends first."""
        while True:
            try:
                await self._reader.readexactly(overrun.consumed)  # the error leaves the bytes in the buffer
                await self._reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as more:
                overrun = more
            except (asyncio.IncompleteReadError, ConnectionError):
                return False
            else:
                return True

    async def _refuse(self, code: int, text: str) -> None:
        logger.warning("ACP: the client sent a line that is not a message ({})", text)
        await self.send({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}})

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message, and wait until the client has room for it.

        Raises:
            ConnectionError: The client has closed the stream.
        """
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        async with self._sending:
            if self._writer.is_closing():
                raise ConnectionResetError("The client has closed the connection.")
            self._writer.write(line)
            await self._writer.drain()

    async def close(self) -> None:
        """Close the writing end."""
        self._writer.close()


def _message(value: object) -> dict[str, Any] | None:
    """Return a message that the official package can dispatch; None if it cannot."""
    if not isinstance(value, dict):
        return None
    found = cast("dict[str, Any]", value)
    method, number, params = found.get("method"), found.get("id"), found.get("params")
    # An id of JSON-RPC is a text, a number or null.
    if not (method is None or isinstance(method, str)) or isinstance(number, dict | list | bool):
        return None
    if method is None and ("id" not in found or not isinstance(found.get("error", {}), dict | None)):
        return None
    if isinstance(params, dict):
        cast("dict[str, Any]", params).pop("_meta", None)
    return found
