"""`ModelChunk`, one piece of a streamed reply, and `fold`, which makes the reply of the pieces.

Rules:

1. Tool-call fragments belong together by `index`, never by arrival: providers interleave parallel calls.
2. Usage is cumulative: the last report counts.
3. A chunk with `restart=True` says that what came before is void: the fold starts over with it.
4. Tool-use ids that are empty, illegal on a wire, or already used in the conversation are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from agentflow.frozen import EMPTY
from agentflow.ids import new_id as fresh_id
from agentflow.messages import ContentBlock, Msg, TextBlock, ThinkingBlock, ToolUseBlock, message, text_block
from agentflow.specs import Usage

__all__ = ["ModelChunk", "ToolUseDelta", "fold"]

_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}\Z")


@dataclass(slots=True, frozen=True)
class ToolUseDelta:
    """A fragment of one tool call.

    Attributes:
        index: Which call of the reply it belongs to, from 0.
        id: The call's id, in its first fragment.
        name: The tool's name, in its first fragment.
        arguments: The next piece of the arguments' JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True, frozen=True)
class ModelChunk:
    """One piece of a streamed reply; most set one field.

    Attributes:
        text: The next words.
        thinking: The next piece of thought.
        signature: The seal over the thought that it ends.
        tool_uses: Fragments of tool calls.
        blocks: Whole blocks (images, redacted thoughts, complete calls).
        usage: What the reply consumed so far.
        finish_reason: Why the reply ended, in its last pieces.
        restart: The reply starts over with this chunk.
        model: The model that thinks, so that thoughts go back only to it.

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

    @staticmethod
    def of(msg: Msg) -> ModelChunk:
        """The whole message as one chunk."""
        return ModelChunk(blocks=msg.content, usage=msg.usage, finish_reason=msg.finish_reason)


class _Call:
    __slots__ = ("arguments", "id", "name")

    def __init__(self, id: str, name: str) -> None:  # noqa: A002
        self.id = id
        self.name = name
        self.arguments: list[str] = []


class _Folding:
    """The blocks of a reply while they grow."""

    __slots__ = ("blocks", "calls", "current", "finish_reason", "model", "parts", "usage")

    def __init__(self) -> None:
        self.blocks: list[ContentBlock | _Call] = []
        self.calls: dict[int, _Call] = {}
        self.parts: list[str] = []
        self.current = ""  # "text" | "thinking" | ""
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.model: str | None = None

    def switch(self, kind: str, signature: str | None = None) -> None:
        """End the block that grows and begin one of `kind`."""
        if self.current == "text" and self.parts:
            self.blocks.append(TextBlock("".join(self.parts)))
        elif self.current == "thinking" and (self.parts or signature is not None):
            self.blocks.append(ThinkingBlock("".join(self.parts), signature, None, self.model))
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
            if self.current != "text":
                self.switch("text")
            self.parts.append(chunk.text)
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
        # Some servers number every call 0: another id with a name is another call.
        if call is None or (delta.id and call.id and delta.id != call.id and delta.name):
            self.switch("")
            call = self.calls[delta.index] = _Call(delta.id, delta.name)
            self.blocks.append(call)
        else:
            call.id = call.id or delta.id
            if delta.name and delta.name != call.name:
                call.name += delta.name
        if delta.arguments:
            call.arguments.append(delta.arguments)


def fold(
    chunks: Iterable[ModelChunk],
    *,
    id: str | None = None,  # noqa: A002
    used_ids: Collection[str] = (),
    new_id: Callable[[str], str] = fresh_id,
) -> Msg:
    """Make the assistant's message of its chunks.

    Args:
        chunks: The pieces, in order.
        id: The message's id; a fresh one by default.
        used_ids: Tool-use ids of the conversation so far: a call that repeats one gets a fresh id.
        new_id: Where ids come from.

    Returns:
        The message: blocks in order of arrival, tool calls whole.
    """
    msg_id = new_id("msg_") if id is None else id
    if isinstance(chunks, list) and len(chunks) == 1:
        whole = _fold_one(chunks[0], msg_id, used_ids)
        if whole is not None:
            return whole
    folding = _Folding()
    for chunk in chunks:
        if chunk.restart:
            folding = _Folding()
        folding.add(chunk)
    folding.switch("")
    seen: set[str] = set()
    content: list[ContentBlock] = []
    for block in folding.blocks:
        if isinstance(block, _Call):
            block = ToolUseBlock.from_json(block.id, block.name, "".join(block.arguments))
        if isinstance(block, ToolUseBlock):
            if block.id in seen or block.id in used_ids or not _LEGAL_ID.match(block.id):
                block = block.replace(id=new_id("call_"))
            seen.add(block.id)
        content.append(block)
    return message("assistant", tuple(content), msg_id, EMPTY, folding.usage, folding.finish_reason)


def _fold_one(chunk: ModelChunk, msg_id: str, used_ids: Collection[str]) -> Msg | None:
    """The whole reply in one chunk, words or calls: no need to put anything together."""
    if chunk.thinking or chunk.signature is not None or chunk.blocks:
        return None
    deltas = chunk.tool_uses
    content: tuple[ContentBlock, ...]
    if not deltas:
        content = (text_block(chunk.text),) if chunk.text else ()
    elif len(deltas) == 1 and not chunk.text:
        delta = deltas[0]
        use_id = delta.id
        if use_id in used_ids or not _LEGAL_ID.match(use_id):
            return None
        content = (ToolUseBlock.from_json(use_id, delta.name, delta.arguments),)
    else:
        return None
    return message("assistant", content, msg_id, EMPTY, chunk.usage, chunk.finish_reason)
