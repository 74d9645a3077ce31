"""Content in the protocol's form: prompts in, replies and results out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from agentflow.serve.acp.sdk import RequestError, helpers, schema
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock

Block: TypeAlias = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)


def message_of(prompt: Iterable[Block]) -> Msg:
    """Return a prompt as a message; references to files become their paths.

    Raises:
        RequestError: The prompt is empty.
    """
    content = [part for block in prompt for part in _content_of(block)]
    if not any(block.text.strip() if isinstance(block, TextBlock) else True for block in content):
        raise RequestError.invalid_params({"details": "The prompt is empty."})
    return Msg.user(*content)


def _content_of(block: Block) -> list[TextBlock | DataBlock]:
    match block:
        case schema.TextContentBlock():
            return [TextBlock(block.text)] if block.text else []
        case schema.ImageContentBlock() | schema.AudioContentBlock():
            return [DataBlock(block.mime_type, data=block.data)]
        case schema.ResourceContentBlock():
            return [TextBlock(f"[{block.title or block.name}]({path_of(block.uri)})")]
        case schema.EmbeddedResourceContentBlock():
            file = block.resource
            if isinstance(file, schema.TextResourceContents):
                return [TextBlock(f"\n{path_of(file.uri)}:\n```\n{file.text}\n```\n")]
            return [DataBlock(file.mime_type or "application/octet-stream", data=file.blob, name=path_of(file.uri))]


def path_of(uri: str) -> str:
    """Return the path of a file's URI; any other URI is returned unchanged.

    Example:
        >>> path_of("file:///home/ada/a%20b.py")
        '/home/ada/a b.py'
    """
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    return unquote(parts.path) if parts.scheme == "file" else uri


def block_of(block: TextBlock | DataBlock) -> Block:
    """Return a block of a reply or a result in the protocol's form."""
    if isinstance(block, TextBlock):
        return helpers.text_block(block.text)
    name = block.name or block.media_type
    if block.url is not None:
        return helpers.resource_link_block(name, block.url, mime_type=block.media_type)
    data = block.data or ""
    if block.media_type.startswith("image/"):
        return helpers.image_block(data, block.media_type)
    if block.media_type.startswith("audio/"):
        return helpers.audio_block(data, block.media_type)
    return helpers.resource_block(helpers.embedded_blob_resource(f"data:{name}", data, mime_type=block.media_type))
