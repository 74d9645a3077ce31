"""Which adapter a name gets: the direct wire where it can, LiteLLM where it must.

Rules:

1. `litellm/…` is always LiteLLM, `openai+http(s)://…` always the direct wire.
2. `openai/…` and `anthropic/…` go direct, but for what the wire does not speak: `why_litellm` says which, and why.
3. Every other name is LiteLLM's.
"""

from __future__ import annotations

import os
import re

from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.listing import listed
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.ports.model import Model

__all__ = ["anthropic", "openai", "why_litellm"]

_SERIES = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?![\d.])")


def openai(name: str) -> Model:
    """The model that `openai/name` stands for.

    Example:
        >>> type(openai("gpt-5")).__name__, type(openai("gpt-5-codex")).__name__
        ('OpenAIWire', 'LiteLLMModel')
    """
    return OpenAIWire(name) if why_litellm("openai", name) is None else LiteLLMModel(f"openai/{name}")


def anthropic(name: str) -> Model:
    """The model that `anthropic/name` stands for."""
    return AnthropicWire(name) if why_litellm("anthropic", name) is None else LiteLLMModel(f"anthropic/{name}")


def why_litellm(provider: str, name: str) -> str | None:
    """Why a model of a vendor with a direct wire is asked through LiteLLM; None: it is not.

    Example:
        >>> why_litellm("openai", "responses/gpt-5")
        "the name asks for LiteLLM's way over /responses"
    """
    if provider == "anthropic":
        token = "ANTHROPIC_AUTH_TOKEN" in os.environ and "ANTHROPIC_API_KEY" not in os.environ
        return "ANTHROPIC_AUTH_TOKEN is set, and no ANTHROPIC_API_KEY" if token else None
    if name.startswith("responses/"):
        return "the name asks for LiteLLM's way over /responses"
    row = listed("openai", name)
    if row.get("mode") not in (None, "chat"):
        return f"it is no model for chat completions, but for {row['mode']}"
    endpoints = row.get("supported_endpoints")
    if isinstance(endpoints, list) and "/v1/chat/completions" not in endpoints:
        return "it has no chat completions"
    found = _SERIES.match(name)
    if found is not None and (int(found[1]), int(found[2] or 0)) >= (5, 4) and OpenAIWire.is_at_home():
        return "from gpt-5.4 on, OpenAI takes tools together with reasoning over /responses alone"
    return None
