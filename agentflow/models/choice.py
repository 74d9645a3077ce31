"""Which adapter a name gets: the direct wire where it can, LiteLLM where it must.

Rules:

1. `litellm/…` is always LiteLLM, `openai+http(s)://…` always the direct wire.
2. `openai/…` and `anthropic/…` go direct, but for what the wire does not speak: `why_litellm` says which, and why.
3. Every other name is LiteLLM's.
"""

from __future__ import annotations

import os

from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.listing import listed
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.ports.model import Model

__all__ = ["anthropic", "openai", "why_litellm"]


def openai(name: str) -> Model:
    """The model that `openai/name` stands for.

    Example:
        >>> type(openai("gpt-5-codex")).__name__, type(openai("whisper-1")).__name__
        ('OpenAIWire', 'LiteLLMModel')
    """
    return OpenAIWire(name) if why_litellm("openai", name) is None else LiteLLMModel(f"openai/{name}")


def anthropic(name: str) -> Model:
    """The model that `anthropic/name` stands for."""
    return AnthropicWire(name) if why_litellm("anthropic", name) is None else LiteLLMModel(f"anthropic/{name}")


def why_litellm(provider: str, name: str) -> str | None:
    """Why a model of a vendor with a direct wire is asked through LiteLLM; None: it is not.

    Example:
        >>> why_litellm("openai", "whisper-1")
        'it is no model for chat completions or /responses, but for audio_transcription'
    """
    if provider == "anthropic":
        token = "ANTHROPIC_AUTH_TOKEN" in os.environ and "ANTHROPIC_API_KEY" not in os.environ
        return "ANTHROPIC_AUTH_TOKEN is set, and no ANTHROPIC_API_KEY" if token else None
    row = listed("openai", name.removeprefix("responses/"))
    if row.get("mode") not in (None, "chat", "responses"):
        return f"it is no model for chat completions or /responses, but for {row['mode']}"
    return "it does not stream" if row.get("supports_native_streaming") is False else None
