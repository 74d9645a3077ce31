"""What plugins ask of an event or a chunk before they act on it: does this tool, this model, this piece concern them?"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from agentflow.chunks import ModelChunk
from agentflow.events import PreActing
from agentflow.specs import Lane, ToolSpec

__all__ = ["lane_of", "names", "says_something", "spec_of"]


def names(patterns: Sequence[str], name: str) -> bool:
    """Whether one of the patterns fits a name.

    Example:
        >>> names(("read_*", "list_*"), "read_file")
        True
    """
    if "*" in patterns or name in patterns:  # what most say, at a tenth of the cost
        return True
    return any(fnmatchcase(name, pattern) for pattern in patterns)


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


def lane_of(event: PreActing) -> Lane:
    """The lane of the tool that is asked for; an unknown tool is a write."""
    spec = spec_of(event)
    return "write" if spec is None else spec.lane
