"""What the tests of turns share, made for each test: registries and process-wide hooks of its own, and a log."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentflow import AgentRegistry, ProcessHooks, ToolRegistry

sys.path.append(str(Path(__file__).parents[1] / "support"))

from turnlog import Log


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
