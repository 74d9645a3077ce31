"""Shared by the plugins for long conversations: rounds, sizes, token counts, a conversation as plain text, and a
note in its requests.

Rules:

1. A conversation is split only at the start of a unit, so a tool call is never separated from its results.
2. LiteLLM is loaded on first use, in a thread: its import takes seconds.
3. Counting sends no requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias, assert_never

from agentflow.models import litellm_library
from agentflow.vocabulary.events import PreReasoning
from agentflow.vocabulary.messages import (
    DATA_TOKENS,
    ContentBlock,
    DataBlock,
    Msg,
    ServerToolBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    characters,
    data_blocks,
    with_metadata,
)
from agentflow.vocabulary.transcript import MessageView, with_appended


class MatchingNote:
    """A note with matches for the user's input: the same in all requests of a run, so that the provider's prompt cache
    applies."""

    def __init__(self) -> None:
        self._input = ""
        self._requests = LastRequest()
        self._text: str | None = None

    async def add(self, event: PreReasoning, find: Callable[[str], Awaitable[str]], form: str, source: str) -> None:
        """Add the note to a request, if there are matches.

        Args:
            event: The event of the request.
            find: Returns the matches of an input, as lines; empty if there are none.
            form: The note, with `{lines}` for the matches.
            source: The value of the note's `metadata["synthetic"]`.
        """
        request = self._requests.of(event.input_messages)
        text = "" if request is None else request.text
        if self._text is None or self._input != text:
            lines = await find(text) if text else ""
            self._input, self._text = text, form.format(lines=lines) if lines else ""
        if self._text:
            note = with_metadata(Msg.user(self._text, id=event.context.new_id("msg_")), synthetic=source)
            event.input_messages = with_appended(event.input_messages, note)


CountTokens: TypeAlias = Callable[[str, str], int]
"""A token counter: the text, the model's name; returns the number of tokens."""


# ---- rounds


def head_length(messages: Sequence[Msg]) -> int:
    """Return the number of system messages at the start."""
    for index, msg in enumerate(messages):
        if msg.role != "system":
            return index
    return len(messages)


def unit_starts(messages: Sequence[Msg], start: int = 0) -> list[int]:
    """Return the starts of units: an assistant's message with the user messages before it and the results after it.

    Trailing user messages without an answer belong to no unit.

    Args:
        messages: The conversation.
        start: The first index to look at.

    Example:
        >>> unit_starts([Msg.user("a"), Msg.assistant("b"), Msg.user("c"), Msg.assistant("d"), Msg.user("e")])
        [0, 2]
    """
    starts: list[int] = []
    start_of_unit: int | None = None
    for index in range(start, len(messages)):
        role = messages[index].role
        if role == "tool":
            continue
        if start_of_unit is None:
            start_of_unit = index
        if role == "assistant":
            starts.append(start_of_unit)
            start_of_unit = None
    return starts


def last_request(messages: Sequence[Msg]) -> Msg | None:
    """Return the user's last real message: the last one that is not synthetic."""
    for index in range(len(messages) - 1, -1, -1):
        if is_request(messages[index]):
            return messages[index]
    return None


def is_request(msg: Msg) -> bool:
    """Return whether a message was written by the user, and is not synthetic."""
    return msg.role == "user" and "synthetic" not in msg.metadata


# ---- sizes


def most_tokens(messages: Iterable[Msg]) -> int:
    """Return an upper bound for the tokens of messages: a token is at least one byte."""
    total = 0
    for msg in messages:
        total += 8  # an allowance for the role and the separators
        for block in msg.content:
            total += _most(block)
    return total


def _most(block: ContentBlock) -> int:
    match block:
        case TextBlock(text=text) | ThinkingBlock(text=text):
            return _bytes(text)
        case ToolUseBlock():
            return 16 + _bytes(block.name) + _bytes(block.raw)  # 16: an allowance for ids and JSON punctuation
        case ToolResultBlock():
            content = block.content
            if isinstance(content, str):
                return 16 + _bytes(block.name) + _bytes(content)
            data = sum(isinstance(part, DataBlock) for part in content)
            return 16 + _bytes(block.name) + _bytes(block.text) + data * DATA_TOKENS
        case DataBlock():
            return DATA_TOKENS
        case ServerToolBlock():
            return _bytes(block.json)
        case _:
            assert_never(block)


def _bytes(text: str) -> int:
    # `isascii` only reads a flag in CPython. Models can write lone surrogates, which UTF-8 cannot encode.
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


class SharedPart:
    """Finds the messages of a request that are new since the last one, so that each is examined once."""

    __slots__ = ("_length", "_messages")

    def __init__(self) -> None:
        self._messages: Sequence[Msg] = ()
        self._length = 0

    def split(self, messages: Sequence[Msg]) -> tuple[bool, Sequence[Msg], Sequence[Msg]]:
        """Return whether a request extends the last one; its new messages; and the messages that only this request contains.

        If it does not extend the last one, it belongs to another conversation: all its messages are new, and the caller must
        discard results from earlier requests.
        """
        if not isinstance(messages, MessageView):
            # A hook replaced the list, so its common part with other requests is unknown.
            self._messages, self._length = (), 0
            return False, (), messages
        tail = messages.tail
        lasting = len(messages) - len(tail)
        # The request extends the last one only if it starts with all lasting messages of that one.
        begin = self._length if messages.shared(self._messages) == self._length <= lasting else 0
        self._messages, self._length = messages, lasting
        return begin > 0, messages[begin:lasting], tail


