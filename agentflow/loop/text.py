"""The text of a call's events, for people."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import HookEvent, PostCall, PostReasoning, ReasoningChunk
from agentflow.vocabulary.messages import TextBlock

__all__ = ["text_chunks"]


async def text_chunks(events: AsyncIterator[HookEvent]) -> AsyncGenerator[str]:
    """Yield the text of a call as the model streams it.

    Text that was not streamed is yielded as a whole: the answer of a verdict, the reason of `Deny` or `Stop`, a reply
    edited by hooks. An empty line separates the replies of several rounds, and precedes a reply that restarts.
    Thinking, tools and sub-agents yield no text.

    Args:
        events: The call's events.
    """
    said = False  # whether text of this reply was yielded
    before = False  # whether text of an earlier reply was
    known = ""  # the text of the last reply
    async for event in events:
        if event.source:
            continue
        text = ""
        match event:
            case ReasoningChunk(incremental_chunk=chunk, restart=restart):
                said = said and not restart
                text = _text(chunk)
            case PostReasoning(reasoning_result=reply):
                text = "" if said else reply.text
                known, said = reply.text, False
            case PostCall(final_message=final):
                text = "" if final.text == known else final.text
            case _:
                pass
        if text:
            if before and not said:
                yield "\n\n"
            yield text
            before = True
            said = isinstance(event, ReasoningChunk)


def _text(chunk: ModelChunk) -> str:
    if not chunk.blocks:
        return chunk.text
    return chunk.text + "".join([block.text for block in chunk.blocks if isinstance(block, TextBlock)])
