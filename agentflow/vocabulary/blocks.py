"""The blocks of messages: text, thinking, files, tool calls and tool results."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from os.path import basename
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from agentflow._support.frozen import EMPTY, deep_freeze
from agentflow._support.media import (
    MAX_BYTES,
    MediaKind,
    check_size,
    from_data_url,
    in_bytes,
    kind_of,
    read_file,
    type_of_bytes,
    type_of_name,
)
from agentflow._support.validation import TaggedBy, is_a
from agentflow._support.values import fast_build, field, frozen
from agentflow.errors import UsageError
from agentflow.vocabulary.tool_use import ToolUseBlock

ToolState: TypeAlias = Literal["success", "error", "not_found", "timeout", "denied", "interrupted", "suspended"]
"""How a tool call ended (`docs/glossary.md`, "How things end")."""


_set = object.__setattr__  # for `__post_init__`, since the classes are frozen


@frozen
class Citation:
    """The source of a statement in the model's text, as the provider annotated it.

    Attributes:
        url: The address of the source, if any.
        title: The title of the source, or its file name.
        text: The cited passage.
        raw: The provider's annotation, unchanged; sent back with the text.
        model: The name of the model that cited the source; `None` if unknown.

    Example:
        >>> Citation.of({"type": "char_location", "document_title": "Contract", "cited_text": "30 days"}).title
        'Contract'
    """

    url: str | None = None
    title: str | None = None
    text: str | None = None
    raw: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    model: str | None = None

    def __post_init__(self) -> None:
        _set(self, "raw", deep_freeze(self.raw))  # the provider's annotation, which may be a mutable dict

    @staticmethod
    def of(raw: Mapping[str, Any], model: str | None = None) -> Citation:
        """Build a citation from the annotation of any provider."""
        inner = raw.get("url_citation")
        annotation = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else raw
        first = {
            name: next((value for key in keys if isinstance(value := annotation.get(key), str) and value), None)
            for name, keys in _CITED.items()
        }
        return Citation(**first, raw=raw, model=model)


_CITED: Final = {
    "url": ("url", "uri", "source"),
    "title": ("title", "document_title", "filename"),
    "text": ("cited_text", "content", "quote"),
}
"""The keys that providers use for each part of a citation."""


@frozen
class TextBlock:
    """A block of text.

    Attributes:
        text: The text.
        citations: The sources of the text, as the provider annotated them.
    """

    text: str
    citations: tuple[Citation, ...] = field(default=(), kw_only=True)
    type: Literal["text"] = field(default="text", kw_only=True, repr=False)


@fast_build(TextBlock)
def text_block(text: str) -> TextBlock:
    """Build a `TextBlock` on the loop's fast path."""
    return TextBlock(text)


@frozen
class ThinkingBlock:
    """The model's thinking, as the provider returned it; sent back unchanged, and only to the same model.

    Attributes:
        text: The thinking. It can be empty: some models sign thinking that they hide.
        signature: The provider's signature of the thinking.
        redacted: Encrypted thinking that only the provider can read; `text` is then empty.
        model: The name of the model that produced it; `None` if unknown.
    """

    text: str
    signature: str | None = None
    redacted: str | None = None
    model: str | None = None
    type: Literal["thinking"] = field(default="thinking", kw_only=True, repr=False)


