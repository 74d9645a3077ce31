"""`Index`: the port to collections of documents that are searched for passages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentflow._support.values import frozen


@frozen
class Passage:
    """A passage of a document.

    Attributes:
        source: The document: its path, URL or title.
        line: The line at which it begins, from 1; 0 if the source has no lines.
        text: The text of the passage.
    """

    source: str
    line: int
    text: str

    @property
    def cite(self) -> str:
        """The reference that a model cites.

        Example:
            >>> Passage("handbook.md", 12, "Holidays are free.").cite
            'handbook.md:12'
        """
        return f"{self.source}:{self.line}" if self.line else self.source


@runtime_checkable
class Searcher(Protocol):
    """Anything that finds passages, such as an index or a search service."""

    async def search(self, query: str, limit: int) -> Sequence[Passage]:
        """Return at most `limit` passages, best first; any text is a valid query."""
        ...


@runtime_checkable
class Index(Searcher, Protocol):
    """A collection of documents; `agentflow.testing.check_index` is its conformance suite."""

    async def add(self, source: str, text: str) -> int:
        """Add the document of a source, or replace it, and return the number of its passages."""
        ...

    async def remove(self, source: str) -> int:
        """Delete a document, and return the number of its passages."""
        ...

    async def sources(self) -> Sequence[str]:
        """Return the sources of all documents, sorted."""
        ...
