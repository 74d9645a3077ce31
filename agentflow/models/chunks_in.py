"""LiteLLM's chunks as `ModelChunk`s.

Rules:

1. Chunks come from outside and differ between LiteLLM's versions: a field is read by name, and what is not there is
   nothing. The usage chunk has no choice in 1.109 and an empty one in 1.105.
2. The text of a thought is `reasoning_content`; `thinking_blocks` gives only its seal (with it, 1.105 repeats the whole
   text, 1.109 sends none).
3. Fragments of tool calls keep the provider's index; where there is none, an id or a name begins the next call.
4. Gemini's signatures travel inside LiteLLM's ids: they become the seal of a thought before the call, which leaves the
   id short.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from agentflow.chunks import ModelChunk, ToolUseDelta
from agentflow.messages import ThinkingBlock
from agentflow.models.conversion import SIGNATURE_MARK
from agentflow.specs import Usage

__all__ = ["ChunkReader", "field", "usage_of"]


def field(value: object, name: str) -> object:
    """A field of an object or a mapping that came from outside; None where there is none."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, object]", value).get(name)
    return getattr(value, name, None)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _items(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else ()


def _count(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


class ChunkReader:
    """Reads the chunks of one streamed reply.

    Args:
        model: The model's name, written on its thoughts.
        sealed: Whether this family's `thinking_blocks` hold seals (Gemini's hold something else).

    Example:
        >>> reader = ChunkReader("openai/gpt-5", sealed=False)
        >>> [chunk.text for chunk in reader.read({"choices": [{"delta": {"content": "Hi"}}]})]
        ['Hi']
    """

    __slots__ = ("_calls", "_model", "_sealed", "finish_reason")

    def __init__(self, model: str, *, sealed: bool) -> None:
        self._model = model
        self._sealed = sealed
        self._calls = 0
        self.finish_reason: str | None = None

    def read(self, chunk: object) -> Iterator[ModelChunk]:
        """The pieces in one chunk; most chunks hold one or none. Usage is read apart (`usage_of`)."""
        choices = _items(field(chunk, "choices"))
        if not choices:
            return
        choice = choices[0]
        delta = field(choice, "delta")
        if delta is not None:
            yield from self._delta(delta)
        if isinstance(reason := field(choice, "finish_reason"), str) and reason:
            self.finish_reason = reason

    def _delta(self, delta: object) -> Iterator[ModelChunk]:
        if thinking := _text(field(delta, "reasoning_content")):
            yield ModelChunk(thinking=thinking, model=self._model)
        if self._sealed and (blocks := field(delta, "thinking_blocks")):
            yield from self._seals(_items(blocks))
        if text := _text(field(delta, "content")) or _text(field(delta, "refusal")):
            yield ModelChunk(text)
        for fragment in _items(field(delta, "tool_calls")):
            yield from self._call(fragment)

    def _seals(self, blocks: Sequence[object]) -> Iterator[ModelChunk]:
        for block in blocks:
            if field(block, "type") == "redacted_thinking":
                data = _text(field(block, "data"))
                yield ModelChunk(blocks=(ThinkingBlock("", None, data, self._model),), model=self._model)
            elif signature := _text(field(block, "signature")):
                yield ModelChunk(signature=signature, model=self._model)

    def _call(self, fragment: object) -> Iterator[ModelChunk]:
        function = field(fragment, "function")
        id, name = _text(field(fragment, "id")), _text(field(function, "name"))  # noqa: A001 - the field's own word
        arguments = _text(field(function, "arguments"))
        if not (id or name or arguments):
            return  # Anthropic's empty pieces
        index = field(fragment, "index")
        if not isinstance(index, int):
            index = self._calls if id or name else max(0, self._calls - 1)
        self._calls = max(self._calls, index + 1)
        id, _, signature = id.partition(SIGNATURE_MARK)  # noqa: A001
        delta = ToolUseDelta(index, id, name, arguments)
        if signature:
            yield ModelChunk(signature=signature, tool_uses=(delta,), model=self._model)
        else:
            yield ModelChunk(tool_uses=(delta,))


def usage_of(chunk: object, cost: float | None = None) -> Usage | None:
    """What the chunk says about consumption, if it says anything.

    Example:
        >>> usage_of({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}).total_tokens
        5
    """
    usage = field(chunk, "usage")
    if usage is None:
        return None
    prompt = field(usage, "prompt_tokens_details")
    completion = field(usage, "completion_tokens_details")
    read = field(usage, "cache_read_input_tokens") or field(prompt, "cached_tokens")
    written = field(usage, "cache_creation_input_tokens") or field(prompt, "cache_creation_tokens")
    return Usage(
        input_tokens=_count(field(usage, "prompt_tokens")),
        output_tokens=_count(field(usage, "completion_tokens")),
        cache_read_tokens=_count(read),
        cache_write_tokens=_count(written),
        reasoning_tokens=_count(field(completion, "reasoning_tokens")),
        cost=cost,
        model_calls=1,
    )
