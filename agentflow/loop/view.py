"""The view of an agent that hooks receive."""

from __future__ import annotations

from agentflow._support.values import frozen
from agentflow.vocabulary.specs import ToolSpec

__all__ = ["View"]


@frozen
class View:
    """A frozen description of an agent, without the agent or the functions of its tools."""

    name: str
    description: str
    tools: tuple[ToolSpec, ...]
    model_name: str
