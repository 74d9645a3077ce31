"""A form: the type that an answer is to have, its JSON schema, and how a text becomes such a value.

Rules:

1. The schema on top is always an object: providers take nothing else. What is none (a number, a list, an enum, a union) is
   the field `answer` of one.
2. A value is made of the model's own JSON text, never of a dump of another value: what a validator has changed is not
   changed twice.
3. Text around the JSON is the model's manner (a fence, a word before it), and is passed over; two answers are a misfit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Generic

from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, SchemaError, ValidationError, from_json
from typing_extensions import TypedDict, TypeVar

from agentflow.errors import UsageError
from agentflow.ground.finite import check_numbers
from agentflow.ground.validation import adapter_of
from agentflow.tools.argument_errors import explain
from agentflow.tools.schema import json_schema

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["WRAPPED", "Form", "MisfitError", "json_in"]

T = TypeVar("T", default=Any)

WRAPPED: Final = "answer"
"""The one field of the object around an answer that is none itself."""

_DECODER: Final = json.JSONDecoder()
_MOST_TRIES: Final = 50


class MisfitError(ValueError):
    """An answer does not fit; the text is written for the model."""


class Form(Generic[T]):
    """A type that pydantic knows, as what an answer is to be.

    Args:
        kind: The type.

    Attributes:
        kind: The type.
        adapter: Its validator, of the object around it where there is one.
        wrapped: Whether there is one.
        schema: The JSON schema: an object.

    Raises:
        UsageError: Pydantic finds no data in the type, or JSON cannot describe it.

    Example:
        >>> Form(int).read('{"answer": 3}')
        3
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        try:
            self.adapter: TypeAdapter[Any] = adapter_of(kind)
            schema = json_schema(self.adapter.core_schema, {})
        except (PydanticUserError, SchemaError) as error:
            raise UsageError(
                f"output={kind!r:.80}: pydantic makes no JSON schema of it ({str(error).splitlines()[0]}). Legal are "
                "pydantic models, dataclasses, TypedDicts, primitives, enums, lists, unions of these, and functions."
            ) from error
        self.wrapped = schema.get("type") != "object" or "properties" not in schema or not schema["properties"]
        if self.wrapped:
            self.adapter = adapter_of(TypedDict("Answer", {WRAPPED: kind}))  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues] - a type made at run time
            schema = json_schema(self.adapter.core_schema, {})
        self.schema: dict[str, Any] = schema

    @property
    def title(self) -> str:
        """What the type is called, in letters that every provider takes."""
        name = getattr(self.kind, "__name__", "")
        return name if name.isidentifier() and name.isascii() else "answer"

    def read(self, text: str) -> T:
        """The value that a text says.

        Args:
            text: JSON, with words or a fence around it where a model has put them there.

        Raises:
            MisfitError: It says none, or one of another form.
        """
        raw = json_in(text, alone=self.wrapped)
        try:
            value = self.adapter.validate_json(raw)
            check_numbers(raw)
        except ValueError as error:
            if self.wrapped and isinstance(error, ValidationError) and (bare := self._bare(raw)) is not None:
                return bare[0]
            raise MisfitError(self._explained(raw, error)) from error
        return value[WRAPPED] if self.wrapped else value

    def write(self, value: Any) -> str:
        """The JSON text that says a value.

        Raises:
            UsageError: It is no value of the type.

        Example:
            >>> Form(int).write(3)
            '{"answer":3}'
        """
        try:
            return self.adapter.dump_json({WRAPPED: value} if self.wrapped else value, warnings="error").decode()
        except PydanticSerializationError as error:
            raise UsageError(f"{value!r:.80} is no {self.title}: {error}") from error

    def _bare(self, raw: str) -> tuple[T] | None:
        """The value of a text without the object around it, which models leave out; one with that key has not left it out."""
        try:
            if self._has_key(raw):
                return None
            value = self.adapter.validate_json(f'{{"{WRAPPED}":{raw}}}')[WRAPPED]
            check_numbers(raw)
        except ValueError:
            return None
        return (value,)

    @staticmethod
    def _has_key(raw: str) -> bool:
        value: object = from_json(raw)
        return isinstance(value, dict) and WRAPPED in value

    def _explained(self, raw: str, error: ValueError) -> str:
        required = self.schema.get("required", ())
        keys = [(name, name in required) for name in self.schema.get("properties", ())]
        return explain(self.title, raw, error, keys, start="The values of your answer")


def json_in(text: str, *, alone: bool = False) -> str:
    """The JSON in a text: the text itself, or the one object (or array) in it that has words or a fence around it.

    Args:
        text: What the model said.
        alone: Whether a text without brackets may be the value itself, such as `3`.

    Raises:
        MisfitError: Several stand there, one behind the other.

    Example:
        >>> json_in('Here it is:\\n```json\\n{"a": 1}\\n```')
        '{"a": 1}'
    """
    bare = text.strip()
    if not bare or (bare[0] in "{[" and _ends(bare, 0) == len(bare)):
        return bare
    found: list[str] = []
    at, end, tries = 0, len(bare), 0
    while at < end and tries < _MOST_TRIES:  # each may read all of the text
        tries += 1
        starts = [place for place in (bare.find("{", at), bare.find("[", at)) if place >= 0]
        if not starts:
            break
        start = min(starts)
        stop = _ends(bare, start)
        if stop is None:
            at = start + 1
            continue
        if bare[start] == "{" or alone:
            found.append(bare[start:stop])
        at = stop
    if len(found) > 1 and len(set(found)) > 1:
        raise MisfitError("Your answer holds several JSON values. Answer with one JSON object and nothing else.")
    return found[0] if found else bare


def _ends(text: str, start: int) -> int | None:
    """Where the JSON value that begins at a place ends; None: none does."""
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None
