"""`MemoryBank`: the port for stores of what an agent remembers about its users beyond a session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentflow._support.values import frozen


@frozen
class MemoryEntry:
    """A memory.

    Attributes:
        id: The id, unique in the bank.
        user: The user to whom it belongs.
        text: The text to remember.
        by: The agent that stored it.
        at: The time when it was stored, in seconds since the epoch.
    """

    id: str
    user: str
    text: str
    by: str
    at: float


@runtime_checkable
class MemoryBank(Protocol):
    """A store of memories; `agentflow.testing.check_memory` is its conformance suite.

    Users are isolated: no method returns or deletes a memory of another user, whatever the text, query or id contains.
    """

    async def add(self, user: str, text: str, by: str, at: float) -> MemoryEntry:
        """Store a memory; if the user has a memory with this text already, return it unchanged."""
        ...

    async def search(self, user: str, query: str, limit: int) -> Sequence[MemoryEntry]:
        """Return at most `limit` memories of a user, best first; any text is a valid query."""
        ...

    async def all(self, user: str) -> Sequence[MemoryEntry]:
        """Return all memories of a user, oldest first."""
        ...

    async def forget(self, user: str, id: str | None = None) -> int:  # noqa: A002 - the field's name
        """Delete one memory of a user, or without an id all of them, and return how many were deleted."""
        ...
