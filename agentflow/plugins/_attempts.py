"""Further attempts at a model's reply: the common part of retries, fallbacks and shortened requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from agentflow.errors import ModelError
from agentflow.hooks.wrapping import ModelSource, checks_its_end
from agentflow.plugins._matching import has_content
from agentflow.reactive import Flux
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.messages import Msg

AfterFailure: TypeAlias = Callable[[Exception, bool], Awaitable[ModelSource | None]]
"""Receives the failure of an attempt, and whether a part of the reply was delivered. Returns the next attempt, or None
to raise the failure."""

# Parts of error messages, in lower case: the first is this package's own, the others are those of OpenAI, Anthropic and
# LiteLLM.
_OVERFLOW = (
    "cannot hold the conversation in its context window",
    "context length",
    "context_length_exceeded",
    "context window",
    "prompt is too long",
    "exceed context limit",
)


class Attempt(NamedTuple):
    """A hook's attempt at a reply.

    Attributes:
        source: The model call.
        after_failure: Decides whether there is another attempt.
        completed: Called after the last chunk.
    """

    source: ModelSource
    after_failure: AfterFailure
    completed: Callable[[], None] | None = None


class RetriedChunks(Flux[ModelChunk]):
    """The chunks of a reply, and of further attempts if it fails.

    If a part of the reply was delivered before, the first chunk of a further attempt has `restart=True`. Directly nested
    streams of this class run as one loop.

    Args:
        first: Returns the first attempt; called each time the stream is opened.
    """

    def __init__(self, first: Callable[[], Attempt]) -> None:
        self.begin = first

    def open(self) -> AsyncIterator[ModelChunk]:
        """Start a run; see `Flux.open`."""
        return _attempts(self.begin)


def shorter_request(source: ModelSource, shorter: Callable[[], Awaitable[Sequence[Msg] | None]]) -> Flux[ModelChunk]:
    """Return the chunks of a reply; if the conversation does not fit the model's context window, send a shorter one once.

    Args:
        source: The model call.
        shorter: Returns the messages of a shorter request, or None to raise the failure.
    """

    def first() -> Attempt:
        may_retry = True

        async def after_failure(error: Exception, delivered: bool) -> ModelSource | None:
            nonlocal may_retry
            if not may_retry or not is_context_overflow(error):
                return None
            may_retry = False
            messages = await shorter()
            return None if messages is None else source.using(input_messages=messages)

        return Attempt(source, after_failure)

    return RetriedChunks(first)


@checks_its_end
async def _attempts(first: Callable[[], Attempt]) -> AsyncIterator[ModelChunk]:
    layers = _layers(first())
    # Whether an earlier attempt of each hook delivered a part of the reply.
    delivered = [False] * len(layers)
    shown = restarts = False  # whether this attempt has delivered a part; whether its first chunk needs `restart=True`
    try:
        while True:
            try:
                chunks = layers[-1].source.open()
                try:
                    async for chunk in chunks:
                        if restarts:
                            restarts = False
                            chunk = replace(chunk, restart=True)
                        shown = shown or has_content(chunk)
                        yield chunk
                finally:
                    await close(chunks)
            except Exception as error:
                if shown:
                    delivered = [True] * len(layers)
                index, source = await _another(layers, delivered, error)
                # The hooks inside this one start again with the new source, so their earlier chunks do not count.
                layers[index:] = _layers(layers[index]._replace(source=source))
                delivered[index + 1 :] = [False] * (len(layers) - index - 1)
                shown, restarts = False, delivered[index]
            else:
                for layer in reversed(layers):
                    if layer.completed is not None:
                        layer.completed()
                return
    finally:
        del layers  # their functions may hold a failure, whose traceback refers to this frame: a reference cycle


def _layers(attempt: Attempt) -> list[Attempt]:
    """Return the first attempts of all directly nested hooks, the outermost first."""
    layers = [attempt]
    # Exactly this class: a subclass could open in its own way, which this loop would skip.
    while type(inner := attempt.source.inner) is RetriedChunks:
        attempt = inner.begin()
        layers.append(attempt)
    return layers


async def _another(layers: list[Attempt], delivered: list[bool], error: Exception) -> tuple[int, ModelSource]:
    """Return the index of the innermost hook that makes another attempt, and the source of that attempt.

    Raises:
        Exception: The failure, if no hook makes another attempt.
    """
    try:
        for index in range(len(layers) - 1, -1, -1):
            try:
                source = await layers[index].after_failure(error, delivered[index])
            except Exception as another:  # the outer hooks get this failure instead
                error = another
            else:
                if source is not None:
                    return index, source
        raise error
    finally:
        del error, layers  # the traceback of the failure refers to this frame: a reference cycle


def is_context_overflow(error: BaseException) -> bool:
    """Return whether a model failed because the conversation does not fit its context window.

    If a custom model does not set `ModelError.kind`, the texts of the error and its causes decide.

    Example:
        >>> is_context_overflow(ModelError("openai/gpt-5 cannot hold the conversation in its context window (400)."))
        True
    """
    if not isinstance(error, ModelError):
        return False
    if error.kind is not None or error.status == 413:  # 413: the request is too large
        return error.kind == "context_overflow" or error.status == 413
    link: BaseException | None = error
    for _ in range(5):  # causes could form a cycle
        if link is None:
            break
        text = str(link).lower()
        # LiteLLM's class, compared by name because its import takes seconds
        if type(link).__name__ == "ContextWindowExceededError" or any(word in text for word in _OVERFLOW):
            return True
        link = link.__cause__
    return False
