"""The model that `Redaction.model` creates for calls outside of a run: it gets no secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeAlias

from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model, ModelRequest, resolve_model

CleanMessages: TypeAlias = Callable[[Sequence[Msg]], Sequence[Msg]]
"""Returns the messages without secrets."""


class RedactedModel:
    """A model that gets no secrets; created by `Redaction.model`.

    Args:
        inner: The model or its name.
        clean: Removes the secrets from messages.
    """

    def __init__(self, inner: str | Model, clean: CleanMessages) -> None:
        self._inner = inner
        self._clean = clean

    @property
    def name(self) -> str:
        """The model's own name."""
        return self._inner if isinstance(self._inner, str) else self._inner.name

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Answer the request without its secrets."""
        cleaned = ModelRequest(self._clean(request.messages), request.tools, request.options, request.model)
        return resolve_model(self._inner).stream(cleaned)