@frozen
class DataBlock:
    """An image, sound, video or file: its content or its address.

    `str(block)` shows the type and the size (`[image/png, 34 kB]`), never the content.

    Attributes:
        media_type: MIME type, such as `"image/png"`.
        data: The content in base64; exactly one of `data` and `url` is set.
        url: The address of the content, for the provider to fetch.
        name: A file name to show.

    Example:
        >>> block = DataBlock.from_bytes(b"%PDF-1.7 ...", name="bill.pdf")
        >>> block.media_type, block.size, str(block)
        ('application/pdf', 12, '[bill.pdf, application/pdf, 12 bytes]')
    """

    media_type: str
    data: str | None = field(default=None, repr=False)
    url: str | None = None
    name: str | None = None
    type: Literal["data"] = field(default="data", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if (self.data is None) == (self.url is None):
            raise UsageError("DataBlock takes either data= (base64 text) or url=. Pass exactly one of them.")
        if self.data is not None and not is_a(self.data, str):
            raise UsageError("DataBlock(data=...) takes base64 text. For bytes, write DataBlock.from_bytes(data).")

    @classmethod
    def from_bytes(
        cls, data: bytes, media_type: str | None = None, *, name: str | None = None, max_bytes: int | None = MAX_BYTES
    ) -> DataBlock:
        """Build a block from content.

        Args:
            data: The content.
            media_type: The MIME type; by default detected from the first bytes, then from the name.
            name: A file name to show.
            max_bytes: The maximum size; None means no limit.

        Raises:
            UsageError: The content is empty or larger than `max_bytes`.
        """
        if not is_a(data, bytes | bytearray | memoryview):
            raise UsageError(
                f"DataBlock.from_bytes takes bytes, not {type(data).__name__}. For a path write "
                "DataBlock.from_path(...), "
                "for base64 text DataBlock(media_type, data=...)."
            )
        data = bytes(data)  # a copy, since a bytearray may change
        if not data:
            raise UsageError(
                f"DataBlock.from_bytes: {name or 'the content'} is empty, and providers refuse empty content. Leave "
                "the block out."
            )
        check_size(len(data), max_bytes, name or "The content")
        return cls(media_type or type_of_bytes(data, name), data=b64encode(data).decode(), name=name)

    @classmethod
    def from_path(
        cls,
        path: str | PathLike[str],
        media_type: str | None = None,
        *,
        name: str | None = None,
        max_bytes: int | None = MAX_BYTES,
    ) -> DataBlock:
        """Build a block from a file, which is read immediately.

        Args:
            path: The file.
            media_type: The MIME type; by default detected from the first bytes, then from the file's name.
            name: The file name to show; by default the name of the file.
            max_bytes: The maximum size; None means no limit.

        Raises:
            UsageError: The file is empty, too large, or not a regular file.
            OSError: The file cannot be read.
        """
        data = read_file(path, max_bytes)
        return cls.from_bytes(data, media_type, name=name or basename(path), max_bytes=max_bytes)

    @classmethod
    def from_url(cls, url: str, media_type: str | None = None, *, name: str | None = None) -> DataBlock:
        """Build a block from the address of content that the provider fetches.

        To fetch the content yourself, use `agentflow.models.fetch`. A data URL (`data:...`) is decoded into content.

        Args:
            url: The address: `https://`, or another scheme that the provider knows (`gs://`, `s3://`).
            media_type: The MIME type; by default detected from the file extension in the address.
            name: A file name to show.

        Raises:
            UsageError: `url` is not an address, or the media type cannot be detected.
        """
        scheme, separator, rest = url.partition(":")
        if scheme.lower() == "data" and separator:
            data, detected = from_data_url(rest)
            return cls.from_bytes(data, media_type or detected, name=name)
        if not rest.startswith("//") or scheme.lower() == "file":  # providers cannot read local files
            raise UsageError(
                f"DataBlock.from_url({url!r}): this is not an address that a provider could fetch. For a file write "
                "DataBlock.from_path(...)."
            )
        known = media_type or type_of_name(url)
        if known is None:
            raise UsageError(
                f"DataBlock.from_url({url!r}): the address does not show the media type. Pass it: "
                "media_type='image/png'."
            )
        return cls(known, url=url, name=name)

    @property
    def kind(self) -> MediaKind:
        """The kind of media that models distinguish."""
        return kind_of(self.media_type)

    @property
    def size(self) -> int | None:
        """The size in bytes; None if only the address is known."""
        data = self.data
        return None if data is None else len(data) * 3 // 4 - data[-2:].count("=")  # base64: 4 characters for 3 bytes

    def to_bytes(self) -> bytes:
        """Return the content.

        Raises:
            UsageError: Only the address is known, or `data` is not valid base64.

        Example:
            >>> DataBlock.from_bytes(b"hello").to_bytes()
            b'hello'
        """
        if self.data is None:
            raise UsageError(
                f"{self} contains an address instead of content. To fetch it: await agentflow.models.fetch({self.url!r})."
            )
        try:
            return b64decode(self.data, validate=True)
        except ValueError as error:
            raise UsageError(f"The data of {self} is not base64: {error}.") from error

    def __str__(self) -> str:
        size = self.size
        where = self.url if size is None else in_bytes(size)
        return f"[{', '.join(word for word in (self.name, self.media_type, where) if word)}]"

    def __repr__(self) -> str:
        size = self.size
        content = f"url={self.url!r}" if size is None else f"data=<{in_bytes(size)}>"
        return f"DataBlock({self.media_type!r}, {content}{f', name={self.name!r}' if self.name else ''})"


@frozen
class ToolResultBlock:
    """The result of a tool call.

    Attributes:
        tool_use_id: The id of the call.
        name: The tool's name.
        content: Text, or text and data blocks.
        state: How the call ended.
    """

    tool_use_id: str
    name: str
    content: str | tuple[TextBlock | DataBlock, ...] = ""
    state: ToolState = "success"
    type: Literal["tool_result"] = field(default="tool_result", kw_only=True, repr=False)

    @property
    def text(self) -> str:
        """The text of the result."""
        content = self.content
        if isinstance(content, str):
            return content
        return "".join(block.text for block in content if isinstance(block, TextBlock))

    @property
    def shown(self) -> str:
        """The text to display: data blocks are shown as type and size."""
        content = self.content
        return content if isinstance(content, str) else shown(content)

    @property
    def is_error(self) -> bool:
        """Whether the state is not `"success"`; this includes denied and suspended calls."""
        return self.state != "success"


@fast_build(ToolResultBlock)
def tool_result(
    tool_use_id: str, name: str, content: str | tuple[TextBlock | DataBlock, ...], state: ToolState = "success"
) -> ToolResultBlock:
    """Build a `ToolResultBlock` on the loop's fast path."""
    return ToolResultBlock(tool_use_id, name, content, state)


@frozen
class ServerToolBlock:
    """The call and the result of a tool that the provider ran (`ServerTool`).

    The block is sent back unchanged, and only to the same model.

    Attributes:
        id: The provider's id for the call.
        name: The provider's name for the tool, such as `"web_search"`.
        raw: The provider's call and result, unchanged.
        model: The name of the model that called the tool; `None` if unknown.

    Example:
        >>> call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "rx"}}
        >>> ServerToolBlock("srvtoolu_1", "web_search", (call,)).input["query"]
        'rx'
    """

    id: str
    name: str
    raw: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    model: str | None = None
    type: Literal["server_tool"] = field(default="server_tool", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        _set(self, "raw", tuple([deep_freeze(item) for item in self.raw]))

    @property
    def json(self) -> str:
        """The call and the result as JSON text, for example to count tokens."""
        return json.dumps(self.raw, default=dict, ensure_ascii=False)

    @property
    def input(self) -> Mapping[str, Any]:
        """The arguments of the call, such as a query, code or an address."""
        for item in self.raw:
            for key in ("input", "action", "arguments"):  # Anthropic; OpenAI's own tools; OpenAI's MCP calls
                if isinstance(value := item.get(key), Mapping):
                    return cast("Mapping[str, Any]", value)
            found = {key: item[key] for key in ("queries", "code", "server_label", "arguments") if item.get(key)}
            if found:
                return found
        return EMPTY

    @property
    def error(self) -> str | None:
        """The provider's error, if the tool failed."""
        for item in self.raw:
            content: object = item.get("content")
            if isinstance(content, Mapping) and "error_code" in content:  # Anthropic
                return str(cast("Mapping[str, Any]", content)["error_code"])
            if item.get("is_error") is True:  # Anthropic's MCP results
                several = isinstance(content, Sequence) and not isinstance(content, str)
                texts = cast("Sequence[Mapping[str, Any]]", content if several else ({"text": content},))
                return "".join([str(text.get("text") or "") for text in texts]) or "failed"
            if item.get("status") in ("failed", "incomplete") or item.get("error"):  # OpenAI
                return str(item.get("error") or item["status"])
        return None

    @property
    def sources(self) -> tuple[Citation, ...]:
        """The pages and files that the tool found."""
        return tuple([Citation.of(found, self.model) for item in self.raw for found in _found_in(item)])

    def __str__(self) -> str:
        texts = ", ".join([str(value) for value in self.input.values() if isinstance(value, str)])
        return f"[{self.name}{f': {texts:.200}' if texts else ''}]"


def _found_in(item: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Yield the search results that have an address or a file name."""
    for holder in (item, item.get("action")):
        for key in ("content", "results", "sources"):
            found = cast("Mapping[str, Any]", holder).get(key) if isinstance(holder, Mapping) else None
            several = isinstance(found, Sequence) and not isinstance(found, str)
            for entry in cast("Sequence[object]", found if several else (found,)):
                result = cast("Mapping[str, Any]", entry if isinstance(entry, Mapping) else EMPTY)
                if isinstance(result.get("url"), str) or isinstance(result.get("filename"), str):
                    yield result


ContentBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock | DataBlock | ServerToolBlock
"""A block of a message."""


def shown(blocks: Iterable[ContentBlock]) -> str:
    """Return the text of blocks; data blocks are shown as type and size, server tools as name and query.

    Example:
        >>> shown([TextBlock("Look: "), DataBlock("image/png", data="aGVsbG8=")])
        'Look: [image/png, 5 bytes]'
    """
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            parts.append(block.text)
        elif isinstance(block, ToolResultBlock):
            parts.append(block.shown)
        elif isinstance(block, DataBlock | ServerToolBlock):
            parts.append(str(block))
    return "".join(parts)


def _block_type(value: object) -> str | None:
    if isinstance(value, Mapping):
        return cast("Mapping[str, str]", value).get("type")
    return getattr(value, "type", None)


WireBlock = Annotated[
    ContentBlock,
    TaggedBy(
        _block_type,
        {
            "text": TextBlock,
            "thinking": ThinkingBlock,
            "tool_use": ToolUseBlock,
            "tool_result": ToolResultBlock,
            "data": DataBlock,
            "server_tool": ServerToolBlock,
        },
    ),
]
"""A block from external data, validated by its `type`."""
