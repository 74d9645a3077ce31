"""`ToolUseBlock`: a tool call that the model requests.

Reading never raises: if the JSON of the call is malformed, `input` is empty and `input_error` has the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic_core import CoreSchema, core_schema, from_json, to_json

from agentflow._support.frozen import EMPTY, FrozenDict, deep_freeze
from agentflow._support.json_text import NotFiniteError, all_finite, check_numbers
from agentflow._support.validation import is_a
from agentflow.errors import UsageError

_set = object.__setattr__


class ToolUseBlock:
    """A tool call that the model requests.

    The model's JSON text is kept unchanged (`raw`), and parsed when `input` is first read. `input` never raises: if the
    text is not a JSON object, it is an empty mapping, and `input_error` has the reason; such a call never runs. NaN and
    the infinities are not valid, neither from a model nor from a program.

    Args:
        id: The id to which the result refers.
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
        if not is_a(name, str):
            raise UsageError(
                f"ToolUseBlock(id, name, input): name must be a text, not {type(name).__name__}. Was the id left out?"
            )
        _set(self, "id", id)
        _set(self, "name", name)
        finite = all_finite(input)
        # NaN and the infinities are kept as text, so that reading `input` reports them like a model's malformed text.
        _set(self, "_raw", None if finite else json.dumps(input, default=str, skipkeys=True))
        _set(self, "_input", deep_freeze(input) if finite else None)
        _set(self, "_error", None)

    @classmethod
    def from_json(cls, id: str, name: str, raw: str) -> ToolUseBlock:  # noqa: A002 - as in `__init__`
        """Build a call from a model's JSON text, which is parsed when `input` is first read."""
        # The draft has ordinary attributes: cheaper than five calls of `_set` for each call of a model.
        block: Any = object.__new__(_ToolUseDraft)
        block.id = id
        block.name = name
        block._raw = raw
        block._input = None
        block._error = None
        block.__class__ = ToolUseBlock
        return block

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ToolUseBlock.{name} is read-only. Build a new block: block.replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"ToolUseBlock.{name} is read-only")

    @property
    def input(self) -> Mapping[str, Any]:
        """The arguments by name; empty if the model's text is not a JSON object (see `input_error`)."""
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
        """The arguments as JSON text: the model's own, if there is one."""
        return self._raw if self._raw is not None else to_json(self._input, inf_nan_mode="constants").decode()

    @property
    def arguments(self) -> str:
        """The arguments as JSON text that is always an object: `{}` if the model's text does not parse."""
        raw = self.raw
        if self._raw is None:
            try:
                check_numbers(raw)  # `all_finite` does not check values inside objects
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
            except (ValueError, TypeError) as problem:  # TypeError: text that is not UTF-8, such as a lone surrogate
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
        id: str | None = None,  # noqa: A002 - as in `__init__`
        name: str | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the same
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
        if self._raw is not None and self._raw == other._raw:  # equal texts need not be parsed
            return True
        return self.input == other.input and self.input_error == other.input_error

    def __hash__(self) -> int:
        return hash((self.id, self.name))  # without the input, which would have to be parsed

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
            cls._validated,
            typed,
            serialization=core_schema.plain_serializer_function_ser_schema(cls._serialized),
        )

    @staticmethod
    def _validated(value: object, typed: Any) -> ToolUseBlock:
        if isinstance(value, ToolUseBlock):
            return value
        data = typed(value)
        if "raw" in data:
            return ToolUseBlock.from_json(data["id"], data["name"], data["raw"])
        return ToolUseBlock(data["id"], data["name"], data.get("input", EMPTY))

    def _serialized(self) -> dict[str, Any]:
        base: dict[str, Any] = {"type": "tool_use", "id": self.id, "name": self.name}
        return {**base, "input": dict(self.input)} if self._raw is None else {**base, "raw": self._raw}


class _ToolUseDraft(ToolUseBlock):
    """A writable block, until its class is changed to `ToolUseBlock`."""

    __slots__ = ()
    if not TYPE_CHECKING:
        __setattr__ = object.__setattr__