class RequestSize:
    """The length of a run's requests in characters.

    Example:
        >>> RequestSize().of([Msg.user("abcd"), Msg.assistant("ef")])
        6
    """

    __slots__ = ("_shared", "_total")

    def __init__(self) -> None:
        self._shared = SharedPart()
        self._total = 0

    def of(self, messages: Sequence[Msg]) -> int:
        """Return the characters of a request."""
        extends, new, rest = self._shared.split(messages)
        total = self._total if extends else 0
        self._total = total + sum(map(characters, new))
        return self._total + sum(map(characters, rest))

    def tokens(self, messages: Sequence[Msg]) -> int:
        """Estimate the tokens of a request: four characters each."""
        return max(1, self.of(messages) // 4)


class LastRequest:
    """Finds the user's last real message in a growing conversation."""

    __slots__ = ("_latest", "_shared")

    def __init__(self) -> None:
        self._shared = SharedPart()
        self._latest: Msg | None = None

    def of(self, messages: Sequence[Msg]) -> Msg | None:
        """Return the last message that is a user's and not synthetic."""
        extends, new, rest = self._shared.split(messages)
        self._latest = last_request(new) or (self._latest if extends else None)
        return last_request(rest) or self._latest


async def count_tokens(messages: Sequence[Msg], model: str, count: CountTokens | None = None) -> int:
    """Count the tokens of messages, using the given counter or LiteLLM's; estimate them if LiteLLM fails."""
    text = render(messages)
    data = sum(data_blocks(msg) for msg in messages) * DATA_TOKENS
    if count is not None:
        return count(text, model) + data
    return await asyncio.to_thread(_counted, text, model) + data


def _counted(text: str, model: str) -> int:
    try:
        return litellm_library.count_tokens(model, text)
    except Exception:  # tokenizers may raise any exception, and an estimate is better than a failure
        return len(text) // 4 + 1


# ---- as text


def clipped(text: str, longest: int | None) -> str:
    """Return the start and the end of a text that is too long, with the number of characters left out.

    Example:
        >>> clipped("abcdefghij", 6)
        'abcd… (4 characters left out) …ij'
    """
    if longest is None or len(text) <= longest:
        return text
    end = longest // 3
    left_out = len(text) - longest
    return f"{text[: longest - end]}… ({left_out} characters left out) …{text[len(text) - end :]}"


def render(messages: Iterable[Msg], clip: int | None = None) -> str:
    """Return a conversation as text, for a model that should read it rather than continue it.

    Text suits any model: it needs no declared tools, signed thoughts or answered calls.

    Args:
        messages: The conversation; thoughts are left out.
        clip: The maximum number of characters of one block.

    Example:
        >>> print(render([Msg.user("1 + 2?"), Msg.assistant(ToolUseBlock("t1", "add", {"a": 1, "b": 2}))]))
        user: 1 + 2?
        assistant calls add({"a":1,"b":2})
    """
    return "\n".join(line for msg in messages for line in _lines(msg, clip))


class Rendering:
    """A growing conversation as text: messages rendered before are not rendered again.

    Args:
        clip: The maximum number of characters of one block.
    """

    __slots__ = ("_clip", "_lines", "_shared")

    def __init__(self, clip: int | None = None) -> None:
        self._clip = clip
        self._lines: list[str] = []
        self._shared = SharedPart()

    def of(self, messages: Sequence[Msg]) -> str:
        """Return the conversation without its system prompt, as `render` does."""
        extends, new, rest = self._shared.split(messages)
        if not extends:
            # The system messages, which are not rendered, can be in either part.
            self._lines, head = [], head_length(messages)
            new, rest = new[head:], rest[max(0, head - len(new)) :]
        for msg in new:
            self._lines += _lines(msg, self._clip)
        return "\n".join([*self._lines, *(line for msg in rest for line in _lines(msg, self._clip))])


def _lines(msg: Msg, clip: int | None) -> Iterable[str]:
    for block in msg.content:
        match block:
            case TextBlock(text=text):
                if text.strip():
                    yield f"{msg.role}: {clipped(text, clip)}"
            case ToolUseBlock():
                yield f"{msg.role} calls {block.name}({clipped(block.raw, clip)})"
            case ToolResultBlock():
                state = "" if block.state == "success" else f" ({block.state})"
                yield f"result of {block.name}{state}: {clipped(block.text, clip)}"
            case DataBlock():
                yield f"{msg.role}: [{block.media_type} {block.name or block.url or ''}]".replace(" ]", "]")
            case ServerToolBlock():
                yield f"{msg.role}: {block}"
            case ThinkingBlock():
                pass
            case _:
                assert_never(block)
