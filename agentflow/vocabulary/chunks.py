"""`ModelChunk`, one chunk of a streamed reply, and `fold`, which builds the reply from its chunks.

Rules:

1. Fragments of tool calls are grouped by `index`, not by arrival: providers interleave parallel calls.
2. Usage is cumulative: the last report is used.
3. A chunk with `restart=True` discards everything before it.
4. Tool-use ids are replaced if they are empty, invalid for a provider, or already used in the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import fields
from operator import attrgetter

from agentflow._support.frozen import EMPTY
from agentflow._support.ids import new_id as fresh_id
from agentflow._support.shown import encodable
from agentflow._support.values import fast_build, frozen
from agentflow.vocabulary.messages import (
    Citation,
    ContentBlock,
    Msg,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    message,
    text_block,
)
from agentflow.vocabulary.specs import Usage

__all__ = ["ModelChunk", "ToolUseDelta", "fold", "text_chunk"]

_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}\Z")


@frozen
class ToolUseDelta:
    """A fragment of a tool call.

    Attributes:
        index: The position of the call in the reply, from 0.
        id: The call's id, in its first fragment.
        name: The tool's name, in its first fragment.
        arguments: The next part of the JSON text of the arguments.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@frozen
class ModelChunk:
    """One chunk of a streamed reply; most set one field.

    Attributes:
        text: The next text.
        thinking: The next part of the thinking.
        signature: The signature of the thinking, in the chunk that completes it.
        tool_uses: Fragments of tool calls.
        blocks: Complete blocks (images, redacted thinking, tool calls).
        usage: The usage of the reply so far.
        finish_reason: Why the reply ended, in its last chunks.
        restart: Whether the reply starts over with this chunk.
        model: The model that produced the thinking, which is sent back only to this model.
        citations: The sources of the text so far; later text begins a new block.

    Example:
        >>> fold([ModelChunk("Hel"), ModelChunk("lo")]).text
        'Hello'
    """

    text: str = ""
    thinking: str = ""
    signature: str | None = None
    tool_uses: tuple[ToolUseDelta, ...] = ()
    blocks: tuple[ContentBlock, ...] = ()
    usage: Usage | None = None
    finish_reason: str | None = None
    restart: bool = False
    model: str | None = None
    citations: tuple[Citation, ...] = ()

    @staticmethod
    def of(msg: Msg) -> ModelChunk:
        """Return a complete message as one chunk."""
        return ModelChunk(blocks=msg.content, usage=msg.usage, finish_reason=msg.finish_reason)


@fast_build(ModelChunk)
def text_chunk(text: str) -> ModelChunk:
    """Build a chunk of text on the fast path of the model adapters."""
    return ModelChunk(text)


class _Folding:
    """The blocks of a reply while it is folded."""

    __slots__ = ("blocks", "calls", "cited", "current", "finish_reason", "model", "parts", "usage")

    def __init__(self) -> None:
        # A list represents an unfinished call: its id, its name, and the fragments of its arguments.
        self.blocks: list[ContentBlock | list[str]] = []
        self.calls: dict[int, list[str]] = {}  # the same lists by index, to find the call of a fragment
        self.parts: list[str] = []
        self.cited: tuple[Citation, ...] = ()
        self.current = ""  # "text" | "thinking" | ""
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.model: str | None = None

    def switch(self, kind: str, signature: str | None = None) -> None:
        """End the current block and begin a new one of this kind."""
        if self.current == "text" and self.parts:
            text = encodable("".join(self.parts))
            self.blocks.append(TextBlock(text, citations=self.cited) if self.cited else text_block(text))
            self.cited = ()
        elif self.current == "thinking" and (self.parts or signature is not None):
            self.blocks.append(ThinkingBlock(encodable("".join(self.parts)), signature, None, self.model))
        self.parts = []
        self.current = kind

    def add(self, chunk: ModelChunk) -> None:
        if chunk.model is not None:
            self.model = chunk.model
        if chunk.thinking:
            if self.current != "thinking":
                self.switch("thinking")
            self.parts.append(chunk.thinking)
        if chunk.signature is not None:
            if self.current != "thinking":
                self.switch("thinking")
            self.switch("", chunk.signature)
        if chunk.text:
            if self.current != "text" or (self.cited and self.parts):  # citations belong to the text before them
                self.switch("text")
            self.parts.append(chunk.text)
        if chunk.citations:
            self.cited += chunk.citations
        for delta in chunk.tool_uses:
            self.add_call(delta)
        if chunk.blocks:
            self.switch("")
            self.blocks.extend(chunk.blocks)
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason

    def add_call(self, delta: ToolUseDelta) -> None:
        call = self.calls.get(delta.index)
        # Some servers number every call 0; a different id together with a name then means a new call.
        if call is None or (delta.id and call[0] and delta.id != call[0] and delta.name):
            if self.current:
                self.switch("")
            call = self.calls[delta.index] = [delta.id, delta.name]
            self.blocks.append(call)
        else:
            call[0] = call[0] or delta.id  # some servers repeat the id, or send it late
            # Some servers split the name, others repeat it in each fragment.
            if delta.name and delta.name != call[1]:
                call[1] += delta.name
        if delta.arguments:
            call.append(delta.arguments)


