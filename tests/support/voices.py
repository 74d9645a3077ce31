"""What tests of realtime voice share: a server that checks both sides against OpenAI's own types, and players."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from openai.types.realtime import RealtimeClientEventParam, RealtimeServerEvent
from pydantic import TypeAdapter

from agentflow import Agent, tool
from agentflow.models.realtime import OpenAIRealtime, RealtimeSession
from agentflow.testing.wire import UseTool
from agentflow.testing.wire.realtime import RealtimeServer, Spoken, tone

__all__ = [
    "ROME",
    "UTTERANCE",
    "Speaker",
    "agent_for",
    "model_for",
    "openai_server",
    "talk",
    "used_up",
    "weather",
]

UTTERANCE = tone(0.3) + bytes(24_000)
"""Something that a user says, and the silence after it."""
ROME = UseTool("weather", {"city": "Rome"}, text="Let me look.", id="call_1")


@tool
async def weather(city: str) -> str:
    """Look out of the window."""
    return f"sunny in {city}"


@cache
def _types() -> tuple[TypeAdapter[Any], TypeAdapter[Any]]:
    return TypeAdapter(RealtimeClientEventParam), TypeAdapter(RealtimeServerEvent)


@asynccontextmanager
async def openai_server(
    script: Sequence[Spoken] = (), heard: Sequence[str | None] = (), refusals: int = 0
) -> AsyncIterator[RealtimeServer]:
    """A server; after the block its script is used up, it refused as many requests as given, and all events have
    OpenAI's types.
    """
    async with used_up(RealtimeServer.openai(script, heard=heard), refusals) as server:
        yield server
    client, own = _types()
    for event in server.received:
        client.validate_python(event)
    for event in server.sent:
        own.validate_python(event)


@asynccontextmanager
async def used_up(server: RealtimeServer, refusals: int = 0) -> AsyncIterator[RealtimeServer]:
    """Run a server; check what is left of its script, its refusals, its connections, and that no task is left."""
    before = asyncio.all_tasks()
    async with server:
        yield server
        async with asyncio.timeout(5):
            while server.open_connections:  # noqa: ASYNC110 - sockets close in their own time
                await asyncio.sleep(0)
    assert (list(server.script), list(server.heard), len(server.refused)) == ([], [], refusals), server.refused
    assert asyncio.all_tasks() - before == set()


def model_for(server: RealtimeServer, **options: Any) -> OpenAIRealtime:
    """A model on the server."""
    return OpenAIRealtime("gpt-realtime", url=server.url, api_key="secret-key", **options)


def agent_for(server: RealtimeServer, *, model: dict[str, Any] | None = None, **options: Any) -> Agent[Any]:
    """An agent with such a model."""
    return Agent("assistant", model_for(server, **(model or {})), **options)


class Speaker:
    """Plays in no time; `hold` is the number of 100 ms pieces after which it stops, until `go`.

    Attributes:
        played: The milliseconds of each reply that were taken, and how its playing ended.
    """

    def __init__(self, hold: int | None = None) -> None:
        self.hold = hold
        self.go, self.held = asyncio.Event(), asyncio.Event()
        self.played: list[tuple[int, str]] = []

    async def __call__(self, speech: AsyncIterator[bytes]) -> None:
        taken, end = 0, "cancelled"
        try:
            async for piece in speech:
                taken += len(piece) // 48
                if self.hold is not None and taken > self.hold * 100:
                    self.held.set()
                    await self.go.wait()
            end = "whole"
        finally:
            self.played.append((taken, end))


@asynccontextmanager
async def talk(agent: Agent[Any], play: Any = None, **options: Any) -> AsyncIterator[RealtimeSession]:
    """A session that has to end in time."""
    async with asyncio.timeout(20), RealtimeSession(agent, play=play, **options) as session:
        yield session
