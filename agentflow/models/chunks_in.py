"""Converts chunks of OpenAI's wire, and LiteLLM's, to `ModelChunk`s.

Rules:

1. Chunks differ between servers and LiteLLM's versions: a field is read by name, in each type that `loose.py` supports. The
   usage chunk has no choice in LiteLLM 1.109, and an empty choice in 1.105.
2. The text of a thought is in `reasoning_content` (`reasoning` at some servers); only the seal is read from `thinking_blocks`
   (there, LiteLLM 1.105 repeats the whole text, 1.109 sends none).
3. Fragments of tool calls keep the provider's index; if there is none, an id or a name begins the next call.
4. A call of a tool that the vendor runs (LiteLLM presents Anthropic's as client calls) is skipped.
5. Gemini's signatures are inside LiteLLM's ids: they become the seal of a thought before the call, and are removed from the id.
"""

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, cast

from agentflow._support.media import sniff
from agentflow.errors import UsageError
from agentflow.models.loose import (
    NotUnderstoodError,
    as_text,
    count,
    field,
    items,
    json_text,
    log_skipped,
    one_or_more,
    place,
)
from agentflow.models.wire_names import SIGNATURE_MARK
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta
from agentflow.vocabulary.messages import Citation, DataBlock, ThinkingBlock
from agentflow.vocabulary.specs import Usage

_SAMPLES_A_SECOND = 24_000
"""OpenAI's `pcm16`: one channel of 16 bits, low byte first."""

_RUN_BY_VENDOR = ("srvtoolu_", "mcptoolu_")
"""The prefixes of the ids of Anthropic's own tool calls."""


class ChunkReader:
    """Reads the chunks of one streamed reply.

    Args:
        model: The model's name, for its thoughts.
        sealed: Whether this family's `thinking_blocks` contain seals (Gemini's do not).

    Example:
        >>> reader = ChunkReader("openai/gpt-5", sealed=False)
        >>> [chunk.text for chunk in reader.read({"choices": [{"delta": {"content": "Hi"}}]})]
        ['Hi']
    """

    def __init__(self, model: str, *, sealed: bool) -> None:
        self._model = model
        self._sealed = sealed
        # `_calls` counts the calls begun; `_last` is the id of the latest, which each of its fragments may repeat.
        self._calls = 0
        self._last = ""
        self._foreign: set[int] = set()  # indices of the vendor's own calls: their later fragments have no id
        self._sound: list[str] = []  # a reply's audio is one block, made when it is complete
        self._refused = False
        self.finish_reason: str | None = None

    def read(self, chunk: object) -> Iterator[ModelChunk]:
        """Convert one chunk of the provider, usually to one chunk or none. The usage is read by `usage_of`.

        Raises:
            NotUnderstoodError: A field is unreadable.
        """
        for choice in one_or_more(field(chunk, "choices")):
            if place(field(choice, "index")):
                continue  # the chunk belongs to an alternative answer, which is never requested
            # The finish reason is read after the delta: some servers send both in one chunk.
            delta = field(choice, "delta")
            if delta is None:
                delta = field(choice, "message")  # some servers send the complete answer in one chunk
            if delta is not None:
                yield from self._delta(delta)
            elif text := as_text(field(choice, "text"), "text"):
                yield ModelChunk(text)
            if isinstance(reason := field(choice, "finish_reason"), str) and reason:
                # OpenAI ends a refusal with "stop"; only the name of the text's field shows that it is a refusal.
                self.finish_reason = "content_filter" if self._refused and reason == "stop" else reason
                if self._sound and (block := sound_in(self._sound)) is not None:
                    yield ModelChunk(blocks=(block,))
                self._sound = []

    def _delta(self, delta: object) -> Iterator[ModelChunk]:
        if thinking := self._thought(field(delta, "reasoning_content")) or self._thought(field(delta, "reasoning")):
            yield ModelChunk(thinking=thinking, model=self._model)
        # A seal comes after the text of the thought that it closes.
        if self._sealed and (blocks := field(delta, "thinking_blocks")):
            yield from self._seals(items(blocks))
        content = field(delta, "content")
        if isinstance(content, (list, tuple)):
            yield from self._parts(cast("Sequence[object]", content))
        elif text := as_text(content, "content"):
            yield ModelChunk(text)
        elif refusal := as_text(field(delta, "refusal"), "refusal"):
            self._refused = True
            yield ModelChunk(refusal)
        calls = field(delta, "tool_calls")
        fragments = one_or_more(calls)
        # If a call were skipped, the reply would look complete.
        if calls and not fragments:
            raise NotUnderstoodError(f"tool_calls is a {type(calls).__name__} instead of a list")
        for fragment in fragments:
            yield from self._call(fragment)
        if (function := field(delta, "function_call")) is not None:  # the older form of tool calls
            yield from self._call({"index": 0, "function": function})
        yield from self._extras(delta)

    def _thought(self, value: object) -> str:
        try:
            return as_text(value, "reasoning")
        except NotUnderstoodError as error:  # skipped, since a thought is not part of the answer
            log_skipped(self._model, error.message)
            return ""

    def _parts(self, parts: Sequence[object]) -> Iterator[ModelChunk]:
        """Read text sent as a list of parts, by Mistral and servers that stream the format of `/responses`."""
        for part in parts:
            kind = field(part, "type")
            if isinstance(thinking := field(part, "thinking"), (str, list)):
                yield ModelChunk(thinking=self._thought(cast("object", thinking)), model=self._model)
            elif kind == "image_url":
                if (block := media_in(field(field(part, "image_url"), "url"))) is not None:
                    yield ModelChunk(blocks=(block,))
            elif isinstance(part, str) or field(part, "text") is not None:
                yield ModelChunk(as_text(part, "content"))
            elif refusal := as_text(field(part, "refusal"), "refusal"):
                self._refused = True
                yield ModelChunk(refusal)
            else:
                log_skipped(self._model, f"a content part of type {kind!r}")

    def _extras(self, delta: object) -> Iterator[ModelChunk]:
        """Read citations, and images and audio that the model created."""
        # LiteLLM passes on Anthropic's citations in `provider_specific_fields`; OpenAI sends annotations.
        notes = [field(field(delta, "provider_specific_fields"), "citation"), *items(field(delta, "annotations"))]
        cited = [
            Citation.of(cast("Mapping[str, Any]", note), self._model) for note in notes if isinstance(note, Mapping)
        ]
        if cited:
            yield ModelChunk(citations=tuple(cited))
        images = [media_in(field(field(part, "image_url"), "url")) for part in items(field(delta, "images"))]
        if blocks := tuple(block for block in images if block is not None):
            yield ModelChunk(blocks=blocks)
        sound = field(delta, "audio")
        if spoken := as_text(field(sound, "transcript"), "transcript"):
            yield ModelChunk(spoken)
        if encoded := as_text(field(sound, "data"), "audio"):
            self._sound.append(encoded)

    def _seals(self, blocks: Sequence[object]) -> Iterator[ModelChunk]:
        for block in blocks:
            if field(block, "type") == "redacted_thinking":
                data = as_text(field(block, "data"), "redacted_thinking")
                yield ModelChunk(blocks=(ThinkingBlock("", None, data, self._model),), model=self._model)
            elif signature := as_text(field(block, "signature"), "signature"):
                yield ModelChunk(signature=signature, model=self._model)

    def _call(self, fragment: object) -> Iterator[ModelChunk]:
        if isinstance(fragment, (str, int, float, list)):
            raise NotUnderstoodError("a member of tool_calls is not an object")
        function, custom = field(fragment, "function"), field(fragment, "custom")
        if function is None:
            function = custom
        id = as_text(field(fragment, "id"), "the id of a tool call")  # noqa: A001 - the field's own name
        name = as_text(field(function, "name"), "the name of a tool call")
        arguments = json_text(field(function, "arguments"))
        # A call with text instead of JSON as its input: it fails with an explanation for the model.
        if custom is not None:
            arguments += as_text(field(custom, "input"), "the input of a tool call")
        # An empty fragment with an index of its own would become a call without a name.
        if not (id or name or arguments):
            return  # LiteLLM sends such chunks for Anthropic
        index = place(field(fragment, "index"))
        if index is None:
            # If a server repeats the id in each fragment, only the first fragment begins a call.
            starts_call = (id and id != self._last) or (name and not id)
            index = self._calls if starts_call else max(0, self._calls - 1)
        self._last = id or self._last
        self._calls = max(self._calls, index + 1)
        if id.startswith(_RUN_BY_VENDOR):
            self._foreign.add(index)
            log_skipped(self._model, f"a call of its own tool {name!r}")
        # A server may use the index of the vendor's call again for one of the client.
        elif id and name:
            self._foreign.discard(index)
        if index in self._foreign:
            return
        id, _, signature = id.partition(SIGNATURE_MARK)  # noqa: A001 - as above
        delta = ToolUseDelta(index, id, name, arguments)
        if signature:
            # The fold puts the seal into a thought before the call (rule 5).
            yield ModelChunk(signature=signature, tool_uses=(delta,), model=self._model)
        else:
            yield ModelChunk(tool_uses=(delta,))


