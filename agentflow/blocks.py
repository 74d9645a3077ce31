"""The blocks of messages: words, thoughts, files, tool calls and their results.

Reading never raises: a tool call whose JSON is malformed has an empty `input` and says why in `input_error`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from os import PathLike
from os.path import basename
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias, cast

from pydantic_core import CoreSchema, core_schema, from_json, to_json

from agentflow.errors import UsageError
from agentflow.ground.finite import NotFiniteError, all_finite, check_numbers
from agentflow.ground.frozen import EMPTY, FrozenDict, deep_freeze
from agentflow.ground.media import (
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
from agentflow.ground.validation import TaggedBy
from agentflow.ground.values import fast_build, field, frozen

__all__ = [
    "Citation",
    "ContentBlock",
    "DataBlock",
    "TextBlock",
    "ThinkingBlock",
    "ToolResultBlock",
    "ToolState",
    "ToolUseBlock",
    "WireBlock",
    "text_block",
    "tool_result",
]

ToolState: TypeAlias = Literal["success", "error", "not_found", "timeout", "denied", "interrupted", "suspended"]
"""How a tool call ended (`docs/glossary.md`, "How things end")."""


_set = object.__setattr__


@frozen
class Citation:
    """Where something stands that a model says: the provider's annotation of its words.

    Attributes:
        url: The address of what is cited, if it has one.
        title: Its title, or the name of the file.
        text: The words there that are cited.
        raw: All that the provider said, in its own form; goes back to it with the words.
        model: The name of the model that cited; `None` means unknown.

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
        _set(self, "raw", deep_freeze(self.raw))

    @staticmethod
    def of(raw: Mapping[str, Any], model: str | None = None) -> Citation:
        """Read a provider's annotation, whichever provider's."""
        inner = raw.get("url_citation")
        said = cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else raw
        first = {
            name: next((value for key in keys if isinstance(value := said.get(key), str) and value), None)
            for name, keys in _CITED.items()
        }
        return Citation(**first, raw=raw, model=model)


_CITED: Final = {
    "url": ("url", "uri", "source"),
    "title": ("title", "document_title", "filename"),
    "text": ("cited_text", "content", "quote"),
}
"""What providers call the parts of a citation."""


@frozen
class TextBlock:
    """Words.

    Attributes:
        text: The words.
        citations: Where what they say stands, as the provider annotated it.
    """

    text: str
    citations: tuple[Citation, ...] = field(default=(), kw_only=True)
    type: Literal["text"] = field(default="text", kw_only=True, repr=False)


@fast_build(TextBlock)
def text_block(text: str) -> TextBlock:
    """Build a `TextBlock` the fast way (the loop's)."""
    return TextBlock(text)


@frozen
class ThinkingBlock:
    """What the model thought, as the provider handed it out; sent back untouched, and only to the same model.

    Attributes:
        text: The thought (may be empty although the block is real: some models sign thoughts that they hide).
        signature: The provider's seal over the thought.
        redacted: Encrypted thought that only the provider reads; `text` is then empty.
        model: The name of the model that made it; `None` means unknown.
    """

    text: str
    signature: str | None = None
    redacted: str | None = None
    model: str | None = None
    type: Literal["thinking"] = field(default="thinking", kw_only=True, repr=False)


