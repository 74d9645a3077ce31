"""`StoreWrapper`: the base class of stores that wrap another store. A subclass overrides only the methods that differ."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.ports.store import Claim, SessionInfo, SessionStore, StoredStatus


class StoreWrapper(SessionStore):
    """A store that delegates to another store.

    Each method only calls the same method of the inner store: an import, fork or prune of the inner store does not call
    `append`, `load` or `delete` of the wrapper.

    Args:
        inner: The wrapped store.

    Attributes:
        inner: The wrapped store.

    Example:
        >>> class Counting(StoreWrapper):
        ...     facts = 0
        ...     def append(self, session_id, facts, *, expected=None, claim=None):
        ...         self.facts += len(facts)
        ...         return super().append(session_id, facts, expected=expected, claim=claim)
        >>> store = Counting(MemoryStore())
        >>> await Agent("a", ScriptedModel(["Hello."]), store=store).call("Hi", session="s")
        >>> store.facts
        3
    """

    def __init__(self, inner: SessionStore) -> None:
        self.inner = inner

    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None] | None:
        """See `SessionStore`."""
        return self.inner.append(session_id, facts, expected=expected, claim=claim)

    def load(self, session_id: str) -> Awaitable[Sequence[Fact]] | Sequence[Fact]:
        """See `SessionStore`."""
        return self.inner.load(session_id)

    def claim(self, session_id: str, *, lease: float | None = None) -> Awaitable[Claim] | None:
        """See `SessionStore`."""
        return self.inner.claim(session_id, lease=lease)

    async def sessions(self, prefix: str = "") -> list[SessionInfo]:
        """See `SessionStore`."""
        return await self.inner.sessions(prefix)

    async def fork(self, session_id: str, new_id: str, at: int | str | None = None) -> None:
        """See `SessionStore`."""
        await self.inner.fork(session_id, new_id, at)

    async def rename(self, session_id: str, new_id: str) -> None:
        """See `SessionStore`."""
        await self.inner.rename(session_id, new_id)

    async def delete(self, session_id: str) -> bool:
        """See `SessionStore`."""
        return await self.inner.delete(session_id)

    async def prune(
        self,
        *,
        older_than: timedelta,
        statuses: Collection[StoredStatus] = ("idle",),
        keep: Collection[str] = (),
    ) -> list[SessionInfo]:
        """See `SessionStore`."""
        return await self.inner.prune(older_than=older_than, statuses=statuses, keep=keep)

    async def export(self, session_id: str) -> dict[str, Any]:
        """See `SessionStore`."""
        return await self.inner.export(session_id)

    async def import_(self, data: Mapping[str, Any], session_id: str | None = None) -> str:
        """See `SessionStore`."""
        return await self.inner.import_(data, session_id)

    async def close(self) -> None:
        """See `SessionStore`."""
        await self.inner.close()
