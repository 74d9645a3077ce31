"""What one family of providers wants on the wire that another does not want.

Rules:

1. The stored conversation is the same for everybody; what only one vendor wants happens in the copy made for the wire.
2. A profile is chosen once per model, from LiteLLM's provider name and the model's name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from agentflow.specs import EFFORTS, Effort

__all__ = ["PROFILES", "Claude", "Family", "WireProfile", "claude", "profile_for"]

Family: TypeAlias = Literal[
    "openai", "compatible", "anthropic", "gemini", "bedrock", "mistral", "deepseek", "reasoning"
]
"""Who made a model, as far as its wire goes; `"compatible"` is any server that speaks OpenAI's, `"reasoning"` one whose model
wants its reasoning back as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireProfile:
    """How a conversation is written for one family.

    Attributes:
        family: The name.
        ids: The form of tool-use ids: `"plain"` is up to 40 letters, digits, `_` and `-`; `"nine"` is nine letters or
            digits, as Mistral and the templates of its open models want; `"gemini"` is plain, except that LiteLLM's ids
            with a thought signature stay as they are.
        thinking: How thoughts of the same model go back: signed blocks, plain text beside tool calls, or not at all.
        result_images: Whether a tool result may hold images; where not, they follow all results in a user message.
        bridge: Whether a user message may not stand directly behind tool results (Mistral, templates of local servers).
        merges: Whether LiteLLM itself merges neighbours of one role for this family.
        thinking_binds: Whether thinking rules out a temperature and a forced tool choice (Anthropic).
        asks: How thinking is asked for: with an effort only, with an effort or a token budget, or with a mere switch.
        efforts: The efforts that thinking can be asked for with.
        speaks: What a reply is: one message, or, over OpenAI's `/responses`, items: each thought, text and call in its place.
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
# Behind OpenAI's wire may stand a chat template that lets user and assistant alternate strictly, or Mistral's.
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
# Models that want their reasoning back, behind hosts that know no switch.
REASONING = WireProfile(family="reasoning", thinking="text", efforts=EFFORTS)

PROFILES: dict[Family, WireProfile] = {
    profile.family: profile
    for profile in (OPENAI, COMPATIBLE, ANTHROPIC, GEMINI, BEDROCK, MISTRAL, DEEPSEEK, REASONING)
}
"""All profiles by family."""

_CLAUDE_HOSTS = frozenset({"bedrock", "bedrock_converse", "vertex_ai", "vertex_ai-anthropic_models", "azure_ai"})


def profile_for(provider: str, model: str, api_base: str | None = None) -> WireProfile:
    """Choose the profile of a model.

    Args:
        provider: LiteLLM's name of the provider.
        model: The model's name, with or without the provider.
        api_base: Where the provider is, if it was said.

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
    if provider == "moonshot" or "deepseek" in name or "kimi" in name:
        return REASONING
    if provider == "azure" or (provider == "openai" and (api_base is None or "openai.com" in api_base)):
        return OPENAI
    return COMPATIBLE


class Claude(NamedTuple):
    """What a generation of Claude takes.

    Attributes:
        adaptive: It decides itself how much to think, by an effort (from 4.6).
        budgets: It takes a budget of tokens for thinking (below 4.7).
        ceiling: How many tokens a reply may have at most.
    """

    adaptive: bool
    budgets: bool
    ceiling: int


_GENERATION = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d{1,2})(?!\d))?")


def claude(model: str, row: Mapping[str, object]) -> Claude:
    """The generation of a Claude model; one whose name does not tell it counts as new.

    Args:
        model: Its name.
        row: What LiteLLM's list says of it; where that is nothing, the name decides.

    Example:
        >>> claude("claude-opus-4-20250514", {}), claude("claude-opus-4-6", {}).budgets, claude("claude-fable-5", {}).budgets
        (Claude(adaptive=False, budgets=True, ceiling=32000), True, False)
    """
    generation = _generation(model)
    ceiling = row.get("max_output_tokens")
    if not isinstance(ceiling, int):
        ceiling = 32_000 if generation >= (3, 7) else 4_096
    if row:
        adaptive = row.get("supports_adaptive_thinking") is True
        return Claude(adaptive, not adaptive or row.get("supports_legacy_thinking") is True, ceiling)
    return Claude(generation >= (4, 6), generation < (4, 7), ceiling)


def _generation(model: str) -> tuple[int, int]:
    found = _GENERATION.search(model.lower())
    return (int(found[1]), int(found[2] or 0)) if found is not None else (99, 0)
