"""Chunks of OpenAI's wire, and LiteLLM's, as `ModelChunk`s.

Rules:

1. Chunks come from outside and differ between servers and LiteLLM's versions: a field is read by name, in each type that
   `loose.py` knows. The usage chunk has no choice in 1.109 and an empty one in 1.105.
2. The text of a thought is `reasoning_content` (`reasoning` at some servers); `thinking_blocks` gives only its seal (with
   it, 1.105 repeats the whole text, 1.109 sends none).
3. Fragments of tool calls keep the provider's index; where there is none, an id or a name begins the next call.
4. A call of a tool that the vendor runs itself (LiteLLM shows Anthropic's as if they were ours) is no call for us.
5. Gemini's signatures travel inside LiteLLM's ids: they become the seal of a thought before the call, which leaves the
   id short.
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, cast

from agentflow.chunks import ModelChunk, ToolUseDelta
from agentflow.errors import UsageError
from agentflow.ground.media import sniff
from agentflow.messages import Citation, DataBlock, ThinkingBlock
from agentflow.models.conversion import SIGNATURE_MARK
from agentflow.models.loose import (
    NotUnderstoodError,
    count,
    field,
    items,
    json_text,
    one_or_more,
    place,
    skipped,
    words,
)
from agentflow.specs import Usage

_SAMPLES_A_SECOND = 24_000
"""OpenAI's `pcm16`: one channel of 16 bits, low byte first."""

_RUN_BY_VENDOR = ("srvtoolu_", "mcptoolu_")
"""How the ids of Anthropic's own tool calls begin."""

