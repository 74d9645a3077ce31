"""What plugins ask of an event or a chunk before they act on it: does this tool, this model, this piece concern them?"""

from __future__ import annotations

from collections.abc import Sequence

from agentflow.chunks import ModelChunk
from agentflow.events import PreActing
from agentflow.ground.patterns import fits
from agentflow.specs import ToolSpec

__all__ = ["names", "says_something", "spec_of", "writes"]


def names(patterns: Sequence[str], name: str) -> bool:
    """Whether one of the patterns fits a name.

    Example:
        >>> names(("read_*", "list_*"), "read_file")
        True
    """
    if "*" in patterns or name in patterns:  # what most say, at a tenth of the cost
        return True
    return fits(tuple(patterns), name)


def says_something(chunk: ModelChunk) -> bool:
    """Whether a reader sees anything of the reply in this chunk."""
    return bool(chunk.text or chunk.tool_uses or chunk.thinking or chunk.blocks)


def spec_of(event: PreActing) -> ToolSpec | None:
    """The tool that is asked for, as a model sees it; None for an unknown one."""
    name = event.tool_use.name
    for spec in event.agent.tools:
        if spec.name == name:
            return spec
    return None


def writes(event: PreActing) -> bool:
    """Whether the tool that is asked for may change something; an unknown one may."""
    spec = spec_of(event)
    return spec is None or spec.writes
