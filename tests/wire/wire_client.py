"""A bare client for the wire servers: what went over the wire, byte for byte, and as events."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from wire_examples import AUTH, KEYS

from agentflow.testing.wire import WireServer
from agentflow.testing.wire.jsonish import JsonObject


@dataclass(frozen=True, slots=True)
class Got:
    """An answer: status, headers, all bytes that came, and the client error that ended it, if one did."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    error: str | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[tuple[str | None, Any]]:
        """Name and data of each event; data that is no JSON stays text. Comments are skipped."""
        found: list[tuple[str | None, Any]] = []
        for part in self.body.decode().replace("\r\n", "\n").split("\n\n"):
            lines = [line for line in part.split("\n") if line and not line.startswith(":")]
            fields = dict(line.split(": ", 1) for line in lines)
            if "data" in fields:
                data = fields["data"]
                found.append((fields.get("event"), json.loads(data) if data.startswith("{") else data))
        return found


async def ask(server: WireServer, body: JsonObject, **more: Any) -> Got:
    """Send one request and read the whole answer, or as much of it as comes."""
    headers = {**AUTH, **KEYS}
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url, json={**body, **more}, headers=headers) as response,
    ):
        data, error = b"", None
        try:
            async for piece in response.content.iter_any():
                data += piece
        except aiohttp.ClientError as failure:
            error = type(failure).__name__
        return Got(response.status, {name.lower(): value for name, value in response.headers.items()}, data, error)
