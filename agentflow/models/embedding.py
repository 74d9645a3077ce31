"""`OpenAIEmbedder` and `LiteLLMEmbedder`: models that turn texts into vectors.

Rules:

1. Long lists are sent in batches. A batch that fails temporarily is sent again, like requests to models.
2. `OpenAIEmbedder` uses the connections, keys and errors of `OpenAIWire`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from agentflow.errors import ModelError, UsageError
from agentflow.models.chunks_in import usage_of
from agentflow.models.http import loaded
from agentflow.models.listing import price
from agentflow.models.litellm_library import cost_of, library
from agentflow.models.loose import field
from agentflow.models.openai_wire import OpenAIWire
from agentflow.models.provider_errors import model_error
from agentflow.vocabulary.ports.embedder import Embeddings
from agentflow.vocabulary.ports.retry import RetryPolicy
from agentflow.vocabulary.specs import Usage

_BATCH: Final = 96  # texts in one request; Cohere allows 96, OpenAI 2,048
_MAX_ANSWER_BYTES: Final = 1 << 26  # 96 vectors of 3,072 numbers as JSON are about 7 MB


class _EmbeddingRow(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _Embedder(ABC):
    """An `Embedder` over a provider's HTTP API; see the subclasses for the arguments."""

    def __init__(self, name: str, dimensions: int | None, retries: int) -> None:
        if dimensions is not None and dimensions < 1:
            raise UsageError(f"{type(self).__name__}({name!r}, dimensions={dimensions}): it must be at least 1.")
        if retries < 0:
            raise UsageError(f"{type(self).__name__}({name!r}, retries={retries}): it must not be negative.")
        self._name = name
        self._fields: dict[str, object] = {} if dimensions is None else {"dimensions": dimensions}
        self._policy = RetryPolicy(who=repr(self), attempts=retries + 1)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    async def embed(self, texts: Sequence[str]) -> Embeddings:
        """Return the vectors of texts.

        Raises:
            ModelError: The provider failed, and retries did not help or were not possible.
        """
        vectors: list[list[float]] = []
        usages: list[Usage] = []
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            answer = await self._retried(batch)
            vectors += self._vectors(answer, len(batch))
            if (usage := usage_of(answer)) is not None:
                # This is not a model call, so limits on model calls should not count it.
                usages.append(replace(usage, cost=await self._cost(answer, usage), model_calls=0))
        return Embeddings(vectors, Usage.total(usages) if usages else None)

    async def _retried(self, texts: list[str]) -> object:
        attempts = self._policy.start()
        while True:
            try:
                return await self._ask(texts)
            except ModelError as error:
                if not await attempts.another(error):
                    raise

    def _vectors(self, answer: object, count: int) -> list[list[float]]:
        try:
            rows = msgspec.convert(field(answer, "data"), list[_EmbeddingRow], from_attributes=True)
        except msgspec.ValidationError as error:
            raise ModelError(f"The answer of {self._name!r} has no embeddings: {error}.", model=self._name) from None
        if len(rows) != count:
            raise ModelError(f"{self._name!r} answered {count} texts with {len(rows)} embeddings.", model=self._name)
        # The API does not promise the order of the texts.
        return [row.embedding for row in sorted(rows, key=lambda row: row.index)]

    @abstractmethod
    async def _ask(self, texts: list[str]) -> object:
        """Send one request."""

    @abstractmethod
    async def _cost(self, answer: object, usage: Usage) -> float | None:
        """Return the price in dollars; None if it is unknown."""


class _EmbeddingWire(OpenAIWire):
    async def embeddings(self, texts: list[str], fields: Mapping[str, object]) -> Mapping[str, object]:
        await loaded()
        body = {"model": self._model, "input": texts, **fields}
        return await self._post_json(f"{self._base()}/embeddings", body, max_bytes=_MAX_ANSWER_BYTES)

    async def priced(self, usage: Usage) -> float | None:
        await self._known()
        return price(self._row, usage)


class OpenAIEmbedder(_Embedder):
    """A model of OpenAI's `/embeddings`, named `"openai/model"`, or `"openai+http://host/v1#model"` on another server.

    Args:
        name: The model's name, with or without `openai/` before it.
        dimensions: The length of the vectors, if the model has several.
        api_base: The server's URL; as for `OpenAIWire`.
        api_key: The key; by default the environment variable of `OpenAIWire`.
        retries: Extra attempts if a request fails temporarily.
        timeout: Maximum seconds without data from the provider.
        headers: Additional HTTP headers.

    Example:
        >>> OpenAIEmbedder("text-embedding-3-small").name
        'openai/text-embedding-3-small'
    """

    def __init__(
        self,
        name: str,
        *,
        dimensions: int | None = None,
        api_base: str | None = None,
        api_key: str | None = None,
        retries: int = 2,
        timeout: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._wire = _EmbeddingWire(name, api_base=api_base, api_key=api_key, timeout=timeout, headers=headers)
        super().__init__(self._wire.name, dimensions, retries)

    async def _ask(self, texts: list[str]) -> object:
        return await self._wire.embeddings(texts, self._fields)

    async def _cost(self, answer: object, usage: Usage) -> float | None:
        return await self._wire.priced(usage)


class LiteLLMEmbedder(_Embedder):
    """An embedding model accessed through LiteLLM, named `"provider/model"`.

    Args:
        name: LiteLLM's name of the model, such as `"voyage/voyage-3"` or `"ollama/nomic-embed-text"`.
        dimensions: The length of the vectors, if the model has several.
        api_base: The provider's URL; for compatible servers and proxies.
        api_key: The key; by default the provider's environment variable.
        retries: Extra attempts if a request fails temporarily.
        timeout: Maximum seconds without data from the provider.
        params: Further arguments for LiteLLM.

    Example:
        >>> LiteLLMEmbedder("voyage/voyage-3").name
        'voyage/voyage-3'
    """

    def __init__(
        self,
        name: str,
        *,
        dimensions: int | None = None,
        api_base: str | None = None,
        api_key: str | None = None,
        retries: int = 2,
        timeout: float = 60.0,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, dimensions, retries)
        places = {"api_base": api_base, "api_key": api_key}
        self._fields |= {key: value for key, value in places.items() if value is not None} | dict(params or {})
        self._secrets = [api_key] if api_key else []
        self._timeout = timeout

    async def _ask(self, texts: list[str]) -> object:
        litellm = await library()
        failure: ModelError
        try:
            return await litellm.aembedding(
                model=self._name, input=texts, timeout=self._timeout, max_retries=0, num_retries=0, **self._fields
            )
        except Exception as error:
            failure = model_error(error, self._name, secrets=self._secrets)
        raise failure  # outside the `except` block, so that the provider's error does not become the context of this one

    async def _cost(self, answer: object, usage: Usage) -> float | None:
        return cost_of(await library(), answer, self._name)
