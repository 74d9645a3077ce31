"""Marks for prompt caches, in the format of OpenAI's wire with Anthropic's `cache_control`, as LiteLLM expects them.

Rules:

1. Each stable part of a request ends with a mark: the tools, the system prompt, the conversation up to now, and the
   conversation of the last request (a provider searches only a limited number of blocks back for a known prefix). Four
   marks are Anthropic's limit.
2. All marks of a request have the same lifetime: a shorter one must not precede a longer one.
3. A thought or an empty text never carries a mark, so an assistant's message never does.
4. If the provider caches automatically, a key derived from the stable parts routes requests to the same cache (OpenAI).

Sources: platform.claude.com build-with-claude/prompt-caching; microsoft/vscode#315505 (the same four marks, and the reason for
the fourth); platform.openai.com docs/guides/prompt-caching.
"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from typing import Final

from agentflow.models.content_out import Json, text_part
from agentflow.models.profiles import WireProfile
from agentflow.vocabulary.specs import ModelOptions

_KEY: Final = "prompt_cache_key"


def mark_prefixes(messages: list[dict[str, Json]], tools: dict[str, Json], options: ModelOptions) -> None:
    """Mark the stable parts of a request, in place.

    Args:
        messages: The conversation in the form in which it is sent.
        tools: `tools` and `tool_choice`.
        options: The lifetime of the marks.

    Example:
        >>> messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        >>> mark_prefixes(messages, {}, ModelOptions(cache=True))
        >>> messages[0]["content"]
        [{'type': 'text', 'text': 'Be brief.', 'cache_control': {'type': 'ephemeral'}}]
    """
    mark: Json = {"type": "ephemeral", "ttl": "1h"} if options.cache == "1h" else {"type": "ephemeral"}
    listed = tools.get("tools")
    if isinstance(listed, list) and listed and isinstance(last := listed[-1], dict):
        # A copy: the definition is shared by all requests (`ToolMemory`).
        listed[-1] = {**last, "cache_control": mark}
    for index in _indices(messages):
        messages[index] = _marked(messages[index], mark)


def _indices(messages: Sequence[dict[str, Json]]) -> list[int]:
    """Return the indices of the messages to mark."""
    roles = [message["role"] for message in messages]
    # Anthropic's prefix is tools, system prompt, messages: the last system message ends the second part.
    indices = [max((index for index, role in enumerate(roles) if role == "system"), default=-1)]
    # The message before the last reply ended the last request, so its mark finds that cache entry.
    last_reply = next((index for index in range(len(roles) - 1, -1, -1) if roles[index] == "assistant"), 0)
    indices += [end for end in (last_reply - 1, len(roles) - 1) if end >= 0 and roles[end] in ("user", "tool")]
    return [index for index in dict.fromkeys(indices) if index >= 0]


def _marked(message: dict[str, Json], mark: Json) -> dict[str, Json]:
    if message["role"] == "tool":
        return {**message, "cache_control": mark}  # the mark is on the whole result
    content = message["content"]
    parts = [*content] if isinstance(content, list) else [text_part(content)]
    if not parts or not isinstance(last := parts[-1], dict):
        return message
    parts[-1] = {**last, "cache_control": mark}
    return {**message, "content": parts}


def cache_arguments(
    messages: Sequence[dict[str, Json]], tools: dict[str, Json], profile: WireProfile, supported: Container[str]
) -> dict[str, Json]:
    """Return the key that routes requests with the same beginning to the same cache, if the provider caches automatically.

    Example:
        >>> from agentflow.models.profiles import OPENAI
        >>> messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        >>> list(cache_arguments(messages, {}, OPENAI, {"prompt_cache_key"}))
        ['prompt_cache_key']
    """
    if profile.family != "openai" or _KEY not in supported:
        return {}
    import hashlib  # importing it takes 6 ms, and most programs never need it

    stable = [message for message in messages if message["role"] == "system"], tools.get("tools")
    text = json.dumps(stable, sort_keys=True, default=str)
    return {_KEY: hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]}
