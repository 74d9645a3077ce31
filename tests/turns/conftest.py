"""What the tests of turns share."""

from __future__ import annotations

import pytest

from agentflow import AgentRegistry, Hook, HookEvent, ProcessHooks, ToolRegistry


class Log(Hook):
    """Writes down the events that it sees, as text."""

    observer = True

    def __init__(self) -> None:
        self.events: list[HookEvent] = []

    def on_event(self, event: HookEvent) -> HookEvent:
        self.events.append(event)
        return event

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def agents() -> AgentRegistry:
    return AgentRegistry()


@pytest.fixture
def tools() -> ToolRegistry:
    return ToolRegistry()


@pytest.fixture
def process() -> ProcessHooks:
    return ProcessHooks()
