"""Convert the content of servers' answers into texts and blocks for models.

Rules:

1. Content stays text or data: nothing is opened, fetched or run because of it.
2. Text that is too long is shortened, and data that is too large is left out; a note in the content reports this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from pydantic_core import to_json

from agentflow._support.shown import one_line
from agentflow.mcp.sdk import types
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock

Block = TextBlock | DataBlock


def blocks_of(content: Iterable[types.ContentBlock], limit: int) -> list[Block]:
    """Convert content to blocks.

    Args:
        content: The server's content.
        limit: The maximum number of characters in total (for data, of its base64 text).
    """
    blocks: list[Block] = []
    remaining = limit
    for item in content:
        block = _block(item)
        size = len(block.text) if isinstance(block, TextBlock) else len(block.data or "")
        if size <= remaining:
            blocks.append(block)
        elif isinstance(block, TextBlock):
            blocks.append(TextBlock(f"{block.text[:remaining]}… ({size - remaining} more characters)"))
        else:
            blocks.append(TextBlock(f"({block.media_type} of {size} characters in base64 was left out: too large)"))
        remaining = max(0, remaining - size)
        # Each further item would add a note, so the number of items is limited too.
        if remaining == 0 and len(blocks) > 1000:
            blocks.append(TextBlock("(more was left out)"))
            break
    return blocks


def _block(item: types.ContentBlock) -> Block:
    match item:
        case types.TextContent():
            return TextBlock(item.text)
        case types.ImageContent() | types.AudioContent():
            return DataBlock(item.mime_type, data=item.data)
        case types.EmbeddedResource():
            return resource_block(item.resource)
        case types.ResourceLink():
            about = f" ({one_line(item.description)})" if item.description else ""
            return TextBlock(f"{one_line(item.name)}: {one_line(item.uri)}{about}")
        case _:
            assert_never(item)


def resource_block(resource: types.TextResourceContents | types.BlobResourceContents) -> Block:
    """Convert a resource's content to a block."""
    if isinstance(resource, types.TextResourceContents):
        return TextBlock(resource.text)
    media_type = resource.mime_type or "application/octet-stream"
    return DataBlock(media_type, data=resource.blob, name=one_line(str(resource.uri)).rpartition("/")[2] or None)


def value_of(result: types.CallToolResult, limit: int) -> str | list[Block]:
    """Return the content of a tool's result, or its structured content if it has no other."""
    blocks = blocks_of(result.content, limit)
    # MCP recommends that servers repeat structured content as text, but not all do.
    if not any(not isinstance(block, TextBlock) or block.text for block in blocks):
        if result.structured_content is None:
            return ""
        blocks = blocks_of([types.TextContent(text=to_json(result.structured_content).decode())], limit)
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    return "\n".join(texts) if len(texts) == len(blocks) else blocks


def text_of(blocks: str | Iterable[Block]) -> str:
    """Return the text of blocks; data is shown as its type."""
    if isinstance(blocks, str):
        return blocks
    return "\n".join(block.text if isinstance(block, TextBlock) else f"({block.media_type})" for block in blocks)


def message_of(message: types.PromptMessage | types.SamplingMessage, limit: int) -> Msg:
    """Convert a message of a prompt, or of a server's request for a model's answer."""
    parts = message.content if isinstance(message.content, list) else [message.content]
    content = [
        item
        if not isinstance(item, types.ToolUseContent | types.ToolResultContent)
        else types.TextContent(text=to_json(item, by_alias=True, exclude_none=True).decode())
        for item in parts
    ]
    return Msg(message.role, tuple(blocks_of(content, limit)))
