"""A form: the type of an answer, its JSON schema, and the parser that turns a text into a value of that type.

Rules:

1. The top-level schema is always an object, because providers accept nothing else. Any other type (a number, a list, an
   enum, a union) is the field `answer` of an object.
2. A value is built from the model's own JSON text, never from a dump of another value, so that validators do not
   transform it twice.
3. Text around the JSON (a code fence, an introduction) is skipped; two different answers are refused.
"""

from __future__ import annotations

import inspect
import json
import re
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Generic, Union, cast, get_args, get_origin

from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, SchemaError, ValidationError, from_json, to_json
from typing_extensions import TypedDict, TypeVar

from agentflow._support.json_text import check_numbers
from agentflow._support.validation import adapter_of
from agentflow.errors import UsageError
from agentflow.tools.argument_errors import explain
from agentflow.tools.schema import json_schema
from agentflow.tools.schema_arguments import SchemaArguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import TypeAdapter

__all__ = ["WRAPPED", "Form", "InvalidOutputError", "SchemaForm", "is_prose", "json_in", "members", "type_name"]

T = TypeVar("T", default=Any)

WRAPPED: Final = "answer"
"""The one field of the object around an answer that is not an object itself."""

# Unlike pydantic's parser, `raw_decode` reports where a value ends.
_DECODER: Final = json.JSONDecoder()
_MAX_TRIES: Final = 50
# Strings are matched first, so that a dot in a `Literal["a.b"]` is not taken for a module.
_MODULES: Final = r"""(?P<text>'[^']*'|"[^"]*")|\b(?:\w+\.|<locals>\.)+(?=\w)"""


class InvalidOutputError(ValueError):
    """An answer does not fit the output; the message is usually written for the model."""


class Form(Generic[T]):
    """The form of an answer with a type that pydantic supports.

    Args:
        kind: The type.

    Attributes:
        kind: The type.
        adapter: The validator of the type, or of the object that wraps the value.
        wrapped: Whether an object wraps the value.
        schema: The JSON schema: an object.
        may_be_text: Whether the type is a union with `str`, so that text without JSON is a value.

    Raises:
        UsageError: Pydantic does not support the type, or it has no JSON form.

    Example:
        >>> Form(int).read('{"answer": 3}')
        3
    """

    may_be_text = False

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        if isinstance(kind, str):  # pydantic would treat a string as a forward reference
            raise UsageError(
                f"output={kind!r:.80} is a string, but must be a type, a function or a JSON schema. Write it as a pydantic "
                "model, a dataclass or a TypedDict; its JSON schema is created from it."
            )
        try:
            self.adapter: TypeAdapter[Any] = adapter_of(kind)
            schema = json_schema(self.adapter.core_schema, {})
        except (PydanticUserError, SchemaError) as error:
            raise UsageError(
                f"output={kind!r:.80}: pydantic cannot create a JSON schema for it ({str(error).splitlines()[0]}). Use "
                "pydantic models, dataclasses, TypedDicts, primitives, enums, lists, unions of these, and functions."
            ) from error
        # Objects without named fields (`dict[str, int]`) are wrapped too, so that the schema always has properties.
        self.wrapped = schema.get("type") != "object" or "properties" not in schema or not schema["properties"]
        if self.wrapped:
            self.adapter = adapter_of(TypedDict("Answer", {WRAPPED: kind}))  # pyright: ignore[reportGeneralTypeIssues] - a type created at run time
            schema = json_schema(self.adapter.core_schema, {})
        self.may_be_text = kind is not str and str in members(kind)
        self.schema: dict[str, Any] = schema

    @property
    def title(self) -> str:
        """The name of the type, in characters that every provider accepts."""
        return legal_name(getattr(self.kind, "__name__", ""))

    @property
    def about(self) -> str:
        """The description of the type for the model: its name, and the first line of its docstring."""
        return _about(self.kind)

    def read(self, text: str, context: Any = None) -> T:
        """Parse a text into a value.

        Args:
            text: JSON, possibly with text or a code fence around it. For a union with `str`, text without JSON is
                the string.
            context: Pydantic's validation context, the `info.context` of validators.

        Raises:
            InvalidOutputError: The text is not JSON, or has another form.
        """
        raw = json_in(text, alone=self.wrapped)
        if self.may_be_text and is_prose(raw):
            raw = to_json({WRAPPED: raw}).decode()
        try:
            value = self.adapter.validate_json(raw, context=context)
            check_numbers(raw)
        except ValueError as error:
            if (
                self.wrapped
                and isinstance(error, ValidationError)
                and (other := self._lenient(raw, context)) is not None
            ):
                return other[0]
            raise InvalidOutputError(self._explain(raw, error)) from error
        return value[WRAPPED] if self.wrapped else value

    def write(self, value: Any) -> str:
        """Return the JSON text of a value.

        Raises:
            UsageError: The value does not have this type.

        Example:
            >>> Form(int).write(3)
            '{"answer":3}'
        """
        try:
            return self.adapter.dump_json({WRAPPED: value} if self.wrapped else value, warnings="error").decode()
        except PydanticSerializationError as error:
            raise UsageError(f"{value!r:.80} is not a valid {self.title}: {error}") from error

    def _lenient(self, raw: str, context: Any) -> tuple[T] | None:
        """Read an answer without its wrapping object, or with its value in a string of JSON; some models leave out the object,
        and some write lists and objects as strings. Return None for any other text. The value is returned in a tuple,
        because it may be None.
        """
        try:
            parsed = cast("object", from_json(raw))
            if isinstance(parsed, dict) and WRAPPED in parsed:
                inner = cast("dict[str, object]", parsed)[WRAPPED]
                if len(cast("dict[str, object]", parsed)) > 1 or not isinstance(inner, str):
                    return None
                if not isinstance(from_json(inner), list | dict):
                    return None
                raw = inner
            value = self.adapter.validate_json(f'{{"{WRAPPED}":{raw}}}', context=context)[WRAPPED]
            check_numbers(raw)
        except ValueError:
            return None
        return (value,)

    def _explain(self, raw: str, error: ValueError) -> str:
        required = self.schema.get("required", ())
        keys = [(name, name in required) for name in self.schema.get("properties", ())]
        return explain(self.title, raw, error, keys, start="The values of your answer")


