"""LiteLLM's chunks as recorded in two versions, and their conversion."""

from types import SimpleNamespace

from agentflow.models.chunks_in import ChunkReader, usage_of
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta, fold
from agentflow.vocabulary.messages import ThinkingBlock

MODEL = "anthropic/claude-sonnet-4-5"


def chunk(delta: dict | None = None, finish: str | None = None, **fields: object) -> SimpleNamespace:
    """Return a chunk as objects like LiteLLM's classes."""
    choice = SimpleNamespace(index=0, delta=SimpleNamespace(**(delta or {})), finish_reason=finish)
    return SimpleNamespace(**{"choices": [choice], **fields})


def call(index: int | None, id: str | None = None, name: str | None = None, arguments: str = "") -> dict:  # noqa: A002
    function = SimpleNamespace(name=name, arguments=arguments)
    return {"tool_calls": [SimpleNamespace(index=index, id=id, type="function", function=function)]}


def read(chunks: list[SimpleNamespace], *, sealed: bool = True) -> list[ModelChunk]:
    reader = ChunkReader(MODEL, sealed=sealed)
    return [piece for one in chunks for piece in reader.read(one)]


USAGE = SimpleNamespace(
    prompt_tokens=17,
    completion_tokens=5,
    prompt_tokens_details=SimpleNamespace(cached_tokens=4),
    completion_tokens_details=SimpleNamespace(reasoning_tokens=3),
    cache_creation_input_tokens=2,
    cache_read_input_tokens=4,
)


def thought(text: str, signature: str | None = None) -> dict:
    return {"type": "thinking", "thinking": text, "signature": signature}


def test_thoughts_of_both_versions_are_the_same() -> None:
    """1.109 sends the signature with an empty thought, 1.105 with the whole text again; the text is taken once."""
    start = [
        chunk({"role": "assistant", "reasoning_content": "Let ", "thinking_blocks": [thought("Let ")]}),
        chunk({"reasoning_content": "me.", "thinking_blocks": [thought("me.")]}),
    ]
    newer = chunk({"reasoning_content": "", "thinking_blocks": [thought("", "seal")]})
    older = chunk({"reasoning_content": None, "thinking_blocks": [thought("Let me.", "seal")]})
    expected = (ThinkingBlock("Let me.", "seal", model=MODEL),)
    assert fold(read([*start, newer])).content == expected
    assert fold(read([*start, older])).content == expected


def test_several_thoughts_a_hidden_and_an_empty_one() -> None:
    """Each signature ends its thought; a redacted block and a signed empty thought are kept."""
    chunks = [
        chunk({"reasoning_content": "a", "thinking_blocks": [thought("a")]}),
        chunk({"thinking_blocks": [thought("", "s1")]}),
        chunk({"thinking_blocks": [thought("", "s2")]}),
        chunk({"thinking_blocks": [{"type": "redacted_thinking", "data": "secret"}]}),
        chunk({"content": "ok"}),
    ]
    reply = fold(read(chunks))
    assert [(b.text, b.signature, b.redacted) for b in reply.content if isinstance(b, ThinkingBlock)] == [
        ("a", "s1", None),
        ("", "s2", None),
        ("", None, "secret"),
    ]
    assert reply.text == "ok"


def test_the_usage_chunk_of_both_versions() -> None:
    """Without choices (1.109) and with an empty one (1.105) it has the same content, and no text of the reply."""
    for last in (SimpleNamespace(choices=[], usage=USAGE), chunk({"content": None}, usage=USAGE)):
        assert read([last]) == []
        usage = usage_of(last, 0.25)
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.cost, usage.model_calls) == (17, 5, 0.25, 1)
        assert (usage.cache_read_tokens, usage.cache_write_tokens, usage.reasoning_tokens) == (4, 2, 3)
    assert usage_of(chunk({"content": "x"})) is None
    assert usage_of({"usage": {"prompt_tokens": None}}) is not None


def test_interleaved_calls_keep_their_index() -> None:
    """OpenAI's fragments may be interleaved; Anthropic's empty ones are ignored."""
    chunks = [
        chunk(call(0, "c0", "add")),
        chunk(call(1, "c1", "mul")),
        chunk(call(1, None, None, '{"b"')),
        chunk(call(0, None, None, '{"a":1}')),
        chunk(call(0)),
        chunk(call(1, None, None, ":2}")),
        chunk({}, "tool_calls"),
    ]
    uses = fold(read(chunks)).tool_uses
    assert [(use.id, use.name, dict(use.input)) for use in uses] == [("c0", "add", {"a": 1}), ("c1", "mul", {"b": 2})]


def test_calls_without_an_index_follow_each_other() -> None:
    """If a server sends no indexes, a head begins the next call."""
    chunks = [
        chunk(call(None, "c0", "add")),
        chunk(call(None, None, None, "{}")),
        chunk(call(None, "c1", "add", "{}")),
    ]
    assert [delta.index for piece in read(chunks) for delta in piece.tool_uses] == [0, 0, 1]


def test_geminis_ids_are_split_from_their_signature() -> None:
    """LiteLLM writes the signature into the id; it becomes a signature before the call and the id stays short."""
    signed = chunk(call(0, "call_1__thought__c2VhbA==", "add", "{}"), "tool_calls")
    plain = chunk(call(1, "call_2", "add", "{}"), "tool_calls")
    pieces = read([chunk({"reasoning_content": "Hm."}), signed, plain], sealed=False)
    assert pieces[1].tool_uses == (ToolUseDelta(0, "call_1", "add", "{}"),)
    reply = fold(pieces)
    assert reply.content[0] == ThinkingBlock("Hm.", "c2VhbA==", model=MODEL)
    assert [use.id for use in reply.tool_uses] == ["call_1", "call_2"]


def test_the_finish_reason_is_kept_for_the_stream() -> None:
    """The last chunk has the reason."""
    reader = ChunkReader(MODEL, sealed=True)
    assert [*reader.read(chunk({"content": "x"}))] == [ModelChunk("x")]
    assert reader.finish_reason is None
    assert [*reader.read(chunk({}, "length"))] == []
    assert reader.finish_reason == "length"


def test_nonsense_is_nothing() -> None:
    """Chunks are foreign data: an unknown form yields no chunk."""
    odd = [
        SimpleNamespace(),
        {"choices": None},
        {"choices": [None]},
        {"choices": [{"delta": {"tool_calls": [{}]}}]},
        None,
    ]
    reader = ChunkReader(MODEL, sealed=True)
    assert [piece for one in odd for piece in reader.read(one)] == []
