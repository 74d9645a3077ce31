"""`LiteLLMModel`: any model of any provider that LiteLLM supports.

Rules:

1. Creating a model is cheap: `litellm` is loaded (in a thread) for the first reply.
2. LiteLLM only translates. Retries, message order and cost are agentflow's: LiteLLM's own retries and rewriting are off.
3. LiteLLM's stream is closed on every path: end, error, cancellation, and a consumer that stops reading.
"""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any

from agentflow.errors import ModelError, UsageError
from agentflow.models.adapter import Adapter, modes_of
from agentflow.models.chunks_in import ChunkReader, usage_of
from agentflow.models.conversion import Conversation
from agentflow.models.counting import count_here, limit_of
from agentflow.models.listing import listed as row_of
from agentflow.models.litellm_library import (
    LiteLLM,
    Served,
    WireStream,
    cost_of,
    library,
    listed,
    received_finish_reason,
    served,
)
from agentflow.models.options_out import options_out
from agentflow.models.provider_errors import broken_stream, model_error
from agentflow.models.server_tools_out import litellm_search
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.ports.answer_origin import answer_origin
from agentflow.vocabulary.ports.model import AnswerModes, ModelRequest, TokenCount


class LiteLLMModel(Adapter):
    """A model accessed through LiteLLM, named `"provider/model"`.

    Args:
        name: LiteLLM's name of the model, such as `"openai/gpt-5"` or `"anthropic/claude-sonnet-4-5"`.
        api_base: The provider's URL; for compatible servers and proxies.
        api_key: The key; by default the provider's environment variable.
        retries: Extra attempts if a call fails temporarily.
        max_wait: The longest wait before another attempt, in seconds. If the provider asks for more, the error is raised.
        timeout: Maximum seconds without data from the provider, before the reply and between its chunks.
        headers: Additional HTTP headers.
        params: Further arguments for LiteLLM, passed on unchanged.
        family: The model's family, if the name does not show it: for a proxy or a gateway, or for a deployment with
            another name. By default it is derived from the name.
        sleep: The function that waits between attempts.

    Example:
        >>> LiteLLMModel("openai/gpt-5", retries=3).name
        'openai/gpt-5'
    """

    _served: Served
    """How LiteLLM serves the model; known once there is a converter."""

    _reserved = frozenset({"model", "messages", "tools", "stream", "stream_options", "max_retries", "num_retries"})

    async def _ready(self, request: ModelRequest) -> Conversation:
        conversation = self._prepared(await library())
        if request.tools and self._served.provider == "ollama":
            raise UsageError(
                f"The model {self._name!r} has tools, which LiteLLM writes into the prompt on Ollama's older endpoint. "
                f"Use 'ollama_chat/{self._name.partition('/')[2]}' instead."
            )
        return conversation

    async def _attempt(self, request: ModelRequest, conversation: Conversation) -> AsyncGenerator[ModelChunk, None]:
        litellm = await library()
        reader = ChunkReader(self._name, sealed=conversation.profile.thinking == "blocks")
        stream: WireStream | None = None
        failure: ModelError | None = None
        origin = answer_origin.get()
        try:
            stream = await litellm.acompletion(**self._arguments(litellm, request, conversation))
            async for raw in stream:
                if origin is not None:  # LiteLLM does not report the server to which it connects
                    origin.note(getattr(raw, "id", None), getattr(raw, "model", None))
                for chunk in self._chunks(litellm, stream, reader, raw):
                    yield chunk
            if reader.finish_reason is None:
                raise broken_stream(self._name)
        # These are agentflow's own errors, which `model_error` would describe as a provider's failure.
        except (ModelError, UsageError):
            raise
        except (
            Exception
        ) as error:  # providers' clients may raise any exception; each is treated as a failure of the model
            # After the finish reason, an error loses only the usage, not the reply.
            if reader.finish_reason is None:
                failure = model_error(
                    error, self._name, secrets=self._secrets(request.options.extra), address=self._api_base
                )
        finally:
            if stream is not None:
                await stream.aclose()
        if failure is not None:
            raise failure  # outside the `except` block, so that the provider's error does not become the context of this one

    def _chunks(self, litellm: LiteLLM, stream: WireStream, reader: ChunkReader, raw: object) -> Iterator[ModelChunk]:
        finished = reader.finish_reason
        yield from reader.read(raw)
        # Appended once, with the first chunk that has a reason: the usage may follow in further chunks.
        if reader.finish_reason is not None and finished is None:
            # LiteLLM adds "stop" to the end of an interrupted stream; its wrapper knows the provider's reason.
            if not received_finish_reason(stream):
                raise broken_stream(self._name)
            yield ModelChunk(finish_reason=reader.finish_reason)
        if (usage := usage_of(raw)) is not None:
            yield ModelChunk(usage=replace(usage, cost=cost_of(litellm, raw, self._name)))

    @property
    def context_limit(self) -> int | None:
        """The size of the model's context window in tokens, from LiteLLM's list; LiteLLM is not loaded for it."""
        provider, _, model = self._name.partition("/")
        return limit_of(row_of(provider, model))

    async def count_tokens(self, request: ModelRequest) -> TokenCount:
        """Count a request's tokens before it is sent."""
        return await count_here(request, self._name, self._prepared(await library()).profile.family)

    async def answer_modes(self) -> AnswerModes:
        """Return the supported ways to request an answer in a schema.

        Raises:
            ModelError: LiteLLM does not know the name's provider.
        """
        litellm = await library()
        family = self._prepared(litellm).profile.family
        return modes_of(family, self._name, listed(litellm, self._name))

    def _prepared(self, litellm: LiteLLM) -> Conversation:
        """Return the model's converter; created once LiteLLM can name the provider."""
        if self._conversation is None:
            known: Served | ModelError
            try:
                known = served(litellm, self._name, self._api_base)
            except Exception as error:  # an unknown name, or a failure in a provider's code
                known = model_error(error, self._name, secrets=self._secrets())
            if isinstance(known, ModelError):
                raise known
            self._served = known
            row = listed(litellm, self._name)
            self._conversation = self._conversation_for(known.provider, self._name, row, self._api_base)
        return self._conversation

    def _arguments(self, litellm: LiteLLM, request: ModelRequest, conversation: Conversation) -> dict[str, Any]:
        prepared = self._prepare(request, conversation, self._served.supported)
        arguments: dict[str, Any] = {
            "model": self._name,
            "messages": prepared.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "timeout": self._timeout,
            # For each read of a live stream, LiteLLM uses this argument instead of `timeout`.
            "stream_timeout": self._timeout,
            "max_retries": 0,
            "num_retries": 0,
            # The more specific setting wins: first the request's `extra`, then its options, then the model's `params`.
            **self._params,
            **options_out(request.options, conversation.profile, prepared.thinking),
            **prepared.fields,
            **litellm_search(request.options.server_tools or (), self._name, listed(litellm, self._name)),
            **request.options.extra,
        }
        if self._api_base is not None:
            arguments["api_base"] = self._api_base
        if self._api_key is not None:
            arguments["api_key"] = self._api_key
        if self._headers is not None:
            arguments["extra_headers"] = {**self._headers, **(arguments.get("extra_headers") or {})}
        return arguments
