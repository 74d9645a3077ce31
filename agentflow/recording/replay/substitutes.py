"""Replacements for models in a replay, and for tools that must not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from agentflow.errors import ToolError
from agentflow.hooks.wrapping import ToolCallContext
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest

__all__ = ["RecordedModel", "refuse"]


class RecordedModel:
    """A model that returns recorded replies.

    Args:
        name: The model's name.
        replies: Returns the chunks of a reply.
    """

    def __init__(self, name: str, replies: Callable[[], AsyncIterator[ModelChunk]]) -> None:
        self.name = name
        self._replies = replies

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Return the recorded reply."""
        return self._replies()


async def refuse(use: ToolUseBlock, _context: ToolCallContext) -> object:
    """Refuse a tool that must not run.

    Raises:
        ToolError: Always.
    """
    raise ToolError(f"Tool {use.name!r} does not run in this replay: it is not listed in tools=.")
