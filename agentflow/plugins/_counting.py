"""What the plugins about long conversations share: rounds, sizes, token counts, and a conversation as plain text.

Rules:

1. A cut is made at the start of a unit only, so a tool call is never parted from its results.
2. LiteLLM is loaded on first need, in a thread: its import takes seconds.
3. No request leaves the machine for a count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from agentflow.chunks import ModelChunk
from agentflow.errors import ModelError
from agentflow.hooks.wrapping import ModelSource
from agentflow.messages import ContentBlock, DataBlock, Msg, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from agentflow.models import litellm_library
from agentflow.reactive.iterators import close
from agentflow.transcript import MessageView

__all__ = [
    "CountTokens",
    "Rendering",
    "RequestSize",
    "RequestSizes",
    "clipped",
    "count_tokens",
    "fitting",
    "head_length",
    "is_context_overflow",
    "last_request",
    "most_tokens",
    "render",
    "tail",
    "unit_starts",
]

CountTokens: TypeAlias = Callable[[str, str], int]
"""A token counter: the text, the model's name; returns the number of tokens."""

_DATA_TOKENS = 1500
"""What an image or a file counts for: about what vendors charge for a picture of a megapixel."""

_OVERFLOW = (
    "cannot hold the conversation in its context window",
    "context length",
    "context_length_exceeded",
    "context window",
    "prompt is too long",
    "exceed context limit",
)


# ---- rounds


def head_length(messages: Sequence[Msg]) -> int:
    """How many system messages stand at the start."""
    for index, msg in enumerate(messages):
        if msg.role != "system":
            return index
    return len(messages)


def unit_starts(messages: Sequence[Msg], start: int = 0) -> list[int]:
    """Where units begin: an assistant's message with the user's messages before it and the results behind it.

    User's messages at the end that nobody has answered are no unit of their own: they belong to none, and stay.

    Args:
        messages: The conversation.
        start: Where to begin.

    Example:
        >>> unit_starts([Msg.user("a"), Msg.assistant("b"), Msg.user("c"), Msg.assistant("d"), Msg.user("e")])
        [0, 2]
    """
    starts: list[int] = []
    begun: int | None = None
    for index in range(start, len(messages)):
        role = messages[index].role
        if role == "tool":
            continue
        if begun is None:
            begun = index
        if role == "assistant":
            starts.append(begun)
            begun = None
    return starts


def last_request(messages: Sequence[Msg]) -> Msg | None:
    """The last thing that a user really said: the last user's message that nobody has made up."""
    for index in range(len(messages) - 1, -1, -1):
        msg = messages[index]
        if msg.role == "user" and "synthetic" not in msg.metadata:
            return msg
    return None


def tail(messages: Sequence[Msg], start: int) -> tuple[Msg, ...]:
    """The messages from a place on; a slice of a view of the history would copy all of it first."""
    return tuple([messages[index] for index in range(max(0, start), len(messages))])


# ---- sizes


def most_tokens(messages: Iterable[Msg]) -> int:
    """A number that the tokens of the messages do not exceed: a token is a byte or more."""
    total = 0
    for msg in messages:
        total += 8
        for block in msg.content:
            total += _most(block)
    return total


def _most(block: ContentBlock) -> int:
    match block:
        case TextBlock(text=text) | ThinkingBlock(text=text):
            return _bytes(text)
        case ToolUseBlock():
            return 16 + _bytes(block.name) + _bytes(block.raw)
        case ToolResultBlock():
            content = block.content
            if isinstance(content, str):
                return 16 + _bytes(block.name) + _bytes(content)
            data = sum(isinstance(part, DataBlock) for part in content)
            return 16 + _bytes(block.name) + _bytes(block.text) + data * _DATA_TOKENS
        case DataBlock():
            return _DATA_TOKENS
        case _:
            assert_never(block)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


class RequestSize:
    """How long a run's requests are, in characters; what a request shares with the last one is not counted again.

    Example:
        >>> RequestSize().of([Msg.user("abcd"), Msg.assistant("ef")])
        6
    """

    __slots__ = ("_counted", "_length", "_total")

    def __init__(self) -> None:
        self._counted: Sequence[Msg] = ()
        self._length = 0
        self._total = 0

    def of(self, messages: Sequence[Msg]) -> int:
        """The characters of a request."""
        if not isinstance(messages, MessageView):
            return sum(map(_characters, messages))
        lasting = messages.shared(messages)  # what is laid behind is part of this request only
        begin, total = (
            (self._length, self._total) if messages.shared(self._counted) == self._length <= lasting else (0, 0)
        )
        for index in range(begin, lasting):
            total += _characters(messages[index])
        self._counted, self._length, self._total = messages, lasting, total
        for index in range(lasting, len(messages)):
            total += _characters(messages[index])
        return total