__all__ = ["ChunkReader", "usage_of"]


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

    __slots__ = ("_calls", "_foreign", "_last", "_model", "_sealed", "_sound", "finish_reason")

    def __init__(self, model: str, *, sealed: bool) -> None:
        self._model = model
        self._sealed = sealed
        self._calls = 0
        self._last = ""
        self._foreign: set[int] = set()
        self._sound: list[str] = []
        self.finish_reason: str | None = None

    def read(self, chunk: object) -> Iterator[ModelChunk]:
        """The pieces in one chunk; most chunks hold one or none. Usage is read apart (`usage_of`).

        Raises:
            NotUnderstoodError: A field holds something that cannot be read.
        """
        for choice in one_or_more(field(chunk, "choices")):
            if place(field(choice, "index")):
                continue  # a further answer, which nobody can have asked for
            delta = field(choice, "delta")
            if delta is None:
                delta = field(choice, "message")  # of servers that send the answer whole
            if delta is not None:
                yield from self._delta(delta)
            elif text := words(field(choice, "text"), "text"):
                yield ModelChunk(text)
            if isinstance(reason := field(choice, "finish_reason"), str) and reason:
                self.finish_reason = reason
                if self._sound and (block := sound_in(self._sound)) is not None:
                    yield ModelChunk(blocks=(block,))
                self._sound = []

    def _delta(self, delta: object) -> Iterator[ModelChunk]:
        if thinking := self._thought(field(delta, "reasoning_content")) or self._thought(field(delta, "reasoning")):
            yield ModelChunk(thinking=thinking, model=self._model)
        if self._sealed and (blocks := field(delta, "thinking_blocks")):
            yield from self._seals(items(blocks))
        content = field(delta, "content")
        if isinstance(content, (list, tuple)):
            yield from self._parts(cast("Sequence[object]", content))
        elif (text := words(content, "content")) or (text := words(field(delta, "refusal"), "refusal")):
            yield ModelChunk(text)
        calls = field(delta, "tool_calls")
        fragments = one_or_more(calls)
        if calls and not fragments:
            raise NotUnderstoodError(f"tool_calls is a {type(calls).__name__}, and not a list")
        for fragment in fragments:
            yield from self._call(fragment)
        if (function := field(delta, "function_call")) is not None:  # the wire's older word
            yield from self._call({"index": 0, "function": function})
        yield from self._extras(delta)

    def _thought(self, value: object) -> str:
        try:
            return words(value, "reasoning")
        except NotUnderstoodError as error:  # no part of the answer
            skipped(self._model, error.message)
            return ""

    def _parts(self, parts: Sequence[object]) -> Iterator[ModelChunk]:
        """Text that comes as a list of parts: Mistral's, and that of servers which stream what `/responses` would."""
        for part in parts:
            kind = field(part, "type")
            if isinstance(thinking := field(part, "thinking"), (str, list)):
                yield ModelChunk(thinking=self._thought(cast("object", thinking)), model=self._model)
            elif kind == "image_url":
                if (block := media_in(field(field(part, "image_url"), "url"))) is not None:
                    yield ModelChunk(blocks=(block,))
            elif isinstance(part, str) or field(part, "text") is not None:
                yield ModelChunk(words(part, "content"))
            elif refusal := words(field(part, "refusal"), "refusal"):
                yield ModelChunk(refusal)
            else:
                skipped(self._model, f"a content part of type {kind!r}")

    def _extras(self, delta: object) -> Iterator[ModelChunk]:
        """Citations, and images and sounds that the model made."""
        notes = [field(field(delta, "provider_specific_fields"), "citation"), *items(field(delta, "annotations"))]
        cited = [
            Citation.of(cast("Mapping[str, Any]", note), self._model) for note in notes if isinstance(note, Mapping)
        ]
        if cited:
            yield ModelChunk(citations=tuple(cited))
        made = [media_in(field(field(part, "image_url"), "url")) for part in items(field(delta, "images"))]
        if blocks := tuple(block for block in made if block is not None):
            yield ModelChunk(blocks=blocks)
        sound = field(delta, "audio")
        if spoken := words(field(sound, "transcript"), "transcript"):
            yield ModelChunk(spoken)
        if piece := words(field(sound, "data"), "audio"):
            self._sound.append(piece)

    def _seals(self, blocks: Sequence[object]) -> Iterator[ModelChunk]:
        for block in blocks:
            if field(block, "type") == "redacted_thinking":
                data = words(field(block, "data"), "redacted_thinking")
                yield ModelChunk(blocks=(ThinkingBlock("", None, data, self._model),), model=self._model)
            elif signature := words(field(block, "signature"), "signature"):
                yield ModelChunk(signature=signature, model=self._model)

    def _call(self, fragment: object) -> Iterator[ModelChunk]:
        if isinstance(fragment, (str, int, float, list)):
            raise NotUnderstoodError("a member of tool_calls is no object")
        function, custom = field(fragment, "function"), field(fragment, "custom")
        if function is None:
            function = custom
        id = words(field(fragment, "id"), "the id of a tool call")  # noqa: A001 - the field's own word
        name = words(field(function, "name"), "the name of a tool call")
        arguments = json_text(field(function, "arguments"))
        if custom is not None:  # a tool that takes text: no JSON, so such a call fails and says why
            arguments += words(field(custom, "input"), "the input of a tool call")
        if not (id or name or arguments):
            return  # Anthropic's empty pieces
        index = place(field(fragment, "index"))
        if index is None:
            begins = (id and id != self._last) or (name and not id)
            index = self._calls if begins else max(0, self._calls - 1)
        self._last = id or self._last
        self._calls = max(self._calls, index + 1)
        if id.startswith(_RUN_BY_VENDOR):
            self._foreign.add(index)
            skipped(self._model, f"a call of its own tool {name!r}")
        elif id and name:
            self._foreign.discard(index)
        if index in self._foreign:
            return
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
    if sniff(data) is None:
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
    if usage is None or isinstance(usage, (str, list, int)) or usage == {}:
        return None
    prompt = field(usage, "prompt_tokens_details")
    completion = field(usage, "completion_tokens_details")
    read = field(usage, "cache_read_input_tokens") or field(prompt, "cached_tokens")
    written = field(usage, "cache_creation_input_tokens") or field(prompt, "cache_creation_tokens")
    return Usage(
        input_tokens=count(field(usage, "prompt_tokens")),
        output_tokens=count(field(usage, "completion_tokens")),
        cache_read_tokens=count(read),
        cache_write_tokens=count(written),
        reasoning_tokens=count(field(completion, "reasoning_tokens")),
        cost=cost,
        model_calls=1,
    )
