"""What runs in a replay instead of a model, and of tools that may not run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from agentflow.chunks import ModelChunk
from agentflow.errors import ToolError
from agentflow.hooks.wrapping import ToolCall
from agentflow.messages import ToolUseBlock
from agentflow.ports.model import ModelRequest

__all__ = ["RecordedModel", "refused"]


class RecordedModel:
    """A model that gives what was recorded.

    Args:
        name: What it is called.
        replies: Gives the pieces of a reply.
    """

    def __init__(self, name: str, replies: Callable[[], AsyncIterator[ModelChunk]]) -> None:
        self.name = name
        self._replies = replies

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Answer as recorded."""
        return self._replies()


async def refused(use: ToolUseBlock, _context: ToolCall) -> object:
    """Answer the call of a tool that may not run.

    Raises:
        ToolError: Always.
    """
    raise ToolError(f"Tool {use.name!r} is not run in this replay: it is not among the tools that may run.")
