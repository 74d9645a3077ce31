"""What hooks may know of an agent."""

from __future__ import annotations

from dataclasses import dataclass

from agentflow.specs import ToolSpec

__all__ = ["View"]


@dataclass(frozen=True, slots=True)
class View:
    """A frozen description; it holds neither the agent nor its tools' functions."""

    name: str
    description: str
    tools: tuple[ToolSpec, ...]
    model_name: str
