"""What hooks may know of an agent."""

from __future__ import annotations

from agentflow.ground.values import frozen
from agentflow.specs import ToolSpec

__all__ = ["View"]


@frozen
class View:
    """A frozen description; it holds neither the agent nor its tools' functions."""

    name: str
    description: str
    tools: tuple[ToolSpec, ...]
    model_name: str
