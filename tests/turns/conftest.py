"""What the tests of turns share, made for each test: registries and process-wide hooks of its own, and a log."""

from __future__ import annotations

import pytest
from turnlog import Log

from agentflow.agent import AgentRegistry
from agentflow.hooks import ProcessHooks
from agentflow.tools import ToolRegistry


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
