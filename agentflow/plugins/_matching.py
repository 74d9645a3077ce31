"""Tests of plugins on an event or a chunk: tool and model names, visible chunks."""

from __future__ import annotations

from collections.abc import Sequence

from agentflow._support.patterns import fits
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import PreActing
from agentflow.vocabulary.specs import ToolSpec

__all__ = ["names", "says_something", "spec_of", "writes"]


def names(patterns: Sequence[str], name: str) -> bool:
    """Return whether one of the patterns matches a name.

    Example:
        >>> names(("read_*", "list_*"), "read_file")
        True
    """
    if "*" in patterns or name in patterns:  # the most frequent cases, at a tenth of the cost
        return True
    return fits(tuple(patterns), name)


def says_something(chunk: ModelChunk) -> bool:
    """Return whether this chunk shows a reader a part of the reply."""
    return bool(chunk.text or chunk.tool_uses or chunk.thinking or chunk.blocks)


def spec_of(event: PreActing) -> ToolSpec | None:
    """Return the requested tool as a model sees it; None if it is unknown."""
    name = event.tool_use.name
    for spec in event.agent.tools:
        if spec.name == name:
            return spec
    return None


def writes(event: PreActing) -> bool:
    """Return whether the requested tool may change something; true for an unknown one."""
    spec = spec_of(event)
    return spec is None or spec.writes
