"""Further attempts at a model's reply, as retries, fallbacks and shortened requests make them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from agentflow.errors import ModelError
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins._matching import has_content
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.messages import Msg

__all__ = ["AfterFailure", "is_context_overflow", "with_attempts", "with_shorter_request"]

AfterFailure: TypeAlias = Callable[[Exception, bool], Awaitable[ModelSource | None]]
"""Receives the failure of an attempt, and whether a part of the reply was delivered. Returns the next attempt; None raises
the failure."""

_OVERFLOW = (
    "cannot hold the conversation in its context window",
    "context length",
    "context_length_exceeded",
    "context window",
    "prompt is too long",
    "exceed context limit",
)


async def with_attempts(
    source: ModelSource, after_failure: AfterFailure, completed: Callable[[], None] | None = None
) -> AsyncIterator[ModelChunk]:
    """Yield the chunks of a reply, of further attempts if it fails.

    If a part of the reply was delivered before, the first chunk of a further attempt has `restart=True`.

    Args:
        source: The first attempt.
        after_failure: Decides about another attempt.
        completed: Called after the last chunk.
    """
    delivered = restarts = False
    try:
        while True:
            try:
                chunks = source.open()
                try:
                    async for chunk in chunks:
                        if restarts:
                            restarts = False
                            chunk = replace(chunk, restart=True)
                        delivered = delivered or has_content(chunk)
                        yield chunk
                finally:
                    await close(chunks)
            except Exception as error:
                another = await after_failure(error, delivered)
                if another is None:
                    raise
                source, restarts = another, delivered
            else:
                if completed is not None:
                    completed()
                return
    finally:
        del after_failure  # it may keep a failure, whose traceback refers to this frame


def with_shorter_request(
    source: ModelSource, shorter: Callable[[], Awaitable[Sequence[Msg] | None]]
) -> AsyncIterator[ModelChunk]:
    """Yield the chunks of a reply; if the conversation does not fit the model's context window, request it once more.

    Args:
        source: The model call.
        shorter: Returns the messages of a shorter request; None: there is none, and the failure is raised.
    """
    first = True

    async def after_failure(error: Exception, delivered: bool) -> ModelSource | None:
        nonlocal first
        if not first or not is_context_overflow(error):
            return None
        first = False
        messages = await shorter()
        return None if messages is None else source.using(input_messages=messages)

    return with_attempts(source, after_failure)


def is_context_overflow(error: BaseException) -> bool:
    """Return whether a model failed because the conversation does not fit its context window.

    A custom model may not set `ModelError.kind`; then the texts of the error and its causes decide.

    Example:
        >>> is_context_overflow(ModelError("openai/gpt-5 cannot hold the conversation in its context window (400)."))
        True
    """
    if not isinstance(error, ModelError):
        return False
    if error.kind is not None or error.status == 413:
        return error.kind == "context_overflow" or error.status == 413
    link: BaseException | None = error
    for _ in range(5):
        if link is None:
            break
        text = str(link).lower()
        if type(link).__name__ == "ContextWindowExceededError" or any(word in text for word in _OVERFLOW):
            return True
        link = link.__cause__
    return False