@frozen
class DataBlock:
    """An image, a sound, a video or a file: its content, or where it is.

    Shown, it is its type and size (`[image/png, 34 kB]`): what it holds is for models, not for logs.

    Attributes:
        media_type: MIME type, such as `"image/png"`.
        data: The content in base64; exactly one of `data` and `url` is set.
        url: Where the content is; the provider fetches it, or refuses to.
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
            raise UsageError("DataBlock takes exactly one of data= (base64 text) and url=.")
        if self.data is not None and not isinstance(self.data, str):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            raise UsageError("DataBlock(data=...) is base64 text; for bytes write DataBlock.from_bytes(data).")

    @classmethod
    def from_bytes(
        cls, data: bytes, media_type: str | None = None, *, name: str | None = None, max_bytes: int | None = MAX_BYTES
    ) -> DataBlock:
        """Build a block from content.

        Args:
            data: The content.
            media_type: What it is; by default told from its first bytes, then from the name.
            name: A file name to show.
            max_bytes: The largest content to take; None takes any.

        Raises:
            UsageError: There is nothing in it, or too much.
        """
        if not isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            raise UsageError(
                f"DataBlock.from_bytes takes bytes, not {type(data).__name__}. For a path write DataBlock.from_path(...), "
                "for base64 text DataBlock(media_type, data=...)."
            )
        data = bytes(data)
        if not data:
            raise UsageError(f"DataBlock.from_bytes: {name or 'the content'} is empty; no provider takes that.")
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
        """Build a block from a file, which is read here and now.

        Args:
            path: Where it is.
            media_type: What it is; by default told from its first bytes, then from its name.
            name: A file name to show; the file's own by default.
            max_bytes: The largest file to take; None takes any.

        Raises:
            UsageError: The file is empty, too large, or no regular file.
            OSError: It cannot be read.
        """
        data = read_file(path, max_bytes)
        return cls.from_bytes(data, media_type, name=name or basename(path), max_bytes=max_bytes)

    @classmethod
    def from_url(cls, url: str, media_type: str | None = None, *, name: str | None = None) -> DataBlock:
        """Build a block from an address that the provider is to fetch; nothing is fetched here.

        `agentflow.content.fetch` fetches. An address that holds its content (`data:...`) becomes the content.

        Args:
            url: Where the content is: `https://`, or what the provider knows besides (`gs://`, `s3://`).
            media_type: What it is; by default told from the ending of the address.
            name: A file name to show.

        Raises:
            UsageError: It is no address, or does not tell what it is.
        """
        scheme, separator, rest = url.partition(":")
        if scheme.lower() == "data" and separator:
            data, told = from_data_url(rest)
            return cls.from_bytes(data, media_type or told, name=name)
        if not rest.startswith("//") or scheme.lower() == "file":
            raise UsageError(
                f"DataBlock.from_url({url!r}): this is no address that a provider could fetch. For a file write "
                "DataBlock.from_path(...)."
            )
        known = media_type or type_of_name(url)
        if known is None:
            raise UsageError(
                f"DataBlock.from_url({url!r}): the address does not tell what it is. Say it: media_type='image/png'."
            )
        return cls(known, url=url, name=name)

    @property
    def kind(self) -> MediaKind:
        """What it is to a model."""
        return kind_of(self.media_type)

    @property
    def size(self) -> int | None:
        """How many bytes it holds; None where only the address is known."""
        data = self.data
        return None if data is None else len(data) * 3 // 4 - data[-2:].count("=")

    def to_bytes(self) -> bytes:
        """The content.

        Raises:
            UsageError: Only the address is known, or what somebody gave as base64 is none.

        Example:
            >>> DataBlock.from_bytes(b"hello").to_bytes()
            b'hello'
        """
        if self.data is None:
            raise UsageError(
                f"{self} holds an address, no content. To fetch it: await agentflow.content.fetch({self.url!r})."
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
        held = f"url={self.url!r}" if size is None else f"data=<{in_bytes(size)}>"
        return f"DataBlock({self.media_type!r}, {held}{f', name={self.name!r}' if self.name else ''})"


class ToolUseBlock:
    """The model asks for a tool.

    The model's JSON text is kept as it came (`raw`), and parsed when `input` is first read. `input` never raises: text
    that is not a JSON object gives an empty mapping, with the reason in `input_error`; such a call is never run. NaN and
    the infinities are not JSON, whether a model wrote them or a program put them into `input`.

    Args:
        id: Answers refer to it.
        name: The tool's name as the model wrote it.
        input: The arguments, by name.

    Example:
        >>> ToolUseBlock("t1", "add", {"a": 1}).input["a"]
        1
        >>> ToolUseBlock.from_json("t2", "add", '{"a": ').input_error is None
        False
    """

    __slots__ = ("_error", "_input", "_raw", "id", "name")
    __match_args__ = ("id", "name", "input")
    type: ClassVar[Literal["tool_use"]] = "tool_use"
    id: Final[str]
    name: Final[str]
    _raw: str | None
    _input: FrozenDict[str, Any] | None
    _error: str | None

    def __init__(self, id: str, name: str, input: Mapping[str, Any] = EMPTY) -> None:  # noqa: A002 - the field's standard names
        if TYPE_CHECKING:
            self.id = id
            self.name = name
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            raise UsageError(f"ToolUseBlock(id, name, input): name is a {type(name).__name__}; was the id left out?")
        _set(self, "id", id)
        _set(self, "name", name)
        finite = all_finite(input)
        _set(self, "_raw", None if finite else json.dumps(input, default=str, skipkeys=True))
        _set(self, "_input", deep_freeze(input) if finite else None)
        _set(self, "_error", None)

    @classmethod
    def from_json(cls, id: str, name: str, raw: str) -> ToolUseBlock:  # noqa: A002
        """Build a call from the JSON text that a model wrote; it is parsed when somebody reads `input`."""
        block = cast("ToolUseBlock", object.__new__(_ToolUseDraft))
        block.id = id  # pyright: ignore[reportAttributeAccessIssue] - the draft may be written to
        block.name = name  # pyright: ignore[reportAttributeAccessIssue]
        block._raw = raw
        block._input = None
        block._error = None
        block.__class__ = ToolUseBlock
        return block

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ToolUseBlock.{name} is read-only; build a new one: block.replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"ToolUseBlock.{name} is read-only")

    @property
    def input(self) -> Mapping[str, Any]:
        """The arguments by name; empty where the model's text is not a JSON object (see `input_error`)."""
        parsed = self._input
        return parsed if parsed is not None else self._parse()

    @property
    def input_error(self) -> str | None:
        """Why the model's text could not be read as arguments, or None."""
        if self._input is None:
            self._parse()
        return self._error

    @property
    def raw(self) -> str:
        """The arguments as JSON text: the model's own where there is one."""
        return self._raw if self._raw is not None else to_json(self._input, inf_nan_mode="constants").decode()

    @property
    def arguments(self) -> str:
        """The arguments as JSON text that is certainly an object: `{}` stands for text that does not parse."""
        raw = self.raw
        if self._raw is None:
            try:
                check_numbers(raw)  # an object in the input may hold what the input itself does not
            except NotFiniteError:
                return "{}"
            return raw
        return raw if raw.strip() and self.input_error is None else "{}"

    def _parse(self) -> FrozenDict[str, Any]:
        text = self._raw or ""
        parsed: FrozenDict[str, Any] = EMPTY
        error = None
        if text.strip():
            try:
                value: object = from_json(text)
                check_numbers(text)
            except (ValueError, TypeError) as problem:  # TypeError: text that is no UTF-8, such as a lone surrogate
                error = f"the arguments are not valid JSON: {problem}"
            else:
                if isinstance(value, dict):
                    parsed = deep_freeze(value)
                else:
                    error = f"the arguments are a JSON {type(value).__name__}, and must be an object"
        _set(self, "_error", error)
        _set(self, "_input", parsed)
        return parsed

    def replace(
        self,
        *,
        id: str | None = None,  # noqa: A002
        name: str | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002
    ) -> ToolUseBlock:
        """Return a copy with another id, name or input."""
        new = self.id if id is None else id, self.name if name is None else name
        if input is not None:
            return ToolUseBlock(*new, input)
        return (
            ToolUseBlock(*new, self._input or EMPTY) if self._raw is None else ToolUseBlock.from_json(*new, self._raw)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolUseBlock):
            return NotImplemented
        if self.id != other.id or self.name != other.name:
            return False
        if self._raw is not None and self._raw == other._raw:
            return True
        return self.input == other.input and self.input_error == other.input_error

    def __hash__(self) -> int:
        return hash((self.id, self.name))

    def __repr__(self) -> str:
        return f"ToolUseBlock(id={self.id!r}, name={self.name!r}, input={self.raw})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._raw is None:
            return (ToolUseBlock, (self.id, self.name, self._input))
        return (ToolUseBlock.from_json, (self.id, self.name, self._raw))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        typed = core_schema.typed_dict_schema(
            {
                "type": core_schema.typed_dict_field(core_schema.literal_schema(["tool_use"])),
                "id": core_schema.typed_dict_field(core_schema.str_schema()),
                "name": core_schema.typed_dict_field(core_schema.str_schema()),
                "input": core_schema.typed_dict_field(core_schema.dict_schema(), required=False),
                "raw": core_schema.typed_dict_field(core_schema.str_schema(), required=False),
            },
        )
        return core_schema.no_info_wrap_validator_function(
            _tool_use_in,
            typed,
            serialization=core_schema.plain_serializer_function_ser_schema(_tool_use_out),
        )


