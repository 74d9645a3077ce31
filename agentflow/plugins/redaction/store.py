"""The store and the model that `Redaction` creates. Facts are redacted when written, and restored when read; the model, for
calls outside of a run, gets no secrets.

Rules:

1. The wrapper supports everything that the inner store does: versions, leases, forks and lists of a `SessionStore`.
2. Imported data is kept unchanged, because `export` created it from a store that has redacted it already.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias

from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model, ModelRequest, resolve_model
from agentflow.vocabulary.ports.store import Claim, SessionStore, Store
from agentflow.vocabulary.ports.store_wrapper import StoreWrapper

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


Pass: TypeAlias = Callable[[Sequence[Fact]], Sequence[Fact]]
"""Converts facts for the store, or from the store."""


def redacted_store(inner: Store, clean: Pass, restore: Pass) -> Store:
    """Wrap a store, so that facts are redacted when written.

    Args:
        inner: The store.
        clean: Removes the secrets from facts.
        restore: Restores the facts if possible.
    """
    if isinstance(inner, SessionStore):
        return _RedactedSessions(inner, clean, restore)
    return _RedactedFacts(inner, clean, restore)


def _loaded(
    found: Awaitable[Sequence[Fact]] | Sequence[Fact], restore: Pass
) -> Awaitable[Sequence[Fact]] | Sequence[Fact]:
    async def later(facts: Awaitable[Sequence[Fact]]) -> Sequence[Fact]:
        return restore(await facts)

    return later(found) if isinstance(found, Awaitable) else restore(found)


class _RedactedFacts:
    """A wrapped store with only the methods that an agent needs."""

    def __init__(self, inner: Store, clean: Pass, restore: Pass) -> None:
        self._inner = inner
        self._clean = clean
        self._restore = restore

    def append(self, session_id: str, facts: Sequence[Fact]) -> Awaitable[None] | None:
        """Add facts, without secrets."""
        return self._inner.append(session_id, self._clean(facts))

    def load(self, session_id: str) -> Awaitable[Sequence[Fact]] | Sequence[Fact]:
        """Return the stored facts, restored."""
        return _loaded(self._inner.load(session_id), self._restore)


class _RedactedSessions(StoreWrapper):
    """A wrapped `SessionStore`."""

    def __init__(self, inner: SessionStore, clean: Pass, restore: Pass) -> None:
        super().__init__(inner)
        self._clean = clean
        self._restore = restore

    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None] | None:
        """Add facts, without secrets."""
        return self.inner.append(session_id, self._clean(facts), expected=expected, claim=claim)

    def load(self, session_id: str) -> Awaitable[Sequence[Fact]] | Sequence[Fact]:
        """Return the stored facts, restored."""
        return _loaded(self.inner.load(session_id), self._restore)
