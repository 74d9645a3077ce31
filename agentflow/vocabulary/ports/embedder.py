"""`Embedder`: the port to models that turn texts into vectors.

Rules:

1. Vectors are checked once, when they arrive: one for each text, all of one length, finite and not zero.
2. The usage is billed to the run for which the vectors are made (`billed_to`); without a run it is not counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import hypot, isfinite
from typing import Protocol, runtime_checkable

from agentflow._support.values import frozen
from agentflow.errors import ModelError
from agentflow.vocabulary.context import CallPort, RunContext, port_of
from agentflow.vocabulary.specs import Usage

_MAX_LENGTH = 8_000
"""The maximum length of a text that is sent, in characters: models refuse longer texts, or ignore the rest."""


@frozen
class Embeddings:
    """The vectors of texts.

    Attributes:
        vectors: One vector for each text, in order.
        usage: The usage, if the model reports it.
    """

    vectors: Sequence[Sequence[float]]
    usage: Usage | None = None


@runtime_checkable
class Embedder(Protocol):
    """A model that turns texts into vectors; similar texts have close vectors.

    Example:
        >>> class Lengths:
        ...     name = "lengths"
        ...     async def embed(self, texts):
        ...         return Embeddings([(1.0, len(text)) for text in texts])
        >>> isinstance(Lengths(), Embedder)
        True
    """

    @property
    def name(self) -> str:
        """The name of the model; vectors of different models are never compared."""
        ...

    async def embed(self, texts: Sequence[str]) -> Embeddings:
        """Return the vectors of non-empty texts.

        Raises:
            ModelError: The provider failed.
        """
        ...


_payer: ContextVar[CallPort | None] = ContextVar("agentflow_embedding_payer", default=None)


@contextmanager
def billed_to(context: RunContext) -> Generator[None]:
    """Bill embeddings that are made within the block to a run."""
    token = _payer.set(port_of(context))
    try:
        yield
    finally:
        _payer.reset(token)


async def unit_vectors(embedder: Embedder, texts: Sequence[str]) -> list[array[float]]:
    """Return the vectors of texts, normalised to length 1.

    Raises:
        ModelError: The provider failed, or its vectors are invalid.
    """
    # Providers refuse empty texts, but each text needs a vector.
    vectors = await embedder.embed([text[:_MAX_LENGTH] if text.strip() else "-" for text in texts])
    payer = _payer.get()
    if payer is not None and vectors.usage is not None:
        payer.add_usage(vectors.usage)
    sizes = {len(vector) for vector in vectors.vectors}
    if len(vectors.vectors) != len(texts) or len(sizes) > 1:
        raise _unusable(embedder, f"{len(vectors.vectors)} vectors with lengths {sorted(sizes)} for {len(texts)} texts")
    return [_unit(embedder, vector) for vector in vectors.vectors]


def _unit(embedder: Embedder, vector: Sequence[float]) -> array[float]:
    length = hypot(*vector)
    if not length or not isfinite(length):
        raise _unusable(embedder, "a vector that is empty, zero or not finite")
    return array("f", [number / length for number in vector])  # 4 bytes for each number; a list takes 32


def _unusable(embedder: Embedder, found: str) -> ModelError:
    return ModelError(
        f"The embedder {embedder.name!r} returned {found}. It should return one vector for each text, all of one length.",
        model=embedder.name,
    )
