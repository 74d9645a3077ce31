"""OpenAI Agents: `Runner.run_streamed` in a FastAPI application that streams the text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Runner
from fastapi import Body, FastAPI
from fastapi.responses import StreamingResponse
from openai.types.responses import ResponseTextDeltaEvent

from benchmarks.peers.kit import Plan
from benchmarks.peers.sides.openai_agents import build


def app(plan: Plan, streams: int) -> Any:
    """Return the application."""
    agent = build(plan)
    server = FastAPI()

    async def call(input: str = Body(embed=True)) -> StreamingResponse:  # noqa: A002 - as FastAPI wants it
        result = Runner.run_streamed(agent, input)

        async def events() -> AsyncIterator[str]:
            async for event in result.stream_events():
                if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                    yield f"event: text\ndata: {json.dumps({'text': event.data.delta})}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    server.post("/")(call)
    return server