class SchemaForm(Form[Any]):
    """A JSON schema of an object as the form of an answer; the value is plain data, a dict.

    Args:
        schema: The schema. It is compiled within limits, because it may be untrusted.

    Raises:
        UsageError: It is not a schema of an object.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        if not schema:
            raise UsageError("output={} is an empty JSON schema. Write the properties of the object.")
        self.kind = dict[str, Any]
        self.wrapped = False
        self._arguments = SchemaArguments("final_answer", schema)
        self.schema = self._arguments.schema

    @property
    def title(self) -> str:
        """The schema's title, if every provider accepts it as a name."""
        return legal_name(str(self.schema.get("title", "")))

    @property
    def about(self) -> str:
        """The description of the form for the model: the schema's title, and the first line of its description."""
        name, lines = str(self.schema.get("title", "an object")), str(self.schema.get("description", "")).splitlines()
        return f"{name} ({lines[0]})" if lines else name

    def read(self, text: str, context: Any = None) -> dict[str, Any]:
        """See `Form.read`; the context is ignored, because a JSON schema has no validators."""
        raw = json_in(text)
        try:
            value = self._arguments.validate_json(raw)[1]
            check_numbers(raw)
        except ValueError as error:
            raise InvalidOutputError(self._explain(raw, error)) from error
        return value

    def write(self, value: Any) -> str:
        """See `Form.write`."""
        try:
            text = to_json(value).decode()
            self.read(text)
        except (PydanticSerializationError, InvalidOutputError) as error:
            raise UsageError(f"{value!r:.80} is not a valid {self.title}: {error}") from error
        return text


def json_in(text: str, *, alone: bool = False) -> str:
    """Return the JSON in a text: the only object in it, or the whole text if it contains none.

    Args:
        text: The model's text.
        alone: Whether the model may write the value without the object around it; then an array is accepted too.

    Raises:
        InvalidOutputError: The text contains several JSON values.

    Example:
        >>> json_in('Here it is:\\n```json\\n{"a": 1}\\n```')
        '{"a": 1}'
    """
    stripped = text.strip()
    if not stripped or (stripped[0] in "{[" and _ends(stripped, 0) == len(stripped)):
        return stripped
    found: list[str] = []
    at, end, tries = 0, len(stripped), 0
    while at < end and tries < _MAX_TRIES:  # each try may scan the rest of the text
        tries += 1
        starts = [index for index in (stripped.find("{", at), stripped.find("[", at)) if index >= 0]
        if not starts:
            break
        start = min(starts)
        stop = _ends(stripped, start)
        if stop is None:
            at = start + 1
            continue
        if stripped[start] == "{" or alone:
            found.append(stripped[start:stop])
        at = stop
    # Models sometimes repeat an answer; only different answers are ambiguous.
    if len(found) > 1 and len(set(found)) > 1:
        raise InvalidOutputError(
            "Your answer contains several JSON values. Answer with one JSON object and nothing else."
        )
    return found[0] if found else stripped


def _ends(text: str, start: int) -> int | None:
    """Return the index after the JSON value that starts at `start`; None if no value starts there."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def legal_name(name: str) -> str:
    """Return a type's name in characters that every provider accepts; `answer` if that is impossible.

    Example:
        >>> legal_name("Page[list[int]]"), legal_name("Größe")
        ('Pagelistint', 'answer')
    """
    if "[" in name:  # a generic class of pydantic
        name = re.sub(r"[\[\]., ]", "", name)
    return name if name.isidentifier() and name.isascii() else "answer"


def members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union; for any other type, the type itself.

    Example:
        >>> members(int | None), members(list[str])
        ((<class 'int'>, <class 'NoneType'>), (list[str],))
    """
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def type_name(kind: Any) -> str:
    """Return the name of a type as it is written in code, without modules.

    Example:
        >>> type_name(int | None), type_name(list[int]), type_name(TimeoutError)
        ('int | None', 'list[int]', 'TimeoutError')
    """
    if not hasattr(kind, "__args__"):
        return str(getattr(kind, "__name__", kind))
    return re.sub(_MODULES, lambda found: found["text"] or "", str(kind))


def _about(kind: Any) -> str:
    name = type_name(kind)
    doc = vars(kind).get("__doc__") if isinstance(kind, type) and kind.__module__ != "builtins" else None
    # A dataclass without a docstring gets its signature as its docstring.
    if not isinstance(doc, str) or not doc.strip() or doc.startswith(f"{name}("):
        return "no value" if kind is type(None) else name
    return f"{name} ({inspect.cleandoc(doc).splitlines()[0]})"


def is_prose(text: str) -> bool:
    """Whether a text is neither JSON nor an attempt at it."""
    if not text or text[0] in '{["' or re.search(r'[{\[]\s*"', text):
        return False
    try:
        from_json(text)
    except ValueError:
        return True
    return False
