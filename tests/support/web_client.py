"""Applications under a real uvicorn on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

ROOT = Path(__file__).parents[2]

LIMIT = 60.0


class Server(uvicorn.Server):
    """It reports when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.listens.set()

    @property
    def url(self) -> str:
        """Where."""
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """An application under uvicorn, in this process and loop; its address."""
    server = Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=5))
    running = asyncio.create_task(server.serve())
    try:
        await asyncio.wait_for(server.listens.wait(), LIMIT)
        yield server.url
    finally:
        server.should_exit = True
        await running
