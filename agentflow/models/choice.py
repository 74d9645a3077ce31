"""Chooses the adapter for a model's name: the direct wire if it supports the model, otherwise LiteLLM.

Rules:

1. `litellm/…` is always LiteLLM, `openai+http(s)://…` always the direct wire.
2. `openai/…` and `anthropic/…` use the direct wire, unless `why_litellm` gives a reason for LiteLLM.
3. Every other name is LiteLLM's.
"""

from __future__ import annotations

import os

from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.listing import listed
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.vocabulary.ports.model import Model


def openai(name: str) -> Model:
    """Return the model for `openai/name`.

    Example:
        >>> type(openai("gpt-5-codex")).__name__, type(openai("whisper-1")).__name__
        ('OpenAIWire', 'LiteLLMModel')
    """
    return OpenAIWire(name) if why_litellm("openai", name) is None else LiteLLMModel(f"openai/{name}")


def anthropic(name: str) -> Model:
    """Return the model for `anthropic/name`."""
    return AnthropicWire(name) if why_litellm("anthropic", name) is None else LiteLLMModel(f"anthropic/{name}")


def why_litellm(provider: str, name: str) -> str | None:
    """Explain why a model of a vendor with a direct wire uses LiteLLM; return None for the direct wire.

    Example:
        >>> why_litellm("openai", "whisper-1")
        'its mode is audio_transcription, not chat completions or /responses'
    """
    if provider == "anthropic":
        token = "ANTHROPIC_AUTH_TOKEN" in os.environ and "ANTHROPIC_API_KEY" not in os.environ
        return "ANTHROPIC_AUTH_TOKEN is set, but not ANTHROPIC_API_KEY" if token else None
    row = listed("openai", name.removeprefix("responses/"))
    if row.get("mode") not in (None, "chat", "responses"):
        return f"its mode is {row['mode']}, not chat completions or /responses"
    return "it does not stream" if row.get("supports_native_streaming") is False else None
