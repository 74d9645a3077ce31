"""Realtime voice: an agent hears a WAV file, uses a tool, and speaks into another WAV file.

A local server replaces OpenAI's Realtime API. With `OpenAIRealtime("gpt-realtime")` the same program uses the real one.
"""

from __future__ import annotations

import asyncio
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

from agentflow import Agent, PostActing, on, tool
from agentflow.models.realtime import OpenAIRealtime, RealtimeSession
from agentflow.testing.wire import UseTool
from agentflow.testing.wire.realtime import RealtimeServer, tone


@tool(type="read")
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"{city}: 24 degrees, sunny"


@on
def log(event: PostActing) -> None:
    print(f"tool: {event.tool_result.text}")


def record(path: Path) -> None:
    """Write what the user says: half a second of speech, and silence."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(tone(0.5) + bytes(24_000))


async def talk(folder: Path, url: str) -> None:
    model = OpenAIRealtime("gpt-realtime", url=url, api_key="any")
    agent = Agent("assistant", model, system="Answer in one sentence.", tools=[weather], hooks=[log])

    with wave.open(str(folder / "answer.wav"), "wb") as spoken:
        spoken.setparams((1, 2, model.output_rate, 0, "NONE", ""))

        async def play(speech: AsyncIterator[bytes]) -> None:
            async for chunk in speech:  # with a loudspeaker: write to it, and wait until it has played
                spoken.writeframes(chunk)

        async with RealtimeSession(agent, play=play) as session:
            with wave.open(str(folder / "question.wav"), "rb") as question:
                while chunk := question.readframes(2_400):
                    await session.send(chunk)
            reply = await session.reply()

    for message in await agent.history():
        print(f"{message.role}: {message.text}")
    with wave.open(str(folder / "answer.wav"), "rb") as answer:
        print(f"{reply.outcome}, {answer.getnframes() / answer.getframerate():.1f} seconds of speech")


async def offline() -> None:
    script = [UseTool("weather", {"city": "Rome"}, text="Let me look."), "It is sunny in Rome, 24 degrees."]
    with TemporaryDirectory() as folder:
        record(Path(folder) / "question.wav")
        async with RealtimeServer.openai(script, heard=["How is the weather in Rome?"]) as server:
            await talk(Path(folder), server.url)


def main() -> None:
    asyncio.run(offline())


if __name__ == "__main__":
    main()
