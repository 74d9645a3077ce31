"""The store that `Redaction.store` gives to an agent: facts lose their secrets on the way in.

Rules:

1. It can do what the store behind it can: a `SessionStore` keeps its versions, leases, forks and lists.
2. What is imported is kept as it comes: it was made by `export`, from a store that had its own rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from agentflow.facts import Fact
from agentflow.ports.store import Claim, SessionStore, Store
from agentflow.ports.store_wrapper import StoreWrapper

__all__ = ["Clean", "redacted_store"]

Clean: TypeAlias = Callable[[Fact], Fact]
"""Gives the fact that the store gets."""


def redacted_store(inner: Store, clean: Clean) -> Store:
    """A store's facts, redacted on their way in.

    Args:
        inner: Where they are kept.
        clean: Takes the secrets out of a fact.
    """
    return _RedactedSessions(inner, clean) if isinstance(inner, SessionStore) else _RedactedFacts(inner, clean)


class _RedactedFacts:
    """The least that an agent needs."""

    def __init__(self, inner: Store, clean: Clean) -> None:
        self._inner = inner
        self._clean = clean

    def append(self, session_id: str, facts: Sequence[Fact]) -> Awaitable[None] | None:
        """Add facts, without secrets."""
        return self._inner.append(session_id, [self._clean(fact) for fact in facts])

    def load(self, session_id: str) -> Awaitable[Sequence[Fact]] | Sequence[Fact]:
        """Return what was added."""
        return self._inner.load(session_id)


class _RedactedSessions(StoreWrapper):
    """The same for a store that looks after its sessions."""

    def __init__(self, inner: SessionStore, clean: Clean) -> None:
        super().__init__(inner)
        self._clean = clean

    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None] | None:
        """Add facts, without secrets."""
        return self.inner.append(session_id, [self._clean(fact) for fact in facts], expected=expected, claim=claim)