class _ToolUseDraft(ToolUseBlock):
    __slots__ = ()
    __setattr__ = object.__setattr__  # pyright: ignore[reportAssignmentType] - the C slot
    __delattr__ = object.__delattr__  # pyright: ignore[reportAssignmentType] - the C slot


def _tool_use_in(value: object, typed: Any) -> ToolUseBlock:
    if isinstance(value, ToolUseBlock):
        return value
    data = typed(value)
    if "raw" in data:
        return ToolUseBlock.from_json(data["id"], data["name"], data["raw"])
    return ToolUseBlock(data["id"], data["name"], data.get("input", EMPTY))


def _tool_use_out(block: ToolUseBlock) -> dict[str, Any]:
    base: dict[str, Any] = {"type": "tool_use", "id": block.id, "name": block.name}
    if block._raw is not None:  # pyright: ignore[reportPrivateUsage] - same module, one class
        return {**base, "raw": block.raw}
    return {**base, "input": dict(block.input)}


@frozen
class ToolResultBlock:
    """A tool's answer to one call.

    Attributes:
        tool_use_id: The call that it answers.
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
        """The words of the result."""
        content = self.content
        if isinstance(content, str):
            return content
        return "".join(block.text for block in content if isinstance(block, TextBlock))

    @property
    def shown(self) -> str:
        """The words, with data as its type and size: what a person should read."""
        content = self.content
        return content if isinstance(content, str) else shown(content)

    @property
    def is_error(self) -> bool:
        """Whether the call did not succeed."""
        return self.state != "success"


@fast_build(ToolResultBlock)
def tool_result(
    tool_use_id: str, name: str, content: str | tuple[TextBlock | DataBlock, ...], state: ToolState = "success"
) -> ToolResultBlock:
    """Build a `ToolResultBlock` the fast way (the loop's)."""
    return ToolResultBlock(tool_use_id, name, content, state)


ContentBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock | DataBlock
"""What a message is made of."""


def shown(blocks: Iterable[ContentBlock]) -> str:
    """The words of blocks, with data as its type and size.

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
        elif isinstance(block, DataBlock):
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
        },
    ),
]
"""A block as it comes from outside: its `type` says which."""
