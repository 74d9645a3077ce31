"""Tools that many tests use, and the agent that has them."""

from __future__ import annotations

import asyncio
from typing import Any

from eventlog import use

from agentflow.agent.agent import Agent
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools.tool import tool

__all__ = ["ONE", "add", "agent_of", "delete", "look", "looks", "submit"]


@tool(type="read")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def delete(path: str) -> str:
    """Delete."""
    return f"{path} is gone"


@tool(type="read")
async def look(at: str) -> str:
    """Look."""
    await asyncio.sleep(0)
    return f"saw {at}"


@tool(type="read")
async def submit(summary: str = "") -> str:
    """Say that the work is done.

    Args:
        summary: What was done.
    """
    return f"Submitted: {summary}"


ONE = [use("t1", "add", a=1, b=2)]
"""A reply with one call."""


def looks(*names: str) -> list[Any]:
    """A reply with one call of `look` for each."""
    return [use(f"t{i}", "look", at=name) for i, name in enumerate(names, 1)]


def agent_of(script: list[Any], *hooks: Any, tools: Any = (add, delete), **options: Any) -> Agent:
    """An agent whose model says what the script says."""
    return Agent("a", ScriptedModel(script), tools=tools, hooks=hooks, **options)
