"""The store that `Redaction.store` gives to an agent: facts lose their secrets on the way in, and regain them on the way out.

Rules:

1. It can do what the inner store can: a `SessionStore` keeps its versions, leases, forks and lists.
2. What is imported is kept as it comes: it was made by `export`, from a store that had its own rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from agentflow.facts import Fact
from agentflow.ports.store import Claim, SessionStore, Store
from agentflow.ports.store_wrapper import StoreWrapper

__all__ = ["Pass", "redacted_store"]

Pass: TypeAlias = Callable[[Sequence[Fact]], Sequence[Fact]]
"""Gives the facts as they are on the other side."""


def redacted_store(inner: Store, clean: Pass, restore: Pass) -> Store:
    """A store's facts, redacted on their way in.

    Args:
        inner: Where they are kept.
        clean: Takes the secrets out of facts.
        restore: Puts them back, where it can.
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
    """The least that an agent needs."""

    def __init__(self, inner: Store, clean: Pass, restore: Pass) -> None:
        self._inner = inner
        self._clean = clean
        self._restore = restore

    def append(self, session_id: str, facts: Sequence[Fact]) -> Awaitable[None] | None:
        """Add facts, without secrets."""
        return self._inner.append(session_id, self._clean(facts))

    def load(self, session_id: str) -> Awaitable[Sequence[Fact]] | Sequence[Fact]:
        """Return what was added."""
        return _loaded(self._inner.load(session_id), self._restore)


class _RedactedSessions(StoreWrapper):
    """The same for a store that looks after its sessions."""

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
        """Return what was added."""
        return _loaded(self.inner.load(session_id), self._restore)