def media_in(url: object) -> DataBlock | None:
    """Return an image that a model created, from its URL (usually a data URL); None if it is unreadable.

    Example:
        >>> str(media_in("data:image/png;base64,aGVsbG8="))
        '[image/png, 5 bytes]'
    """
    if not isinstance(url, str) or not url:
        return None
    try:
        # A block needs a type, but the URL of an image usually shows none.
        return DataBlock.from_url(url, None if url.startswith("data:") else "image/png")
    except UsageError:
        return None


def sound_in(chunks: Sequence[str]) -> DataBlock | None:
    """Return a model's audio from its base64 chunks; raw samples, which streams contain, become a WAV file.

    Example:
        >>> str(sound_in(["AAA=", "AAA="]))
        '[audio/wav, 48 bytes]'
    """
    try:
        data = b"".join(b64decode(chunk, validate=True) for chunk in chunks)
    except ValueError:
        return None
    if not data:
        return None
    if sniff(data) is None:
        import wave  # imported here, because few programs need it

        whole = BytesIO()
        with wave.open(whole, "wb") as file:
            file.setparams((1, 2, _SAMPLES_A_SECOND, 0, "NONE", "not compressed"))
            file.writeframes(data)
        data = whole.getvalue()
    return DataBlock.from_bytes(data, max_bytes=None)


def usage_of(chunk: object, cost: float | None = None) -> Usage | None:
    """Return the usage that a chunk contains, or None.

    Example:
        >>> usage_of({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}).total_tokens
        5
    """
    usage = field(chunk, "usage")
    if usage is None or isinstance(usage, (str, list, int)) or usage == {}:
        return None
    prompt = field(usage, "prompt_tokens_details")
    completion = field(usage, "completion_tokens_details")
    # Anthropic's names, as in LiteLLM's usage, then OpenAI's.
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
