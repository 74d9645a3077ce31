"""What tests of turns share: a hook that keeps events, tools, and an agent that only works."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agentflow.agent.agent import Agent
from agentflow.hooks.hook import Hook
from agentflow.loop.turn import Turn
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools.tool import tool
from agentflow.vocabulary.events import HookEvent

__all__ = ["Log", "add", "broken", "count", "finished", "say", "saying", "spell", "worker"]


class Log(Hook):
    """Keeps the events that it sees."""

    observer = True

    def __init__(self) -> None:
        self.seen: list[HookEvent] = []

    def on_event(self, event: HookEvent) -> HookEvent:
        self.seen.append(event)
        return event

    @property
    def names(self) -> list[str]:
        """The names of their types."""
        return [type(event).__name__ for event in self.seen]


def worker(*tools: Any, name: str = "worker", **more: Any) -> Agent:
    """An agent with these tools, whose model is never called."""
    return Agent(name, ScriptedModel([]), tools=tools, **more)


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def count(n: int) -> AsyncIterator[int]:
    """Count."""
    for i in range(n):
        yield i


@tool
async def say(word: str) -> str:
    """Say a word."""
    return word


@tool
async def spell(word: str) -> AsyncIterator[str]:
    """Spell a word."""
    for letter in word:
        yield letter


@tool
async def broken() -> str:
    """Fail."""
    raise LookupError("lost")


@tool(type="completion_check")
async def finished(yes: bool) -> bool:
    """Say whether it is done."""
    return yes


def saying(word: str, **options: Any) -> Turn[str]:
    """A turn of `say`."""
    return Turn(say, {"word": word}, **options)
