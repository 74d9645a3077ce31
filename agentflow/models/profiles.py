"""The differences between families of providers on the wire.

Rules:

1. The stored conversation is the same for all vendors; their special rules apply to the copy that is sent.
2. A profile is chosen once per model, by LiteLLM's provider name and the model's name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from agentflow.vocabulary.specs import EFFORTS, Effort


def rows(table: str) -> list[list[str]]:
    """Read the rows of a table, without its header.

    Example:
        >>> rows("content_rules.tsv")[0][:2]
        ['openai', 'image']
    """
    text = Path(__file__).with_name(table).read_text("utf-8")
    return [line.split("\t") for line in text.splitlines()[1:]]


Family: TypeAlias = Literal[
    "openai", "compatible", "anthropic", "gemini", "bedrock", "mistral", "deepseek", "reasoning"
]
"""The group of models that share a wire format. `"compatible"` is any server with OpenAI's wire; `"reasoning"` is such a
server with a model that expects its reasoning back as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProfile:
    """The format of a conversation for one family.

    Attributes:
        family: The name.
        ids: The form of tool-use ids: `"plain"` is up to 40 letters, digits, `_` and `-`; `"nine"` is nine letters or
            digits, for Mistral and the templates of its open models; `"gemini"` is plain, except that LiteLLM's ids with a
            thought signature stay unchanged.
        thinking: How thoughts of the same model are sent back: signed blocks, plain text next to tool calls, or not at all.
        result_images: Whether a tool result may contain images; if not, they follow all results in a user message.
        bridge: Whether a user message directly after tool results is refused (Mistral, templates of local servers).
        merges: Whether LiteLLM itself joins adjacent messages of one role for this family.
        thinking_binds: Whether thinking excludes a temperature and a forced tool choice (Anthropic).
        asks: How thinking is requested: with an effort only, with an effort or a token budget, or with a switch.
        efforts: The supported efforts.
        speaks: The form of a reply: one message; or, over OpenAI's `/responses`, a list of thoughts, texts and calls in order.
    """

    family: Family
    ids: Literal["plain", "nine", "gemini"] = "plain"
    thinking: Literal["blocks", "text", "none"] = "none"
    result_images: bool = False
    bridge: bool = False
    merges: bool = False
    thinking_binds: bool = False
    asks: Literal["effort", "budget", "switch"] = "effort"
    efforts: tuple[Effort, ...] = ("low", "medium", "high")
    speaks: Literal["messages", "items"] = "messages"


OPENAI = WireProfile(family="openai", efforts=("minimal", "low", "medium", "high", "xhigh"))
# A server with OpenAI's wire may use the chat template of Mistral, or another template that requires user and assistant
# to alternate.
COMPATIBLE = WireProfile(family="compatible", ids="nine", bridge=True, efforts=EFFORTS)
ANTHROPIC = WireProfile(
    family="anthropic",
    thinking="blocks",
    result_images=True,
    merges=True,
    thinking_binds=True,
    asks="budget",
    efforts=("low", "medium", "high", "xhigh", "max"),
)
GEMINI = WireProfile(family="gemini", ids="gemini", result_images=True, merges=True, asks="budget")
BEDROCK = WireProfile(family="bedrock", result_images=True, merges=True)
MISTRAL = WireProfile(family="mistral", ids="nine", bridge=True)
DEEPSEEK = WireProfile(family="deepseek", thinking="text", asks="switch", efforts=EFFORTS)
# Models that expect their reasoning back, on hosts without a switch for thinking.
REASONING = WireProfile(family="reasoning", thinking="text", efforts=EFFORTS)

PROFILES: dict[Family, WireProfile] = {
    profile.family: profile
    for profile in (OPENAI, COMPATIBLE, ANTHROPIC, GEMINI, BEDROCK, MISTRAL, DEEPSEEK, REASONING)
}
"""All profiles by family."""

# LiteLLM's providers that host Claude and return its signed thoughts.
_CLAUDE_HOSTS = frozenset({"bedrock", "bedrock_converse", "vertex_ai", "vertex_ai-anthropic_models", "azure_ai"})


def profile_for(provider: str, model: str, api_base: str | None = None) -> WireProfile:
    """Choose the profile of a model.

    Args:
        provider: LiteLLM's name of the provider.
        model: The model's name, with or without the provider.
        api_base: The provider's URL, if it was set.

    Example:
        >>> profile_for("vertex_ai", "claude-sonnet-4-5").family
        'anthropic'
        >>> profile_for("openai", "gpt-5").family
        'openai'
    """
    name = model.lower()
    if provider == "anthropic" or (provider in _CLAUDE_HOSTS and "claude" in name):
        return ANTHROPIC
    if provider == "gemini" or (provider.startswith("vertex_ai") and "gemini" in name):
        return GEMINI
    if provider.startswith("bedrock"):
        return BEDROCK
    if provider in ("mistral", "codestral"):
        return MISTRAL
    if provider == "deepseek":
        return DEEPSEEK
    # Recognized by name, because these models are served by many hosts.
    if provider == "moonshot" or "deepseek" in name or "kimi" in name:
        return REASONING
    if provider == "azure" or (provider == "openai" and (api_base is None or "openai.com" in api_base)):
        return OPENAI
    return COMPATIBLE


class Claude(NamedTuple):
    """The abilities of a generation of Claude.

    Attributes:
        adaptive: The model chooses its amount of thinking, given an effort (since 4.6).
        budgets: The model accepts a token budget for thinking (before 4.7).
        ceiling: The maximum number of tokens of a reply.
    """

    adaptive: bool
    budgets: bool
    ceiling: int


# "claude-opus-4-6" and "claude-3-7-sonnet", but no date ("claude-opus-4-20250514"), which has more than two digits.
_GENERATION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2})(?!\d))?")


def claude(model: str, row: Mapping[str, object]) -> Claude:
    """Return the generation of a Claude model; an unrecognised name counts as new.

    Args:
        model: The model's name.
        row: The model's row in LiteLLM's list; if it is empty, the name decides.

    Example:
        >>> claude("claude-opus-4-20250514", {}), claude("claude-opus-4-6", {}).budgets, claude("claude-fable-5", {}).budgets
        (Claude(adaptive=False, budgets=True, ceiling=32000), True, False)
    """
    generation = _generation(model)
    ceiling = row.get("max_output_tokens")
    if not isinstance(ceiling, int):
        # Low enough for each model of the generation: Anthropic refuses more than a model's own maximum.
        ceiling = 32_000 if generation >= (3, 7) else 4_096
    if row:
        adaptive = row.get("supports_adaptive_thinking") is True
        return Claude(adaptive, not adaptive or row.get("supports_legacy_thinking") is True, ceiling)
    return Claude(generation >= (4, 6), generation < (4, 7), ceiling)


def claude_generation(model: str) -> tuple[int, int]:
    """Return the generation of a Claude model, for abilities that LiteLLM's list lacks; `(0, 0)` for any other model.

    Example:
        >>> claude_generation("claude-sonnet-4-5-20250929"), claude_generation("kimi-k2")
        ((4, 5), (0, 0))
    """
    return _generation(model) if "claude" in model.lower() else (0, 0)


def _generation(model: str) -> tuple[int, int]:
    found = _GENERATION.search(model.lower())
    # Newer models have new abilities rather than fewer, so an unknown name counts as the newest.
    return (int(found[1]), int(found[2] or 0)) if found is not None else (99, 0)
