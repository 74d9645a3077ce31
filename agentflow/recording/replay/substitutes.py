"""Replacements for models in a replay, for tools that must not run, and for the side calls of tools."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from agentflow.errors import ToolError
from agentflow.hooks.wrapping import ToolCallContext
from agentflow.recording.entries import Injection
from agentflow.recording.log import RunLog, chunk_of
from agentflow.recording.recorder.hook import run_of
from agentflow.recording.replay.script import RecordedWork
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import one_call

__all__ = ["RecordedModel", "bill", "inject", "refuse"]


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


def bill(context: RunContext, step: Any) -> None:
    """Add the usage of a tool's side call to its run.

    Args:
        context: The context of the run.
        step: The data of a step of the side call: for its end, the whole reply. Other steps have no usage.
    """
    if isinstance(step, RecordedWork):
        chunks = [chunk_of(due.piece) for due in step.pieces]
        # As in `ask_beside`: an interrupted call is billed only if the provider has reported its usage.
        if step.end == "done" or any(chunk.usage is not None for chunk in chunks):
            run_of(context).add_usage(one_call(fold(chunks).usage))


def inject(log: RunLog, context: ToolCallContext, injected: Iterable[Injection]) -> None:
    """Inject the messages that a recorded tool injected."""
    for injection in injected:
        context.run.inject(*[log.message(ref) for ref in injection.messages], keep=injection.keep)
