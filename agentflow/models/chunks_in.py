"""Chunks of OpenAI's wire, and LiteLLM's, as `ModelChunk`s.

Rules:

1. Chunks come from outside and differ between LiteLLM's versions: a field is read by name, and what is not there is
   nothing. The usage chunk has no choice in 1.109 and an empty one in 1.105.
2. The text of a thought is `reasoning_content` (`reasoning` at some servers); `thinking_blocks` gives only its seal (with
   it, 1.105 repeats the whole text, 1.109 sends none).
3. Fragments of tool calls keep the provider's index; where there is none, an id or a name begins the next call.
4. Gemini's signatures travel inside LiteLLM's ids: they become the seal of a thought before the call, which leaves the
   id short.
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, cast

from agentflow.chunks import ModelChunk, ToolUseDelta
from agentflow.errors import UsageError
from agentflow.ground.media import sniffed
from agentflow.messages import Citation, DataBlock, ThinkingBlock
from agentflow.models.conversion import SIGNATURE_MARK
from agentflow.specs import Usage

_SAMPLES_A_SECOND = 24_000
"""OpenAI's `pcm16`: one channel of 16 bits, low byte first."""

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

    __slots__ = ("_calls", "_model", "_sealed", "_sound", "finish_reason")

    def __init__(self, model: str, *, sealed: bool) -> None:
        self._model = model
        self._sealed = sealed
        self._calls = 0
        self._sound: list[str] = []
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
            if self._sound and (block := sound_in(self._sound)) is not None:
                yield ModelChunk(blocks=(block,))
            self._sound = []

    def _delta(self, delta: object) -> Iterator[ModelChunk]:
        if thinking := _text(field(delta, "reasoning_content")) or _text(field(delta, "reasoning")):
            yield ModelChunk(thinking=thinking, model=self._model)
        if self._sealed and (blocks := field(delta, "thinking_blocks")):
            yield from self._seals(_items(blocks))
        if text := _text(field(delta, "content")) or _text(field(delta, "refusal")):
            yield ModelChunk(text)
        for fragment in _items(field(delta, "tool_calls")):
            yield from self._call(fragment)
        yield from self._extras(delta)

    def _extras(self, delta: object) -> Iterator[ModelChunk]:
        """Citations, and images and sounds that the model made."""
        notes = [field(field(delta, "provider_specific_fields"), "citation"), *_items(field(delta, "annotations"))]
        cited = [
            Citation.of(cast("Mapping[str, Any]", note), self._model) for note in notes if isinstance(note, Mapping)
        ]
        if cited:
            yield ModelChunk(citations=tuple(cited))
        made = [media_in(field(field(part, "image_url"), "url")) for part in _items(field(delta, "images"))]
        if blocks := tuple(block for block in made if block is not None):
            yield ModelChunk(blocks=blocks)
        sound = field(delta, "audio")
        if words := _text(field(sound, "transcript")):
            yield ModelChunk(words)
        if piece := _text(field(sound, "data")):
            self._sound.append(piece)

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


def media_in(url: object) -> DataBlock | None:
    """An image that a model made, by its address, which mostly holds it; None where it cannot be read.

    Example:
        >>> str(media_in("data:image/png;base64,aGVsbG8="))
        '[image/png, 5 bytes]'
    """
    if not isinstance(url, str) or not url:
        return None
    try:
        return DataBlock.from_url(url, None if url.startswith("data:") else "image/png")
    except UsageError:
        return None


def sound_in(pieces: Sequence[str]) -> DataBlock | None:
    """What a model spoke, of the pieces in base64 that came; bare samples, which is what streams hold, become a WAV file.

    Example:
        >>> str(sound_in(["AAA=", "AAA="]))
        '[audio/wav, 48 bytes]'
    """
    try:
        data = b"".join(b64decode(piece, validate=True) for piece in pieces)
    except ValueError:
        return None
    if not data:
        return None
    if sniffed(data) is None:
        import wave  # for the few that speak

        whole = BytesIO()
        with wave.open(whole, "wb") as file:
            file.setparams((1, 2, _SAMPLES_A_SECOND, 0, "NONE", "not compressed"))
            file.writeframes(data)
        data = whole.getvalue()
    return DataBlock.from_bytes(data, max_bytes=None)


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
