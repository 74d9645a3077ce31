"""What tests of turns share: a hook that keeps events, and an agent that only works."""

from __future__ import annotations

from typing import Any

from agentflow.agent.agent import Agent
from agentflow.events import HookEvent
from agentflow.hooks.hook import Hook
from agentflow.testing.scripted import ScriptedModel

__all__ = ["Log", "worker"]


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
    """An agent with these tools, whose model is never asked."""
    return Agent(name, ScriptedModel([]), tools=tools, **more)
