"""The store that `Redaction.store` gives to an agent: facts lose their secrets on the way in.

Rules:

1. It can do what the store behind it can: a `SessionStore` keeps its versions, leases, forks and lists.
2. What is imported is kept as it comes: it was made by `export`, from a store that had its own rules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from agentflow.facts import Fact
from agentflow.ports.store import Claim, SessionInfo, SessionStatus, SessionStore, Store

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


class _RedactedSessions(SessionStore):
    """The same for a store that looks after its sessions."""

    def __init__(self, inner: SessionStore, clean: Clean) -> None:
        self._inner = inner
        self._clean = clean

    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None] | None:
        """Add facts, without secrets."""
        return self._inner.append(session_id, [self._clean(fact) for fact in facts], expected=expected, claim=claim)

    def load(self, session_id: str) -> Awaitable[Sequence[Fact]] | Sequence[Fact]:
        """Return what was added."""
        return self._inner.load(session_id)

    def claim(self, session_id: str, *, lease: float | None = None) -> Awaitable[Claim] | None:
        """Wait for the right to write."""
        return self._inner.claim(session_id, lease=lease)

    async def sessions(self) -> list[SessionInfo]:
        """All sessions, the last used first."""
        return await self._inner.sessions()

    async def fork(self, session_id: str, new_id: str, at: int | str | None = None) -> None:
        """Copy a session up to a point."""
        await self._inner.fork(session_id, new_id, at)

    async def rename(self, session_id: str, new_id: str) -> None:
        """Give a session another id."""
        await self._inner.rename(session_id, new_id)

    async def delete(self, session_id: str) -> bool:
        """Forget a session."""
        return await self._inner.delete(session_id)

    async def prune(
        self,
        *,
        older_than: timedelta,
        statuses: Collection[SessionStatus] = ("idle",),
        keep: Collection[str] = (),
    ) -> list[SessionInfo]:
        """Delete the sessions that nobody has written to for some time."""
        return await self._inner.prune(older_than=older_than, statuses=statuses, keep=keep)

    async def export(self, session_id: str) -> dict[str, Any]:
        """A session as JSON-compatible data."""
        return await self._inner.export(session_id)

    async def import_(self, data: Mapping[str, Any], session_id: str | None = None) -> str:
        """Take in what `export` made."""
        return await self._inner.import_(data, session_id)

    async def close(self) -> None:
        """Finish what is being written, and let go of files and connections."""
        await self._inner.close()