@dataclass
class RequestSizes:
    """How long a run's requests are, by hook; not stored with a session."""

    def __post_init__(self) -> None:
        self.by_hook: dict[int, RequestSize] = {}

    def of(self, hook: object, messages: Sequence[Msg]) -> int:
        """The characters of a request, as a hook sees it."""
        size = self.by_hook.get(id(hook))
        if size is None:
            size = self.by_hook[id(hook)] = RequestSize()
        return size.of(messages)


def _characters(msg: Msg) -> int:
    total = 0
    for block in msg.content:
        match block:
            case TextBlock(text=text) | ThinkingBlock(text=text):
                total += len(text)
            case ToolUseBlock():
                total += len(block.raw)
            case ToolResultBlock():
                total += len(block.text)
            case DataBlock():
                pass
            case _:
                assert_never(block)
    return total


async def count_tokens(messages: Sequence[Msg], model: str, count: CountTokens | None = None) -> int:
    """The tokens of messages, by the given counter or by LiteLLM's; a rough guess where neither can tell."""
    text = render(messages)
    data = sum(_data_blocks(msg) for msg in messages) * _DATA_TOKENS
    if count is not None:
        return count(text, model) + data
    return await asyncio.to_thread(_counted, text, model) + data


def _data_blocks(msg: Msg) -> int:
    found = sum(isinstance(block, DataBlock) for block in msg.content)
    for result in msg.tool_results:
        if not isinstance(result.content, str):
            found += sum(isinstance(block, DataBlock) for block in result.content)
    return found


def _counted(text: str, model: str) -> int:
    try:
        return litellm_library.count_tokens(model, text)
    except Exception:  # any: tokenizers raise what they like, and a guess is better than no answer
        return len(text) // 4 + 1


def is_context_overflow(error: BaseException) -> bool:
    """Whether a model failed because the conversation does not fit its context window.

    Models of one's own may not say it in `ModelError.kind`; then the words of the error and of its causes tell.

    Example:
        >>> is_context_overflow(ModelError("openai/gpt-5 cannot hold the conversation in its context window (400)."))
        True
    """
    if not isinstance(error, ModelError):
        return False
    if error.kind is not None or error.status == 413:
        return error.kind == "context_overflow" or error.status == 413
    link: BaseException | None = error
    for _ in range(5):
        if link is None:
            break
        text = str(link).lower()
        if type(link).__name__ == "ContextWindowExceededError" or any(word in text for word in _OVERFLOW):
            return True
        link = link.__cause__
    return False


async def fitting(
    source: ModelSource, shorter: Callable[[], Awaitable[Sequence[Msg] | None]]
) -> AsyncIterator[ModelChunk]:
    """The chunks of a reply, asked for once more where the conversation does not fit.

    Args:
        source: The model call.
        shorter: Makes a shorter request; None: it cannot, and the error stands.
    """
    chunks = source.open()
    try:
        async for chunk in chunks:
            yield chunk
        return
    except Exception as error:
        if not is_context_overflow(error):
            raise
        failure = error
    finally:
        await close(chunks)
    try:
        messages = await shorter()
        if messages is None:
            raise failure
    finally:
        del failure  # its traceback holds this frame
    chunks = source.using(input_messages=messages).open()
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        await close(chunks)


# ---- as text


def clipped(text: str, longest: int | None) -> str:
    """The start and the end of a text that is too long, with what is left out between them counted.

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
    """A conversation as text, for a model that is to read it and not to continue it.

    As text it goes to any model: no tools have to be declared, no thoughts are signed, no call waits for an answer.

    Args:
        messages: The conversation; thoughts are left out.
        clip: The most characters of one block.

    Example:
        >>> print(render([Msg.user("1 + 2?"), Msg.assistant(ToolUseBlock("t1", "add", {"a": 1, "b": 2}))]))
        user: 1 + 2?
        assistant calls add({"a":1,"b":2})
    """
    return "\n".join(line for msg in messages for line in _lines(msg, clip))


class Rendering:
    """A conversation as text that grows: what was rendered of the last one is not rendered again.

    Args:
        clip: The most characters of one block.
    """

    __slots__ = ("_clip", "_lasting", "_lines", "_rendered")

    def __init__(self, clip: int | None = None) -> None:
        self._clip = clip
        self._lines: list[str] = []
        self._lasting = 0
        self._rendered: Sequence[Msg] = ()

    def of(self, messages: Sequence[Msg]) -> str:
        """The conversation without its system prompt, as `render` gives it."""
        if not isinstance(messages, MessageView):
            return render(messages[head_length(messages) :], self._clip)
        lasting = messages.shared(messages)
        if messages.shared(self._rendered) != self._lasting or not self._lasting:
            self._lines, self._lasting = [], head_length(messages)
        for index in range(self._lasting, lasting):
            self._lines += _lines(messages[index], self._clip)
        self._rendered, self._lasting = messages, lasting
        return "\n".join([*self._lines, *(line for msg in tail(messages, lasting) for line in _lines(msg, self._clip))])


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
            case ThinkingBlock():
                pass
            case _:
                assert_never(block)
