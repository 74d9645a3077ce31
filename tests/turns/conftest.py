"""Fixtures of the tests of turns, created for each test: registries, process-wide hooks, and a log."""

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