# Each pair shows with one comparison of tuples whether a chunk sets any field besides those that a fast path handles.
_besides_text = attrgetter(*[field.name for field in fields(ModelChunk) if field.name != "text"])
_TEXT_ALONE = _besides_text(ModelChunk(""))
_besides_text_and_end = attrgetter("tool_uses", "thinking", "blocks", "restart", "signature", "model", "citations")
_TEXT_AND_END_ALONE = _besides_text_and_end(ModelChunk(""))
_besides_calls = attrgetter("text", "thinking", "blocks", "signature")
_CALLS_ALONE = _besides_calls(ModelChunk(""))


def fold(
    chunks: Iterable[ModelChunk],
    *,
    id: str | None = None,  # noqa: A002 - the name of the field
    used_ids: Collection[str] = (),
    new_id: Callable[[str], str] = fresh_id,
) -> Msg:
    """Build the assistant's message from its chunks.

    Args:
        chunks: The chunks, in order.
        id: The message's id; a fresh one by default.
        used_ids: Tool-use ids of the conversation so far. A call that repeats one gets a fresh id.
        new_id: The source of ids.

    Returns:
        The message: blocks in order of arrival, tool calls complete.
    """
    msg_id = new_id("msg_") if id is None else id
    if isinstance(chunks, list) and len(chunks) == 1 and len(calls := (chunk := chunks[0]).tool_uses) == 1:
        call = calls[0]  # one complete call in one chunk, as many servers send it
        if _besides_calls(chunk) == _CALLS_ALONE and call.id not in used_ids and _LEGAL_ID.match(call.id):
            content = (ToolUseBlock.from_json(call.id, call.name, call.arguments),)
            return message("assistant", content, msg_id, EMPTY, chunk.usage, chunk.finish_reason)
    rest = iter(chunks)
    texts: list[str] = []
    usage: Usage | None = None
    finish_reason: str | None = None
    add = texts.append
    for chunk in rest:  # the fast path: most replies are thousands of chunks with text only
        if _besides_text(chunk) != _TEXT_ALONE:
            if _besides_text_and_end(chunk) != _TEXT_AND_END_ALONE:
                folding = _Folding()
                if any(texts):  # empty texts begin no block
                    folding.parts, folding.current = texts, "text"
                folding.usage, folding.finish_reason = usage, finish_reason
                content = _fold_rest(folding, chunk, rest, used_ids, new_id)
                return message("assistant", content, msg_id, EMPTY, folding.usage, folding.finish_reason)
            if chunk.usage is not None:
                usage = chunk.usage
            if chunk.finish_reason is not None:
                finish_reason = chunk.finish_reason
        add(chunk.text)
    text = "".join(texts)
    content = (text_block(text if text.isascii() else encodable(text)),) if text else ()
    return message("assistant", content, msg_id, EMPTY, usage, finish_reason)


def _fold_rest(
    folding: _Folding,
    first: ModelChunk,
    rest: Iterator[ModelChunk],
    used_ids: Collection[str],
    new_id: Callable[[str], str],
) -> tuple[ContentBlock, ...]:
    """Fold the rest of a reply, from the first chunk that is not only text."""
    chunk: ModelChunk | None = first
    while chunk is not None:
        if chunk.restart:  # rule 3
            folding.__init__()
        folding.add(chunk)
        chunk = next(rest, None)
    if folding.current:
        folding.switch("")
    known: set[str] = set()
    content: list[ContentBlock] = []
    for block in folding.blocks:
        if isinstance(block, list):
            block = ToolUseBlock.from_json(block[0], block[1], "".join(block[2:]))
        if type(block) is ToolUseBlock:
            # Rule 4. Results refer to the new id, so the provider's own is not needed.
            if block.id in known or block.id in used_ids or not _LEGAL_ID.match(block.id):
                block = block.replace(id=new_id("call_"))
            known.add(block.id)
        content.append(block)
    return tuple(content)
