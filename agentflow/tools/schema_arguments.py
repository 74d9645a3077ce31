"""Arguments that a given schema describes: a JSON schema, or a class that pydantic knows (see `external_tool`).

Rules:

1. Nothing is fetched: a reference out of the schema is refused.
2. jsonschema is loaded only for a JSON schema, when it is first used (its import takes 50 ms).
3. What is wrong is told in the words that tools with a signature use (`agentflow.tools.argument_errors`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from pydantic.errors import PydanticUserError
from pydantic_core import SchemaValidator, core_schema, from_json, to_json

from agentflow.errors import UsageError
from agentflow.ground.finite import check_numbers
from agentflow.ground.validation import adapter_of
from agentflow.tools.argument_errors import IS_MISSING, IS_UNKNOWN, ArgumentsMismatchError, shown
from agentflow.tools.schema import json_schema
from agentflow.tools.signature import Plan

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

__all__ = ["Outside", "SchemaArguments", "WithSchema"]

_OBJECT: Final = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))
_ANY: Final = core_schema.any_schema()
_NAMES: Final[Mapping[str, str]] = {
    "array": "an array",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_FORMS: Final = ("anyOf", "oneOf")


class SchemaArguments:
    """A schema, and the check that arguments fit it.

    Args:
        tool: The tool's name, for messages.
        given: A JSON schema of an object, or a class (pydantic model, dataclass, `TypedDict`).

    Attributes:
        schema: The JSON schema that the model sees: a given one as it is, completed to one of an object.

    Raises:
        UsageError: No object is described.
    """

    def __init__(self, tool: str, given: Mapping[str, Any] | type) -> None:
        self._tool = tool
        self._class: SchemaValidator | None = None
        self._checker: Validator | None = None
        if isinstance(given, Mapping):
            self.schema = _copied(tool, given)
        elif isinstance(cast("object", given), type):
            self.schema = self._of_class(given)
        else:
            raise UsageError(
                f"Tool {tool!r}: parameters= is a JSON schema (a mapping) or a pydantic model's class, not "
                f"{type(given).__name__}."
            )
        if self.schema.setdefault("type", "object") != "object":
            raise UsageError(
                f"Tool {tool!r}: the arguments of a tool are a JSON object, and its schema describes "
                f"{self.schema['type']!r}. Wrap it: {{'type': 'object', 'properties': {{...}}}}."
            )
        self.schema.setdefault("properties", {})

    def _of_class(self, given: type) -> dict[str, Any]:
        try:
            adapter = adapter_of(given)
            schema = json_schema(adapter.core_schema, {})
        except PydanticUserError as error:
            raise UsageError(
                f"Tool {self._tool!r}: pydantic finds no JSON object in {given.__name__} "
                f"({error.message.splitlines()[0]}). Pass a pydantic model's class, or a JSON schema."
            ) from error
        self._class = cast("SchemaValidator", adapter.validator)
        schema.pop("description", None)  # of the class; the tool has its own
        return schema

    def plan(self) -> Plan:
        """Everything that the model fills, nothing else."""
        if self._class is None:
            self._checker = self._prepared()
        return Plan(core=_ANY, validator=self, aliases={}, fills=(), dep_types={}, positional=())

    def validate_json(self, data: str, /) -> tuple[tuple[()], dict[str, Any]]:
        """Check arguments as the model wrote them.

        Raises:
            ValueError: They do not fit.
            UsageError: The schema has a reference that leads nowhere.
        """
        if self._class is not None:
            self._class.validate_json(data)
            return (), from_json(data)
        value: dict[str, Any] = _OBJECT.validate_json(data)
        checker = self._checker or self._prepared()
        problems: dict[str, list[str]] = {}
        for path, text in _problems(self._errors(checker, value)):
            texts = problems.setdefault(path, [])
            if text not in texts:
                texts.append(text)
        if problems:
            raise ArgumentsMismatchError(problems)
        return (), value

    def _prepared(self) -> Validator:
        import jsonschema
        import jsonschema.validators
        from referencing.jsonschema import EMPTY_REGISTRY

        kind = jsonschema.validators.validator_for(self.schema, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(self.schema)
        except jsonschema.SchemaError as error:
            where = "/".join(str(step) for step in error.absolute_path)
            raise UsageError(
                f"Tool {self._tool!r}: parameters= is no JSON schema: {error.message}{f' (at {where})' if where else ''}."
            ) from error
        return kind(self.schema, registry=EMPTY_REGISTRY)

    def _errors(self, checker: Validator, value: Any) -> Iterator[ValidationError]:
        from referencing.exceptions import Unresolvable

        try:
            yield from checker.iter_errors(value)
        except Unresolvable as error:
            ref = f"#{error.ref}" if error.ref.startswith("/") else error.ref
            raise UsageError(
                f"Tool {self._tool!r}: its schema refers to {ref!r}, which is not in it. Write the reference out: "
                "nothing is fetched."
            ) from error


class WithSchema:
    """Stands where a function would be, in a tool whose arguments a schema describes.

    Args:
        tool: The tool's name, for messages.
        parameters: A JSON schema of an object, or a class that pydantic knows.

    Attributes:
        arguments: The arguments.
    """

    def __init__(self, tool: str, parameters: Mapping[str, Any] | type) -> None:
        self.arguments = SchemaArguments(tool, parameters)

    def plan(self) -> Plan:
        """How its arguments are checked and filled in."""
        return self.arguments.plan()


class Outside(WithSchema):
    """Stands for a tool that has nothing to run."""

    async def __call__(self) -> NoReturn:
        raise UsageError("A tool that the outside answers has nothing to run.")


def _copied(tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A copy that nobody else can change, of JSON only."""
    try:
        text = to_json(given, fallback=_plain)
        check_numbers(text.decode())
        return cast("dict[str, Any]", from_json(text))
    except ValueError as error:
        why = str(error).rpartition("ValueError: ")[2]
        raise UsageError(f"Tool {tool!r}: parameters= holds what is not JSON ({why}).") from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    raise ValueError(f"{type(value).__name__} {value!r:.60}")


