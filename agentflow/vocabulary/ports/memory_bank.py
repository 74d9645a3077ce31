"""`MemoryBank`: the port to stores of what an agent remembers about its users, beyond one session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentflow._support.values import frozen

__all__ = ["MemoryBank", "Remembered"]


@frozen
class Remembered:
    """A memory.

    Attributes:
        id: Its id, unique in the bank.
        user: The user to whom it belongs.
        text: The text.
        by: The agent that remembered it.
        at: When, in seconds since the epoch.
    """

    id: str
    user: str
    text: str
    by: str
    at: float


@runtime_checkable
class MemoryBank(Protocol):
    """A store of memories; `agentflow.testing.check_memory` is its conformance suite.

    Users are separate: no method returns or deletes a memory of another user, whatever the text, query or id contains.
    """

    async def add(self, user: str, text: str, by: str, at: float) -> Remembered:
        """Store a memory. If the user has one with this text already, return that one unchanged."""
        ...

    async def search(self, user: str, query: str, limit: int) -> Sequence[Remembered]:
        """Return at most `limit` memories of a user, the best first. Any text is a legal query."""
        ...

    async def all(self, user: str) -> Sequence[Remembered]:
        """Return all memories of a user, the oldest first."""
        ...

    async def forget(self, user: str, id: str | None = None) -> int:  # noqa: A002
        """Delete one memory of a user, or all without an id. Return how many were deleted."""
        ...
