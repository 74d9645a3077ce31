"""Arguments that a given schema describes: a JSON schema, or a class that pydantic knows (see `external_tool`).

Rules:

1. A JSON schema is compiled when the tool is created, within limits (`agentflow._support.json_schema`), because the
   schema can come from a server or a file. Nothing is fetched: references to other documents are refused.
2. Errors have the same wording as those of tools with a signature (`agentflow.tools.argument_errors`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from pydantic.errors import PydanticUserError
from pydantic_core import SchemaValidator, core_schema, from_json, to_json

from agentflow._support.json_text import check_numbers
from agentflow._support.lazy import later
from agentflow._support.validation import adapter_of
from agentflow.errors import UsageError
from agentflow.tools.argument_errors import IS_MISSING, IS_UNKNOWN, ArgumentsMismatchError, shown
from agentflow.tools.schema import json_schema
from agentflow.tools.signature import ArgumentPlan

if TYPE_CHECKING:
    from agentflow._support import json_schema as schemas
    from agentflow._support.json_schema import JsonSchema, Problem
else:
    schemas = later("agentflow._support.json_schema")

_OBJECT: Final = SchemaValidator(core_schema.dict_schema(core_schema.str_schema()))
_ANY: Final = core_schema.any_schema()
_MAX_BYTES: Final = 512 * 1024
"""The maximum size of a schema, in bytes."""
_MAX_EXPLAINED: Final = 20
"""The maximum number of explained problems, since each explanation shows a value, which can be large."""
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
_KINDS: Final = ("type", "const", "enum")
_MESSAGES: Final[Mapping[str, str]] = {
    "": "is not allowed; got {value}",
    "contains": "should hold at least {rule} items that match the schema; got {value}",
    "exclusiveMaximum": "{value} is greater than or equal to the maximum of {rule}",
    "exclusiveMinimum": "{value} is less than or equal to the minimum of {rule}",
    "maxContains": "should hold at most {rule} items that match the schema; got {value}",
    "maxItems": "should have at most {rule} items; got {value}",
    "maxLength": "should have at most {rule} characters; got {value}",
    "maxProperties": "should have at most {rule} keys; got {value}",
    "maximum": "{value} is greater than the maximum of {rule}",
    "minItems": "should have at least {rule} items; got {value}",
    "minLength": "should have at least {rule} characters; got {value}",
    "minProperties": "should have at least {rule} keys; got {value}",
    "minimum": "{value} is less than the minimum of {rule}",
    "multipleOf": "{value} is not a multiple of {rule}",
    "not": "has a form that is not allowed; got {value}",
    "pattern": "should match the pattern {rule}; got {value}",
    "propertyNames": "is not an allowed key",
    "uniqueItems": "should have no item twice; got {value}",
}


class SchemaArguments:
    """A schema, and the validation of arguments against it.

    Args:
        tool: The tool's name, for messages.
        schema: A JSON schema of an object, or a class (pydantic model, dataclass, `TypedDict`).

    Attributes:
        schema: The JSON schema that the model sees. A given JSON schema is unchanged, except that it is completed to an
            object.
        cost: The schema's size, in the units of `agentflow._support.json_compiler.MAX_COST`; 0 for a class.

    Raises:
        UsageError: The schema does not describe an object, is invalid or too large, or refers to another document.
    """

    def __init__(self, tool: str, schema: Mapping[str, Any] | type) -> None:
        self._tool = tool
        self._class: SchemaValidator | None = None
        self._compiled: JsonSchema | None = None
        if isinstance(schema, Mapping):
            self.schema = _json_copy(tool, schema)
        elif isinstance(cast("object", schema), type):
            self.schema = self._of_class(schema)
        else:
            raise UsageError(
                f"Tool {tool!r}: parameters= takes a JSON schema (a mapping) or a pydantic model's class, not "
                f"{type(schema).__name__}."
            )
        if self.schema.setdefault("type", "object") != "object":
            raise UsageError(
                f"Tool {tool!r}: the arguments of a tool are a JSON object, and its schema describes "
                f"{self.schema['type']!r:.60}. Wrap it: {{'type': 'object', 'properties': {{...}}}}."
            )
        self.schema.setdefault("properties", {})
        if self._class is None:
            try:
                self._compiled = schemas.JsonSchema(self.schema)
            except schemas.JsonSchemaError as error:
                raise UsageError(f"Tool {tool!r}: its JSON schema cannot be used: {error}.") from error
        self.cost = 0 if self._compiled is None else self._compiled.cost

    def _of_class(self, cls: type) -> dict[str, Any]:
        try:
            adapter = adapter_of(cls)
            schema = json_schema(adapter.core_schema, {})
        except PydanticUserError as error:
            raise UsageError(
                f"Tool {self._tool!r}: pydantic finds no JSON object in {cls.__name__} "
                f"({error.message.splitlines()[0]}). Pass a pydantic model's class, or a JSON schema."
            ) from error
        self._class = cast("SchemaValidator", adapter.validator)
        schema.pop("description", None)  # the class's description is not needed, since the tool has one
        return schema

    def plan(self) -> ArgumentPlan:
        """Return the plan, in which the model fills all parameters."""
        return ArgumentPlan(core=_ANY, schema=None, validator=self, aliases={}, fills=(), dep_types={}, positional=())

    def validate_json(self, data: str, /) -> tuple[tuple[()], dict[str, Any]]:
        """Validate arguments as the model wrote them.

        Raises:
            ValueError: The arguments do not fit, or the check takes too long.
        """
        if self._compiled is None:
            # Used only as a check: the function, or the code that answers an external call, takes plain data.
            cast("SchemaValidator", self._class).validate_json(data)
            return (), from_json(data)
        value: dict[str, Any] = _OBJECT.validate_json(data)
        found = self._compiled.problems(value)
        if found:
            raise ArgumentsMismatchError(explain_problems(found))
        return (), value


class WithSchema:
    """Replaces the function of a tool whose arguments a schema describes.

    Args:
        tool: The tool's name, for messages.
        parameters: A JSON schema of an object, or a class that pydantic knows.

    Attributes:
        arguments: The arguments.
    """

    def __init__(self, tool: str, parameters: Mapping[str, Any] | type) -> None:
        self.arguments = SchemaArguments(tool, parameters)

    def plan(self) -> ArgumentPlan:
        """Return the plan for validating the tool's arguments and filling them in."""
        return self.arguments.plan()


