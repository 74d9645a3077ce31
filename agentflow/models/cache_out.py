"""Marks for prompt caches, in the words of OpenAI's wire with Anthropic's `cache_control` on it, as LiteLLM takes them.

Rules:

1. A mark stands behind what stays the same: the tools, the system prompt, the conversation up to here, and the conversation
   as the last request had it (a provider looks back only so far for a prefix that it knows). That is four, Anthropic's limit.
2. All marks of a request last as long: a shorter one may not stand before a longer one.
3. A mark never stands on a thought or on an empty text, so it never stands on an assistant's message.
4. Where caching is the provider's own affair, a key of what stays the same leads requests to the same place (OpenAI).

Sources: platform.claude.com build-with-claude/prompt-caching; microsoft/vscode#315505 (the same four places, and why the
fourth); platform.openai.com docs/guides/prompt-caching.
"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from typing import Final

from agentflow.models.content_out import Json, text_part
from agentflow.models.profiles import WireProfile
from agentflow.specs import ModelOptions

__all__ = ["cache_arguments", "mark_prefixes"]

_KEY: Final = "prompt_cache_key"


def mark_prefixes(messages: list[dict[str, Json]], tools: dict[str, Json], options: ModelOptions) -> None:
    """Mark what stays the same in a request, in place.

    Args:
        messages: The conversation as it is sent.
        tools: `tools` and `tool_choice`.
        options: How long.

    Example:
        >>> messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        >>> mark_prefixes(messages, {}, ModelOptions(cache=True))
        >>> messages[0]["content"]
        [{'type': 'text', 'text': 'Be brief.', 'cache_control': {'type': 'ephemeral'}}]
    """
    mark: Json = {"type": "ephemeral", "ttl": "1h"} if options.cache == "1h" else {"type": "ephemeral"}
    listed = tools.get("tools")
    if isinstance(listed, list) and listed and isinstance(last := listed[-1], dict):
        listed[-1] = {**last, "cache_control": mark}
    for place in _places(messages):
        messages[place] = _marked(messages[place], mark)


def _places(messages: Sequence[dict[str, Json]]) -> list[int]:
    """Which messages are marked."""
    roles = [message["role"] for message in messages]
    places = [max((place for place, role in enumerate(roles) if role == "system"), default=-1)]
    said = next((place for place in range(len(roles) - 1, -1, -1) if roles[place] == "assistant"), 0)
    places += [end for end in (said - 1, len(roles) - 1) if end >= 0 and roles[end] in ("user", "tool")]
    return [place for place in dict.fromkeys(places) if place >= 0]


def _marked(message: dict[str, Json], mark: Json) -> dict[str, Json]:
    if message["role"] == "tool":
        return {**message, "cache_control": mark}  # on the result as a whole
    content = message["content"]
    parts = [*content] if isinstance(content, list) else [text_part(content)]
    if not parts or not isinstance(last := parts[-1], dict):
        return message
    parts[-1] = {**last, "cache_control": mark}
    return {**message, "content": parts}


def cache_arguments(
    messages: Sequence[dict[str, Json]], tools: dict[str, Json], profile: WireProfile, supported: Container[str]
) -> dict[str, Json]:
    """What leads requests with the same beginning to the same place, at a provider that caches by itself.

    Example:
        >>> from agentflow.models.profiles import OPENAI
        >>> messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        >>> list(cache_arguments(messages, {}, OPENAI, {"prompt_cache_key"}))
        ['prompt_cache_key']
    """
    if profile.family != "openai" or _KEY not in supported:
        return {}
    import hashlib  # 6 ms that most programs never need

    stable = [message for message in messages if message["role"] == "system"], tools.get("tools")
    text = json.dumps(stable, sort_keys=True, default=str)
    return {_KEY: hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]}
