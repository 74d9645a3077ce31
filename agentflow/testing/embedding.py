"""`TermEmbedder`: an offline embedder for tests and samples."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence

from agentflow._support.frozen import EMPTY
from agentflow.vocabulary.ports.embedder import Embeddings
from agentflow.vocabulary.specs import Usage


class TermEmbedder:
    """An `Embedder` without a model: texts with the same terms, or with synonyms, have close vectors.

    Args:
        size: The length of the vectors.
        synonyms: Terms that are replaced by another one, such as `{"vacation": "holiday"}`.
        name: The name of the embedder.

    Attributes:
        texts: All texts that were embedded, in order.

    Example:
        >>> made = await TermEmbedder(8, {"hi": "hello"}).embed(["Hello!", "hi"])
        >>> made.vectors[0] == made.vectors[1]
        True
    """

    def __init__(self, size: int = 256, synonyms: Mapping[str, str] = EMPTY, name: str = "terms") -> None:
        self.name = name
        self.texts: list[str] = []
        self._size = size
        self._synonyms = synonyms

    async def embed(self, texts: Sequence[str]) -> Embeddings:
        """Return the vectors of texts."""
        self.texts += texts
        return Embeddings(
            [self.vector(text) for text in texts], Usage(input_tokens=sum(len(text) for text in texts) // 4)
        )

    def vector(self, text: str) -> list[float]:
        """Return the vector of a text: the number of occurrences of each term, at an index derived from its checksum."""
        vector = [0.0] * self._size
        for term in re.findall(r"\w+", text.lower()) or [text]:
            # Unlike `hash`, the checksum is the same in each process.
            vector[zlib.crc32(self._synonyms.get(term, term).encode(errors="replace")) % self._size] += 1.0
        return vector
