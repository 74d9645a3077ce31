"""Counts a request's tokens before it is sent, and finds sizes of context windows, using LiteLLM's tables and tokenizers.

Rules:

1. Nothing is sent or downloaded: LiteLLM contains the tokenizers.
2. A count is exact if a request to one of OpenAI's models contains only text; otherwise it is marked as an estimate.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from agentflow.models import litellm_library
from agentflow.models.profiles import Family
from agentflow.vocabulary.messages import (
    DATA_TOKENS,
    DataBlock,
    Msg,
    ServerToolBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    data_blocks,
)
from agentflow.vocabulary.ports.model import ModelRequest, TokenCount

_OF_A_MESSAGE: Final = 4  # about the number of tokens of a message's role and separators in OpenAI's format


def limit_of(row: Mapping[str, object]) -> int | None:
    """Return the size of a model's context window, from its row in LiteLLM's list.

    Example:
        >>> limit_of({"max_input_tokens": 200_000, "max_output_tokens": 64_000})
        200000
    """
    limit = row.get("max_input_tokens") or row.get("max_tokens")
    return limit if isinstance(limit, int) else None


async def count_here(request: ModelRequest, name: str, family: Family) -> TokenCount:
    """Count a request's tokens with LiteLLM's tokenizer for the model."""
    texts = [*_texts(request.messages)]
    tools = [[spec.name, spec.description, spec.parameters] for spec in request.tools]
    if tools:
        texts.append(json.dumps(tools, default=dict))
    pictures = sum(map(data_blocks, request.messages))
    # Counted in a thread, because loading LiteLLM takes seconds, and long texts take a while.
    tokens = await asyncio.to_thread(litellm_library.count_tokens, name, "\n".join(texts))
    whole = tokens + pictures * DATA_TOKENS + len(request.messages) * _OF_A_MESSAGE
    return TokenCount(whole, "tokenizer" if family == "openai" and not pictures else "estimate")


def _texts(messages: Sequence[Msg]) -> Iterator[str]:
    for msg in messages:
        for block in msg.content:
            match block:
                case TextBlock() | ThinkingBlock() | ToolResultBlock():
                    yield block.text
                case ToolUseBlock():
                    yield f"{block.name} {block.raw}"
                case ServerToolBlock():
                    yield block.json
                case DataBlock():
                    pass
