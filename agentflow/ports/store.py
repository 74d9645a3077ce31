"""The store port: where a session's facts are kept. `MemoryStore` is the default of a bare agent."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from agentflow.facts import Fact

__all__ = ["MemoryStore", "Store"]


class Store(Protocol):
    """An append-only journal of facts per session."""

    def append(self, session_id: str, facts: Sequence[Fact]) -> Awaitable[None] | None:
        """Add facts; a store that is done at once returns None, another an awaitable that ends when they are safe.

        Raises:
            StoreError: They could not be kept.
        """
        ...

    def load(self, session_id: str) -> Awaitable[Sequence[Fact]] | Sequence[Fact]:
        """Return all facts of a session, oldest first; none for one that does not exist."""
        ...


class MemoryStore:
    """Keeps facts in the process.

    Example:
        >>> store = MemoryStore()
        >>> store.load("nobody")
        ()
    """

    __slots__ = ("_facts",)

    def __init__(self) -> None:
        self._facts: dict[str, list[Fact]] = {}

    def append(self, session_id: str, facts: Sequence[Fact]) -> None:
        """Add facts."""
        journal = self._facts.get(session_id)
        if journal is None:
            journal = self._facts[session_id] = []
        journal.extend(facts)

    def load(self, session_id: str) -> Sequence[Fact]:
        """Return all facts of a session, oldest first."""
        return tuple(self._facts.get(session_id, ()))

    def delete(self, session_id: str) -> None:
        """Forget a session."""
        self._facts.pop(session_id, None)
