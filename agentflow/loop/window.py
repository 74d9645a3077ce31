"""How many tokens of a model's context window a conversation uses: as reported by the provider, counted, or estimated.

Rules:

1. The usage of the last reply is used as reported; only later messages are estimated.
2. The estimate uses the characters per token of that reply, or four if there is none.
3. Nothing is computed before it is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from agentflow.ports.model import Model, ModelRequest, context_limit, token_count
from agentflow.vocabulary.context import ContextWindow
from agentflow.vocabulary.messages import (
    ContentBlock,
    DataBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from agentflow.vocabulary.specs import ToolSpec

__all__ = ["estimated", "measured", "window_of"]

_USUAL_RATE: Final = 4.0
_MOST: Final = 8.0
_DATA_TOKENS: Final = 1_500
_OF_A_MESSAGE: Final = 4


def window_of(messages: Sequence[Msg], tools: Iterable[ToolSpec], model: str | Model) -> ContextWindow:
    """Return how much of the context window a request uses, without I/O.

    Args:
        messages: The request, including the system prompt.
        tools: The tools that the model may call.
        model: The model.
    """
    limit = context_limit(model)
    place, told = _last_report(messages)
    if told is None:
        specs = sum(len(spec.name) + len(spec.description) + len(str(spec.parameters)) for spec in tools)
        return ContextWindow(_estimate(messages, _USUAL_RATE) + int(specs / _USUAL_RATE), limit, "estimate")
    behind = [messages[index] for index in range(place + 1, len(messages))]
    if not behind:
        return ContextWindow(told.used, limit, "reported")
    seen = sum(_characters(messages[index]) for index in range(place))
    rate = min(_MOST, max(1.0, seen / told.prompt)) if told.prompt else _USUAL_RATE
    return ContextWindow(told.used + _estimate(behind, rate), limit, "estimate")


async def measured(request: ModelRequest, model: str | Model) -> ContextWindow:
    """Return how much of the context window a request uses, by the provider's counter or a tokenizer; an estimate if
    there is neither."""
    counted = await token_count(model, request)
    if counted is None:
        return window_of(request.messages, request.tools, model)
    return ContextWindow(counted.tokens, context_limit(model), counted.how)


def estimated(messages: Iterable[Msg]) -> int:
    """Estimate the number of tokens of some messages by their size."""
    return _estimate(messages, _USUAL_RATE)


class _Report:
    """The usage that a reply reported for its request and itself."""

    __slots__ = ("prompt", "used")

    def __init__(self, prompt: int, used: int) -> None:
        self.prompt = prompt
        self.used = used


def _last_report(messages: Sequence[Msg]) -> tuple[int, _Report | None]:
    """Return the last reply with a usage of all messages before it. Replies before a compaction do not count."""
    first = next((n for n, msg in enumerate(messages) if msg.role != "system"), 0)
    fresh = first if not messages else _first_after_summary(messages[first], first)
    for place in range(len(messages) - 1, fresh, -1):
        msg = messages[place]
        if msg.role == "assistant" and msg.usage is not None and msg.usage.input_tokens:
            return place, _Report(msg.usage.input_tokens, msg.usage.total_tokens)
    return 0, None


def _first_after_summary(first: Msg, head: int) -> int:
    """Return the place after which replies belong to the compacted request. Replies before the summary report a longer
    request."""
    mark = first.metadata.get("compaction") if first.metadata.get("synthetic") == "compaction" else None
    return head if mark is None else mark["stored"] - mark["until"] + head + mark["messages"] - 1


def _estimate(messages: Iterable[Msg], rate: float) -> int:
    total = 0
    for msg in messages:
        pictures = sum(_pictures(block) for block in msg.content)
        total += _OF_A_MESSAGE + int(_characters(msg) / rate) + pictures * _DATA_TOKENS
    return total


def _characters(msg: Msg) -> int:
    return sum(_size(block) for block in msg.content)


def _size(block: ContentBlock) -> int:
    match block:
        case TextBlock(text=text) | ThinkingBlock(text=text):
            return len(text)
        case ToolUseBlock():
            return len(block.name) + len(block.raw)
        case ToolResultBlock():
            return len(block.text)
        case DataBlock():
            return 0


def _pictures(block: ContentBlock) -> int:
    if isinstance(block, ToolResultBlock) and not isinstance(block.content, str):
        return sum(isinstance(part, DataBlock) for part in block.content)
    return int(isinstance(block, DataBlock))
