"""Models: the protocol, and the adapters (`docs/models.md`)."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.ports.model import Model, ModelRequest, resolve_model

if TYPE_CHECKING:
    from agentflow.models.anthropic_batch import AnthropicBatch
    from agentflow.models.anthropic_wire import AnthropicWire
    from agentflow.models.embedding import LiteLLMEmbedder, OpenAIEmbedder
    from agentflow.models.fetching import fetch
    from agentflow.models.litellm import LiteLLMModel
    from agentflow.models.openai_batch import OpenAIBatch
    from agentflow.models.openai_wire import OpenAIWire

__all__ = [
    "AnthropicBatch",
    "AnthropicWire",
    "LiteLLMEmbedder",
    "LiteLLMModel",
    "Model",
    "ModelChunk",
    "ModelRequest",
    "OpenAIBatch",
    "OpenAIEmbedder",
    "OpenAIWire",
    "fetch",
    "resolve_model",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".anthropic_batch": "AnthropicBatch",
        ".anthropic_wire": "AnthropicWire",
        ".embedding": "LiteLLMEmbedder OpenAIEmbedder",
        ".litellm": "LiteLLMModel",
        ".openai_batch": "OpenAIBatch",
        ".openai_wire": "OpenAIWire",
        ".fetching": "fetch",
    },
)
