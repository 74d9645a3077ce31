"""Models: what one is, and the adapters (`docs/models.md`)."""

from typing import TYPE_CHECKING

from agentflow.chunks import ModelChunk
from agentflow.ground.lazy import lazily
from agentflow.ports.model import Model, ModelRequest, resolve_model

if TYPE_CHECKING:
    from agentflow.models.litellm import LiteLLMModel

__all__ = [
    "LiteLLMModel",
    "Model",
    "ModelChunk",
    "ModelRequest",
    "resolve_model",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "LiteLLMModel": ".litellm",
    },
)