def _problems(errors: Iterable[ValidationError]) -> Iterator[tuple[str, str]]:
    for error in errors:
        kind = cast("str", error.validator)
        value: Any = error.instance  # pyright: ignore[reportUnknownMemberType] - whatever was sent
        rule: Any = error.validator_value
        path = _path(error.absolute_path)
        if kind == "required":
            yield from ((_under(path, name), IS_MISSING) for name in rule if name not in value)
        elif kind in ("additionalProperties", "unevaluatedProperties") and rule is False:
            yield from ((_under(path, name), IS_UNKNOWN) for name in _unknown(error, value))
        elif kind == "type":
            yield path or "arguments", f"should be {_one_of(rule)}; got {shown(value)}"
        elif kind in ("enum", "const"):
            legal = rule if kind == "enum" else [rule]
            yield path or "arguments", f"should be {' or '.join(shown(one) for one in legal)}; got {shown(value)}"
        elif kind in _FORMS and error.context:
            yield from _no_form(error, path, value)
        else:
            yield path or "arguments", error.message.replace(repr(value), shown(value), 1)


def _no_form(error: ValidationError, path: str, value: object) -> Iterator[tuple[str, str]]:
    """Of several forms, tell about those that the value was meant to have: the ones whose type it is of."""
    forms: dict[object, list[ValidationError]] = {}
    for inner in error.context or ():
        forms.setdefault(inner.relative_schema_path[0], []).append(inner)
    meant = [
        errors
        for errors in forms.values()
        if not any(e.validator in ("type", "const", "enum") and not e.relative_path for e in errors)
    ]
    if len(meant) == 1:
        yield from _problems(meant[0])
        return
    every = [e for errors in forms.values() for e in errors]
    if not meant and all(e.validator == "type" for e in every):
        kinds = dict.fromkeys(_one_of(cast("Any", e.validator_value)) for e in every)
        yield path or "arguments", f"should be {' or '.join(kinds)}; got {shown(value)}"
    else:
        yield path or "arguments", f"fits none of the forms that it may have; got {shown(value)}"


def _unknown(error: ValidationError, value: Mapping[str, Any]) -> list[str]:
    schema: Any = error.schema
    known: Mapping[str, Any] = schema.get("properties", {})
    patterns: Iterable[str] = schema.get("patternProperties", ())
    return [
        name for name in value if name not in known and not any(re.search(pattern, name) for pattern in patterns)
    ] or list(value)


def _one_of(kinds: str | list[str]) -> str:
    return " or ".join(_NAMES.get(kind, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _path(steps: Iterable[str | int]) -> str:
    path = ""
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else _under(path, step)
    return path


def _under(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