class Outside(WithSchema):
    """Replaces the function of a tool that never runs."""

    async def __call__(self) -> NoReturn:
        raise UsageError("An external tool has no function to run; its calls are answered from outside.")


def _json_copy(tool: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a private copy that contains only JSON."""
    try:
        text = to_json(schema, fallback=_plain)
        if len(text) > _MAX_BYTES:
            raise UsageError(f"Tool {tool!r}: its JSON schema has {len(text)} bytes; the maximum is {_MAX_BYTES}.")
        check_numbers(text.decode())
        return cast("dict[str, Any]", from_json(text))
    except (ValueError, RecursionError) as error:
        reason = str(error).rpartition("ValueError: ")[2]  # pydantic puts its own text before that of `_plain`
        raise UsageError(
            f"Tool {tool!r}: parameters= contains a value that is not JSON ({reason}). Use only values that "
            "json.dumps accepts."
        ) from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    raise ValueError(f"{type(value).__name__} {value!r:.60}")


def explain_problems(found: Iterable[Problem]) -> dict[str, list[str]]:
    """Return the messages about problems, by the path of the value."""
    problems: dict[str, list[str]] = {}
    for count, (path, text) in enumerate(_messages(found)):
        texts = problems.setdefault(path, [])
        # Later problems are reported by path only, without their values.
        if count < _MAX_EXPLAINED:
            text = text()
            if text not in texts:
                texts.append(text)
        elif not texts:
            texts.append("does not fit")
    return problems


def _messages(found: Iterable[Problem]) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield paths, and functions that build the messages."""
    for problem in found:
        if problem.keyword in _FORMS and problem.forms:
            yield from _no_form(problem)
        else:
            yield _path(problem.path) or "arguments", partial(_message, problem)


def _message(problem: Problem) -> str:
    match problem.keyword:
        case "required":
            return IS_MISSING
        case "additionalProperties" | "unevaluatedProperties":
            return IS_UNKNOWN
        case "type":
            return f"should be {_one_of(problem.rule)}; got {shown(problem.value)}"
        case "enum":
            legal = [*map(shown, problem.rule[:_MAX_EXPLAINED]), *["…"] * (len(problem.rule) > _MAX_EXPLAINED)]
            return f"should be {' or '.join(legal)}; got {shown(problem.value)}"
        case "const":
            return f"should be {shown(problem.rule)}; got {shown(problem.value)}"
        case "oneOf":
            return f"fits several forms, but should fit exactly one; got {shown(problem.value)}"
        case keyword:
            return _MESSAGES[keyword].format(rule=shown(problem.rule), value=shown(problem.value))


def _no_form(problem: Problem) -> Iterator[tuple[str, Callable[[], str]]]:
    """Explain only the forms that match the value's type, since the model probably meant one of these."""
    forms = problem.forms
    # Paths are shared objects, so `is` finds the problems with the value itself rather than with a part of it.
    meant = [found for found in forms if not any(e.keyword in _KINDS and e.at is problem.at for e in found)]
    if len(meant) == 1:
        yield from _messages(meant[0])
        return
    path = _path(problem.path) or "arguments"
    every = [e for found in forms for e in found]
    if not meant and all(e.keyword == "type" for e in every):
        kinds = dict.fromkeys(_one_of(e.rule) for e in every)
        yield path, lambda: f"should be {' or '.join(kinds)}; got {shown(problem.value)}"
    else:
        yield path, lambda: f"fits none of the allowed forms; got {shown(problem.value)}"


def _one_of(kinds: str | list[str]) -> str:
    return " or ".join(_NAMES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _path(steps: Iterable[str | int]) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
