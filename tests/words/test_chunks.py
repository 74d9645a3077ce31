"""`fold`: the reply that chunks make."""

from typing import Any

import pytest
from eventlog import said

from agentflow import ModelChunk, Msg, TextBlock, ToolUseBlock, Usage
from agentflow._support.ids import new_id
from agentflow.vocabulary.blocks import Citation
from agentflow.vocabulary.chunks import ToolUseDelta, fold


def delta(index: int, id: str = "", name: str = "", arguments: str = "") -> ModelChunk:  # noqa: A002
    return ModelChunk(tool_uses=(ToolUseDelta(index, id, name, arguments),))


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ([], "assistant: "),
        ([ModelChunk("Hel"), ModelChunk("lo")], "assistant: Hello"),
        ([ModelChunk("void"), ModelChunk("new", restart=True), ModelChunk("er")], "assistant: newer"),
        (
            [delta(0, "t1", "add", '{"a"'), delta(1, "t2", "sub", "{}"), delta(0, arguments=": 1}")],
            "assistant: [t1:add(a=1)], [t2:sub()]".replace(", [", " ["),
        ),
        ([delta(0, "t1", "add", "{}"), delta(0, "t2", "add", "{}")], "assistant: [t1:add()] [t2:add()]"),
        ([delta(0, "t1"), delta(0, name="add"), delta(0, arguments="{}")], "assistant: [t1:add()]"),
        ([delta(0, "t1", "add", "{}"), delta(0, "t1", "add", "")], "assistant: [t1:add()]"),
    ],
)
def test_fold(chunks: list[ModelChunk], text: str) -> None:
    """Text joins; fragments of calls belong together by index; a restart voids what came before."""
    assert said(fold(chunks)) == text


def test_usage_is_the_last_report() -> None:
    """Usage is cumulative: the last report counts; the finish reason too."""
    chunks = [ModelChunk(usage=Usage(input_tokens=1)), ModelChunk(usage=Usage(input_tokens=5), finish_reason="stop")]
    msg = fold(chunks)
    assert (msg.usage, msg.finish_reason) == (Usage(input_tokens=5), "stop")


@pytest.mark.parametrize("bad", ["", "a b", "x" * 41, "ü", "t1"])
def test_ids_that_cannot_be_used_are_replaced(bad: str) -> None:
    """Empty, illegal and used ids are replaced when the reply is folded; repeated ones too."""
    call: Any = [delta(0, bad, "add", "{}"), delta(1, bad, "add", "{}")]
    msg = fold(call, used_ids={"t1"}, new_id=new_id)
    found = [block.id for block in msg.tool_uses]
    assert len({*found, bad, "t1"}) == 3 + (bad != "t1")
    assert all(made.startswith("call_") for made in found)
    lone = fold([delta(0, bad, "add", "{}")], used_ids={"t1"}, new_id=new_id)
    assert [block.id.startswith("call_") for block in lone.tool_uses] == [True]


def test_thoughts_keep_their_signature() -> None:
    """A signature seals the thought that it ends; the model is recorded; following text is a block of its own."""
    chunks = [ModelChunk(thinking="h", model="m"), ModelChunk(thinking="m"), ModelChunk(signature="s"), ModelChunk("x")]
    msg = fold(chunks)
    thought: Any = msg.content[0]
    assert (thought.text, thought.signature, thought.model, msg.text) == ("hm", "s", "m", "x")


def test_fold_of_a_whole_message() -> None:
    """A message as one chunk folds to itself."""
    msg = Msg.assistant(["x", ToolUseBlock("t1", "add", {"a": 1})], finish_reason="stop")
    assert fold([ModelChunk.of(msg)]) == msg


def test_halves_of_a_character_become_one() -> None:
    """Streams split characters; what remains half a character is replaced, because no encoding can hold it."""
    text = [ModelChunk("a \ud83d"), ModelChunk("\ude00 \ud83d")]
    thought = [ModelChunk(thinking="\ud83d"), ModelChunk(thinking="\ude00"), ModelChunk("so \udc80")]
    assert fold(text).text == "a 😀 �"
    assert (fold(thought).thinking, fold(thought).text) == ("😀", "so �")


PARTS: dict[str, Any] = {
    "text": "x",
    "thinking": "hm",
    "blocks": (TextBlock("block"),),
    "citations": (Citation("https://example.com", text="said"),),
    "signature": "s",
    "model": "m",
    "usage": Usage(input_tokens=1),
    "finish_reason": "stop",
    "restart": True,
    "tool_uses": (ToolUseDelta(1, "t2", "sub", "{}"),),
}


@pytest.mark.parametrize("first", sorted(PARTS))
@pytest.mark.parametrize("second", sorted(PARTS))
@pytest.mark.parametrize("call", [True, False], ids=["a call", "no call"])
def test_an_empty_chunk_changes_nothing(call: bool, first: str, second: str) -> None:
    """In any place, and whatever the other chunk has: replies of one chunk or of text alone are no special case."""
    parts = {first: PARTS[first], second: PARTS[second]}
    if call:
        parts["tool_uses"] = (ToolUseDelta(0, "t1", "add", '{"a": 1}'), *parts.get("tool_uses", ()))
    chunk, empty = ModelChunk(**parts), ModelChunk()
    one, *more = (
        fold(chunks, id="m") for chunks in ([chunk], [empty, chunk], [chunk, empty], [ModelChunk("v"), chunk])
    )
    for other in more[:2]:
        assert (other, other.usage, other.finish_reason) == (one, one.usage, one.finish_reason)
    text = one.text if "restart" in parts else f"v{one.text}"
    assert (more[2].text, more[2].thinking, more[2].tool_uses) == (text, one.thinking, one.tool_uses)
