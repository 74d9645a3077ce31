"""What a person should read of a call's events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from agentflow.chunks import ModelChunk
from agentflow.events import HookEvent, PostCall, PostReasoning, ReasoningChunk
from agentflow.messages import TextBlock

__all__ = ["words"]


async def words(events: AsyncIterator[HookEvent]) -> AsyncGenerator[str]:
    """The words of a call, piece by piece as the model says them.

    What was not streamed comes as one piece: the answer of a verdict, the reason of `Deny` and `Stop`, what hooks have made of
    a reply. Replies of several rounds are apart by an empty line, and so is one that starts over. Thoughts, tools and
    sub-agents are silent.

    Args:
        events: The call's events.
    """
    said = False  # something of this reply
    before = False  # something of an earlier one
    known = ""  # the text of the last reply
    async for event in events:
        if event.source:
            continue
        piece = ""
        match event:
            case ReasoningChunk(incremental_chunk=chunk, restart=restart):
                said = said and not restart
                piece = _text(chunk)
            case PostReasoning(reasoning_result=reply):
                piece = "" if said else reply.text
                known, said = reply.text, False
            case PostCall(final_message=final):
                piece = "" if final.text == known else final.text
            case _:
                pass
        if piece:
            if before and not said:
                yield "\n\n"
            yield piece
            before = True
            said = isinstance(event, ReasoningChunk)


def _text(chunk: ModelChunk) -> str:
    if not chunk.blocks:
        return chunk.text
    return chunk.text + "".join([block.text for block in chunk.blocks if isinstance(block, TextBlock)])
