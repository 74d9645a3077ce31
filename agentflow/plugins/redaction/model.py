"""The model that `Redaction.model` gives to hooks that ask on the side: it gets no secrets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeAlias

from agentflow.chunks import ModelChunk
from agentflow.messages import Msg
from agentflow.ports.model import Model, ModelRequest, resolve_model

__all__ = ["CleanMessages", "RedactedModel"]

CleanMessages: TypeAlias = Callable[[Sequence[Msg]], Sequence[Msg]]
"""Gives the messages without secrets."""


class RedactedModel:
    """A model that is asked without secrets; made by `Redaction.model`.

    Args:
        inner: The model or its name.
        clean: Takes the secrets out of messages.
    """

    def __init__(self, inner: str | Model, clean: CleanMessages) -> None:
        self._inner = inner
        self._clean = clean

    @property
    def name(self) -> str:
        """The model's own name."""
        return self._inner if isinstance(self._inner, str) else self._inner.name

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Answer the request, without having seen a secret."""
        cleaned = ModelRequest(self._clean(request.messages), request.tools, request.options, request.model)
        return resolve_model(self._inner).stream(cleaned)
