"""No agent: Starlette sends the text, the least that a stream can cost under uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from benchmarks.peers.kit import Plan


def app(plan: Plan, streams: int) -> Any:
    """Return the application."""

    async def events() -> AsyncIterator[bytes]:
        for text in plan.pieces:
            yield b"event: text\ndata: %s\n\n" % text.encode()
            await asyncio.sleep(plan.pause)

    async def call(request: Request) -> StreamingResponse:
        await request.json()
        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route("/", call, methods=["POST"])])
